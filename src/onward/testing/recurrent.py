"""RNN, GRU, LSTM and Scan in plain numpy, for the ONNX reference evaluator.

The evaluator's own know neither sequence lengths, clipping and other activations nor reversed scans. These follow the
text of the standard one sequence and one step at a time, and onnxruntime where the text is silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_scan

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
States = tuple[Array, ...]  # (h,) or (h, c)

# Each with the defaults of the values that it takes from activation_alpha and activation_beta; those of Affine,
# ThresholdedRelu and ScaledTanh are onnxruntime's.
FUNCTIONS: dict[str, tuple[Callable[..., Array], tuple[float, ...]]] = {
    "relu": (lambda x: np.maximum(x, 0), ()),
    "tanh": (np.tanh, ()),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), ()),
    "affine": (lambda x, a, b: a * x + b, (0.0, 0.0)),
    "leakyrelu": (lambda x, a: np.where(x >= 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda x, a: np.where(x >= a, x, 0), (0.0,)),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), (0.0, 0.0)),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)),
    "elu": (lambda x, a: np.where(x >= 0, x, a * np.expm1(x)), (1.0,)),
    "softsign": (lambda x: x / (1 + np.abs(x)), ()),
    "softplus": (lambda x: np.logaddexp(0, x), ()),
}


class _Recurrent(OpRun):
    """What the three have in common: directions, layouts and lengths. Subclasses say what one step does."""

    op_domain = ""
    activations_by_default: tuple[str, ...]
    states = 1
    # The evaluator sets the attributes of the node, or their defaults, on the instance.
    activations: Sequence[str] | None
    activation_alpha: Sequence[float] | None
    activation_beta: Sequence[float] | None
    clip: float | None
    direction: str
    input_forget: int
    linear_before_reset: int

    def step(self, x: Array, before: States, w: Array, r: Array, b: Array, p: Array, f: list[Function]) -> States:
        """The states of one sequence after one step; `b` is `[2, gates * hidden]`."""
        raise NotImplementedError

    def _run(self, x: Array, w: Array, r: Array, *optional: Array | None, **_: Any) -> tuple[Array, ...]:
        b, lens, h0, c0, p = (*optional, None, None, None, None, None)[:5]
        batch_first = getattr(self, "layout", 0) == 1
        if batch_first:
            x = x.swapaxes(0, 1)
        (steps, batch, _features), (directions, rows, _), hidden = x.shape, w.shape, r.shape[2]
        lens = np.full(batch, steps) if lens is None else lens
        start = [np.zeros((directions, batch, hidden), x.dtype) for _ in range(self.states)]
        for index, given in enumerate((h0, c0)[: self.states]):
            if given is not None:
                start[index] = given.swapaxes(0, 1) if batch_first else given
        b = np.zeros((directions, 2 * rows), x.dtype) if b is None else b
        p = np.zeros((directions, 3 * hidden), x.dtype) if p is None else p
        y = np.zeros((steps, directions, batch, hidden), x.dtype)
        last = [np.zeros_like(state) for state in start]
        for d in range(directions):
            functions = self._functions()[d * len(self.activations_by_default) :]
            for n in range(batch):
                order = range(lens[n])
                if self.direction == "reverse" or d == 1:
                    order = order[::-1]
                now = tuple(state[d, n] for state in start)
                for t in order:
                    now = self.step(x[t, n], now, w[d], r[d], b[d].reshape(2, rows), p[d], functions)
                    y[t, d, n] = now[0]
                # A sequence without a step ends in zeros, as in onnxruntime.
                for state, value in zip(last, now, strict=True):
                    state[d, n] = value if lens[n] else 0
        if batch_first:
            y, last = y.transpose(2, 0, 1, 3), [state.swapaxes(0, 1) for state in last]
        return (y, *last)[: max(1, len(self.onnx_node.output))]

    def _functions(self) -> list[Function]:
        given = self.activations or self.activations_by_default * 2
        alphas, betas = iter(self.activation_alpha or ()), iter(self.activation_beta or ())
        return [self._function(name, alphas, betas) for name in given]

    def _function(self, name: str, alphas: Iterator[float], betas: Iterator[float]) -> Function:
        function, defaults = FUNCTIONS[name.lower()]
        arguments = [next(values, default) for values, default in zip((alphas, betas), defaults, strict=False)]
        return lambda x: function(x, *arguments)

    def clipped(self, x: Array) -> Array:
        return x if self.clip is None else np.clip(x, -self.clip, self.clip)


class RNN(_Recurrent):
    """H = f(X W + H R + b)"""

    activations_by_default = ("Tanh",)

    def step(self, x: Array, before: States, w: Array, r: Array, b: Array, p: Array, f: list[Function]) -> States:
        return (f[0](self.clipped(w @ x + r @ before[0] + b.sum(axis=0))),)


class GRU(_Recurrent):
    """H = (1 - z) h + z H, gates in the order z, r, h."""

    activations_by_default = ("Sigmoid", "Tanh")

    def step(self, x: Array, before: States, w: Array, r: Array, b: Array, p: Array, f: list[Function]) -> States:
        (h,) = before
        wz, wr, wh = (w @ x + b[0]).reshape(3, -1)
        rz, rr, rh = np.split(r, 3)
        bz, br, bh = b[1].reshape(3, -1)
        update, reset = f[0](self.clipped(wz + rz @ h + bz)), f[0](self.clipped(wr + rr @ h + br))
        recurrent = reset * (rh @ h + bh) if self.linear_before_reset else rh @ (reset * h) + bh
        candidate = f[1](self.clipped(wh + recurrent))
        return ((1 - update) * candidate + update * h,)


class LSTM(_Recurrent):
    """C = f C + i c, H = o h(C), gates in the order i, o, f, c."""

    activations_by_default = ("Sigmoid", "Tanh", "Tanh")
    states = 2

    def step(self, x: Array, before: States, w: Array, r: Array, b: Array, p: Array, f: list[Function]) -> States:
        h, c = before
        ai, ao, af, ac = (w @ x + r @ h + b.sum(axis=0)).reshape(4, -1)
        pi, po, pf = p.reshape(3, -1)
        gate_in = f[0](self.clipped(ai + pi * c))
        forget = 1 - gate_in if self.input_forget else f[0](self.clipped(af + pf * c))
        c = forget * c + gate_in * f[1](self.clipped(ac))
        # onnxruntime does not clip the cell.
        return f[0](self.clipped(ao + po * c)) * f[2](c), c


class Scan(op_scan.Scan):
    """Scans backwards too, along the first axis."""

    op_domain = ""
    body: Any
    num_scan_inputs: int
    scan_input_axes: Sequence[int] | None
    scan_input_directions: Sequence[int] | None
    scan_output_axes: Sequence[int] | None
    scan_output_directions: Sequence[int] | None

    def __init__(self, onnx_node: Any, run_params: Any) -> None:
        OpRun.__init__(self, onnx_node, run_params)
        axes = (*(self.scan_input_axes or ()), *(self.scan_output_axes or ()))
        if any(axes):
            raise RuntimeError("this Scan knows the first axis only")
        self.input_names, self.output_names = self.body.input_names, self.body.output_names

    def _run(self, *args: Array, context: dict[str, Array] | None = None, **_: Any) -> tuple[Array, ...]:
        states, scanned = list(args[: -self.num_scan_inputs]), args[-self.num_scan_inputs :]
        stacked: list[list[Array]] = [[] for _ in self.output_names[len(states) :]]
        scanned = tuple(_turned(x, self.scan_input_directions, index) for index, x in enumerate(scanned))
        for slices in zip(*scanned, strict=True):
            inputs = {**(context or {}), **dict(zip(self.input_names, (*states, *slices), strict=True))}
            results = self._run_body(inputs)  # type: ignore[attr-defined]
            states = list(results[: len(states)])
            for rows, row in zip(stacked, results[len(states) :], strict=True):
                rows.append(row)
        outputs = [_turned(np.stack(rows), self.scan_output_directions, index) for index, rows in enumerate(stacked)]
        return (*states, *outputs)


def _turned(x: Array, directions: Sequence[int] | None, index: int) -> Array:
    return x[::-1] if directions and directions[index] else x
