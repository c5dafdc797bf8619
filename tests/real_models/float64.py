"""Run a float32 model in float64, to take differences that rounding does not disturb.

onnxruntime has no float64 kernels for convolutions and recurrent layers, so the model runs on onnx's reference
evaluator, with operators from torch or plain numpy where that one is wrong or slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch.nn import functional

from onward.testing.float64 import in_float64, pads_of
from onward.testing.recurrent import GRU, LSTM, RNN
from onward.testing.reference import GatherElements, GlobalMaxPool, Loop, Pad

Array = np.ndarray[Any, Any]

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """An evaluator of `model` with every floating-point number in float64."""
    torch.set_num_threads(1)  # on a busy machine, threads that wait for each other take ten times as long
    return ReferenceEvaluator(in_float64(model), new_ops=_OPERATORS)


def _tensor(x: Array | None) -> torch.Tensor | None:
    return None if x is None else torch.from_numpy(np.require(x, requirements=["C", "W"]))


def _padded(x: torch.Tensor, pads: Sequence[tuple[int, int]], value: float = 0.0) -> torch.Tensor:
    return functional.pad(x, [side for pair in reversed(pads) for side in pair], value=value)


class Conv(OpRun):
    """The evaluator's own takes minutes for a real network."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self, x, w, b=None, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None, strides=None
    ) -> tuple[Array]:
        n = w.ndim - 2
        strides, dilations = strides or [1] * n, dilations or [1] * n
        widths = pads_of(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[n - 1]
        padded = _padded(torch.from_numpy(np.require(x, requirements=["C", "W"])), widths)
        y = convolve(padded, _tensor(w), _tensor(b), tuple(strides), 0, tuple(dilations), group)
        return (y.numpy(),)


class ConvTranspose(OpRun):
    """As Conv; with explicit pads only."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self,
        x,
        w,
        b=None,
        auto_pad="NOTSET",
        dilations=None,
        group=1,
        kernel_shape=None,
        output_padding=None,
        output_shape=None,
        pads=None,
        strides=None,
    ) -> tuple[Array]:
        assert auto_pad in ("NOTSET", "VALID")
        assert output_shape is None
        n = w.ndim - 2
        convolve = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[n - 1]
        options = (tuple(strides or [1] * n), 0, tuple(output_padding or [0] * n), group, tuple(dilations or [1] * n))
        y = convolve(_tensor(x), _tensor(w), _tensor(b), *options).numpy()
        pads = pads or [0] * 2 * n
        kept = [slice(pads[i], y.shape[2 + i] - pads[n + i]) for i in range(n)]
        return (y[(slice(None), slice(None), *kept)],)


def _ceiled(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Any
) -> list[tuple[int, int]]:
    """More padding at the end, for the windows that ceil_mode adds; they begin inside of the image."""
    found = []
    for size, k, s, d, (before, after) in zip(sizes, kernel, strides, dilations, pads, strict=True):
        free = size + before + after - (k - 1) * d - 1
        count = -(-free // s) + 1
        if (count - 1) * s >= size + before:
            count -= 1
        found.append((before, after + max((count - 1) * s - free, 0)))
    return found


class MaxPool(OpRun):
    """As Conv; without indices."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self,
        x,
        auto_pad="NOTSET",
        ceil_mode=0,
        dilations=None,
        kernel_shape=None,
        pads=None,
        storage_order=0,
        strides=None,
    ) -> tuple[Array]:
        n = len(kernel_shape)
        strides, dilations = strides or [1] * n, dilations or [1] * n
        widths = pads_of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
        if ceil_mode:
            widths = _ceiled(x.shape[2:], kernel_shape, strides, dilations, widths)
        pool = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)[n - 1]
        padded = _padded(torch.from_numpy(np.require(x, requirements=["C", "W"])), widths, -np.inf)
        return (pool(padded, tuple(kernel_shape), tuple(strides), 0, tuple(dilations)).numpy(),)


class AveragePool(OpRun):
    """As Conv; the average of what is inside of the image, or of the padded one."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self,
        x,
        auto_pad="NOTSET",
        ceil_mode=0,
        count_include_pad=0,
        dilations=None,
        kernel_shape=None,
        pads=None,
        strides=None,
    ) -> tuple[Array]:
        n = len(kernel_shape)
        strides, dilations = strides or [1] * n, dilations or [1] * n
        assert all(d == 1 for d in dilations)
        inner = pads_of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
        widths = _ceiled(x.shape[2:], kernel_shape, strides, dilations, inner) if ceil_mode else inner
        pool = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)[n - 1]
        image = torch.from_numpy(np.require(x, requirements=["C", "W"]))
        counted = torch.ones_like(image)
        if count_include_pad:
            counted = _padded(counted, inner, 1.0)
            extra = [(0, outer[1] - within[1]) for outer, within in zip(widths, inner, strict=True)]
            counted = _padded(counted, extra)
        else:
            counted = _padded(counted, widths)
        total = pool(_padded(image, widths), tuple(kernel_shape), tuple(strides))
        return ((total / pool(counted, tuple(kernel_shape), tuple(strides))).numpy(),)


class BatchNormalization(OpRun):
    """With running statistics; before opset 14 the evaluator's own uses those of the batch."""

    op_domain = ""

    def _run(self, x, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9, spatial=1, training_mode=0):  # type: ignore[no-untyped-def]
        assert not training_mode
        factor = scale / np.sqrt(variance + epsilon)
        shape = [1, -1] + [1] * (x.ndim - 2)
        return (x * factor.reshape(shape) + (bias - mean * factor).reshape(shape),)


class Erf(OpRun):
    """The evaluator's own returns float32."""

    op_domain = ""

    def _run(self, x):  # type: ignore[no-untyped-def]
        return (torch.erf(torch.from_numpy(np.require(x, requirements=["C", "W"]))).numpy(),)


class Resize(OpRun):
    """Nearest and linear, an axis at a time; the evaluator's own visits every element."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self,
        x,
        *inputs,
        mode="nearest",
        coordinate_transformation_mode="half_pixel",
        nearest_mode="round_prefer_floor",
        cubic_coeff_a=None,
        exclude_outside=None,
        extrapolation_value=None,
        antialias=0,
        axes=None,
        keep_aspect_ratio_policy=None,
    ) -> tuple[Array]:
        assert mode in ("nearest", "linear")
        assert not antialias
        assert axes is None
        scales, sizes = (inputs[1] if len(inputs) > 1 else inputs[0]), (inputs[2] if len(inputs) > 2 else None)
        given = sizes is not None and len(sizes) > 0
        for axis in range(x.ndim):
            old = x.shape[axis]
            new = int(sizes[axis]) if given else int(np.floor(old * scales[axis]))
            scale = new / old if given else float(scales[axis])
            if new == old and scale == 1:
                continue
            at = _origins(np.arange(new), scale, old, new, coordinate_transformation_mode)
            if mode == "nearest":
                x = np.take(x, np.clip(_rounded(at, nearest_mode), 0, old - 1), axis=axis)
                continue
            low = np.floor(np.clip(at, 0, old - 1)).astype(int)
            part = np.reshape(np.clip(at, 0, old - 1) - low, [-1 if i == axis else 1 for i in range(x.ndim)])
            high = np.minimum(low + 1, old - 1)
            x = (1 - part) * np.take(x, low, axis=axis) + part * np.take(x, high, axis=axis)
        return (x,)


def _origins(places: Array, scale: float, old: int, new: int, mode: str) -> Array:
    if mode == "asymmetric":
        return places / scale
    if mode == "align_corners":
        return places * (old - 1) / max(new - 1, 1)
    if mode == "pytorch_half_pixel" and new == 1:
        return np.zeros(1)
    assert mode in ("half_pixel", "pytorch_half_pixel")
    return (places + 0.5) / scale - 0.5


def _rounded(at: Array, mode: str) -> Array:
    rounding = {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda a: np.ceil(a - 0.5),
        "round_prefer_ceil": lambda a: np.floor(a + 0.5),
    }
    return np.asarray(rounding[mode](at)).astype(int)


class Upsample(Resize):
    """The older name; its coordinates are asymmetric."""

    def _run(self, x, scales, mode="nearest"):  # type: ignore[no-untyped-def]
        options = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return Resize._run(self, x, None, scales, mode=mode, **options)


class STFT(OpRun):
    """Real signals, with or without their last axis; the evaluator's own knows one of the two forms."""

    op_domain = ""

    def _run(self, signal, step, window=None, length=None, onesided=1):  # type: ignore[no-untyped-def]
        signal = signal.reshape(signal.shape[:2])
        size, step = len(window) if length is None else int(length), int(step)
        places = np.arange(0, signal.shape[1] - size + 1, step)[:, None] + np.arange(size)
        frames = signal[:, places] * (1 if window is None else window)
        spectrum = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
        return (np.stack([spectrum.real, spectrum.imag], axis=-1),)


class OneHot(OpRun):
    """The evaluator's own takes no depth of one element."""

    op_domain = ""

    def _run(self, indices, depth, values, axis=-1):  # type: ignore[no-untyped-def]
        count = int(np.reshape(depth, ()))
        places = np.expand_dims(np.mod(indices, count), axis)
        shape = [1] * places.ndim
        shape[axis] = count
        return (np.where(places == np.arange(count).reshape(shape), values[1], values[0]),)


def _places(shape: Sequence[int], axis: int, indices: Array, size: int) -> tuple[Array, ...]:
    places = [np.broadcast_to(place, shape) for place in np.ogrid[tuple(slice(n) for n in shape)]]
    places[axis] = np.where(indices < 0, indices + size, indices)
    return tuple(places)


class ScatterElements(OpRun):
    """The evaluator's own takes indices of the shape of the data only."""

    op_domain = ""

    def _run(self, x, indices, updates, axis=0, reduction=None):  # type: ignore[no-untyped-def]
        y = x.copy()
        places = _places(indices.shape, axis, indices, x.shape[axis])
        if reduction in (None, "none", b"none"):
            y[places] = updates
        else:
            {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[reduction].at(y, places, updates)
        return (y,)


class Scan(OpRun):
    """The evaluator's own knows the first axis only."""

    op_domain = ""

    def need_context(self) -> bool:
        return True

    def _run(  # type: ignore[no-untyped-def]
        self,
        *inputs,
        context=None,
        body=None,
        num_scan_inputs=None,
        scan_input_axes=None,
        scan_input_directions=None,
        scan_output_axes=None,
        scan_output_directions=None,
        attributes=None,
        bindings=None,
    ):
        names, kept = self.body.input_names, len(inputs) - num_scan_inputs
        states, scanned = list(inputs[:kept]), list(inputs[kept:])
        outer = {name: value for name, value in (context or {}).items() if name not in names}
        slices = [
            np.flip(np.moveaxis(x, axis, 0), 0) if backward else np.moveaxis(x, axis, 0)
            for x, axis, backward in zip(
                scanned,
                scan_input_axes or [0] * len(scanned),
                scan_input_directions or [0] * len(scanned),
                strict=True,
            )
        ]
        stacks: list[list[Array]] = [[] for _ in self.body.output_names[kept:]]
        for parts in zip(*slices, strict=True):
            given = dict(zip(names, [*states, *parts], strict=True))
            results = self._run_body({**outer, **given}, attributes=attributes)
            states = list(results[:kept])
            for stack, element in zip(stacks, results[kept:], strict=True):
                stack.append(element)
        axes = scan_output_axes or [0] * len(stacks)
        directions = scan_output_directions or [0] * len(stacks)
        ordered = [stack[::-1] if d else stack for stack, d in zip(stacks, directions, strict=True)]
        return (*states, *(np.stack(stack, axis) for stack, axis in zip(ordered, axes, strict=True)))


_OPERATORS = [
    AveragePool,
    BatchNormalization,
    Conv,
    ConvTranspose,
    Erf,
    GRU,
    GatherElements,
    GlobalMaxPool,
    LSTM,
    Loop,
    MaxPool,
    OneHot,
    Pad,
    RNN,
    Resize,
    STFT,
    Scan,
    ScatterElements,
    Upsample,
]
