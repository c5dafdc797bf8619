"""RNN, GRU and LSTM: backpropagation through time.

The forward node stays as it is. Its output Y holds the hidden states, from which the gates of all steps are computed
again by matrix products; the cell states of an LSTM, which no output holds, by a loop of elementwise operators.
The backward loop then does no more than it must: all derivatives that depend on one step alone are multiplied together
beforehand, for all steps at once, into the coefficients `k` of the loop, and the gradients of weights are one
matrix product each, afterwards, over what the loop kept. Peepholes, clipping, coupled gates and sequence lengths
change the coefficients only.

A step that lies beyond the end of its sequence keeps the states: its coefficients are 0 or 1.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.gate import Function, functions_of
from onward.autodiff.rules.recurrent_layer import Direction, Gradients, Layer
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.recurrence import Values

Cotangents = list[ir.Value | None]


class _Joint:
    """x W + h R + b of all steps and gates as one product, [x h] [W R] + b; everything as rows."""

    def __init__(self, layer: Layer, d: Direction) -> None:
        self._layer, self._d = layer, d
        self._xh = layer.op.Concat(layer.x, d.h_before, axis=-1)

    def inputs_of_gates(self) -> ir.Value:
        op, d = self._layer.op, self._d
        b, c = _biases(self._layer, d)
        return op.Gemm(self._xh, op.Concat(d.w, d.r, axis=-1), b if b is None else b + c, transB=1)

    def gradients(self, first: Values, da: ir.Value) -> Gradients:
        op, layer = self._layer.op, self._layer
        dw, dr = op.Split(op.Gemm(da, self._xh, transA=1), layer.widths(), axis=-1, outputs=2)
        db = op.ReduceSum(da, [0], keepdims=0)
        return Gradients(op.MatMul(da, self._d.w), dw, dr, op.Concat(db, db, axis=0), first)


@vjp("RNN")
def rnn(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
    """h' = f(a), a = x W + h R + b"""
    layer = Layer(op, node, gates=1, states=1)
    functions = functions_of(node, ["Tanh"])
    return layer.cotangents([_rnn(layer, d, f) for d, (f,) in zip(layer.directions(dys), functions, strict=True)])


def _rnn(layer: Layer, d: Direction, f: Function) -> Gradients:
    op = layer.op
    joint = _Joint(layer, d)
    k = layer.by_step(layer.where_exists(f.gate(op, joint.inputs_of_gates()).slope(), 0))
    passing = _passing(layer)

    def step(op: Builder, states: Values, slices: Values) -> tuple[Values, Values]:
        (dh,), (k, *rest) = states, slices
        if d.dy is not None:
            dh = dh + rest.pop(0)
        da = dh * k
        return [_carried(op, op.MatMul(da, d.r), dh, rest)], [da]

    first, (da,) = layer.loop(step, d.d_last, [k, *_given(d.dy), *passing], not d.backwards)
    return joint.gradients(first, layer.rows(da))


@vjp("LSTM")
def lstm(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
    """c' = f c + i g, h' = o q(c'), with the gates i, o, f, g = f(a), a = x W + h R + b + p c."""
    layer = Layer(op, node, gates=4, states=2)
    functions = functions_of(node, ["Sigmoid", "Tanh", "Tanh"])
    return layer.cotangents([_lstm(layer, d, *f) for d, f in zip(layer.directions(dys), functions, strict=True)])


def _lstm(layer: Layer, d: Direction, f: Function, g: Function, q: Function) -> Gradients:
    op, coupled = layer.op, attribute(layer.node, "input_forget", 0) != 0
    joint = _Joint(layer, d)
    a = op.Split(joint.inputs_of_gates(), [layer.hidden] * 4, axis=-1, outputs=4)
    cells, cells_before, kept = _cells(layer, d, a, f, g)
    ai, ao, af, ag = a
    if d.peepholes is not None:
        pi, po, pf = d.peepholes
        ai, ao, af = ai + pi * cells_before, ao + po * cells, af + pf * cells_before
    i, o, candidate = f.gate(op, ai), f.gate(op, ao), g.gate(op, ag)
    # The cell is not clipped.
    squashed = q.unclipped().gate(op, cells)
    added, h = i.value * candidate.value, o.value * squashed.value

    # With dh and dc the cotangents of h' and c': dao = dh ko, dc += dh kh, da(i, f, g) = dc k(i, f, g), and the
    # cotangent of c is dc kc.
    ko, kh = o.slope_times(squashed.value, h), squashed.slope_times(o.value, h)
    kg = candidate.slope_times(i.value, added)
    if coupled:  # f = 1 - i
        ki, kf, kc = i.slope_times(candidate.value - cells_before), op.zeros_like(kg), 1 - i.value
    else:
        forget = f.gate(op, af)
        ki, kf, kc = i.slope_times(candidate.value, added), forget.slope_times(cells_before, kept), forget.value
    if d.peepholes is not None:
        kh, kc = kh + po * ko, kc + pi * ki + pf * kf
    k = layer.by_step(layer.where_exists(op.Concat(ki, ko, kf, kg, axis=-1), 0), 4 * layer.hidden)
    kh, kc = layer.by_step(layer.where_exists(kh, 0)), layer.by_step(layer.where_exists(kc, 1))

    def step(op: Builder, states: Values, slices: Values) -> tuple[Values, Values]:
        (dh, dc), (k, kh, kc, *rest) = states, slices
        if d.dy is not None:
            dh = dh + rest.pop(0)
        dc = dc + dh * kh
        da = op.Concat(dc, dh, dc, dc, axis=-1) * k
        return [_carried(op, op.MatMul(da, d.r), dh, rest), dc * kc], [da]

    slices = [k, kh, kc, *_given(d.dy), *_passing(layer)]
    first, (da,) = layer.loop(step, d.d_last, slices, not d.backwards)
    da = layer.rows(da, 4 * layer.hidden)
    gradients = joint.gradients(first, da)
    if d.peepholes is not None:
        dai, dao, daf, _ = op.Split(da, [layer.hidden] * 4, axis=-1, outputs=4)
        dp = op.Concat(dai * cells_before, dao * cells, daf * cells_before, axis=-1)
        gradients.dp = op.ReduceSum(dp, [0], keepdims=0)
    return gradients


def _cells(
    layer: Layer, d: Direction, a: Values, f: Function, g: Function
) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """The cell states after and before each step, and what is kept of those before, as rows."""
    op, coupled = layer.op, attribute(layer.node, "input_forget", 0) != 0
    ai, _, af, ag = a

    def forget(op: Builder, af: ir.Value, i: ir.Value) -> ir.Value:
        return 1 - i if coupled else f.value(op, af)

    if d.peepholes is None:
        i = f.value(op, ai)
        slices = [layer.where_exists(forget(op, af, i), 1), layer.where_exists(i * g.value(op, ag), 0)]

        def step(op: Builder, states: Values, slices: Values) -> tuple[Values, Values]:
            (c,), (share, added) = states, slices
            kept = share * c
            c = kept + added
            return [c], [c, kept]

    else:
        pi, _, pf = d.peepholes

        def step(op: Builder, states: Values, slices: Values) -> tuple[Values, Values]:
            (c,), (ai, af, candidate, *mask) = states, slices
            i = f.value(op, ai + pi * c)
            after = forget(op, af + pf * c, i) * c + i * candidate
            if mask:
                after = op.Where(mask[0], after, c)
            return [after], [after]

        slices = [ai, af, g.value(op, ag)]
    by_step = [layer.by_step(x) for x in slices]
    if d.peepholes is not None and layer.mask is not None:
        by_step.append(layer.by_step(layer.mask, 1))
    cells, *kept = map(layer.rows, layer.loop(step, [d.first[1]], by_step, d.backwards)[1])
    # A state is kept beyond the end of its sequence, so that these need not know the lengths.
    before = layer.before(layer.by_step(cells), d.first[1], d.backwards, kept=True)
    return cells, layer.rows(before), kept[0] if kept else None


@vjp("GRU")
def gru(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
    """h' = (1 - z) n + z h, with the update gate z, the reset gate r and the candidate n."""
    layer = Layer(op, node, gates=3, states=1)
    functions = functions_of(node, ["Sigmoid", "Tanh"])
    one = _gru_reset_after if attribute(node, "linear_before_reset", 0) else _gru_reset_before
    return layer.cotangents([one(layer, d, *f) for d, f in zip(layer.directions(dys), functions, strict=True)])


def _gru_reset_after(layer: Layer, d: Direction, f: Function, g: Function) -> Gradients:
    """n = g(x Wn + bn + r m), m = h Rn + cn: everything in a step is proportional to dh."""
    op, h, hidden = layer.op, d.h_before, layer.hidden
    b, c = _biases(layer, d)
    from_x = op.Gemm(layer.x, d.w, b, transB=1)
    from_h = op.Gemm(h, d.r, c, transB=1)
    xz, xr, xn = op.Split(from_x, [hidden] * 3, axis=-1, outputs=3)
    hz, hr, m = op.Split(from_h, [hidden] * 3, axis=-1, outputs=3)
    z, r = f.gate(op, xz + hz), f.gate(op, xr + hr)
    n = g.gate(op, xn + r.value * m)
    kn = layer.where_exists(n.slope_times(1 - z.value), 0)
    kz = layer.where_exists(z.slope_times(h - n.value), 0)
    kr = r.slope_times(kn * m)
    k = layer.by_step(op.Concat(kz, kr, kn * r.value, axis=-1), 3 * hidden)

    def step(op: Builder, states: Values, slices: Values) -> tuple[Values, Values]:
        (dh,), (k, z, *rest) = states, slices
        if d.dy is not None:
            dh = dh + rest.pop(0)
        da = op.Concat(dh, dh, dh, axis=-1) * k
        return [op.MatMul(da, d.r) + dh * z], [dh, da]

    slices = [k, layer.by_step(layer.where_exists(z.value, 1)), *_given(d.dy)]
    first, (dh, dah) = layer.loop(step, d.d_last, slices, not d.backwards)
    dah = layer.rows(dah, 3 * hidden)
    dzr, _ = op.Split(dah, [2 * hidden, hidden], axis=-1, outputs=2)
    dax = op.Concat(dzr, layer.rows(dh) * kn, axis=-1)
    return _gradients(layer, d, first, dax, dah)


def _gru_reset_before(layer: Layer, d: Direction, f: Function, g: Function) -> Gradients:
    """n = g(x Wn + bn + (r h) Rn + cn)"""
    op, h, hidden = layer.op, d.h_before, layer.hidden
    b, c = _biases(layer, d)
    from_x = op.Gemm(layer.x, d.w, b if b is None else b + c, transB=1)
    r_gates, r_candidate = op.Split(d.r, [2 * hidden, hidden], axis=0, outputs=2)
    xzr, xn = op.Split(from_x, [2 * hidden, hidden], axis=-1, outputs=2)
    az, ar = op.Split(op.Gemm(h, r_gates, xzr, transB=1), [hidden] * 2, axis=-1, outputs=2)
    z, r = f.gate(op, az), f.gate(op, ar)
    reset = r.value * h
    n = g.gate(op, op.Gemm(reset, r_candidate, xn, transB=1))
    kn = layer.where_exists(n.slope_times(1 - z.value), 0)
    k = layer.where_exists(op.Concat(z.slope_times(h - n.value), r.slope_times(h, reset), axis=-1), 0)

    def step(op: Builder, states: Values, slices: Values) -> tuple[Values, Values]:
        (dh,), (k, kn, r, z, *rest) = states, slices
        if d.dy is not None:
            dh = dh + rest.pop(0)
        dn = dh * kn
        d_reset = op.MatMul(dn, r_candidate)
        da = op.Concat(dh, d_reset, axis=-1) * k
        return [op.MatMul(da, r_gates) + d_reset * r + dh * z], [op.Concat(da, dn, axis=-1)]

    slices = [
        layer.by_step(k, 2 * hidden),
        layer.by_step(kn),
        layer.by_step(r.value),
        layer.by_step(layer.where_exists(z.value, 1)),
        *_given(d.dy),
    ]
    first, (da,) = layer.loop(step, d.d_last, slices, not d.backwards)
    da = layer.rows(da, 3 * hidden)
    gradients = _gradients(layer, d, first, da, da)
    da_gates, dn = op.Split(da, [2 * hidden, hidden], axis=-1, outputs=2)
    gradients.dr = op.Concat(op.Gemm(da_gates, h, transA=1), op.Gemm(dn, reset, transA=1), axis=0)
    return gradients


def _biases(layer: Layer, d: Direction) -> tuple[ir.Value, ir.Value] | tuple[None, None]:
    if d.b is None:
        return None, None
    b, c = layer.op.Split(d.b, [layer.gates * layer.hidden] * 2, axis=0, outputs=2)
    return b, c


def _gradients(layer: Layer, d: Direction, first: Values, dax: ir.Value, dah: ir.Value) -> Gradients:
    """From the cotangents of the two products x W + b and h R + c (as rows) to those of their factors."""
    op = layer.op
    sums = [op.ReduceSum(da, [0], keepdims=0) for da in ((dax,) if dax is dah else (dax, dah))]
    return Gradients(
        dx=op.MatMul(dax, d.w),
        dw=op.Gemm(dax, layer.x, transA=1),
        dr=op.Gemm(dah, d.h_before, transA=1),
        db=op.Concat(sums[0], sums[-1], axis=0),
        d_first=first,
    )


def _given(dy: ir.Value | None) -> list[ir.Value]:
    return [] if dy is None else [dy]


def _passing(layer: Layer) -> list[ir.Value]:
    """1 for steps that do not exist, `[T, N, 1]`; nothing where all do."""
    if layer.mask is None:
        return []
    assert layer.x.dtype is not None
    return [layer.by_step(layer.op.cast(layer.op.Not(layer.mask), layer.x.dtype), 1)]


def _carried(op: Builder, dh: ir.Value, after: ir.Value, passing: Values) -> ir.Value:
    """The cotangent of h; a step that does not exist hands on that of h'."""
    return dh + after * passing[0] if passing else dh
