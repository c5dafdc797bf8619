"""Spatial transformers: grids of positions, and images sampled at them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.definition import defined
from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import extent, identity, joined
from onward.autodiff.rules.sampling import Sampler, count, rows, sample, wide
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import rank

Row = list[ir.Value | None]

_END = np.iinfo(np.int64).max

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # the names before opset 20


@defined("GridSample")
def grid_sample(op: Builder, node: ir.Node) -> ir.Value:
    """Positions in the grid are those in the image, last axis first, with the image from -1 to 1."""
    x, grid = node.inputs
    n = rank(x) - 2
    mode = attribute(node, "mode", "linear")
    aligned = bool(attribute(node, "align_corners", 0))
    how = Sampler(_MODES.get(mode, mode), attribute(node, "padding_mode", "zeros"), aligned)
    sizes = [extent(op, x, axis) for axis in range(2, n + 2)]
    positions = []
    for axis, size in enumerate(sizes):
        place = wide(op, op.Gather(grid, n - 1 - axis, axis=-1))
        length = float(size) if isinstance(size, int) else op.cast(size, place.dtype)
        positions.append((place + 1) * ((length - 1) * 0.5) if aligned else (place + 1) * (length * 0.5) - 0.5)
    image = count(op, extent(op, x, 0), ir.DataType.INT64, 0, n + 1)
    y = sample(op, rows(op, x, n + 2, extent(op, x, 1)), image, sizes, positions, how, n + 1)
    return op.Transpose(y, perm=[0, n + 1, *range(1, n + 1)])


@vjp("AffineGrid")
def affine_grid(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """grid[n, p] = theta[n] (place of p, 1), so dtheta[n] = sum over p of dgrid[n, p] (place of p, 1)^T."""
    theta, size = node.inputs
    n = extent(op, theta, 1)
    unmoved = op.Unsqueeze(op.Pad(identity(op, n, theta.dtype), [0, 0, 0, 1]), [0])
    one_image = op.Concat([1, 1], op.Slice(size, [2], [_END]), axis=0)
    places = op.AffineGrid(unmoved, one_image, align_corners=attribute(node, "align_corners", 0))
    places = op.Pad(op.Reshape(places, joined(op, [-1, n])), [0, 0, 0, 1], 1)
    # [N, n, P] times [P, n + 1]
    moved = op.Transpose(op.Reshape(dy, joined(op, [extent(op, theta, 0), -1, n])), perm=[0, 2, 1])
    return [op.MatMul(moved, places)]
