"""If, Loop and Scan: the backward node runs the forward body again and differentiates it inside its own body.

Bodies see outer values; those that a body captures get a cotangent like ordinary inputs do. A loop keeps the states
with which each iteration began (as additional scan outputs of the forward node) and walks them backwards; states that
grow cannot be stacked, and are kept in a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.sweep import backpropagate
from onward.graph.builder import Builder
from onward.graph.iteration import SINCE
from onward.graph.loops import grows
from onward.graph.nodes import all_values, attribute, captured_values, take_over
from onward.graph.opsets import NeedsOpsetError
from onward.graph.sequences import insert
from onward.graph.shapes import is_floating

Cotangents = dict[ir.Value, ir.Value | None]


@vjp("If")
def if_(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
    """Each branch yields a cotangent for everything that either branch captures, zeros for what it does not use."""
    captured = [value for value in captured_values(node) if is_floating(value) and op.carries(value)]
    branches = {}
    for name in ("then_branch", "else_branch"):
        body = _copy(op, node.attributes[name].as_graph())
        inner = op.subgraph(body)
        _set_outputs(inner, body, _cotangents(inner, body, _seeds(inner, body.outputs, dys), captured))
        branches[name] = body
    outputs = _emit(op, "If", [node.inputs[0]], captured, **branches)
    return dict(zip(captured, outputs, strict=True))


@vjp("Loop")
def loop(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
    """Iterations run backwards: t = T - 1, ..., 0."""
    captured = [value for value in captured_values(node) if is_floating(value) and op.carries(value)]
    body = node.attributes["body"].as_graph()
    count = len(body.inputs) - 2
    read = [index for index in range(count) if _is_read(body.inputs[2 + index], body)]
    growing = [index for index in read if grows(node, index)]
    steady = [index for index in read if index not in growing]
    read = [*steady, *growing]
    copy = _copy(op, body)
    if growing:
        node = _with_histories(op, node, growing)
    # The iteration number is recorded too: how many there are is the number of iterations that really ran.
    records = _record(op, node, [body.inputs[0], *(body.inputs[2 + index] for index in steady)])
    histories = node.outputs[count : count + len(growing)]
    iterations = op.Gather(op.Shape(records[0]), 0, axis=0)

    inner = op.subgraph(copy)
    iteration = _new_input(op, copy, "iteration", ir.DataType.INT64, ir.Shape([]))
    condition = _new_input(op, copy, "condition", ir.DataType.BOOL, ir.Shape([]))
    old_inputs = [copy.inputs[0], copy.inputs[1], *(copy.inputs[2 + index] for index in read)]
    t = inner.Sub(inner.Sub(iterations, 1), iteration)
    begin = [inner.Gather(record, t, axis=0) for record in records]
    begin += [inner.SequenceAt(history, t) for history in histories]
    states = dict(zip(read, begin[1:], strict=True))
    # A body may declare its condition as a vector of one element.
    old_condition = condition if not copy.inputs[1].shape else inner.Unsqueeze(condition, [0])
    _replace(old_inputs, [begin[0], old_condition, *begin[1:]])
    copy.inputs[:] = [iteration, condition]

    floating = [index for index in read if is_floating(body.inputs[2 + index])]
    moving = [states[index] for index in floating]
    carried = [_new_input_like(op, copy, f"d_{body.inputs[2 + i].name}", body.inputs[2 + i]) for i in floating]
    sums = [_new_input_like(op, copy, f"sum_{value.name}", value) for value in captured]
    seeds = _seeds(inner, [copy.outputs[1 + index] for index in floating], carried)
    written = [i for i in range(count) if i not in read and dys[i] is not None and is_floating(body.inputs[2 + i])]
    for index in written:
        # What no iteration reads is the loop's result in the last one only, which comes first now.
        dy = inner.Where(inner.Equal(iteration, 0), dys[index], 0)
        _add_seed(inner, seeds, copy.outputs[1 + index], dy)
    for output, dy in zip(copy.outputs[1 + count :], dys[count:], strict=False):
        if dy is not None:
            _add_seed(inner, seeds, output, inner.Gather(dy, t, axis=0))
    cotangents = _cotangents(inner, copy, seeds, [*moving, *captured])
    totals = [inner.Add(total, step) for total, step in zip(sums, cotangents[len(moving) :], strict=True)]
    _set_outputs(inner, copy, [condition, *cotangents[: len(moving)], *totals])
    copy.sort()

    initial = [_cotangent_or_zeros(op, node.outputs[index], dys[index]) for index in floating]
    zeros = [op.zeros_like(value) for value in captured]
    like = [*(body.inputs[2 + index] for index in floating), *captured]
    outputs = _emit(op, "Loop", [iterations, op.constant(True), *initial, *zeros], like, body=copy)
    inputs = [node.inputs[2 + index] for index in floating]
    unread = [(node.inputs[2 + index], dys[index]) for index in written]
    kept = [(x, _if_nothing_ran(op, iterations, x, dy)) for x, dy in unread if op.carries(x)]
    return _collect(op, [*inputs, *captured, *(x for x, _ in kept)], [*outputs, *(dx for _, dx in kept)])


def _with_histories(op: Builder, node: ir.Node, growing: Sequence[int]) -> ir.Node:
    """Put a Loop in the place of `node` that also carries sequences, of all that these states have been."""
    if op.opset < SINCE:
        raise NeedsOpsetError("Loop over a sequence", SINCE)
    graph, body = node.graph, node.attributes["body"].as_graph()
    assert isinstance(graph, ir.Graph)
    inner, count = op.subgraph(body), len(body.inputs) - 2
    empty = []
    for place, index in enumerate(growing):
        state = body.inputs[2 + index]
        kind = ir.SequenceType(ir.TensorType(state.dtype))
        name = op.unique_name(f"{node.name or node.outputs[0].name}/{state.name}/history")
        empty.append(insert(node, "SequenceEmpty", [], f"{name}/empty", dtype=int(state.dtype)))
        history = ir.Value(name=name, type=kind)
        longer = inner.SequenceInsert(history, state)
        empty[-1].type = longer.type = kind
        body.inputs.append(history)
        body.outputs.insert(1 + count + place, longer)
    old = node.outputs
    outputs = [ir.Value(name=op.unique_name(f"{old[0].name}/again")) for _ in range(len(old) + len(growing))]
    for output, history in zip(outputs[count:], body.outputs[1 + count : 1 + count + len(growing)], strict=False):
        output.type = history.type
    loop = ir.Node("", "Loop", [*node.inputs, *empty], node.attributes.values(), outputs=outputs, name=node.name)
    graph.insert_before(node, loop)
    for before, after in zip(old, [*outputs[:count], *outputs[count + len(growing) :]], strict=True):
        take_over(before, after)
    graph.remove(node, safe=True)
    return loop


def _is_read(state: ir.Value, body: ir.Graph) -> bool:
    """Whether an iteration uses the state that it gets. The one before may have given it another shape."""
    return bool(state.uses()) or state in body.outputs


def _if_nothing_ran(op: Builder, iterations: ir.Value, initial: ir.Value, dy: ir.Value) -> ir.Value:
    """The cotangent of a state that no iteration reads: the first one ends its life."""
    branches = {}
    for name in ("then_branch", "else_branch"):
        body = ir.Graph([], [], nodes=[], name=op.unique_name(f"{initial.name}/{name}"))
        inner = op.subgraph(body)
        _set_outputs(inner, body, [inner.Identity(dy) if name == "then_branch" else inner.zeros_like(initial)])
        branches[name] = body
    return _emit(op, "If", [op.Equal(iterations, 0)], [initial], **branches)[0]


@vjp("Scan")
def scan(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
    """A Scan over the same slices in the opposite direction."""
    captured = [value for value in captured_values(node) if is_floating(value) and op.carries(value)]
    body = node.attributes["body"].as_graph()
    scanned = attribute(node, "num_scan_inputs", 0)
    count = len(body.inputs) - scanned
    outputs_scanned = len(body.outputs) - count
    in_axes = attribute(node, "scan_input_axes", (0,) * scanned)
    in_directions = attribute(node, "scan_input_directions", (0,) * scanned)
    out_axes = attribute(node, "scan_output_axes", (0,) * outputs_scanned)
    out_directions = attribute(node, "scan_output_directions", (0,) * outputs_scanned)
    records = _record(op, node, body.inputs[:count])

    copy = _copy(op, body)
    inner = op.subgraph(copy)
    states, slices = list(copy.inputs[:count]), list(copy.inputs[count:])
    copy.inputs.clear()
    floating = [index for index in range(count) if is_floating(states[index])]
    moving = [states[index] for index in floating]
    carried = [_new_input_like(op, copy, f"d_{body.inputs[i].name}", body.inputs[i]) for i in floating]
    sums = [_new_input_like(op, copy, f"sum_{value.name}", value) for value in captured]
    given = [index for index, dy in enumerate(dys[count : count + outputs_scanned]) if dy is not None]
    copy.inputs.extend([*states, *slices])
    slice_cotangents = [_new_input_like(op, copy, "d_slice", body.outputs[count + index]) for index in given]

    seeds = _seeds(inner, [copy.outputs[index] for index in floating], carried)
    for index, dy in zip(given, slice_cotangents, strict=True):
        _add_seed(inner, seeds, copy.outputs[count + index], dy)
    given_slices = node.inputs[count:]
    sliced = [i for i in range(scanned) if is_floating(slices[i]) and op.carries(given_slices[i])]
    targets = [*moving, *(slices[index] for index in sliced), *captured]
    cotangents = _cotangents(inner, copy, seeds, targets)
    states_end, slices_end = len(moving), len(moving) + len(sliced)
    totals = [inner.Add(total, step) for total, step in zip(sums, cotangents[slices_end:], strict=True)]
    _set_outputs(inner, copy, [*cotangents[:states_end], *totals, *cotangents[states_end:slices_end]])

    initial = [_cotangent_or_zeros(op, node.outputs[index], dys[index]) for index in floating]
    zeros = [op.zeros_like(value) for value in captured]
    like = [*(body.inputs[index] for index in floating), *captured, *(node.inputs[count + index] for index in sliced)]
    results = _emit(
        op,
        "Scan",
        [*initial, *zeros, *records, *node.inputs[count:], *(dys[count + index] for index in given)],
        like,
        body=copy,
        num_scan_inputs=len(records) + scanned + len(given),
        # Everything is read and written in the direction opposite to the forward pass.
        scan_input_axes=[*(0 for _ in records), *in_axes, *(out_axes[index] for index in given)],
        scan_input_directions=[
            *(1 for _ in records),
            *(1 - direction for direction in in_directions),
            *(1 - out_directions[index] for index in given),
        ],
        scan_output_axes=[in_axes[index] for index in sliced],
        scan_output_directions=[1 - in_directions[index] for index in sliced],
    )
    inputs = [*(node.inputs[index] for index in floating), *captured, *(node.inputs[count + i] for i in sliced)]
    return _collect(op, inputs, results)


def _copy(op: Builder, body: ir.Graph) -> ir.Graph:
    """A copy of a body that captures the same outer values; its own values get new names."""
    copy = body.clone(allow_outer_scope_values=True)
    for value in all_values(copy):
        if value.name:
            value.name = op.unique_name(f"again/{value.name}")
    for inner in copy.all_nodes():
        inner.name = op.unique_name(f"again/{inner.name or inner.op_type}")
    return copy


def _record(op: Builder, node: ir.Node, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Make the forward node return what `values` of its body are in each iteration, stacked."""
    body = node.attributes["body"].as_graph()
    inner = op.subgraph(body)
    first = len(node.outputs)
    node.resize_outputs(first + len(values))
    for value, output in zip(values, node.outputs[first:], strict=True):
        copy = inner.Identity(value)
        copy.type, copy.shape = value.type, value.shape
        body.outputs.append(copy)
        output.name = op.unique_name(f"{node.name or node.outputs[0].name}/{value.name}/all")
        output.type = value.type
        output.shape = None if value.shape is None else ir.Shape([None, *value.shape])
    if node.op_type == "Scan":
        for name, default in (("scan_output_axes", 0), ("scan_output_directions", 0)):
            listed: tuple[int, ...] = attribute(node, name, ())
            if listed:
                node.attributes[name] = ir.AttrInt64s(name, [*listed, *(default for _ in values)])
    return list(node.outputs[first:])


def _cotangents(
    inner: Builder, body: ir.Graph, seeds: dict[ir.Value, ir.Value], targets: Sequence[ir.Value]
) -> list[ir.Value]:
    """The cotangents of `targets`, zeros for those that the body's outputs do not depend on."""
    found = backpropagate(inner, body, seeds, targets)
    return [inner.zeros_like(x) if dx is None else dx for x, dx in zip(targets, found, strict=True)]


def _seeds(
    inner: Builder, outputs: Sequence[ir.Value], cotangents: Sequence[ir.Value | None]
) -> dict[ir.Value, ir.Value]:
    seeds: dict[ir.Value, ir.Value] = {}
    for output, dy in zip(outputs, cotangents, strict=False):
        if dy is not None and is_floating(output):
            _add_seed(inner, seeds, output, dy)
    return seeds


def _add_seed(inner: Builder, seeds: dict[ir.Value, ir.Value], output: ir.Value, dy: ir.Value) -> None:
    """A body may return one value more than once."""
    seeds[output] = inner.Add(seeds[output], dy) if output in seeds else dy


def _set_outputs(inner: Builder, body: ir.Graph, values: Sequence[ir.Value]) -> None:
    """Make `values` the outputs of a body: each must be the result of one of its nodes, and none may appear twice."""
    outputs: list[ir.Value] = []
    for value in values:
        output = value
        if value.producer() is None or value.graph is not body or value in outputs:
            output = inner.Identity(value)
            output.shape = value.shape
        outputs.append(output)
    body.outputs.clear()
    body.outputs.extend(outputs)


def _replace(old: Sequence[ir.Value], new: Sequence[ir.Value]) -> None:
    for before, after in zip(old, new, strict=True):
        after.type, after.shape = before.type, before.shape
        before.replace_all_uses_with(after, replace_graph_outputs=before.is_graph_output())


def _new_input(op: Builder, body: ir.Graph, name: str, dtype: ir.DataType, shape: ir.Shape | None) -> ir.Value:
    value = ir.Value(name=op.unique_name(f"back/{name}"), type=ir.TensorType(dtype), shape=shape)
    body.inputs.append(value)
    return value


def _new_input_like(op: Builder, body: ir.Graph, name: str, like: ir.Value) -> ir.Value:
    return _new_input(op, body, name, like.dtype, None if like.shape is None else like.shape.copy())


def _cotangent_or_zeros(op: Builder, primal: ir.Value, dy: ir.Value | None) -> ir.Value:
    return op.zeros_like(primal) if dy is None else dy


def _emit(
    op: Builder, op_type: str, inputs: Sequence[ir.Value | None], like: Sequence[ir.Value], **attributes: object
) -> list[ir.Value]:
    if not like:
        return []
    outputs = op.emit(op_type, *inputs, outputs=len(like), **attributes)
    outputs = [outputs] if isinstance(outputs, ir.Value) else list(outputs)
    for output, value in zip(outputs, like, strict=True):
        output.type = ir.TensorType(value.dtype)
        output.shape = None if value.shape is None else value.shape.copy()
    return outputs


def _collect(op: Builder, values: Sequence[ir.Value | None], cotangents: Sequence[ir.Value]) -> Cotangents:
    """One cotangent a value, also where the node takes the same value several times."""
    collected: Cotangents = {}
    for value, cotangent in zip(values, cotangents, strict=True):
        if value is not None:
            before = collected.get(value)
            collected[value] = cotangent if before is None else op.Add(before, cotangent)
    return collected
