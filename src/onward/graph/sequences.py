"""Replace sequences of known length by the tensors in them: exporters write chunk, split and stack with sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.nodes import all_values, attribute, constant_of, input_at
from onward.graph.shapes import dims

_MOST_PARTS = 4096  # that a sequence is written out into

Contents = dict[ir.Value, list[ir.Value]]


def resolve_sequences(model: ir.Model) -> bool:
    """Turn SplitToSequence into Split, ConcatFromSequence into Concat and SequenceAt into the element, in place.

    Whether anything changed. Sequences that are inputs, outputs or carried through loops stay as they are.
    """
    graph, opset = model.graph, model.opset_imports.get("", 1)
    before, constants = set(graph), set(graph.initializers)
    contents: Contents = {}
    changed = False
    for node in list(graph):
        if node.domain != "" or any(map(_is_returned_sequence, node.outputs)):
            continue
        if node.op_type == "SequenceMap" and _unroll(node, contents, graph):
            changed = True
            continue
        elements = _elements(node, contents, graph, opset)
        if elements is not None:
            contents[node.outputs[0]] = elements
            continue
        result = _result(node, contents, graph)
        if result is not None:
            _replace(node, result, graph)
            changed = True
    for sequence in reversed(contents):
        producer = sequence.producer()
        if producer is not None and not sequence.uses():
            graph.remove(producer, safe=True)
    # Parts that nobody takes by a position known now.
    for node in reversed(graph):
        if node not in before and not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)
    for name in graph.initializers.keys() - constants:
        if not graph.initializers[name].uses():
            graph.initializers.pop(name)
    return changed


def _is_returned_sequence(output: ir.Value) -> bool:
    return output.is_graph_output() and isinstance(output.type, ir.SequenceType)


def _replace(node: ir.Node, result: ir.Value, graph: ir.Graph) -> None:
    """Use a tensor in place of the output of a node, which keeps its name where the graph returns it."""
    output = node.outputs[0]
    if output.is_graph_output():
        name, output.name = output.name or "", None
        result = insert(node, "Identity", [result], name)
        result.type, result.shape = output.type, output.shape
    output.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _elements(node: ir.Node, contents: Contents, graph: ir.Graph, opset: int) -> list[ir.Value] | None:
    """What is in the sequence that a node makes, None where that is not known or it makes none."""
    if node.op_type == "SequenceEmpty":
        return []
    if node.op_type == "SequenceConstruct":
        return [x for x in node.inputs if x is not None]
    if node.op_type == "SplitToSequence":
        return _parts(node, graph, opset)
    if node.op_type not in ("Identity", "SequenceInsert", "SequenceErase") or node.inputs[0] not in contents:
        return None
    elements = list(contents[node.inputs[0]])
    if node.op_type == "SequenceInsert":
        position = _position(input_at(node, 2), len(elements))
        if position is None or node.inputs[1] is None:
            return None
        elements.insert(position, node.inputs[1])
    elif node.op_type == "SequenceErase":
        position = _position(input_at(node, 1), len(elements) - 1)
        if position is None:
            return None
        del elements[position]
    return elements


def _unroll(node: ir.Node, contents: Contents, graph: ir.Graph) -> bool:
    """Replace a SequenceMap by its body, once for each element of its sequences."""
    sequences = [x for x in node.inputs if x is not None and isinstance(x.type, ir.SequenceType)]
    if not all(contents.get(sequence) for sequence in sequences):
        return False
    results: list[list[ir.Value]] = [[] for _ in node.outputs]
    for index in range(len(contents[sequences[0]])):
        body = node.attributes["body"].as_graph().clone(allow_outer_scope_values=True)
        prefix = f"{node.outputs[0].name}/{index}"
        for value in all_values(body):
            value.name = f"{prefix}/{value.name}"
        for inner in body.all_nodes():
            inner.name = f"{prefix}/{inner.name or inner.op_type}"
        for given, x in zip(body.inputs, node.inputs, strict=True):
            assert x is not None
            given.replace_all_uses_with(contents[x][index] if x in contents else x, replace_graph_outputs=True)
        for result, output in zip(results, body.outputs, strict=True):
            result.append(output)
        body.outputs.clear()
        nodes = list(body)
        body.remove(nodes)
        graph.insert_before(node, nodes)
    for output, elements in zip(node.outputs, results, strict=True):
        sequence = insert(node, "SequenceConstruct", elements, f"{output.name}/elements")
        sequence.type = output.type
        output.replace_all_uses_with(sequence)
        contents[sequence] = elements
    graph.remove(node, safe=True)
    return True


def _result(node: ir.Node, contents: Contents, graph: ir.Graph) -> ir.Value | None:
    """The tensor that a node takes out of a sequence."""
    sequence = input_at(node, 0)
    if sequence not in contents:
        return None
    elements = contents[sequence]
    if node.op_type == "SequenceAt":
        position = _position(node.inputs[1], len(elements))
        return None if position is None else elements[position]
    if node.op_type != "ConcatFromSequence" or not elements:
        return None
    axis = attribute(node, "axis", 0)
    if attribute(node, "new_axis", 0):
        elements = [_unsqueezed(node, index, x, axis, graph) for index, x in enumerate(elements)]
    return _emit(graph, node, "Concat", elements, [f"{node.outputs[0].name}/joined"], axis=axis)[0]


def _parts(node: ir.Node, graph: ir.Graph, opset: int) -> list[ir.Value] | None:
    """The outputs of a Split with the sizes of a SplitToSequence."""
    x, name = node.inputs[0], node.outputs[0].name
    if x is None or opset < 13:
        return None
    axis = attribute(node, "axis", 0)
    known = dims(x)
    size = None if known is None else known[axis]
    split = input_at(node, 1)
    sizes = constant_of(split)
    if split is None or (sizes is not None and sizes.ndim == 0):
        if not isinstance(size, int):
            return None
        step = 1 if sizes is None else int(sizes)
        if step < 1 or size > _MOST_PARTS * step:
            return None
        sizes = np.array([min(step, size - start) for start in range(0, size, step)], np.int64)
    if sizes is not None:
        count, lengths = len(sizes), constant(f"{name}/sizes", sizes, graph)
    else:  # computed, but it may be known how many
        shape = None if split is None else dims(split)
        if split is None or shape is None or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] > _MOST_PARTS:
            return None
        count, lengths = shape[0], split
    parts = _emit(graph, node, "Split", [x, lengths], [f"{name}/{index}" for index in range(count)], axis=axis)
    if split is None and not attribute(node, "keepdims", 1):
        axes = constant(f"{name}/axes", np.array([axis]), graph)
        return [_emit(graph, node, "Squeeze", [part, axes], [f"{part.name}/squeezed"])[0] for part in parts]
    return parts


def _unsqueezed(node: ir.Node, index: int, x: ir.Value, axis: int, graph: ir.Graph) -> ir.Value:
    name = f"{node.outputs[0].name}/{index}"
    return _emit(graph, node, "Unsqueeze", [x, constant(f"{name}/axes", np.array([axis]), graph)], [name])[0]


def _position(value: ir.Value | None, default: int) -> int | None:
    if value is None:
        return default
    known = constant_of(value)
    return None if known is None else int(known)


def insert(place: ir.Node, op_type: str, inputs: list[ir.Value], name: str, **attributes: Any) -> ir.Value:
    """The output of a new node just before `place`."""
    graph = place.graph
    assert isinstance(graph, ir.Graph)
    return _emit(graph, place, op_type, inputs, [name], **attributes)[0]


def _emit(
    graph: ir.Graph, place: ir.Node, op_type: str, inputs: list[ir.Value], names: list[str], **attributes: Any
) -> list[ir.Value]:
    """A node just before `place`; `names` are those of its outputs."""
    node = ir.node(op_type, inputs, attributes, num_outputs=len(names), name=names[0])
    for output, name in zip(node.outputs, names, strict=True):
        output.name = name
    graph.insert_before(place, node)
    return list(node.outputs)


def constant(name: str, array: np.ndarray, graph: ir.Graph) -> ir.Value:
    """Integers as an initializer of the main graph."""
    constant = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape(array.shape),
        const_value=ir.tensor(array.astype(np.int64), name=name),
    )
    graph.register_initializer(constant)
    return constant
