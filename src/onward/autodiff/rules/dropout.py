"""Dropout."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import constant_of, input_at


@vjp("Dropout")
def dropout(op: Builder, node: ir.Node, dy: ir.Value, dmask: None = None) -> ir.Value:
    """y = x mask / (1 - ratio) in training mode, else y = x (always, up to opset 11)."""
    ratio, training = input_at(node, 1), input_at(node, 2)
    mode = constant_of(training)
    if training is None or (mode is not None and not mode):
        return dy
    fixed = constant_of(ratio)
    scale: ir.Value | float
    if mode is not None and (ratio is None or fixed is not None):
        rate = 0.5 if fixed is None else float(fixed.reshape(()))
        scale = 1 / (1 - rate) if rate < 1 else 0.0
    else:
        rate_value = op.constant(0.5, dy.dtype) if ratio is None else op.cast(ratio, dy.dtype)
        # Outside training mode the mask is all true, so that only the scale has to follow the mode.
        scale = 1 / (1 - (rate_value if mode is not None else op.Where(training, rate_value, 0)))
    return op.Where(op.forward_output(node, 1), dy * scale, 0)
