"""Remove states of a Loop that are none.

Exporters of frameworks with their own `while` (TensorFlow, Paddle) hand everything that a body uses to it as a state,
weights too. A state that each iteration returns as it got it is the value the loop began with; keeping such a state for
the backward pass would store a copy of it for each iteration. And a state that nobody reads can go.
"""

from __future__ import annotations

import onnx_ir as ir


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
