"""What is special about states of a Loop: some are none, and some grow.

Exporters of frameworks with their own `while` (TensorFlow, Paddle) hand everything that a body uses to it as a state,
weights too. A state that each iteration returns as it got it is the value the loop began with; keeping such a state for
the backward pass would store a copy of it for each iteration. And a state that nobody reads can go.

A state that grows (the keys and values of a decoder, to which each iteration appends) has another shape in each
iteration, whatever the file says of its sizes.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.nodes import subgraphs, used_values
from onward.graph.shapes import Dim, dims, is_placeholder

# Operators whose result may have other sizes than what it is computed from, or sizes that data decide.
_RESIZING = frozenset(
    """CenterCropPad Compress Concat ConcatFromSequence ConstantOfShape Conv ConvTranspose Expand Gather GatherND
    NonZero Pad Range Resize Slice Split Tile TopK Unique Upsample""".split()
)


def grows(node: ir.Node, index: int) -> bool:
    """Whether a state of a Loop may have another shape in each iteration."""
    body = node.attributes["body"].as_graph()
    before, after = dims(body.inputs[2 + index]), dims(body.outputs[1 + index])
    if before is None or after is None or len(before) != len(after):
        return _is_resized(body, body.outputs[1 + index])
    if all(_is_the_same(a, b) for a, b in zip(before, after, strict=True)):
        return False
    return _is_resized(body, body.outputs[1 + index])


def _is_the_same(before: Dim, after: Dim) -> bool:
    return before is not None and before == after and not is_placeholder(before)


def _is_resized(body: ir.Graph, output: ir.Value) -> bool:
    """Whether an operator that resizes is between what changes from one iteration to the next and `output`."""
    changing = set(body.inputs)
    for node in body:
        if any(x in changing for x in used_values(node)):
            changing.update(node.outputs)
    waiting, seen = [output], {output}
    while waiting:
        producer = waiting.pop().producer()
        if producer is None or producer.graph is not body:
            continue
        used = set(used_values(producer))
        inside = (node for graph in subgraphs(producer) for node in graph.all_nodes())
        if used & changing and any(node.op_type in _RESIZING for node in (producer, *inside)):
            return True
        waiting.extend(used - seen)
        seen |= used
    return False


def forget_returned_sizes(model: ir.Model) -> None:
    """Forget what the file says of the sizes that bodies of loops return, in place: inference shows which are kept."""
    for node in model.graph.all_nodes():
        if node.op_type == "Loop" and node.domain == "":
            body = node.attributes["body"].as_graph()
            for output in body.outputs[1 : len(body.inputs) - 1]:
                producer = output.producer()
                if output.shape is not None and producer is not None and producer.domain == "":
                    output.shape = ir.Shape([None] * len(output.shape))


def forget_growing_sizes(model: ir.Model) -> bool:
    """Forget the sizes of states that their loop does not keep, in place; whether there were any.

    A name stands for one size, and such a state has many; a number would be wrong in all iterations but one.
    """
    changed = False
    for node in model.graph.all_nodes():
        if node.op_type != "Loop" or node.domain != "":
            continue
        body = node.attributes["body"].as_graph()
        for index in range(len(body.inputs) - 2):
            state, after = body.inputs[2 + index], dims(body.outputs[1 + index])
            before = dims(state)
            if before is None or not grows(node, index):
                continue
            kept = after if after is not None and len(after) == len(before) else (None,) * len(before)
            sizes = [a if _is_the_same(a, b) else None for a, b in zip(before, kept, strict=True)]
            if tuple(sizes) != before:
                state.shape, changed = ir.Shape(sizes), True
    return changed


def remove_idle_states(model: ir.Model) -> bool:
    """Let bodies capture the states that never change, drop those that nobody reads; whether there were any."""
    changed = False
    for graph in (model.graph, *model.graph.subgraphs()):
        for node in list(graph):
            if node.op_type == "Loop" and node.domain == "":
                changed |= _remove_idle(node, graph)
    return changed


def _remove_idle(node: ir.Node, graph: ir.Graph) -> bool:
    body = node.attributes["body"].as_graph()
    idle = []
    for index in range(len(node.inputs) - 2):
        initial, state, output = node.inputs[2 + index], body.inputs[2 + index], node.outputs[index]
        if initial is None:
            continue
        if _origin(body.outputs[1 + index]) is state and not output.is_graph_output():
            _replace_everywhere(state, initial, body)
            output.replace_all_uses_with(initial)
            idle.append(index)
        elif not (state.uses() or _is_returned(state, body, index) or output.uses() or output.is_graph_output()):
            idle.append(index)
    if idle:
        _replace_node(node, graph, set(idle))
    return bool(idle)


def _origin(value: ir.Value) -> ir.Value | None:
    """What a value is a copy of."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.domain == "":
        copied = producer.inputs[0]
        if copied is None:
            return value
        value, producer = copied, copied.producer()
    return value


def _is_returned(state: ir.Value, body: ir.Graph, index: int) -> bool:
    return any(output is state for place, output in enumerate(body.outputs) if place != 1 + index)


def _replace_everywhere(state: ir.Value, initial: ir.Value, body: ir.Graph) -> None:
    # What a body returns must be the result of one of its nodes.
    for index in [index for index, output in enumerate(body.outputs) if output is state]:
        copy = ir.node("Identity", [initial], name=f"{state.name}/copy_{index}")
        copy.outputs[0].name, copy.outputs[0].type, copy.outputs[0].shape = copy.name, initial.type, initial.shape
        body.append(copy)
        body.outputs[index] = copy.outputs[0]
    state.replace_all_uses_with(initial)


def _replace_node(node: ir.Node, graph: ir.Graph, idle: set[int]) -> None:
    """Put a Loop without the states `idle` in the place of `node`."""
    body = node.attributes["body"].as_graph()
    for index in sorted(idle, reverse=True):
        del body.outputs[1 + index]
        del body.inputs[2 + index]
    inputs = [x for place, x in enumerate(node.inputs) if place - 2 not in idle]
    kept = [output for place, output in enumerate(node.outputs) if place not in idle]
    outputs = [ir.Value(name=output.name, type=output.type, shape=output.shape) for output in kept]
    loop = ir.Node("", "Loop", inputs, node.attributes.values(), outputs=outputs, name=node.name)
    graph.insert_before(node, loop)
    for before, after in zip(kept, outputs, strict=True):
        before.replace_all_uses_with(after, replace_graph_outputs=True)
    graph.remove(node, safe=True)
