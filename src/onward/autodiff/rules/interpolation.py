"""The matrix W[out, in] that Resize and Upsample multiply along one axis, as numpy arrays or as graph values.

The formulas are written once, in terms of a few operators of ONNX. Given a builder they emit nodes; given `Eager()`
they compute with numpy. Coordinates are float32 throughout, as in onnxruntime: which neighbour is the nearest may
depend on the rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

Array = Any  # ir.Value with a builder, np.ndarray with Eager
Ops = Any  # Builder | Eager


class Eager:
    """The operators below, in numpy."""

    Abs = staticmethod(np.abs)
    Ceil = staticmethod(np.ceil)
    Equal = staticmethod(np.equal)
    Floor = staticmethod(np.floor)
    Greater = staticmethod(np.greater)
    Less = staticmethod(np.less)
    MatMul = staticmethod(np.matmul)
    Max = staticmethod(np.maximum)
    Min = staticmethod(np.minimum)
    Or = staticmethod(np.logical_or)
    Where = staticmethod(np.where)

    @staticmethod
    def cast(x: np.ndarray, dtype: ir.DataType) -> np.ndarray:
        return x.astype(dtype.numpy())

    @staticmethod
    def Range(start: np.ndarray, limit: np.ndarray, delta: float) -> np.ndarray:  # noqa: N802
        return np.arange(start, limit, delta, dtype=np.float32)  # type: ignore[call-overload]

    @staticmethod
    def ReduceSum(x: np.ndarray, axes: Sequence[int], keepdims: int) -> np.ndarray:  # noqa: N802
        return x.sum(axis=tuple(axes), keepdims=bool(keepdims))

    @staticmethod
    def Squeeze(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:  # noqa: N802
        return np.squeeze(x, tuple(axes))

    @staticmethod
    def Unsqueeze(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:  # noqa: N802
        return np.expand_dims(x, tuple(axes))


@dataclass(frozen=True)
class Interpolation:
    """What the attributes of a node say, with the defaults of its opset filled in."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_coefficient: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Axis:
    """Sizes int64 `[1]`, the scale and, for tf_crop_and_resize, the ends of the region float32 `[1]`."""

    length: Array
    resized: Array
    scale: Array
    roi: tuple[Array, ...] | None = None


def matrix(op: Ops, how: Interpolation, axis: Axis) -> Array:
    """W[i, j], the weight of input j in output i along one axis, float32."""
    length, x = _float(op, axis.length), _original(op, how, axis)
    columns = _count(op, length * 0, length)
    if how.mode == "nearest":
        nearest = op.Max(op.Min(_rounded(op, how, x, axis.scale), length - 1), 0)
        weights = _float(op, op.Equal(_column(op, nearest), columns))
    elif how.mode == "linear" and not how.antialias:
        # Beyond the ends the value at the end continues.
        weights = _kernel(op, how, _column(op, op.Max(op.Min(x, length - 1), 0)) - columns)
    else:
        weights = _filtered(op, how, axis, x, columns)
    if how.coordinates != "tf_crop_and_resize":
        return weights
    # Outside the input the result is a constant.
    outside = op.Or(op.Less(x, 0), op.Greater(x, length - 1))
    return op.Where(_column(op, outside), 0, weights)


def identity(op: Ops, axis: Axis) -> Array:
    """W[i, j] of an axis that stays as it is, float32."""
    length, resized = _float(op, axis.length), _float(op, axis.resized)
    rows, columns = _count(op, resized * 0, resized), _count(op, length * 0, length)
    return _float(op, op.Equal(_column(op, rows), columns))


def _original(op: Ops, how: Interpolation, axis: Axis) -> Array:
    """The coordinate in the input of each output."""
    length, resized, scale = _float(op, axis.length), _float(op, axis.resized), axis.scale
    i = _count(op, resized * 0, resized)
    single = op.Equal(resized, 1)
    steps = op.Where(single, 1, resized - 1)
    if how.coordinates == "asymmetric":
        return i / scale
    if how.coordinates == "tf_half_pixel_for_nn":
        return (i + 0.5) / scale
    if how.coordinates == "align_corners":
        return i * (length - 1) / steps
    if how.coordinates == "tf_crop_and_resize":
        start, end = axis.roi or (0, 1)
        middle = (start + end) * (length - 1) * 0.5
        return op.Where(single, middle, start * (length - 1) + i * (end - start) * (length - 1) / steps)
    half_pixel = (i + 0.5) / scale - 0.5
    if how.coordinates == "pytorch_half_pixel":
        return op.Where(single, 0, half_pixel)
    if how.coordinates == "half_pixel_symmetric":
        # The centres of input and output coincide also where the output was rounded down to whole elements.
        return length * 0.5 * (1 - resized / (scale * length)) + (i + 0.5) / scale - 0.5
    return half_pixel


def _rounded(op: Ops, how: Interpolation, x: Array, scale: Array) -> Array:
    if how.nearest == "floor":
        return op.Floor(x)
    if how.nearest == "ceil":
        return op.Ceil(x)
    if how.nearest == "round_prefer_ceil":
        return op.Floor(x + 0.5)
    if how.nearest == "before opset 11":
        # The standard did not say; onnxruntime rounds up when it makes things smaller.
        return op.Where(op.Less(scale, 1), op.Ceil(x), op.Floor(x))
    return op.Ceil(x - 0.5)


def _filtered(op: Ops, how: Interpolation, axis: Axis, x: Array, columns: Array) -> Array:
    """Weights of a kernel around x, which antialias stretches when the output is smaller."""
    stretch = op.Min(axis.scale, 1) if how.antialias else 1
    if how.exclude_outside:
        return _normalized(op, _kernel(op, how, (_column(op, x) - columns) * stretch))
    # The elements at the ends stand for all those beyond them that the kernel reaches.
    reach = op.Ceil((2 if how.mode == "cubic" else 1) / stretch) if how.antialias else 2
    length = _float(op, axis.length)
    positions = _count(op, length * 0 - reach, length + reach)
    weights = _kernel(op, how, (_column(op, x) - positions) * stretch)
    nearest = op.Max(op.Min(positions, length - 1), 0)
    folded = op.MatMul(weights, _float(op, op.Equal(_column(op, nearest), columns)))
    return _normalized(op, folded) if how.antialias else folded


def _kernel(op: Ops, how: Interpolation, distance: Array) -> Array:
    t = op.Abs(distance)
    if how.mode == "linear":
        return op.Max(1 - t, 0)
    a = how.cubic_coefficient
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((t - 5) * t + 8) * t * a - 4 * a
    return op.Where(op.Less(t, 1), inner, op.Where(op.Less(t, 2), outer, 0))


def _normalized(op: Ops, weights: Array) -> Array:
    return weights / op.ReduceSum(weights, [1], keepdims=1)


def _count(op: Ops, start: Array, limit: Array) -> Array:
    """start, start + 1, ... below limit. In floats: onnx's inference follows integers, and trips over matrices."""
    return op.Range(op.Squeeze(start, [0]), op.Squeeze(limit, [0]), 1.0)


def _column(op: Ops, x: Array) -> Array:
    return op.Unsqueeze(x, [1])


def _float(op: Ops, x: Array) -> Array:
    return op.cast(x, ir.DataType.FLOAT)
