"""Which Slices onnx's inference may see: those of tensors whose sizes are certainly not negative.

A window that is larger than its image has, for onnx, a result of negative size, and to slice that ends the process in
onnx 1.23. So Slices behind an operator that might make such a size are hidden until inference has shown that it
does not.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, input_at, subgraphs
from onward.graph.shapes import dims, static_shape

# Operators that make no negative size of others that are not.
_SAFE = frozenset(
    """Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BatchNormalization Bernoulli BitShift BitwiseAnd
    BitwiseNot BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat ConcatFromSequence Cos Cosh CumSum
    DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Expand Flatten Floor GRU Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool Greater GreaterOrEqual GridSample
    GroupNormalization HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul MatMulInteger Max Mean
    MeanVarianceNormalization Min Mish Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not Or PRelu Pow QuantizeLinear
    RMSNormalization RNN Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape RotaryEmbedding Round ScatterElements ScatterND Selu
    SequenceAt SequenceConstruct Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax SoftmaxCrossEntropyLoss
    Softplus Softsign Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Transpose Trilu Unsqueeze Where Xor""".split()
)
# These are safe where their second input is known to have no negative number.
_COUNTING = ("Pad", "Split", "SplitToSequence")
# Their results do not get sizes of their inputs.
_ENDS = ("Shape", "Size")


class Slices:
    """The Slices of a model that are hidden, fewer after each inference."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._proven: set[ir.Node] = set()  # nodes that might have made a negative size, and did not
        self._risky: set[ir.Value] = set()  # what might have a negative size
        self._behind: set[ir.Value] = set()  # what is computed from the result of a hidden Slice
        self.hidden: list[ir.Node] = []
        self._safe_functions = {
            name for name, function in model.functions.items() if all(map(_is_safe, function.all_nodes()))
        }
        self._has_slices = any(node.op_type == "Slice" for node in model.graph.all_nodes())
        self._classify()

    def reveal(self) -> bool:
        """After an inference: show those Slices that are safe now; whether there are any."""
        before = len(self.hidden)
        if self.hidden:
            nodes = self._model.graph.all_nodes()
            self._proven.update(node for node in nodes if self._is_proven(node))
            self._classify()
        return len(self.hidden) < before

    def _is_proven(self, node: ir.Node) -> bool:
        return not any(x in self._behind for x in node.inputs) and not any(has_negative_size(y) for y in node.outputs)

    def _classify(self) -> None:
        self._risky, self._behind, self.hidden = set(), set(), []
        if self._has_slices:
            self._visit(self._model.graph)

    def _visit(self, graph: ir.Graph) -> None:
        self._risky.update(x for x in (*graph.inputs, *graph.initializers.values()) if has_negative_size(x))
        for node in graph:
            risky, behind = (any(x in marked for x in node.inputs) for marked in (self._risky, self._behind))
            for body in subgraphs(node):
                self._risky.update(body.inputs if risky else ())
                self._behind.update(body.inputs if behind else ())
                self._visit(body)
                risky = risky or any(y in self._risky for y in body.outputs)
                behind = behind or any(y in self._behind for y in body.outputs)
            if node.op_type == "Slice" and node.domain == "" and input_at(node, 0) in self._risky:
                self.hidden.append(node)
                behind = True
            if node.op_type in _ENDS and node.domain == "":
                continue
            is_safe = _is_safe(node) or node.op_identifier() in self._safe_functions or node in self._proven
            if risky or not is_safe:
                self._risky.update(node.outputs)
            if behind:
                self._behind.update(node.outputs)


def has_negative_size(value: ir.Value) -> bool:
    """Whether a size of a value is below zero, which none is."""
    return any(isinstance(size, int) and size < 0 for size in dims(value) or ())


def _is_safe(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type in _COUNTING:
        counts = constant_of(input_at(node, 1))
        return counts is not None and bool((counts >= 0).all())
    return node.op_type in _SAFE or bool(subgraphs(node)) or (_slides(node) and _fits_anything(node))


def _slides(node: ir.Node) -> bool:
    return node.op_type in ("AveragePool", "Conv", "LpPool", "MaxPool")


def _fits_anything(node: ir.Node) -> bool:
    """Whether the windows of a node fit once at least, whatever the size of the image: padding makes up for them."""
    weights = input_at(node, 1)
    sides = None if weights is None else static_shape(weights)
    kernel: Sequence[int] = attribute(node, "kernel_shape", (sides or ())[2:])
    n = len(kernel)
    strides: tuple[int, ...] = attribute(node, "strides", (1,) * n)
    dilations: tuple[int, ...] = attribute(node, "dilations", (1,) * n)
    pads: tuple[int, ...] = attribute(node, "pads", (0,) * 2 * n)
    if not n or not len(strides) == len(dilations) == len(pads) / 2 == n:
        return False
    windows = zip(kernel, strides, dilations, pads[:n], pads[n:], strict=True)
    return all(d * (k - 1) + 1 - stride <= before + after for k, stride, d, before, after in windows)
