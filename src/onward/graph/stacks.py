"""Replace sequences of unknown length by one tensor, of which the elements are slices.

Such are the parts of SplitToSequence, and the list that a Loop appends to: torch writes `for` over a tensor, `append`
and `stack` that way, and the function body of SequenceMap does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.sequences import constant, insert
from onward.graph.shapes import dims, is_placeholder


@dataclass(frozen=True)
class Stack:
    """The sequence of the slices of a tensor along an axis, which they keep as an axis of size 1 or not."""

    tensor: ir.Value
    axis: int
    kept: bool


def resolve_stacks(model: ir.Model) -> bool:
    """Replace what reads such sequences, in the main graph and in bodies, in place; whether anything changed."""
    main, changed = model.graph, False
    for graph in (main, *main.subgraphs()):
        for node in list(graph):
            if node.domain == "" and node.op_type == "SplitToSequence":
                changed |= _read_slices(node, main)
            elif node.domain == "" and node.op_type == "Loop":
                changed |= _append_to_tensors(node, main)
    return changed


def _read_slices(node: ir.Node, main: ir.Graph) -> bool:
    x, split = node.inputs[0], input_at(node, 1)
    sizes = constant_of(split)
    if x is None or x.shape is None or not (split is None or (sizes is not None and sizes.ndim == 0 and sizes == 1)):
        return False
    kept = split is not None or bool(attribute(node, "keepdims", 1))
    stack = Stack(x, attribute(node, "axis", 0) % len(x.shape), kept)
    changed = False
    for reader in list(node.outputs[0].consumers()):
        if _can_read(reader, stack):
            _read(reader, stack, main)
            changed = True
    return changed


def _append_to_tensors(node: ir.Node, main: ir.Graph) -> bool:
    """A list that starts empty and gets one element in each iteration is a scan output."""
    for index in range(len(node.inputs) - 2):
        element, sequence = _appended(node, index), node.outputs[index]
        if element is None or sequence.is_graph_output():
            continue
        shape = None if element.shape is None else ir.Shape([None, *element.shape])
        stack = Stack(ir.Value(name=f"{sequence.name}/stacked", type=element.type, shape=shape), 0, kept=False)
        readers = list(sequence.consumers())
        alike = _is_fixed(element) or any(attribute(reader, "new_axis", 0) for reader in readers)
        if alike and all(_can_read(reader, stack) for reader in readers):
            _make_scan_output(node, index, element, stack.tensor)
            for reader in readers:
                _read(reader, stack, main)
            assert node.graph is not None
            node.graph.remove(node, safe=True)
            return True
    return False


def _appended(node: ir.Node, index: int) -> ir.Value | None:
    """The element that a Loop appends to the sequence which is its state number `index`, if that is all it does."""
    body = node.attributes["body"].as_graph()
    initial, state, result = node.inputs[2 + index], body.inputs[2 + index], body.outputs[1 + index]
    start, step = (None if value is None else value.producer() for value in (initial, result))
    if start is None or step is None or start.op_type != "SequenceEmpty" or step.op_type != "SequenceInsert":
        return None
    alone = len(state.uses()) == 1 and not state.is_graph_output() and not result.uses()
    return step.inputs[1] if alone and step.inputs[0] is state and input_at(step, 2) is None else None


def _is_fixed(element: ir.Value) -> bool:
    """Whether each element has the same shape: sizes that are numbers or have a name, which stands for one number."""
    known = dims(element)
    return known is not None and all(dim is not None and not is_placeholder(dim) for dim in known)


def _make_scan_output(node: ir.Node, index: int, element: ir.Value, stacked: ir.Value) -> None:
    """Put a Loop without state number `index`, whose last output is every `element`, in the place of `node`."""
    graph, body = node.graph, node.attributes["body"].as_graph()
    step = body.outputs[1 + index].producer()
    assert isinstance(graph, ir.Graph)
    assert step is not None
    copy = ir.node("Identity", [element], name=f"{stacked.name}/element")
    copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = copy.name, element.type, element.shape
    body.append(copy)
    del body.outputs[1 + index]
    body.remove(step, safe=True)
    del body.inputs[2 + index]
    body.outputs.append(copy.outputs[0])
    kept = [output for place, output in enumerate(node.outputs) if place != index]
    outputs = [ir.Value(name=output.name, type=output.type, shape=output.shape) for output in kept]
    inputs = [*node.inputs[: 2 + index], *node.inputs[3 + index :]]
    loop = ir.Node("", "Loop", inputs, node.attributes.values(), outputs=[*outputs, stacked], name=node.name)
    graph.insert_before(node, loop)
    for before, after in zip(kept, outputs, strict=True):
        before.replace_all_uses_with(after, replace_graph_outputs=True)


def _can_read(node: ir.Node, stack: Stack) -> bool:
    if node.domain != "" or node.op_type not in ("SequenceAt", "SequenceLength", "ConcatFromSequence"):
        return False
    if node.op_type != "ConcatFromSequence":
        return True
    if stack.tensor.shape is None:
        return False
    if attribute(node, "new_axis", 0):
        return not stack.kept
    if stack.kept:
        return _joining_axis(node, stack) == stack.axis
    return all(isinstance(dim, int) for axis, dim in enumerate(stack.tensor.shape) if axis != stack.axis)


def _joining_axis(node: ir.Node, stack: Stack) -> int:
    """The axis of its result along which ConcatFromSequence joins, counted from the start."""
    assert stack.tensor.shape is not None
    dropped = not stack.kept and not attribute(node, "new_axis", 0)
    return attribute(node, "axis", 0) % (len(stack.tensor.shape) - dropped)


def _read(node: ir.Node, stack: Stack, main: ir.Graph) -> None:
    """Replace a node that reads a sequence."""
    x, name = stack.tensor, node.outputs[0].name or ""
    if node.op_type == "SequenceAt":
        position = node.inputs[1]
        assert position is not None
        if stack.kept:
            position = insert(
                node, "Reshape", [position, constant(f"{name}/one", np.array([1]), main)], f"{name}/place"
            )
        result = insert(node, "Gather", [x, position], f"{name}/slice", axis=stack.axis)
    elif node.op_type == "SequenceLength":
        place = constant(f"{name}/axis", np.array(stack.axis), main)
        result = insert(node, "Gather", [insert(node, "Shape", [x], f"{name}/shape"), place], f"{name}/size")
    else:
        result = _joined(node, stack, main)
    old, graph = node.outputs[0], node.graph
    assert graph is not None
    result.type, result.shape = old.type, old.shape
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    result.name = name


def _joined(node: ir.Node, stack: Stack, main: ir.Graph) -> ir.Value:
    """What ConcatFromSequence makes: the tensor itself, with the axis of the elements where it belongs."""
    x, name, axis = stack.tensor, node.outputs[0].name or "", _joining_axis(node, stack)
    assert x.shape is not None
    order = [other for other in range(len(x.shape)) if other != stack.axis]
    sizes = [x.shape[other] for other in order]
    order.insert(axis, stack.axis)
    moved = insert(node, "Transpose", [x], f"{name}/moved", perm=order)
    if stack.kept or attribute(node, "new_axis", 0):
        return moved
    target = [-1 if other == axis else size for other, size in enumerate(sizes)]
    shape = constant(f"{name}/shape", np.array(target), main)
    return insert(node, "Reshape", [moved, shape], f"{name}/joined")
