"""Run a model in float64, to take differences that rounding does not disturb.

onnxruntime has no float64 kernels for convolutions and recurrent layers, so the model runs on onnx's reference
evaluator, with operators in plain numpy where that one is wrong or slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onward.testing.recurrent import GRU, LSTM, RNN
from onward.testing.reference import ConvTranspose, GatherElements, GlobalLpPool, GlobalMaxPool, Loop, MaxPool, Pad

Array = np.ndarray[Any, Any]

_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """An evaluator of `model` with every floating-point number in float64."""
    operators: list[type[OpRun]] = [
        Conv,
        ConvTranspose,
        GatherElements,
        GlobalLpPool,
        GlobalMaxPool,
        GRU,
        Loop,
        LSTM,
        MaxPool,
        Pad,
        RNN,
    ]
    return ReferenceEvaluator(in_float64(model), new_ops=operators)


def in_float64(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` in which every floating-point tensor has type double."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy.graph):
        del graph.value_info[:]
        for tensor in graph.initializer:
            _widen(tensor)
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type in _NARROW:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            _widen_attributes(node)
    return copy


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _widen_attributes(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            _widen(attribute.t)
        elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.array(numbers, np.float64), "")
            attribute.CopyFrom(helper.make_attribute("value", tensor))
        elif attribute.name in ("to", "dtype") and attribute.i in _NARROW:
            attribute.i = TensorProto.DOUBLE
    if node.op_type == "ConstantOfShape" and not node.attribute:
        zero = numpy_helper.from_array(np.zeros(1), "")
        node.attribute.append(helper.make_attribute("value", zero))


def pads_of(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Any, auto: str
) -> list[tuple[int, int]]:
    """What is added before and after each axis that a window goes over."""
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            small, large = total // 2, total - total // 2
            found.append((small, large) if auto == "SAME_UPPER" else (large, small))
        return found
    pads = pads or [0] * 2 * len(kernel)
    return list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))


class Conv(OpRun):
    """The evaluator's own takes minutes for a real network."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str = "NOTSET",
        dilations: Sequence[int] | None = None,
        group: int = 1,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        kernel = w.shape[2:]
        n = len(kernel)
        strides, dilations = strides or [1] * n, dilations or [1] * n
        widths = pads_of(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
        padded = np.pad(x, [(0, 0), (0, 0), *widths])
        reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + n)))
        places = (slice(None), slice(None), *(slice(None, None, s) for s in strides))
        windows = windows[(*places, *(slice(None, None, d) for d in dilations))]
        inner = [windows[:, part] for part in np.split(np.arange(x.shape[1]), group)]
        taken = tuple(range(2 + n, 2 + 2 * n))
        # [N, places ..., features] of each group
        parts = [
            np.tensordot(part, weight, axes=((1, *taken), tuple(range(1, 2 + n))))
            for part, weight in zip(inner, np.split(w, group), strict=True)
        ]
        y = np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)
        return (y if b is None else y + b.reshape(-1, *[1] * n),)
