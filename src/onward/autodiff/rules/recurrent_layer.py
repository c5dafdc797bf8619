"""What the gradients of RNN, GRU and LSTM have in common: directions, layouts and lengths of sequences.

T is the number of steps, N the batch size, I the size of the input, H that of the hidden state, G the number of gates.
What can be computed for all steps at once has the shape `[T * N, ...]`, a row for each step of each sequence; only what
depends on the step before is in a loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import InvalidModelError, UnknownShapeError
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, describe, input_at
from onward.graph.recurrence import Step, Values, recur
from onward.graph.shapes import dims

_END = np.iinfo(np.int64).max


@dataclass
class Direction:
    """One direction of a recurrent node."""

    backwards: bool  # whether it reads the sequence from its end
    w: ir.Value  # [G * H, I]
    r: ir.Value  # [G * H, H]
    b: ir.Value | None  # [2 * G * H], first that of the input, then that of the hidden state
    peepholes: Values | None  # [H] each
    h_before: ir.Value  # [T * N, H], the hidden state before each step
    first: Values  # [1, N, H], the first states
    dy: ir.Value | None  # [T, N, H]
    d_last: Values  # [1, N, H], cotangents of the last states


@dataclass
class Gradients:
    """What one direction contributes; shapes as above."""

    dx: ir.Value  # [T * N, I]
    dw: ir.Value
    dr: ir.Value
    db: ir.Value
    d_first: Values
    dp: ir.Value | None = None  # [3 * H]


class Layer:
    """A recurrent node whose inputs and cotangents are brought into the layout `[T, N, ...]`."""

    def __init__(self, op: Builder, node: ir.Node, gates: int, states: int) -> None:
        self.op, self.node, self.gates, self.states = op, node, gates, states
        x, w, r = node.inputs[:3]
        assert x is not None
        assert w is not None
        assert r is not None
        self.hidden = _hidden_size(node, r)
        self._direction = attribute(node, "direction", "forward")
        self._batch_first = attribute(node, "layout", 0) == 1
        time, batch = (1, 0) if self._batch_first else (0, 1)
        known = dims(x) or (None, None, None)
        self.steps, self.batch = known[time], known[batch]
        self._steps, self._batch = op.dim(x, time), op.dim(x, batch)
        features = known[2] if isinstance(known[2], int) else (dims(w) or (None,))[-1]
        self._features = op.constant([features], ir.DataType.INT64) if isinstance(features, int) else op.dim(w, 2)
        self._lens = input_at(node, 4)
        # [T * N, 1], which steps exist; None where all do.
        self.mask = None if self._lens is None else op.Reshape(self._exists(0), [-1, 1])
        self.x = op.Reshape(self._time_first(x, (1, 0, 2)), op.Concat([-1], self._features, axis=0))

    # Shapes -----------------------------------------------------------------------------------------------------

    def rows(self, x: ir.Value, width: int | None = None) -> ir.Value:
        """`[..., width]` as `[T * N, width]`; the width is that of the hidden state if not given."""
        return self.op.Reshape(x, [-1, self.hidden if width is None else width])

    def by_step(self, x: ir.Value, width: int | None = None) -> ir.Value:
        """`[T * N, width]` as `[T, N, width]`."""
        width = self.hidden if width is None else width
        if isinstance(self.batch, int):
            y = self.op.Reshape(x, [-1, self.batch, width])
        else:
            y = self.op.Reshape(x, self.op.Concat([-1], self._batch, [width], axis=0))
        # onnxruntime must know the ranks of what a Scan cuts; inference does not find them in every opset.
        y.shape = ir.Shape([self.steps, self.batch, width])
        return y

    def widths(self) -> ir.Value:
        """`[I, H]`"""
        return self.op.Concat(self._features, [self.hidden], axis=0)

    def _time_first(self, x: ir.Value, order: Sequence[int]) -> ir.Value:
        return self.op.Transpose(x, perm=order) if self._batch_first else x

    def loop(self, step: Step, states: Values, slices: Values, backwards: bool) -> tuple[Values, Values]:
        """Run `step` over time, see `recur`."""
        return recur(self.op, step, states, slices, self.steps, [self.batch, self.hidden], backwards)

    # Lengths ----------------------------------------------------------------------------------------------------

    def where_exists(self, x: ir.Value, otherwise: float) -> ir.Value:
        """Rows of `x`, another number for steps beyond the end of their sequence."""
        return x if self.mask is None else self.op.Where(self.mask, x, otherwise)

    def _exists(self, later: int) -> ir.Value:
        """Whether the step so many steps later is within its sequence, `[T, N, 1]`."""
        op = self.op
        if isinstance(self.steps, int):
            time = op.constant(np.arange(later, self.steps + later), ir.DataType.INT64)
        else:
            time = op.Range(0, op.Squeeze(self._steps, [0]), 1) + later
        return op.Less(op.Reshape(time, [-1, 1, 1]), self._lengths())

    def _lengths(self) -> ir.Value:
        """`[1, N, 1]`"""
        assert self._lens is not None
        return self.op.Reshape(self.op.cast(self._lens, ir.DataType.INT64), [1, -1, 1])

    # Directions -------------------------------------------------------------------------------------------------

    def directions(self, dys: Sequence[ir.Value | None]) -> list[Direction]:
        """The node's directions with the cotangents of its outputs."""
        op, node, hidden = self.op, self.node, self.hidden
        gates = op.constant([self.gates * hidden], ir.DataType.INT64)
        given = [*dys, None, None][: 1 + self.states]
        y, dy = self._of_sequence(op.forward_output(node, 0)), self._of_sequence(given[0])
        w, r, b = (self._each(input_at(node, index)) for index in (1, 2, 3))
        first = [self._of_state(input_at(node, 5 + index)) for index in range(self.states)]
        d_last = [self._of_state(d) for d in given[1:]]
        p = self._each(input_at(node, 7) if self.states == 2 else None)
        found = []
        for d in range(len(y)):
            backwards = d == 1 or self._direction == "reverse"
            begin = [self._zeros() if state[d] is None else state[d] for state in first]
            found.append(
                Direction(
                    backwards=backwards,
                    w=op.Reshape(w[d], op.Concat(gates, self._features, axis=0)),
                    r=op.Reshape(r[d], [self.gates * hidden, hidden]),
                    b=None if b[d] is None else op.Reshape(b[d], [2 * self.gates * hidden]),
                    peepholes=None if p[d] is None else self._peepholes(p[d]),
                    h_before=self.rows(self.before(y[d], begin[0], backwards)),
                    first=begin,
                    dy=self._within(dy[d]),
                    d_last=[self._zeros() if state[d] is None else self._of_some_steps(state[d]) for state in d_last],
                )
            )
        return found

    # Values are optional below, and what is absent is absent in every direction; hence no type.

    def _each(self, x, axis: int = 0) -> list:  # type: ignore[no-untyped-def, type-arg]
        """A piece of one for each direction along `axis`."""
        if self._direction != "bidirectional":
            return [x]
        return [None, None] if x is None else list(self.op.Split(x, [1, 1], axis=axis, outputs=2))

    def _of_sequence(self, y: ir.Value | None) -> list:  # type: ignore[type-arg]
        """`[T, D, N, H]` as `[T, N, H]` for each direction."""
        pieces = self._each(None if y is None else self._time_first(y, (1, 2, 0, 3)), axis=1)
        return [None if piece is None else self.by_step(piece) for piece in pieces]

    def _of_state(self, h: ir.Value | None) -> list:  # type: ignore[type-arg]
        """`[D, N, H]` as `[1, N, H]` for each direction."""
        return self._each(None if h is None else self._time_first(h, (1, 0, 2)))

    def _peepholes(self, p: ir.Value) -> Values:
        return self.op.Split(self.op.Reshape(p, [3 * self.hidden]), [self.hidden] * 3, axis=0, outputs=3)

    def _zeros(self) -> ir.Value:
        """A state of zeros, `[1, N, H]`."""
        assert self.x.dtype is not None
        if isinstance(self.batch, int):
            return self.op.full([1, self.batch, self.hidden], 0, self.x.dtype)
        return self.op.full(self.op.Concat([1], self._batch, [self.hidden], axis=0), 0, self.x.dtype)

    def _within(self, dy: ir.Value | None) -> ir.Value | None:
        """Beyond the end of a sequence Y is zero, whatever its cotangent says."""
        if dy is None or self._lens is None:
            return dy
        within = self.op.Where(self._exists(0), dy, 0)
        within.shape = dy.shape
        return within

    def _of_some_steps(self, d_last: ir.Value) -> ir.Value:
        """The last states of a sequence without a single step are zero, in onnxruntime."""
        if self._lens is None:
            return d_last
        return self.op.Where(self.op.Greater(self._lengths(), 0), d_last, 0)

    def before(self, y: ir.Value, first: ir.Value, backwards: bool, kept: bool = False) -> ir.Value:
        """The states before each step `[T, N, H]`, from those after it and the first ones.

        Beyond the end of a sequence Y is zero; `kept` says that there `y` holds the state.
        """
        op = self.op
        if not backwards:
            return op.Concat(first, op.Slice(y, [0], [-1], [0]), axis=0)
        shifted = op.Concat(op.Slice(y, [1], [_END], [0]), first, axis=0)
        return shifted if self._lens is None or kept else op.Where(self._exists(1), shifted, first)

    # Cotangents -------------------------------------------------------------------------------------------------

    def cotangents(self, parts: Sequence[Gradients]) -> list[ir.Value | None]:
        """The cotangents of the node's inputs from those of its directions."""
        op, node = self.op, self.node
        dx = parts[0].dx if len(parts) == 1 else op.Add(parts[0].dx, parts[1].dx)
        found = [
            self._dx(dx),
            self._joined([op.Unsqueeze(part.dw, [0]) for part in parts]),
            self._joined([op.Unsqueeze(part.dr, [0]) for part in parts]),
            self._joined([op.Unsqueeze(part.db, [0]) for part in parts]),
            None,
            *(self._d_first([part.d_first[index] for part in parts]) for index in range(self.states)),
        ]
        peepholes = [op.Unsqueeze(part.dp, [0]) for part in parts if part.dp is not None]
        if peepholes:
            found.append(self._joined(peepholes))
        return found[: len(node.inputs)]

    def _joined(self, pieces: Values) -> ir.Value:
        return pieces[0] if len(pieces) == 1 else self.op.Concat(*pieces, axis=0)

    def _d_first(self, pieces: Values) -> ir.Value:
        return self._time_first(self._joined(pieces), (1, 0, 2))

    def _dx(self, dx: ir.Value) -> ir.Value:
        x = self.node.inputs[0]
        assert x is not None
        if not self._batch_first:
            return self.op.reshape_like(dx, x)
        shape = self.op.Concat(self._steps, self._batch, self._features, axis=0)
        return self._time_first(self.op.Reshape(dx, shape), (1, 0, 2))


def _hidden_size(node: ir.Node, r: ir.Value) -> int:
    known = (dims(r) or (None,))[-1]
    size = attribute(node, "hidden_size", None) or known
    if isinstance(known, int) and size != known:
        # onnx's inference believes any number, and would compute with sequences of that length.
        raise InvalidModelError(f"{describe(node)} has hidden_size = {size}, but {r.name!r} ends in {known}")
    if not isinstance(size, int):
        raise UnknownShapeError(
            f"{describe(node)} has no attribute hidden_size, and the shape of {r.name!r} does not tell it either; "
            "set the attribute, which onnxruntime needs too."
        )
    return size
