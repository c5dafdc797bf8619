"""DeformConv: a convolution whose kernel looks at places of its own for every output."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.definition import defined
from onward.autodiff.rules.placement import Extent, extent, joined
from onward.autodiff.rules.sampling import Sampler, count, rows, sample, wide
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import rank


@defined("DeformConv")
def deform_conv(op: Builder, node: ir.Node) -> ir.Value:
    """The sampled pixels as columns, times the kernel as a matrix."""
    x, w, offset = node.inputs[:3]
    bias, mask = input_at(node, 3), input_at(node, 4)
    n = rank(x) - 2
    group, offset_group = attribute(node, "group", 1), attribute(node, "offset_group", 1)
    batch, channels, outputs = extent(op, x, 0), extent(op, x, 1), extent(op, w, 0)
    per_offset = _divided(channels, offset_group)
    sizes = [extent(op, x, axis) for axis in range(2, n + 2)]
    kernel: list[Extent] = list(attribute(node, "kernel_shape", ())) or [extent(op, w, axis + 2) for axis in range(n)]
    counts = [extent(op, offset, axis) for axis in range(2, n + 2)]
    grid: list[Extent] = [batch, offset_group, *kernel, *counts]  # the shape of what is sampled

    moved = op.Reshape(offset, joined(op, [batch, offset_group, *kernel, n, *counts]))
    strides, dilations = attribute(node, "strides", (1,) * n), attribute(node, "dilations", (1,) * n)
    pads = attribute(node, "pads", (0,) * 2 * n)
    positions = []
    for axis in range(n):
        place = wide(op, op.Gather(moved, axis, axis=2 + n))
        regular = count(op, counts[axis], place.dtype, 2 + n + axis, len(grid)) * float(strides[axis])
        inner = count(op, kernel[axis], place.dtype, 2 + axis, len(grid)) * float(dilations[axis])
        positions.append(place + (regular + inner - float(pads[axis])))
    parts = op.Reshape(x, joined(op, [_times([batch, offset_group]), per_offset, *sizes]))
    image = op.Reshape(
        op.Range(0, op.Reshape(_value(op, _times([batch, offset_group])), np.array([], np.int64)), 1),
        joined(op, [batch, offset_group, *[1] * 2 * n]),
    )
    columns = sample(op, rows(op, parts, n + 2, per_offset), image, sizes, positions, Sampler(), len(grid))
    if mask is not None:
        columns = columns * op.Unsqueeze(op.Reshape(mask, joined(op, grid)), [-1])
    # [N, offset_group, *kernel, *counts, C / offset_group] to [N, group, C / group * kernel, counts]
    columns = op.Transpose(columns, perm=[0, 1, len(grid), *range(2, len(grid))])
    length = _times([_divided(channels, group), *kernel])
    columns = op.Reshape(columns, joined(op, [batch, group, length, _times(counts)]))
    matrix = op.Reshape(w, joined(op, [group, _divided(outputs, group), length]))
    y = op.Reshape(op.MatMul(matrix, columns), joined(op, [batch, outputs, *counts]))
    return y if bias is None else y + op.Unsqueeze(bias, list(range(1, n + 1)))


def _divided(size: Extent, by: int) -> Extent:
    return size // by if isinstance(size, int) else size if by == 1 else size / by


def _times(sizes: Sequence[Extent]) -> Extent:
    known = math.prod(size for size in sizes if isinstance(size, int))
    product: Extent = known
    for size in sizes:
        if isinstance(size, ir.Value):
            product = size if isinstance(product, int) and product == 1 else product * size
    return product


def _value(op: Builder, size: Extent) -> ir.Value:
    return op.constant([size], ir.DataType.INT64) if isinstance(size, int) else size
