"""Col2Im, the transpose of cutting an image into blocks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import Extent, extent, identity, joined
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of

Row = list[ir.Value | None]


@vjp("Col2Im")
def col2im(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The blocks of dy as columns: a convolution whose kernels each pick one place of the block."""
    x, block = node.inputs[0], node.inputs[2]
    known = constant_of(block)
    sizes = op.constant(known, ir.DataType.INT64) if known is not None else block
    places: Extent = int(np.prod(known)) if known is not None else op.ReduceProd(sizes, [0], keepdims=1)
    kernels = op.Reshape(identity(op, places, x.dtype), op.Concat([-1, 1], sizes, axis=0))
    image = op.Reshape(dy, op.Concat([-1, 1], node.inputs[1], axis=0))
    how = {name: attribute(node, name, None) for name in ("strides", "dilations", "pads")}
    columns = op.Conv(image, kernels, **how)
    return [op.Reshape(columns, joined(op, [extent(op, x, axis) for axis in range(3)]))]
