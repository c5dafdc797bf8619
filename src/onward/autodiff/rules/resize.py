"""Resize and Upsample.

Interpolation is linear and separable: y is x times a matrix W[out, in] along each axis that changes, so dx is dy times
the transposed matrices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.interpolation import Axis, Eager, Interpolation, identity, matrix
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, describe, input_at
from onward.graph.shapes import Dim, dims, rank

Row = Sequence[ir.Value | None]
Vector = ir.Value | np.ndarray


@vjp("Upsample")
def upsample(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [_resized_back(op, node, dy, _before_opset_11(node), input_at(node, 1), None)]


@vjp("Resize")
def resize(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The other inputs (region, scales, sizes) get no derivative."""
    if len(node.inputs) == 2:
        return [_resized_back(op, node, dy, _before_opset_11(node), node.inputs[1], None)]
    how = Interpolation(
        mode=attribute(node, "mode", "nearest"),
        coordinates=attribute(node, "coordinate_transformation_mode", "half_pixel"),
        nearest=attribute(node, "nearest_mode", "round_prefer_floor"),
        cubic_coefficient=attribute(node, "cubic_coeff_a", -0.75),
        exclude_outside=bool(attribute(node, "exclude_outside", 0)),
        antialias=bool(attribute(node, "antialias", 0)),
    )
    return [_resized_back(op, node, dy, how, input_at(node, 2), input_at(node, 3))]


def _before_opset_11(node: ir.Node) -> Interpolation:
    return Interpolation(attribute(node, "mode", "nearest"), "asymmetric", "before opset 11")


def _resized_back(
    op: Builder, node: ir.Node, dy: ir.Value, how: Interpolation, scales: ir.Value | None, sizes: ir.Value | None
) -> ir.Value:
    """dy times the transposed interpolation matrix of every axis that changes."""
    x, y = node.inputs[0], node.outputs[0]
    n = rank(x)
    axes = [axis % n for axis in attribute(node, "axes", tuple(range(n)))]
    if sizes is None:
        factors = _scales(op, node, scales, len(axes))
    elif attribute(node, "keep_aspect_ratio_policy", "stretch") == "stretch":
        factors = [_ratio(op, x, y, axis) for axis in axes]
    elif min(attribute(node, "axes", (0,))) < 0:
        raise OnwardError(
            f"{describe(node)} keeps the aspect ratio of axes that are counted from the end, which onnxruntime does "
            "not find: it resizes nothing. Count them from the start."
        )
    else:
        factors = [_common_scale(op, node, sizes, axes)] * len(axes)
    if _static_sizes(x, y, range(n)):
        return dy
    regions = [_region(op, node, how, index, len(axes)) for index in range(len(axes))]
    # onnxruntime leaves an axis with a scale of 1 as it is, also where it should be cropped.
    changed = [row for row in zip(axes, factors, regions, strict=True) if not _is_one(row[1])]
    repeats = [_repeats(x, y, axis, factor, how) for axis, factor, _ in changed]
    if changed and None not in repeats and n in (3, 4, 5) and all(axis >= 2 for axis, *_ in changed):
        ratios = {axis: ratio for (axis, *_), ratio in zip(changed, repeats, strict=True)}
        # The sum over the copies of each element, as a mean: one fast pass, whatever the sizes.
        blocks = [ratios.get(axis) or 1 for axis in range(2, n)]
        return op.AveragePool(dy, kernel_shape=blocks, strides=blocks) * float(math.prod(blocks))
    same = None if any(_is_resized(x, y, axis, factor) for axis, factor, _ in changed) else _same_sizes(op, x, y)
    for axis, factor, region in reversed(changed):
        weights = _matrix(op, how, _size(op, x, axis), _size(op, y, axis), factor, region, same)
        dy = _contract(op, dy, weights, axis, x)
    return dy


def _static_sizes(x: ir.Value, y: ir.Value, axes: Iterable[int]) -> bool:
    """Whether sizes are known and stay the same: onnxruntime copies such a tensor, whatever the scales."""
    return all(isinstance(_dim(x, axis), int) and _dim(x, axis) == _dim(y, axis) for axis in axes)


def _is_resized(x: ir.Value, y: ir.Value, axis: int, factor: Vector) -> bool:
    """Whether an axis certainly gets another size; a scale of 1.1 may leave it as it is."""
    before, after = _dim(x, axis), _dim(y, axis)
    if isinstance(before, int) and isinstance(after, int):
        return before != after
    return isinstance(factor, np.ndarray) and not 0.9 < factor[0] < 2


def _same_sizes(op: Builder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether all sizes stay the same, boolean `[1]`."""
    differences = op.Abs(op.Sub(op.shape(y), op.shape(x)))
    return op.Equal(op.ReduceSum(differences, [0], keepdims=1), 0)


def _scales(op: Builder, node: ir.Node, scales: ir.Value | None, count: int) -> list[Vector]:
    """The scale of each axis, float32 `[1]`: arrays where they are constant, also if others are not."""
    if scales is None:  # an attribute in opset 7
        return [np.array([factor], np.float32) for factor in attribute(node, "scales", (1.0,) * count)]
    return [
        op.cast(op.Gather(scales, [index], axis=0), ir.DataType.FLOAT)
        if factor is None
        else np.array([factor], np.float32)
        for index, factor in enumerate(_elements(scales, count))
    ]


def _elements(vector: ir.Value, count: int) -> list[float | None]:
    """The elements of a vector, None where they are not constant; exporters join constant and computed ones."""
    known = constant_of(vector)
    if known is not None:
        return [float(element) for element in known.reshape(-1)]
    producer = vector.producer()
    if producer is not None and producer.op_type == "Concat":
        lengths = [(dims(part) or (None,))[0] for part in producer.inputs]
        if all(isinstance(length, int) for length in lengths):
            parts = zip(producer.inputs, lengths, strict=True)
            return [element for part, length in parts for element in _elements(part, length)]
    return [None] * count


def _ratio(op: Builder, x: ir.Value, y: ir.Value, axis: int) -> Vector:
    """The scale that sizes imply."""
    before, after = _dim(x, axis), _dim(y, axis)
    if before == after and before is not None:
        return np.ones(1, np.float32)
    if isinstance(before, int) and isinstance(after, int):
        return np.array([after], np.float32) / np.float32(before)
    return op.cast(op.dim(y, axis), ir.DataType.FLOAT) / op.cast(op.dim(x, axis), ir.DataType.FLOAT)


def _common_scale(op: Builder, node: ir.Node, sizes: ir.Value, axes: Sequence[int]) -> Vector:
    """The one scale of all axes that keeps the aspect ratio: the smallest or the largest that the sizes imply."""
    largest = attribute(node, "keep_aspect_ratio_policy", "stretch") == "not_smaller"
    lengths, wanted = [_dim(node.inputs[0], axis) for axis in axes], constant_of(sizes)
    if wanted is not None and all(isinstance(length, int) for length in lengths):
        ratios = wanted.astype(np.float32) / np.array(lengths, np.float32)
        return ratios.max(keepdims=True) if largest else ratios.min(keepdims=True)
    before = op.Gather(op.shape(node.inputs[0]), np.array(axes, np.int64), axis=0)
    run_time = op.cast(sizes, ir.DataType.FLOAT) / op.cast(before, ir.DataType.FLOAT)
    return (op.ReduceMax if largest else op.ReduceMin)(run_time, [0], keepdims=1)


def _region(op: Builder, node: ir.Node, how: Interpolation, index: int, count: int) -> tuple[Vector, Vector] | None:
    """The ends of the region to crop along one axis, relative to its length; None in other modes."""
    if how.coordinates != "tf_crop_and_resize":
        return None
    roi = node.inputs[1]
    known = constant_of(roi)
    if known is not None:
        return known[index : index + 1].astype(np.float32), known[index + count : index + count + 1].astype(np.float32)
    start, end = (op.Gather(roi, [place], axis=0) for place in (index, index + count))
    return op.cast(start, ir.DataType.FLOAT), op.cast(end, ir.DataType.FLOAT)


def _is_one(factor: Vector) -> bool:
    return isinstance(factor, np.ndarray) and factor[0] == 1


def _repeats(x: ir.Value, y: ir.Value, axis: int, factor: Vector, how: Interpolation) -> int | None:
    """r where every input is repeated r times along the axis, output i being input i // r; None where not."""
    if how.mode != "nearest" or how.coordinates in ("align_corners", "tf_crop_and_resize"):
        return None
    if isinstance(factor, ir.Value) or factor[0] < 1 or factor[0] % 1 != 0:
        return None
    ratio, length = int(factor[0]), _dim(x, axis)
    if not isinstance(length, int):
        length = 16  # The pattern repeats, so any number shows it.
    weights = matrix(Eager(), how, Axis(np.array([length]), np.array([length * ratio]), factor))
    return ratio if np.array_equal(weights, np.repeat(np.eye(length), ratio, axis=0)) else None


def _dim(x: ir.Value, axis: int) -> Dim:
    known = dims(x)
    return None if known is None else known[axis]


def _size(op: Builder, x: ir.Value, axis: int) -> Vector:
    known = _dim(x, axis)
    return np.array([known]) if isinstance(known, int) else op.dim(x, axis)


def _matrix(
    op: Builder,
    how: Interpolation,
    length: Vector,
    resized: Vector,
    factor: Vector,
    region: tuple[Vector, ...] | None,
    same: ir.Value | None,
) -> Vector:
    """W[out, in] of one axis: an array where everything is known, else computed at run time."""
    parts = [length, resized, factor, *(region or ())]
    if same is None and not any(isinstance(part, ir.Value) for part in parts):
        return matrix(Eager(), how, Axis(length, resized, factor, region))
    values = [part if isinstance(part, ir.Value) else op.constant(part) for part in parts]
    length, resized, scale, *ends = values
    axis = Axis(length, resized, scale, tuple(ends) or None)
    if isinstance(factor, ir.Value) and region is not None:
        same = op.Equal(scale, 1) if same is None else op.Or(same, op.Equal(scale, 1))
    weights = matrix(op, how, axis)
    return weights if same is None else op.Where(same, identity(op, axis), weights)


def _contract(op: Builder, dy: ir.Value, weights: Vector, axis: int, x: ir.Value) -> ir.Value:
    """dx[.., j, ..] = sum over i of dy[.., i, ..] W[i, j]."""
    n = rank(x)
    if isinstance(weights, ir.Value):
        weights = op.cast(weights, x.dtype)
    if axis == n - 1:
        return op.MatMul(dy, weights)
    if axis == n - 2:
        turned = op.Transpose(weights, perm=[1, 0]) if isinstance(weights, ir.Value) else weights.T
        return op.MatMul(turned, dy)
    swapped = list(range(n))
    swapped[axis], swapped[-1] = n - 1, axis
    return op.Transpose(op.MatMul(op.Transpose(dy, perm=swapped), weights), perm=swapped)
