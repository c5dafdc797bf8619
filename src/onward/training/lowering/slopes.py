"""Where cotangents may be infinite although all values are finite: the slope of a square root at 0, for instance."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.nodes import constant_of, input_at
from onward.graph.shapes import is_floating, static_size

# Operators whose slopes are finite where their data are.
_FINITE = frozenset(
    """Abs Add Atan AveragePool BatchNormalization Cast CastLike Celu Clip Concat Conv ConvTranspose Cos CumSum
    DepthToSpace DequantizeLinear Dropout Einsum Elu Erf Exp Expand Flatten GRU Gather GatherElements GatherND Gelu Gemm
    GlobalAveragePool GlobalMaxPool GroupNormalization HardSigmoid HardSwish Identity InstanceNormalization LSTM
    LayerNormalization LeakyRelu LogSoftmax MatMul Max MaxPool Mean Min Mish Mul Neg NegativeLogLikelihoodLoss PRelu Pad
    QuantizeLinear RMSNormalization RNN ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceSum
    ReduceSumSquare Relu Reshape Resize ScatterElements ScatterND Selu Sigmoid Sin Slice Softmax
    SoftmaxCrossEntropyLoss Softplus Softsign SpaceToDepth Split Squeeze Sub Sum Swish Tanh ThresholdedRelu Tile
    Transpose Trilu Unsqueeze Where""".split()
)
# Of these, those that spread the cotangent of one element over many: what is infinite there is so nearly everywhere.
_MIXING = frozenset(
    """AveragePool BatchNormalization Conv ConvTranspose Einsum GRU Gemm GlobalAveragePool GroupNormalization
    InstanceNormalization LSTM LayerNormalization LogSoftmax MatMul RMSNormalization RNN ReduceMean ReduceSum Softmax
    SoftmaxCrossEntropyLoss""".split()
)
_PASSING = frozenset("Cast Expand Identity Reshape Sqrt Squeeze Transpose Unsqueeze".split())


def leading_to_infinite_slopes(
    graph: ir.Graph, forward: Collection[ir.Node], given: Collection[ir.Value] = ()
) -> set[ir.Node]:
    """The nodes of `forward` whose results lead to an infinite slope, or as they are to where others may have one.

    That is at values whose cotangents are `given`.
    """
    steep: set[ir.Node] = set()
    exposed: set[ir.Node] = set()
    for node in reversed(graph):
        if node not in forward or all(value.type is not None and not is_floating(value) for value in node.outputs):
            continue  # no cotangent passes
        users = {user for output in node.outputs for user in output.consumers()}
        inside = any(user.graph is not graph for user in users)  # of a body, which may do anything
        if inside or not _has_finite_slopes(node) or not users.isdisjoint(steep):
            steep.add(node)
        is_given = any(output in given for output in node.outputs)
        if node.op_type not in _MIXING and (is_given or not users.isdisjoint(exposed)):
            exposed.add(node)
    return steep | exposed


def _has_finite_slopes(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type in _FINITE:
        return True
    operand = input_at(node, 1 if node.op_type in ("Div", "Pow") else 0)
    if operand is None or node.op_type not in ("Div", "Log", "Pow", "Reciprocal", "Sqrt"):
        return False
    if node.op_type == "Pow":
        exponent = constant_of(operand)
        return exponent is not None and bool(((exponent >= 1) | (exponent == 0)).all())
    # What a single 0 divides is not finite anywhere.
    return _is_kept_from_zero(operand) or (node.op_type == "Div" and static_size(operand) == 1)


def _is_kept_from_zero(value: ir.Value) -> bool:
    """Whether a value was made not to be 0: a positive number is added to it, or bounds it."""
    known, node = constant_of(value), value.producer()
    if known is not None:
        return bool(known.all())
    if node is None or node.domain != "":
        return False
    if node.op_type in _PASSING:
        return node.inputs[0] is not None and _is_kept_from_zero(node.inputs[0])
    if node.op_type in ("Add", "Max"):
        return any(map(_is_positive, node.inputs))
    if node.op_type == "Where":  # as losses write it: log(x if x > 0 else 1)
        above = None if node.inputs[0] is None else node.inputs[0].producer()
        itself = above is not None and above.op_type == "Greater" and above.inputs[0] is node.inputs[1]
        return itself and _is_positive(node.inputs[2])
    return node.op_type == "Exp" or (node.op_type == "Clip" and _is_positive(input_at(node, 1)))


def _is_positive(value: ir.Value | None) -> bool:
    known = constant_of(value)
    return known is not None and bool((known > 0).all())
