"""Matrix products with what was fused into them."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import activated
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute, input_at
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import rank

_TRANSPOSED = "transA transB transBatchA transBatchB alpha"


@rewrites("FusedMatMul", "TransposeMatMul", reads=_TRANSPOSED)
def fused_matmul(op: Builder, node: ir.Node) -> ir.Value:
    return _product(op, node)


def _product(op: Builder, node: ir.Node) -> ir.Value:
    """y = alpha a b, with a and b transposed where asked for."""
    a, b = (_transposed(op, node, index, side) for index, side in enumerate("AB"))
    alpha = attribute(node, "alpha", 1.0)
    y: ir.Value = op.MatMul(a, b)
    return y if alpha == 1 else y * alpha


@rewrites(
    "FusedMatMulActivation",
    reads=f"{_TRANSPOSED} activation activation_alpha activation_beta activation_gamma activation_axis",
)
def fused_matmul_activation(op: Builder, node: ir.Node) -> ir.Value:
    y, name = _product(op, node), attribute(node, "activation", "")
    if name in ("Softmax", "LogSoftmax"):
        return op.emit(name, y, axis=attribute(node, "activation_axis", -1))
    return activated(op, y, name, _parameters(node))


def _transposed(op: Builder, node: ir.Node, index: int, side: str) -> ir.Value:
    x = node.inputs[index]
    assert x is not None
    inner, batch = attribute(node, f"trans{side}", 0), attribute(node, f"transBatch{side}", 0)
    # What has one axis only is not transposed.
    if not (inner or batch) or rank(x) < 2:
        return x
    axes = list(range(rank(x)))
    if batch:
        # The first axis becomes the one before the last.
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if inner:
        axes = [*axes[:-2], axes[-1], axes[-2]]
    return x if axes == sorted(axes) else op.Transpose(x, perm=axes)


@rewrites("FusedGemm", reads="alpha beta transA transB activation activation_alpha activation_beta activation_gamma")
def fused_gemm(op: Builder, node: ir.Node) -> ir.Value:
    a, b, c = (input_at(node, index) for index in range(3))
    settings = {name: attribute(node, name, 1.0) for name in ("alpha", "beta")}
    sides = {name: attribute(node, name, 0) for name in ("transA", "transB")}
    y = op.Gemm(a, b, c, **settings, **sides)
    return activated(op, y, attribute(node, "activation", ""), _parameters(node))


def _parameters(node: ir.Node) -> dict[str, float]:
    names = [name for name in ("alpha", "beta", "gamma") if f"activation_{name}" in node.attributes]
    return {name: attribute(node, f"activation_{name}", 0.0) for name in names}


@rewrites("CDist", reads="metric", needs="a metric other than euclidean and sqeuclidean")
def cdist(op: Builder, node: ir.Node) -> ir.Value:
    """The distance of each row of a from each row of b: |a|^2 - 2 a b + |b|^2, never below 0, or its root."""
    a, b = node.inputs
    assert a is not None
    assert b is not None
    metric = attribute(node, "metric", "sqeuclidean")
    if metric not in ("euclidean", "sqeuclidean"):
        raise RefusedError(f"its metric is {metric!r}; euclidean and sqeuclidean are supported")
    squares = op.ReduceSum(a * a, [1], keepdims=1) + op.Transpose(op.ReduceSum(b * b, [1], keepdims=1), perm=[1, 0])
    square = op.Relu(squares - op.MatMul(a, op.Transpose(b, perm=[1, 0])) * 2)
    return op.Sqrt(square) if metric == "euclidean" else square
