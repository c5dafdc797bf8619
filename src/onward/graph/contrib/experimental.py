"""Operators that were once on trial in the standard; onnxruntime runs them in opsets below 10."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import activated
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute


@rewrites("Affine", reads="alpha beta")
def affine(op: Builder, node: ir.Node) -> ir.Value:
    """y = alpha x + beta."""
    return op.Mul(node.inputs[0], attribute(node, "alpha", 1.0)) + attribute(node, "beta", 0.0)


@rewrites("Scale", reads="scale")
def scale(op: Builder, node: ir.Node) -> ir.Value:
    return op.Mul(node.inputs[0], attribute(node, "scale", 1.0))


@rewrites("ImageScaler", reads="bias scale")
def image_scaler(op: Builder, node: ir.Node) -> ir.Value:
    """y = scale x + bias, with a bias for each channel of x [N, C, H, W]."""
    bias: tuple[float, ...] = attribute(node, "bias", ())
    y: ir.Value = op.Mul(node.inputs[0], attribute(node, "scale", 1.0))
    return op.Add(y, np.array(bias).reshape(-1, 1, 1)) if bias else y


@rewrites("ScaledTanh", "ParametricSoftplus", reads="alpha beta")
def scaled_activation(op: Builder, node: ir.Node) -> ir.Value:
    """y = alpha tanh(beta x), or alpha softplus(beta x)."""
    x = node.inputs[0]
    assert x is not None
    return activated(op, x, node.op_type, {name: attribute(node, name, 1.0) for name in ("alpha", "beta")})


@rewrites("Crop", reads="border scale")
def crop(op: Builder, node: ir.Node) -> ir.Value:
    """x [N, C, H, W] without its borders left, top, right and bottom; or of a size [H, W] from left and top."""
    left, top, right, bottom = attribute(node, "border", (0, 0, 0, 0))
    size: tuple[int, ...] = attribute(node, "scale", ())
    far = 2**31 - 1
    ends = [top + size[0], left + size[1]] if size else [-bottom or far, -right or far]
    return op.Slice(node.inputs[0], [top, left], ends, [2, 3])


@rewrites("DynamicSlice")
def dynamic_slice(op: Builder, node: ir.Node) -> ir.Value:
    return op.Slice(*node.inputs)
