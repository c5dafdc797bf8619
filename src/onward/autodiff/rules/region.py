"""Regions of interest: RoiAlign and MaxRoiPool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.autodiff.definition import defined
from onward.autodiff.rules.placement import Extent, extent
from onward.autodiff.rules.sampling import Sampler, count, rows, sample, wide
from onward.graph.builder import Builder
from onward.graph.nodes import attribute


@dataclass(frozen=True)
class _Bins:
    """Where each bin of each region is sampled along one axis `[R, bins, samples]`, and how often `[R, 1, 1]`."""

    positions: ir.Value
    samples: ir.Value | int
    used: ir.Value | None  # which samples there are, where their number differs between regions


@defined("RoiAlign")
def roi_align(op: Builder, node: ir.Node) -> ir.Value:
    """Each bin is the mean (or, as the standard has it, the largest weighted neighbour) of samples inside it.

    The number of samples, where it depends on the region, counts as constant.
    """
    x, rois, batch = node.inputs
    sizes = [extent(op, x, 2), extent(op, x, 3)]
    vertical = _bins(op, node, rois, 1, attribute(node, "output_height", 1))
    horizontal = _bins(op, node, rois, 0, attribute(node, "output_width", 1))
    # [R, bins, 1, samples, 1] and [R, 1, bins, 1, samples]
    placed = [op.Unsqueeze(vertical.positions, [2, 4]), op.Unsqueeze(horizontal.positions, [1, 3])]
    there = _both(op, *(_near(op, p, size) for p, size in zip(placed, sizes, strict=True)))
    image = op.Unsqueeze(op.cast(batch, ir.DataType.INT64), [1, 2, 3, 4])
    largest = attribute(node, "mode", "avg") == "max"
    if largest:
        # The neighbours of a sample outside are one pixel of weight 1 and others of weight 0.
        placed = [_clamped(op, p, size) for p, size in zip(placed, sizes, strict=True)]
    values = sample(
        op, rows(op, x, 4, extent(op, x, 1)), image, sizes, placed, Sampler(padding="border"), 5, summed=not largest
    )
    values = op.Where(op.Unsqueeze(there, [-3, -2, -1] if largest else [-1]), values, 0)
    masks = [
        op.Unsqueeze(bins.used, axes)
        for bins, axes in ((vertical, [2, 4]), (horizontal, [1, 3]))
        if bins.used is not None
    ]
    if masks:
        lowest = float(np.finfo(np.float32).min) if x.dtype != ir.DataType.FLOAT16 else -65504.0
        used = op.Unsqueeze(_both(op, *masks), [-3, -2, -1] if largest else [-1])
        values = op.Where(used, values, lowest if largest else 0)
    if largest:
        y = op.ReduceMax(values, [3, 4, 5, 6], keepdims=0)
    else:
        total = op.ReduceSum(values, [3, 4], keepdims=0)
        number = vertical.samples * horizontal.samples
        y = total / (float(number) if isinstance(number, int) else op.cast(op.Unsqueeze(number, [3]), x.dtype))
    return op.Transpose(y, perm=[0, 3, 1, 2])


def _bins(op: Builder, node: ir.Node, rois: ir.Value, axis: int, bins: int) -> _Bins:
    """Along one axis of the image; rois are (x1, y1, x2, y2)."""
    half_pixel = "coordinate_transformation_mode" not in node.attributes and op.opset >= 16
    half_pixel |= attribute(node, "coordinate_transformation_mode", "") == "half_pixel"
    scale = attribute(node, "spatial_scale", 1.0)
    start, end = (op.Unsqueeze(wide(op, op.Gather(rois, [corner], axis=1)), [2]) * scale for corner in (axis, axis + 2))
    length = end - start
    if half_pixel:
        start = start - 0.5
    else:
        length = op.Max(length, 1)
    size = length / float(bins)
    number = count(op, bins, size.dtype, 1, 3)
    fixed = attribute(node, "sampling_ratio", 0)
    if fixed > 0:
        step = count(op, fixed, size.dtype, 2, 3)
        return _Bins(start + (number + (step + 0.5) * (1 / fixed)) * size, fixed, None)
    samples = op.Max(op.Ceil(size), 1)
    most = op.Reshape(op.cast(op.ReduceMax(samples, keepdims=0), ir.DataType.INT64), [1])
    step = count(op, most, size.dtype, 2, 3)
    return _Bins(start + (number + (step + 0.5) / samples) * size, samples, op.Less(step, samples))


def _near(op: Builder, position: ir.Value, size: Extent) -> ir.Value:
    """Samples further than one pixel outside are 0; those nearer repeat the border."""
    end = float(size) if isinstance(size, int) else op.cast(size, position.dtype)
    return op.And(op.GreaterOrEqual(position, -1), op.LessOrEqual(position, end))


def _clamped(op: Builder, position: ir.Value, size: Extent) -> ir.Value:
    last = float(size - 1) if isinstance(size, int) else op.cast(size - 1, position.dtype)
    return op.Max(op.Min(position, last), 0)


def _both(op: Builder, *conditions: ir.Value) -> ir.Value:
    return conditions[0] if len(conditions) == 1 else op.And(*conditions)


@defined("MaxRoiPool")
def max_roi_pool(op: Builder, node: ir.Node) -> ir.Value:
    """The maximum of whole pixels in each bin, first over the rows of the image, then over its columns; 0 if it has
    none. The corners of regions are rounded, so they have no derivative."""
    x, rois = node.inputs
    images = op.Gather(x, op.cast(op.Gather(rois, 0, axis=1), ir.DataType.INT64), axis=0)
    height, width = attribute(node, "pooled_shape", (1, 1))
    in_rows = _pixels_of_bins(op, node, 1, height, extent(op, x, 2))
    in_columns = _pixels_of_bins(op, node, 0, width, extent(op, x, 3))
    lowest = -65504.0 if x.dtype == ir.DataType.FLOAT16 else float(np.finfo(np.float32).min)
    # [R, C, bins, H, W], then [R, C, bins, bins, W]
    y = op.Where(op.Unsqueeze(in_rows, [1, 4]), op.Unsqueeze(images, [2]), lowest)
    y = op.ReduceMax(y, [3], keepdims=0)
    y = op.Where(op.Unsqueeze(in_columns, [1, 2]), op.Unsqueeze(y, [3]), lowest)
    y = op.ReduceMax(y, [4], keepdims=0)
    return op.Where(op.Equal(y, lowest), 0, y)


def _pixels_of_bins(op: Builder, node: ir.Node, axis: int, bins: int, size: Extent) -> ir.Value:
    """Which pixels along an axis are in each bin of each region, bool `[R, bins, size]`; rois are (image, x1, ...)."""
    rois, scale = node.inputs[1], attribute(node, "spatial_scale", 1.0)
    # Halves are rounded away from zero.
    corners = [op.Unsqueeze(op.Gather(rois, [axis + 1 + end], axis=1), [2]) * scale for end in (0, 2)]
    start, end = (op.Sign(corner) * op.Floor(op.Abs(corner) + 0.5) for corner in corners)
    length = op.Max(end - start + 1, 1) / float(bins)
    number, pixel = count(op, bins, rois.dtype, 1, 3), count(op, size, rois.dtype, 2, 3)
    first, beyond = op.Floor(number * length) + start, op.Ceil((number + 1) * length) + start
    return op.And(op.GreaterOrEqual(pixel, first), op.Less(pixel, beyond))
