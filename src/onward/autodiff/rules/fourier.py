"""Discrete Fourier transforms, whose transposes are Fourier transforms as well.

Complex numbers are pairs along the last axis; a real signal has a last axis of size 1.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.autodiff.definition import defined
from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import Extent, extent, joined
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.shapes import rank

Row = list[ir.Value | None]


@vjp("DFT")
def dft(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """With F the matrix exp(-2 pi i j k / L): F transposed is L times its inverse, conjugates being implied."""
    x, axis = node.inputs[0], _axis(op, node)
    assert x.dtype is not None
    inverse, onesided = bool(attribute(node, "inverse", 0)), bool(attribute(node, "onesided", 0))
    if inverse and onesided:
        return [_from_real(op, node, dy, axis)]
    length = _length(op, input_at(node, 1), _size(op, x, axis))
    # Bins that a one-sided transform leaves out have no cotangent: DFT pads them with zeros.
    full = op.DFT(dy, _scalar(op, length), _scalar(op, axis), inverse=int(not inverse))
    scale = float(length) if isinstance(length, int) else op.cast(length, x.dtype)
    return [_fit(op, full / scale if inverse else full * scale, x, axis, length)]


def _from_real(op: Builder, node: ir.Node, dy: ir.Value, axis: Extent) -> ir.Value:
    """Half a spectrum to a real signal: every bin counts twice but for the first and, in even lengths, the last."""
    x = node.inputs[0]
    length = _length(op, input_at(node, 1), (_size(op, x, axis) - 1) * 2)
    half = op.DFT(dy, _scalar(op, length), _scalar(op, axis), onesided=1)
    if isinstance(length, int):
        counts = np.full(length // 2 + 1, 2.0)
        counts[0] = 1
        counts[-1] = 1 + length % 2
        weights = op.constant(counts / length, x.dtype)
    else:
        number = op.Range(0, op.Squeeze(length / 2 + 1, [0]), 1)
        ends = op.Or(op.Equal(number, 0), op.Equal(number * 2, length))
        weights = op.Where(ends, op.constant(1, x.dtype), op.constant(2, x.dtype)) / op.cast(length, x.dtype)
    bins = length // 2 + 1 if isinstance(length, int) else length / 2 + 1
    return _fit(op, half * op.Reshape(weights, _along(op, axis, rank(x), -1, 1)), x, axis, bins)


def _axis(op: Builder, node: ir.Node) -> Extent:
    """An attribute, 1 by default, up to opset 19; then an input, -2 by default."""
    value, ndim = input_at(node, 2), rank(node.inputs[0])
    known = constant_of(value)
    if value is None or known is not None:
        axis = attribute(node, "axis", 1 if op.opset < 20 else -2) if known is None else int(known)
        return axis % ndim
    return op.Reshape(op.Where(op.Less(value, 0), value + ndim, value), [1])


def _size(op: Builder, x: ir.Value, axis: Extent) -> Extent:
    return extent(op, x, axis) if isinstance(axis, int) else op.Gather(op.shape(x), axis, axis=0)


def _along(op: Builder, axis: Extent, ndim: int, inside: Extent, outside: int) -> list[int] | ir.Value:
    """A number for each axis, one of which differs from the others."""
    if isinstance(axis, int):
        return joined(op, [inside if other == axis else outside for other in range(ndim)])
    return op.Where(op.Equal(list(range(ndim)), axis), inside, outside)


def _length(op: Builder, given: ir.Value | None, default: Extent) -> Extent:
    if given is None:
        return default
    known = constant_of(given)
    if known is not None:
        return int(known.reshape(-1)[0])
    return op.Reshape(op.cast(given, ir.DataType.INT64), [1])


def _scalar(op: Builder, size: Extent) -> ir.Value:
    return op.constant(size, ir.DataType.INT64) if isinstance(size, int) else op.Squeeze(size, [0])


def _fit(op: Builder, dx: ir.Value, x: ir.Value, axis: Extent, length: Extent) -> ir.Value:
    """dx with the size of x along the axis, where x was cut or padded to `length`; its real part where x is real."""
    size, parts, ndim = _size(op, x, axis), extent(op, x, -1), rank(x)
    if not (isinstance(parts, int) and parts == 2):
        dx = op.Slice(dx, [0], [parts] if isinstance(parts, int) else parts, [ndim - 1])
    if isinstance(axis, int) and isinstance(size, int) and isinstance(length, int) and size <= length:
        return dx if size == length else op.Slice(dx, [0], [size], [axis])
    # Pad cuts where it is negative.
    return op.Pad(dx, op.Concat([0] * ndim, _along(op, axis, ndim, size - length, 0), axis=0))


@defined("STFT")
def stft(op: Builder, node: ir.Node) -> ir.Value:
    """Frames of the signal, times the window, transformed."""
    signal, step = node.inputs[:2]
    window, given = input_at(node, 2), input_at(node, 3)
    x = op.Unsqueeze(signal, [2]) if rank(signal) == 2 else signal
    size = extent(op, signal, 1)
    length = _length(op, given, size if window is None else extent(op, window, 0))
    hop = _length(op, step, 1)
    frames = (size - length) // hop + 1 if _known(size, length, hop) else (size - length) / hop + 1
    starts = op.Unsqueeze(_count(op, frames), [1]) * hop
    places = starts + op.Unsqueeze(_count(op, length), [0])
    x = op.Gather(x, places, axis=1)  # [N, frames, length, 1 or 2]
    if window is not None:
        x = x * op.Unsqueeze(window, [1])
    return op.DFT(x, None, 2, onesided=attribute(node, "onesided", 1))


def _known(*sizes: Extent) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _count(op: Builder, size: Extent) -> ir.Value:
    if isinstance(size, int):
        return op.constant(np.arange(size), ir.DataType.INT64)
    return op.Range(0, op.Squeeze(size, [0]), 1)
