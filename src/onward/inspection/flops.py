"""How many floating-point operations a graph takes, estimated from its shapes.

A multiplication and the addition that follows count as two, an elementary function as one, moving numbers as none. So
a matrix product [M, K] x [K, N] takes 2 M K N. A loop counts as often as its trip count says, if that is known; of the
branches of an If the dearer one counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.shapes import dims

_FREE = frozenset(
    """BitCast Cast CastLike CenterCropPad Col2Im Compress Concat ConcatFromSequence Constant ConstantOfShape
    DepthToSpace Expand EyeLike Flatten Gather GatherElements GatherND Identity NonZero OneHot Optional
    OptionalGetElement OptionalHasElement Pad Range Reshape ReverseSequence ScatterElements ScatterND SequenceAt
    SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength Shape Size Slice SpaceToDepth
    Split SplitToSequence Squeeze TensorScatter Tile Transpose Trilu Unsqueeze""".split()
)

# Operations for each element of the first output. What is not listed anywhere takes one.
_PER_OUTPUT = {
    "BatchNormalization": 2,  # in evaluation the statistics are joined with scale and bias
    "DequantizeLinear": 2,
    "GridSample": 8,
    "GroupNormalization": 7,
    "HardSigmoid": 2,
    "HardSwish": 3,
    "InstanceNormalization": 7,
    "LayerNormalization": 7,  # mean, difference, square, mean, quotient, scale, bias
    "LogSoftmax": 5,
    "LpNormalization": 3,
    "MeanVarianceNormalization": 5,
    "QuantizeLinear": 3,
    "RMSNormalization": 4,
    "RotaryEmbedding": 3,
    "Softmax": 5,  # maximum, difference, exponential, sum, quotient
}

# Operations for each element of the first input: what reduces.
_PER_INPUT = {
    "ArgMax": 1,
    "ArgMin": 1,
    "CumProd": 1,
    "CumSum": 1,
    "GlobalAveragePool": 1,
    "GlobalLpPool": 2,
    "GlobalMaxPool": 1,
    "Hardmax": 1,
    "NegativeLogLikelihoodLoss": 0,
    "SoftmaxCrossEntropyLoss": 5,
    "TopK": 1,
}


@dataclass
class Count:
    """The operations of a graph, and the operators that have dimensions which nobody knows.

    Attributes:
        sizes: of symbols.
        trips: how often a Loop runs that does not say so: as often as the longest that does.
    """

    total: int = 0
    uncertain: set[str] = field(default_factory=set)
    sizes: Mapping[str, int] = field(default_factory=dict)
    trips: int | None = None

    def nodes(self, nodes: Iterable[ir.Node], times: int = 1) -> Count:
        """Add what these nodes take, `times` over."""
        for node in nodes:
            self.total += times * self._node(node)
        return self

    def _node(self, node: ir.Node) -> int:
        if node.domain not in ("", "com.microsoft"):
            return 0
        if node.op_type in _BODIES:
            return _BODIES[node.op_type](self, node)
        if node.op_type in _FREE:
            return 0
        if node.op_type in _SPECIAL:
            return _SPECIAL[node.op_type](self, node)
        if node.op_type in _PER_INPUT or node.op_type.startswith("Reduce"):
            return _PER_INPUT.get(node.op_type, 1) * self.size(node, input_at(node, 0))
        if node.op_type in ("Sum", "Mean", "Max", "Min"):
            return max(len(node.inputs) - 1, 1) * self.size(node, node.outputs[0])
        return _PER_OUTPUT.get(node.op_type, 1) * self.size(node, node.outputs[0])

    def shape(self, node: ir.Node, value: ir.Value | None) -> list[int]:
        """The dimensions of a value, 1 for those that nobody knows; empty where not even the rank is known."""
        if value is None:
            return []
        known = dims(value)
        sized = [self.sizes.get(dim) if isinstance(dim, str) else dim for dim in known or ()]
        if known is None or None in sized:
            self.uncertain.add(node.op_type)
        return [1 if dim is None else dim for dim in sized]

    def size(self, node: ir.Node, value: ir.Value | None) -> int:
        """The number of elements."""
        return 0 if value is None or not isinstance(value.type, ir.TensorType) else math.prod(self.shape(node, value))


def _matmul(count: Count, node: ir.Node, a: int = 0) -> int:
    """[..., M, K] x [..., K, N]: 2 K for each element of the result."""
    inner = count.shape(node, input_at(node, a))
    return 2 * (inner[-1] if inner else 1) * count.size(node, node.outputs[0])


def _gemm(count: Count, node: ir.Node) -> int:
    shape = count.shape(node, input_at(node, 0))
    inner = (shape[0] if attribute(node, "transA", 0) else shape[-1]) if shape else 1
    addition = int(input_at(node, 2) is not None)
    return (2 * inner + addition) * count.size(node, node.outputs[0])


def _conv(count: Count, node: ir.Node, weight: int = 1, bias: int = 2) -> int:
    """Kernel [Cout, Cin / groups, k...]: 2 Cin / groups k... for each element of the result."""
    kernel = math.prod(count.shape(node, input_at(node, weight))[1:])
    addition = int(input_at(node, bias) is not None)
    return (2 * kernel + addition) * count.size(node, node.outputs[0])


def _conv_transpose(count: Count, node: ir.Node) -> int:
    """Kernel [Cin, Cout / groups, k...]: 2 Cout / groups k... for each element of the input."""
    kernel = math.prod(count.shape(node, input_at(node, 1))[1:])
    addition = int(input_at(node, 2) is not None)
    return 2 * kernel * count.size(node, node.inputs[0]) + addition * count.size(node, node.outputs[0])


def _pool(count: Count, node: ir.Node) -> int:
    window: tuple[int, ...] = attribute(node, "kernel_shape", ())
    return math.prod(window) * count.size(node, node.outputs[0])


def _einsum(count: Count, node: ir.Node) -> int:
    """Operations for each combination of all indices; an ellipsis counts as the dimensions that it stands for."""
    left = str(attribute(node, "equation", "")).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, value in zip(left, node.inputs, strict=False):
        shape = count.shape(node, value)
        head, dots, tail = term.partition("...")
        names = [*head, *(f".{i}" for i in range(len(shape) - len(head) - len(tail)) if dots), *tail]
        for name, size in zip(names, shape, strict=False):
            sizes[name] = max(size, sizes.get(name, 1))
    return len(node.inputs) * math.prod(sizes.values())


# Operations for each element of a state besides the products: in each gate two additions and an activation, then the
# new state from the gates (LSTM: f c + i g, o tanh(c); GRU: r h, (1 - z) n + z h).
_GATES = {"RNN": (1, 0), "GRU": (3, 5), "LSTM": (4, 5)}


def _recurrent(count: Count, node: ir.Node) -> int:
    """x [T, N, I], weights [directions, gates H, I] and [directions, gates H, H]."""
    gates, more = _GATES[node.op_type]
    x = count.shape(node, input_at(node, 0))
    weight, recurrent = count.shape(node, input_at(node, 1)), count.shape(node, input_at(node, 2))
    if len(x) < 3 or len(weight) < 3 or len(recurrent) < 3:
        return 0
    directions, hidden = weight[0], recurrent[2]
    steps = x[0] * x[1]
    return directions * steps * hidden * (2 * gates * (weight[2] + hidden) + 3 * gates + more)


def _attention(count: Count, node: ir.Node) -> int:
    """Two for each key and element of Q, and of the result; six for each score (scale and softmax)."""
    q, k = count.shape(node, input_at(node, 0)), count.shape(node, input_at(node, 1))
    past = count.shape(node, input_at(node, 4))
    if len(q) < 3 or len(k) < 3:
        return 0
    keys = k[-2] + (past[-2] if len(past) == 4 else 0)
    heads = q[1] if len(q) == 4 else attribute(node, "q_num_heads", 1)
    scores = q[0] * heads * q[-2] * keys
    return 2 * keys * (math.prod(q) + count.size(node, node.outputs[0])) + 6 * scores


def _fourier(count: Count, node: ir.Node) -> int:
    """5 n log n by convention, for the n of the axis that is transformed; here the longest one."""
    shape = count.shape(node, input_at(node, 0))
    longest = max(shape, default=1)
    return int(5 * math.prod(shape) * math.log2(max(longest, 2)) / 2)


def _batch_normalization(count: Count, node: ir.Node) -> int:
    training = attribute(node, "training_mode", 0)
    return (7 if training else 2) * count.size(node, node.outputs[0])


def _dropout(count: Count, node: ir.Node) -> int:
    mode = constant_of(input_at(node, 2))
    return 2 * count.size(node, node.outputs[0]) if mode is not None and mode.all() else 0


_SPECIAL: dict[str, Callable[[Count, ir.Node], int]] = {
    "Attention": _attention,
    "AveragePool": _pool,
    "BatchNormalization": _batch_normalization,
    "Conv": _conv,
    "ConvInteger": lambda count, node: _conv(count, node, bias=9),
    "ConvTranspose": _conv_transpose,
    "DFT": _fourier,
    "DeformConv": lambda count, node: _conv(count, node, bias=3),
    "Dropout": _dropout,
    "Einsum": _einsum,
    "GRU": _recurrent,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "LpPool": _pool,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "MaxPool": _pool,
    "QLinearConv": lambda count, node: _conv(count, node, weight=3, bias=8),
    "QLinearMatMul": _matmul,
    "RNN": _recurrent,
    "STFT": _fourier,
}


# Exporters write the largest integer where only the condition ends a loop.
_FOREVER = 2**31 - 1


def _if(count: Count, node: ir.Node) -> int:
    branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
    return max(_body(count, branch) for branch in branches)


def _loop(count: Count, node: ir.Node) -> int:
    limit = constant_of(input_at(node, 0))
    trips = int(limit.reshape(())) if limit is not None and limit < _FOREVER else None
    if trips is not None:
        count.trips = max(trips, count.trips or 0)
    elif count.trips is None:
        count.uncertain.add("Loop")
    return _body(count, node.attributes["body"].as_graph()) * (trips or count.trips or 1)


def _scan(count: Count, node: ir.Node) -> int:
    scanned = attribute(node, "num_scan_inputs", 0)
    axes: tuple[int, ...] = attribute(node, "scan_input_axes", (0,))
    shape = count.shape(node, node.inputs[-1]) if scanned else []
    return _body(count, node.attributes["body"].as_graph()) * (shape[axes[-1]] if shape else 1)


def _body(count: Count, graph: ir.Graph) -> int:
    return Count(uncertain=count.uncertain, sizes=count.sizes).nodes(graph).total


_BODIES: dict[str, Callable[[Count, ir.Node], int]] = {"If": _if, "Loop": _loop, "Scan": _scan}
