"""Layers that take a low-rank pair: MatMul, Gemm and Conv with a constant weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.nodes import attribute, describe, input_at, is_integer_arithmetic
from onward.graph.shapes import FLOATING
from onward.low_rank.weight import Shape, Weight, weight_of

_NOT_QUANTISED = "use the model as it was before quantisation, or one in QDQ form or with MatMulNBits"


@dataclass(frozen=True)
class Layer:
    """A product with a constant weight.

    Attributes:
        node: the MatMul, Gemm, Conv or MatMulNBits.
        weight: its constant operand.
        side: which of the two operands that is.
        shape: of the weight as it is multiplied, [..., K, N] or [..., M, K], transposed where a Gemm says so;
            [O, I / group, ...] of a Conv.
    """

    node: ir.Node
    weight: Weight
    side: int
    shape: Shape

    @property
    def group(self) -> int:
        return attribute(self.node, "group", 1) if self.node.op_type == "Conv" else 1

    @property
    def is_transposed(self) -> bool:
        """Whether the node multiplies by the transposed weight."""
        return self.node.op_type == "Gemm" and bool(attribute(self.node, ("transA", "transB")[self.side], 0))

    @property
    def transposes_input(self) -> bool:
        return self.node.op_type == "Gemm" and bool(attribute(self.node, ("transB", "transA")[self.side], 0))

    @property
    def factor(self) -> float:
        """What a Gemm multiplies its product with."""
        return float(attribute(self.node, "alpha", 1.0)) if self.node.op_type == "Gemm" else 1.0

    @property
    def x(self) -> ir.Value:
        value = self.node.inputs[1 - self.side]
        assert value is not None
        return value

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for layers that can have one pair together: those that multiply by one weight alike."""
        return self.weight.form, self.node.op_type == "Conv", self.side, self.is_transposed, self.group

    @property
    def names(self) -> list[str]:
        """What it can be called by."""
        named = (self.weight.origin.name, self.node.name, self.node.outputs[0].name)
        return list(dict.fromkeys(name for name in named if name))

    def pair_shapes(self, rank: int) -> tuple[Shape, Shape]:
        """Those of A, which sees the input, and of B."""
        if self.node.op_type == "Conv":
            outputs, inputs, *kernel = self.shape
            return (self.group * rank, inputs, *kernel), (outputs, rank, *(1 for _ in kernel))
        *batch, first, last = self.shape
        if self.side:
            return (*batch, first, rank), (*batch, rank, last)
        return (*batch, rank, last), (*batch, first, rank)

    @property
    def fan_in(self) -> int:
        """How many numbers go into each result of A."""
        if self.node.op_type == "Conv":
            return math.prod(self.shape[1:])
        return self.shape[-2] if self.side else self.shape[-1]

    def difference(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """What a pair adds to the weight, as the node takes it."""
        if self.node.op_type == "Conv":
            rank = b.shape[1]
            rows = b.reshape(self.group, -1, rank) @ a.reshape(self.group, rank, -1)
            return rows.reshape(self.shape)
        product = a @ b if self.side else b @ a
        return product.T if self.is_transposed else product

    def __str__(self) -> str:
        return f"{describe(self.node)} with the weight {self.weight.origin.name!r}"


@dataclass(frozen=True)
class Refused:
    """A node with weights that gets no pair, and why."""

    node: ir.Node
    reason: str

    @property
    def names(self) -> list[str]:
        stored = (weight_of(value) for value in self.node.inputs)
        weights = [found.origin.name for found in stored if found is not None and math.prod(found.shape) > 1]
        return list(dict.fromkeys(name for name in (self.node.name, self.node.outputs[0].name, *weights) if name))


def find(graph: ir.Graph) -> Iterator[Layer | Refused]:
    """All layers of a graph and of its branches, and what is like one."""
    for node in graph.all_nodes():
        found = _layer(node)
        if found is not None:
            yield found


def layers_of(graph: ir.Graph) -> list[Layer]:
    """All layers, in an order that a copy of the graph shares."""
    return [found for found in find(graph) if isinstance(found, Layer)]


def _layer(node: ir.Node) -> Layer | Refused | None:
    if node.domain == "com.microsoft" and node.op_type == "MatMulNBits":
        return _packed(node)
    if node.domain == "" and node.op_type in ("Gemm", "MatMul"):
        weights = [weight_of(input_at(node, side)) for side in (0, 1)]
        if all(weights) or not any(weights):
            return None  # a product of two constants or of two computed values
        side = 0 if weights[0] is not None else 1
        return _judged(node, weights[side], side)
    if node.domain == "" and node.op_type == "Conv":
        return _judged(node, weight_of(input_at(node, 1)), 1)
    reason = _reason_against(node)
    return None if reason is None else Refused(node, reason)


def _judged(node: ir.Node, weight: Weight | None, side: int) -> Layer | Refused | None:
    if weight is None:
        return None
    shape = weight.shape
    if weight.dtype not in FLOATING:
        return Refused(node, f"its weight is {weight.dtype.name.lower()}")
    if len(shape) < (3 if node.op_type == "Conv" else 2):
        return Refused(node, f"its weight has the shape {list(shape)}: a vector has no low rank")
    if 0 in shape:
        return Refused(node, f"its weight has the shape {list(shape)}, which is empty")
    layer = Layer(node, weight, side, shape)
    return Layer(node, weight, side, shape[::-1]) if layer.is_transposed else layer


def _packed(node: ir.Node) -> Layer | Refused:
    """A weight in onnxruntime's own form of few bits, [K, N] by its attributes."""
    packed, scales = weight_of(input_at(node, 1)), weight_of(input_at(node, 2))
    shape = attribute(node, "K", 0), attribute(node, "N", 0)
    if packed is None or scales is None or scales.dtype not in FLOATING or 0 in shape:
        return Refused(node, "its weight or its scales are not constant")
    weight = Weight(packed.origin, (), (shape,), scales.dtype, quantised=True)
    return Layer(node, weight, 1, shape)


def _reason_against(node: ir.Node) -> str | None:
    """Why an operator with weights gets no pair; None for those that have none."""
    if is_integer_arithmetic(node) or "Quant" in node.op_type.replace("QuantizeLinear", ""):
        return f"it computes with quantised numbers; {_NOT_QUANTISED}"
    if node.domain == "com.microsoft" and any(weight_of(value) for value in node.inputs[1:]):
        return f"{node.op_type} is an operator of onnxruntime; use the model as it was before onnxruntime optimised it"
    if node.domain == "" and node.op_type in ("ConvTranspose", "DeformConv", "Einsum", "GRU", "LSTM", "RNN"):
        return f"low-rank pairs are for MatMul, Gemm and Conv, not for {node.op_type}"
    return None
