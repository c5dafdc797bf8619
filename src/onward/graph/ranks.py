"""Ranks that operators imply, where onnx's inference stops.

The older torch exporter writes `If(size == 1) Squeeze else Identity` for a squeeze, and inference knows nothing behind
such an If. But a Conv later says how many axes its input has, and what that input was computed from follows: ranks are
found backwards too, and a branch that would return another rank is never taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import onnx_ir as ir

from onward.graph.nodes import attribute, input_at, integers, subgraphs

# The first output has the rank of the first input.
_KEEPING = frozenset(
    """Abs Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Bernoulli Cast CastLike Ceil Celu Clip
    Cos Cosh CumSum DequantizeLinear Dropout Elu Erf Exp Floor Gelu GlobalAveragePool GlobalLpPool GlobalMaxPool
    GridSample GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN
    LayerNormalization LeakyRelu Log LogSoftmax LpNormalization LpPool MaxPool MeanVarianceNormalization Mish
    Neg Not PRelu Pad QuantizeLinear Reciprocal Relu Resize ReverseSequence Round ScatterElements ScatterND Selu
    Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Tile TopK
    Transpose Trilu Upsample""".split()
)
_REDUCING = frozenset(
    """ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare""".split()
)
# Ranks that an operator has by definition: of inputs, of outputs.
_FIXED: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "Flatten": ((), (2,)),
    "Gemm": ((2, 2), (2,)),
    "GRU": ((3, 3, 3), (4, 3)),
    "LSTM": ((3, 3, 3), (4, 3, 3)),
    "NonZero": ((), (2,)),
    "RNN": ((3, 3, 3), (4, 3)),
    "RoiAlign": ((4, 2, 1), (4,)),
    "STFT": ((), (4,)),
}
_FIRST_STATE = 5  # initial_h of a recurrent operator; initial_c follows

_HIGHEST = 1024  # the largest rank that onnx follows

Ranks = dict[ir.Value, int]
Settled = dict[int, Ranks]  # by the depth of the graph that a value is in
Link = tuple[ir.Value, ir.Value, int]  # rank of the first = rank of the second + the number


def implied_ranks(graph: ir.Graph) -> Ranks:
    """The ranks that operators imply for values of which inference knows nothing, in `graph` or in its bodies.

    Outer graphs first: what is found there may show that the rank which a branch should return is not the one it has.
    """
    settled: dict[int, Ranks] = defaultdict(dict)
    _solve(graph, {}, settled, 0)
    return settled[min(settled)] if settled else {}


def assumed_ranks(graph: ir.Graph) -> Ranks:
    """The ranks of states of loops of which nothing else is known: those that they begin with."""
    found: Ranks = {}
    for node in graph.all_nodes():
        if node.op_type != "Loop" or node.domain != "":
            continue
        body = node.attributes["body"].as_graph()
        for x, state, after in zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], strict=False):
            number = None if x is None else _rank(x, found)
            if number is not None and state.shape is None and _rank(after, {}) in (None, number):
                found[state] = number
    return found


def _solve(graph: ir.Graph, known: Ranks, settled: Settled, depth: int) -> Ranks:
    """What holds where `graph` is executed; ranks of its own values are written to `settled`."""
    found = dict(known)
    changed = True
    while changed:
        changed = False
        for node in graph:
            for value, number in _implied(node, found, settled, depth) if node.domain == "" else ():
                if number >= 0 and _rank(value, found) is None:
                    found[value] = number
                    changed = True
    own = {value: number for value, number in found.items() if value.graph is graph}
    if own:
        settled[depth].update(own)
    return found


def _rank(value: ir.Value, found: Ranks) -> int | None:
    return found.get(value) if value.shape is None else len(value.shape)


def _implied(node: ir.Node, found: Ranks, settled: Settled, depth: int) -> Iterator[tuple[ir.Value, int]]:
    yield from _fixed(node)
    for a, b, difference in _links(node):
        of_a, of_b = _rank(a, found), _rank(b, found)
        if of_b is not None:
            yield a, of_b + difference
        if of_a is not None:
            yield b, of_a - difference
    bodies = [_solve_body(node, body, found, settled, depth + 1) for body in subgraphs(node)]
    if node.op_type == "If":
        first, *others = bodies
        yield from ((value, number) for value, number in first.items() if all(o.get(value) == number for o in others))


def _solve_body(node: ir.Node, body: ir.Graph, found: Ranks, settled: Settled, depth: int) -> Ranks:
    """What a body says of outer values; that of an If says the ranks of its outputs, and those of the If say its."""
    if node.op_type != "If":
        return _solve(body, found, settled, depth)
    pairs = list(zip(node.outputs, body.outputs, strict=True))
    wanted = {value: number for y, value in pairs if (number := _rank(y, found)) is not None and value.shape is None}
    inner = _solve(body, {**found, **wanted}, settled, depth)
    returned = {y: number for y, value in pairs if (number := _rank(value, inner)) is not None}
    return {**inner, **returned}


def _fixed(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    inputs, outputs = _FIXED.get(node.op_type, ((), ()))
    yield from ((x, number) for x, number in zip(node.inputs, inputs, strict=False) if x is not None)
    yield from zip(node.outputs, outputs, strict=False)
    if node.op_type in ("RNN", "GRU", "LSTM"):
        yield from ((x, 3) for x in node.inputs[_FIRST_STATE : _FIRST_STATE + 2] if x is not None)
    if node.op_type == "Transpose" and "perm" in node.attributes:
        yield node.outputs[0], len(attribute(node, "perm", ()))
    if node.op_type == "Loop":
        yield from _states(node)
    if node.op_type in ("Reshape", "ConstantOfShape"):
        shape = None if node.inputs[-1] is None else node.inputs[-1].shape
        if shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] <= _HIGHEST:
            yield node.outputs[0], shape[0]


def _states(node: ir.Node) -> Iterator[tuple[ir.Value, int]]:
    """A loop returns its states as they came, or as its body returned them; inference trusts neither."""
    body = node.attributes["body"].as_graph()
    for y, x, after in zip(node.outputs, node.inputs[2:], body.outputs[1:], strict=False):
        if x is not None and x.shape is not None and after.shape is not None and len(x.shape) == len(after.shape):
            yield y, len(x.shape)


def _links(node: ir.Node) -> Iterator[Link]:
    x, y = input_at(node, 0), node.outputs[0] if node.outputs else None
    if x is None or y is None:
        return
    second = input_at(node, 1)
    if node.op_type in _KEEPING:
        yield y, x, 0
    elif node.op_type in ("Conv", "ConvTranspose") and second is not None:
        yield x, second, 0
        yield y, second, 0
    elif node.op_type in ("Concat", "Split"):
        parts = node.inputs[1:] if node.op_type == "Concat" else ()  # what else Split takes are sizes
        yield from ((other, x, 0) for other in (*parts, *node.outputs) if other is not None)
    elif node.op_type in ("Squeeze", "Unsqueeze") or node.op_type in _REDUCING:
        yield from ((y, x, change) for change in _change_of_axes(node))
    elif node.op_type == "Gather" and second is not None and second.shape is not None:
        yield y, x, len(second.shape) - 1
    elif node.op_type == "MatMul" and second is not None:
        # The product with a matrix keeps the rank of the other operand.
        yield from ((y, other, 0) for one, other in ((x, second), (second, x)) if _has_rank(one, 2))
    elif node.op_type in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min") and len(node.inputs) == 2:
        assert second is not None
        yield from ((y, other, 0) for one, other in ((x, second), (second, x)) if _has_rank(one, 0))


def _has_rank(value: ir.Value, rank: int) -> bool:
    return value.shape is not None and len(value.shape) == rank


def _change_of_axes(node: ir.Node) -> Iterator[int]:
    if node.op_type.startswith("Arg"):
        yield 0 if attribute(node, "keepdims", 1) else -1
        return
    axes = integers(node, 1, "axes")
    if node.op_type in _REDUCING and attribute(node, "keepdims", 1):
        yield 0
    elif isinstance(axes, tuple):
        yield len(axes) if node.op_type == "Unsqueeze" else -len(axes)
