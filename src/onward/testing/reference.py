"""Operators that the ONNX reference evaluator gets wrong, or too slowly for differences, in plain numpy.

They follow the text of the standard, and are written in another way than the gradient rules that they check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop
from onnx.reference.ops.op_max_pool import MaxPool as EvaluatorsMaxPool

Array = np.ndarray[Any, Any]


class ConvTranspose(OpRun):
    """The evaluator's own mixes up groups, and takes no output_shape without auto_pad."""

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
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        sizes, kernel = x.shape[2:], w.shape[2:]
        n = len(kernel)
        strides, dilations = strides or [1] * n, dilations or [1] * n
        pads, extra = pads or [0] * 2 * n, output_padding or [0] * n
        samples, features = x.shape[0], w.shape[1] * group
        full_sizes = [(sizes[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + extra[i] for i in range(n)]
        full = np.zeros((samples, features, *full_sizes), x.dtype)
        grouped = x.reshape(samples, group, -1, *sizes)
        weight = w.reshape(group, -1, *w.shape[1:])
        for index in np.ndindex(*kernel):
            part = np.einsum("ngc...,gco->ngo...", grouped, np.moveaxis(weight, (0, 1, 2), (-3, -2, -1))[index])
            positions = [
                slice(p * d, p * d + (size - 1) * s + 1, s)
                for p, d, s, size in zip(index, dilations, strides, sizes, strict=True)
            ]
            full[(slice(None), slice(None), *positions)] += part.reshape(samples, features, *sizes)
        if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output_shape = [size * stride for size, stride in zip(sizes, strides, strict=True)]
        if output_shape is not None:
            # A larger shape than there are values for is filled at the end, as onnxruntime does.
            totals = [max(size - wanted, 0) for size, wanted in zip(full_sizes, output_shape, strict=True)]
            before = [t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in totals]
            missing = [max(wanted - size, 0) for size, wanted in zip(full_sizes, output_shape, strict=True)]
            full = np.pad(full, [(0, 0), (0, 0), *((0, m) for m in missing)])
            ends = [start + wanted for start, wanted in zip(before, output_shape, strict=True)]
        else:
            before = list(pads[:n])
            ends = [size - pad for size, pad in zip(full_sizes, pads[n:], strict=True)]
        y = full[(slice(None), slice(None), *map(slice, before, ends))]
        return (y if b is None else y + b.reshape(-1, *[1] * n),)


class Pad(OpRun):
    """The evaluator's own refuses negative pads, which the standard defines as cropping."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        pads: Array | Sequence[int],
        constant_value: Array | None = None,
        axes: Array | None = None,
        mode: str = "constant",
        value: float = 0.0,
    ) -> tuple[Array]:
        widths = np.zeros((x.ndim, 2), np.int64)
        widths[slice(None) if axes is None else axes] = np.reshape(pads, (2, -1)).T
        kept = [slice(max(-a, 0), size - max(-b, 0)) for (a, b), size in zip(widths, x.shape, strict=True)]
        filling = value if constant_value is None else np.reshape(constant_value, ())
        options: Any = {"constant_values": filling} if mode == "constant" else {}
        return (np.pad(x[tuple(kept)], np.maximum(widths, 0), mode=mode, **options),)  # type: ignore[call-overload]


class MaxPool(EvaluatorsMaxPool):
    """onnxruntime rounds towards zero: a window that is too large by less than a stride reads what there is."""

    op_domain = ""

    def _run(self, x: Array, **attributes: Any) -> Any:  # type: ignore[override]
        kernel = attributes["kernel_shape"]
        strides, dilations = (attributes.get(name) or [1] * len(kernel) for name in ("strides", "dilations"))
        pads = np.reshape(attributes.get("pads") or [0] * 2 * len(kernel), (2, -1)).sum(axis=0)
        widths = [(0, 0), (0, 0)]
        for size, k, stride, dilation, pad in zip(x.shape[2:], kernel, strides, dilations, pads, strict=True):
            lacking = dilation * (k - 1) + 1 - size - pad
            widths.append((0, int(lacking) if 0 < lacking < stride else 0))
        if attributes.get("auto_pad") in (None, "", "NOTSET", "VALID") and not attributes.get("ceil_mode"):
            x = np.pad(x, widths, constant_values=-np.inf)
        return super()._run(x, **attributes)  # type: ignore[no-untyped-call]


class GlobalMaxPool(OpRun):
    """The evaluator's own is right with two spatial axes only."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(OpRun):
    """The evaluator has none."""

    op_domain = ""

    def _run(self, x: Array, p: int = 2) -> tuple[Array]:
        return ((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


class GatherElements(OpRun):
    """The indices may have fewer elements than the data along other axes."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
        places: list[np.ndarray] = list(np.indices(indices.shape))
        places[axis] = indices
        return (data[tuple(places)],)


class Loop(op_loop.Loop):
    """Stacks what it keeps of each iteration along a new axis; the reference evaluator joins it along the first one."""

    op_domain = ""
    body: Any

    def _run(  # type: ignore[override]
        self, count: Any, going: Any, *states: Any, context: dict[str, Any] | None = None, **_: Any
    ) -> tuple[Any, ...]:
        current, iteration = list(states), 0
        kept: list[list[Any]] = [[] for _ in self.body.output_names[1 + len(states) :]]
        going = True if going is None else going
        while going and (count is None or iteration < count):
            values = (np.array(iteration), np.array(going), *current)
            inputs = {**(context or {}), **dict(zip(self.body.input_names, values, strict=True))}
            going, *results = self._run_body(inputs)  # type: ignore[attr-defined]
            current = results[: len(states)]
            for rows, row in zip(kept, results[len(states) :], strict=True):
                rows.append(row)
            iteration += 1
        return (*current, *(np.stack(rows) if rows else np.empty(0) for rows in kept))
