"""Layers that multiply by a constant weight: Gemm, MatMul and Conv, with the bias that follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.constants import constant_array
from onward.graph.nodes import attribute, describe, input_at, is_integer_arithmetic
from onward.graph.shapes import FLOATING

PRODUCTS = frozenset({"Gemm", "MatMul", "Conv"})
# Products that a new layer is not made for; behind them, nothing is a head.
_OTHER_PRODUCTS = frozenset("ConvTranspose DeformConv Einsum RNN GRU LSTM Attention".split())
_MOVING = frozenset("Cast Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())
_QUANTISED = (
    "its weight is quantised; use the model as it was before quantisation, and quantise it again after training"
)


@dataclass(frozen=True)
class Layer:
    """A product with a constant weight.

    Attributes:
        weight: where the weight comes from: an initializer, or the output of a Constant node.
        operand: the weight as the node takes it, be it transposed.
        features: the numbers that each of the results is computed from, kernel included.
        classes: the number of results.
        bias: the node and the input where the bias is, if there is one.
        refusal: why no new layer can take its place, if so.
    """

    node: ir.Node
    weight: ir.Value
    operand: np.ndarray
    features: int
    classes: int
    bias: tuple[ir.Node, int] | None
    refusal: str | None = None

    @property
    def class_axis(self) -> int:
        """That of the results in the output, from the end."""
        return -1 if self.node.op_type != "Conv" else 1 - self.operand.ndim

    @property
    def weight_axis(self) -> int:
        """That of the results in the weight, as the node takes it."""
        is_first = self.node.op_type == "Conv" or (self.node.op_type == "Gemm" and attribute(self.node, "transB", 0))
        return 0 if is_first else 1

    @property
    def names(self) -> list[str]:
        """What it can be called by."""
        values = [self.weight, *self.node.outputs]
        if self.bias is not None:
            node, index = self.bias
            values += [value for value in (node.inputs[index], *node.outputs) if value is not None]
        return list(dict.fromkeys(name for name in (self.node.name, *(value.name for value in values)) if name))

    def __str__(self) -> str:
        kernel = "" if self.operand.ndim < 3 else f", kernel {'x'.join(map(str, self.operand.shape[2:]))}"
        inputs = self.features // int(np.prod(self.operand.shape[2:], dtype=np.int64))
        return f"{describe(self.node)} ({inputs} -> {self.classes}{kernel}), weight {self.weight.name!r}"

    def require_replaceable(self) -> Layer:
        """This layer, unless no new one can take its place."""
        if self.refusal is not None:
            raise OnwardError(f"{self} cannot be replaced by a new layer: {self.refusal}")
        return self


def layer_of(node: ir.Node) -> Layer | None:
    """The layer that a node is; None for anything but a product with a constant weight."""
    if node.domain != "" or node.op_type not in PRODUCTS:
        return None
    weight, operand, quantised = _constant(input_at(node, 1))
    if weight is None or operand is None or operand.ndim < 2 or (operand.ndim > 2 and node.op_type != "Conv"):
        return None
    transposed = node.op_type == "Conv" or (node.op_type == "Gemm" and attribute(node, "transB", 0))
    classes = operand.shape[0] if transposed else operand.shape[1]
    features = operand.size // max(classes, 1)
    refusal = _refusal(node, weight, quantised)
    return Layer(node, weight, operand, features, classes, _bias(node, classes), refusal)


def is_product(node: ir.Node) -> bool:
    """Whether a node may multiply by weights, in whatever form."""
    if node.domain == "":
        return node.op_type in PRODUCTS or node.op_type in _OTHER_PRODUCTS or is_integer_arithmetic(node)
    return node.domain == "com.microsoft" or node.op_type.startswith(("Linear", "SVM", "TreeEnsemble"))


def layers_of(graph: ir.Graph) -> Iterator[Layer]:
    """All layers of a graph, in its order."""
    for node in graph:
        found = layer_of(node)
        if found is not None:
            yield found


def refusal_of(node: ir.Node) -> str | None:
    """Why a product that is no layer is none, where there is a reason that helps."""
    if is_integer_arithmetic(node) or "Quant" in node.op_type or node.op_type.startswith(("QGemm", "MatMulNBits")):
        return _QUANTISED
    if node.domain == "ai.onnx.ml":
        return (
            "its weights and labels are attributes, as scikit-learn's are; fit a new estimator to the new classes, or "
            "give the model a head of ONNX operators"
        )
    if node.domain:
        return "an operator of onnxruntime; use the model as it was before onnxruntime optimised it"
    return None


def _refusal(node: ir.Node, weight: ir.Value, quantised: bool) -> str | None:
    if quantised:
        return _QUANTISED
    if weight.dtype is not None and weight.dtype not in FLOATING:
        return f"its weight is {weight.dtype}"
    if node.op_type == "Conv" and attribute(node, "group", 1) != 1:
        return "its channels are in groups, which do not see each other"
    if node.op_type == "Gemm" and attribute(node, "transA", 0):
        return "it transposes its input"
    return None


def _constant(value: ir.Value | None) -> tuple[ir.Value | None, np.ndarray | None, bool]:
    """Where a constant comes from, the constant as it arrives, and whether it was quantised."""
    if value is None:
        return None, None, False
    array = constant_array(value)
    if array is not None:
        return value, array, False
    node = value.producer()
    if node is None or node.domain not in ("", "com.microsoft") or not node.inputs:
        return None, None, False
    if node.op_type == "DequantizeLinear":
        origin, array, _ = _constant(node.inputs[0])
        return origin, array, True
    if node.domain or node.op_type not in _MOVING:
        return None, None, False
    origin, array, quantised = _constant(node.inputs[0])
    return origin, None if array is None else _moved(node, array), quantised


def _moved(node: ir.Node, array: np.ndarray) -> np.ndarray | None:
    """What an operator that only moves numbers makes of a constant."""
    if node.op_type in ("Identity", "Cast"):
        return array
    if node.op_type == "Transpose":
        return array.transpose(attribute(node, "perm", tuple(range(array.ndim))[::-1]))
    if node.op_type == "Reshape":
        shape = constant_array(input_at(node, 1))
        if shape is None:
            return None
        return array.reshape([array.shape[i] if size == 0 else int(size) for i, size in enumerate(shape)])
    return None


def _bias(node: ir.Node, classes: int) -> tuple[ir.Node, int] | None:
    """Where one number is added to each result: an input of the node, or of an Add behind it."""
    if input_at(node, 2) is not None:
        array = constant_array(node.inputs[2])
        return (node, 2) if array is not None and array.size == classes else None
    value = node.outputs[0]
    while len(value.uses()) == 1 and not value.is_graph_output():
        ((user, index),) = value.uses()
        if user.domain == "" and user.op_type == "Add":
            array = constant_array(user.inputs[1 - index])
            return (user, 1 - index) if array is not None and array.size == classes else None
        if user.domain or user.op_type not in _MOVING or index != 0:
            return None
        value = user.outputs[0]
    return None
