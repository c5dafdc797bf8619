"""Interpolation of an image between its pixels, as a definition: gathers and weights, both with known gradients.

A position lies among `taps` neighbours along each axis: 1 for nearest, 2 for linear, 4 for cubic interpolation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.autodiff.rules.placement import Extent, joined
from onward.graph.builder import Builder

_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_CUBIC = -0.75
_OFFSETS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


@dataclass(frozen=True)
class Sampler:
    """How to interpolate, and what lies outside: `zeros`, the `border`, or a `reflection` about the corners."""

    mode: str = "linear"
    padding: str = "zeros"
    align_corners: bool = False  # reflections are about the centres of the outermost pixels, not about their edges


def rows(op: Builder, x: ir.Value, ndim: int, channels: Extent) -> ir.Value:
    """The pixels of x `[N, C, ...]` as rows `[N * ..., C]`."""
    pixels = op.Transpose(x, perm=[0, *range(2, ndim), 1])
    return op.Reshape(pixels, joined(op, [-1, channels]))


def wide(op: Builder, x: ir.Value) -> ir.Value:
    """Positions need more digits than 16-bit floats have."""
    return op.cast(x, ir.DataType.FLOAT) if x.dtype in _NARROW else x


def count(op: Builder, size: Extent, dtype: ir.DataType, axis: int, ndim: int) -> ir.Value:
    """0, 1, ..., size - 1 along one axis of `ndim`, the others being 1."""
    shape = [-1 if other == axis else 1 for other in range(ndim)]
    if isinstance(size, int):
        return op.constant(np.arange(size).reshape(shape), dtype)
    numbers = op.Range(0, op.Reshape(size, np.array([], np.int64)), 1)
    return op.cast(op.Reshape(numbers, shape), dtype)


def sample(
    op: Builder,
    pixels: ir.Value,
    image: ir.Value,
    sizes: Sequence[Extent],
    positions: Sequence[ir.Value],
    how: Sampler,
    ndim: int,
    *,
    summed: bool = True,
) -> ir.Value:
    """Interpolated rows `[*shape, C]`, or with summed=False the weighted neighbours `[*shape, *taps, C]`.

    `pixels` are the rows of all images; `image`, int64, is the number of the image to look at and `positions` hold one
    coordinate for each spatial axis. They broadcast to `shape`, and all have its rank, `ndim`.
    """
    n = len(sizes)
    index = op.Unsqueeze(image, list(range(-n, 0)))
    weight: ir.Value | None = None
    for axis, (size, position) in enumerate(zip(sizes, positions, strict=True)):
        places, weights = _taps(op, position, size, how)
        # One axis of taps for each axis of the image, after the others.
        others = [-n + other for other in range(n) if other != axis]
        index = index * size + (op.Unsqueeze(places, others) if others else places)
        if weights is not None:
            weights = op.Unsqueeze(weights, others) if others else weights
            weight = weights if weight is None else weight * weights
    products = op.Gather(pixels, index, axis=0)
    if weight is not None:
        products = products * op.cast(op.Unsqueeze(weight, [-1]), pixels.dtype)
    # Axes are not counted from the end: onnxruntime forgets such ones in empty tensors.
    return op.ReduceSum(products, list(range(ndim, ndim + n)), keepdims=0) if summed else products


def _taps(op: Builder, position: ir.Value, size: Extent, how: Sampler) -> tuple[ir.Value, ir.Value | None]:
    """The pixels next to a position along one axis, int64 `[..., taps]`, and their weights where they are not 1."""
    assert position.dtype is not None
    last = op.constant(size - 1, position.dtype) if isinstance(size, int) else op.cast(size - 1, position.dtype)
    if how.mode == "linear" and how.padding != "zeros":
        position = _inside(op, position, last, how)
    base = op.Round(position) if how.mode == "nearest" else op.Floor(position)
    parts = [op.Unsqueeze(weight, [-1]) for weight in _weights(op, position - base, how.mode)]
    weights = op.Concat(*parts, axis=-1) if parts else None
    places = op.Unsqueeze(base, [-1]) + np.array(_OFFSETS[how.mode])
    if how.padding == "zeros":
        inside = op.And(op.GreaterOrEqual(places, 0), op.LessOrEqual(places, last))
        weights = op.cast(inside, position.dtype) if weights is None else op.Where(inside, weights, 0)
    elif how.padding == "reflection":
        places = _reflected(op, places, last, how.align_corners)
    return op.cast(op.Max(op.Min(places, last), 0), ir.DataType.INT64), weights


def _weights(op: Builder, t: ir.Value, mode: str) -> list[ir.Value]:
    """Those of the taps around a position that lies t beyond the tap with offset 0."""
    if mode == "nearest":
        return []
    if mode == "linear":
        return [1 - t, t]

    def inner(d: ir.Value) -> ir.Value:
        return ((_CUBIC + 2) * d - (_CUBIC + 3)) * d * d + 1

    def outer(d: ir.Value) -> ir.Value:
        return ((_CUBIC * d - 5 * _CUBIC) * d + 8 * _CUBIC) * d - 4 * _CUBIC

    return [outer(t + 1), inner(t), inner(1 - t), outer(2 - t)]


def _inside(op: Builder, position: ir.Value, last: ir.Value, how: Sampler) -> ir.Value:
    """Where a position outside of the image leads to; at the border there is no slope, on neither side, as in torch."""
    if how.padding == "reflection":
        position = _reflected(op, position, last, how.align_corners)
    return op.Where(op.LessOrEqual(position, 0), 0, op.Where(op.GreaterOrEqual(position, last), last, position))


def _reflected(op: Builder, places: ir.Value, last: ir.Value, align_corners: bool) -> ir.Value:
    """There and back along the image, which is `span` long; whole positions stay whole."""
    first, span = (0.0, op.Max(last, 1)) if align_corners else (-0.5, last + 1)
    distance = op.Abs(places - first)
    around = distance - op.Floor(distance / (span * 2)) * (span * 2)
    return op.Where(op.Greater(around, span), span * 2 - around, around) + first
