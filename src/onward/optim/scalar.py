"""Numbers that are known only when the graph runs: the learning rate, the step, and what follows from them.

They are kept in double precision until they meet a tensor: 1 - 0.999^t, computed in float32, is wrong in the fourth
digit for small t. Where a device has no double precision (`onward.graph.width`), they are float32, and 1 - b^t has a
formula that loses nothing.

Operations on Python numbers are done while building, and a node that was emitted once is used again, so that a hundred
parameters share one set of coefficients.
"""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.guard import guarded_number
from onward.graph.width import is_narrow, real

_emitted: WeakKeyDictionary[Builder, dict[tuple[Any, ...], ir.Value]] = WeakKeyDictionary()


class Scalar:
    """A number of rank 0 in a graph, with arithmetic: ``lr * (1 - b2**t) / 2``."""

    __slots__ = ("op", "value")
    __array_ufunc__ = None  # a numpy number on the left leaves the operation to this class

    def __init__(self, op: Builder, value: ir.Value) -> None:
        self.op = op
        self.value = value

    def __add__(self, other: Number) -> Scalar:
        return self if _is(other, 0) else self._emit("Add", self, other)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Scalar:
        return self if _is(other, 0) else self._emit("Sub", self, other)

    def __rsub__(self, other: float) -> Scalar:
        return self._emit("Sub", other, self)

    def __mul__(self, other: Number) -> Number:
        if _is(other, 0):
            return 0.0
        return self if _is(other, 1) else self._emit("Mul", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Scalar:
        return self if _is(other, 1) else self._emit("Div", self, other)

    def __rtruediv__(self, other: float) -> Number:
        return 0.0 if _is(other, 0) else self._emit("Div", other, self)

    def __rpow__(self, base: float) -> Scalar:
        return Power(self, base) if is_narrow() and 0 < base < 1 else self._emit("Pow", base, self)

    def like(self, x: ir.Value) -> ir.Value:
        """This number in the precision of `x`."""
        assert x.dtype is not None
        same = x.dtype == self.value.dtype
        return self.value if same else _shared(self.op, "Cast", self.value, to=int(x.dtype))

    def _emit(self, op_type: str, *operands: Number | ir.Value) -> Scalar:
        return Scalar(self.op, _shared(self.op, op_type, *(self._value(x) for x in operands)))

    def _value(self, x: Number | ir.Value) -> ir.Value:
        if isinstance(x, Scalar):
            return x.value
        return x if isinstance(x, ir.Value) else self.op.constant(x, self.value.dtype)


Number = float | Scalar

# (1 - e^-y) / y = 1 - y/2 + y^2/6 - ...: below _SMALL, the first term that is left out is less than 2^-26.
_SMALL = 0.5
_TERMS = [(-1) ** k / math.factorial(k + 1) for k in range(8)]


class Power(Scalar):
    """base^t = e^-y in single precision, which 1 is subtracted from without losing digits."""

    __slots__ = ("_y",)

    def __init__(self, t: Scalar, base: float) -> None:
        self._y = t._emit("Mul", t, -math.log(base))
        super().__init__(t.op, t._emit("Exp", t._emit("Neg", self._y)).value)

    def __rsub__(self, other: float) -> Scalar:
        difference = super().__rsub__(other)
        if other != 1:
            return difference
        # Where e^-y is close to 1, a polynomial takes the place of the difference: products and sums are exact to a
        # rounding on every device, while the exponentials and logarithms of WebGPU are not.
        series: Number = _TERMS[-1]
        for term in reversed(_TERMS[:-1]):
            series = self._y * series + term
        return self._emit("Where", self._emit("Less", self._y, _SMALL), self._y * series, difference)


def number(op: Builder, x: ir.Value | float) -> Number:
    """A value of one element, of any numeric type, as a Scalar; Python numbers stay what they are."""
    if not isinstance(x, ir.Value):
        return float(x)
    # Rank 0 and not [1], so that a parameter of rank 0 keeps its rank.
    flat = x if x.shape is not None and x.shape.rank() == 0 else _shared(op, "Reshape", x, ())
    return Scalar(op, flat if x.dtype == real() else _shared(op, "Cast", flat, to=int(real())))


def checked_rate(op: Builder, rate: ir.Value) -> ir.Value:
    """A learning rate of one element, or an error at run time if it is negative, infinite or no number."""
    fits = op.And(op.Not(op.Less(rate, 0)), op.Less(rate, math.inf))
    return guarded_number(op, rate, fits, f"{rate.name} must be a finite number that is not negative")


def checked_step(op: Builder, step: ir.Value) -> ir.Value:
    """The number of an update, or an error at run time if it is below 1: corrections of a bias would divide by 0."""
    return guarded_number(op, step, op.Greater(step, 0), f"{step.name} must be at least 1, at the first update")


def sqrt(x: Number) -> Number:
    return x._emit("Sqrt", x) if isinstance(x, Scalar) else x**0.5


def minimum(a: Number, b: Number) -> Number:
    some = a if isinstance(a, Scalar) else b
    return some._emit("Min", a, b) if isinstance(some, Scalar) else min(float(a), float(b))  # type: ignore[arg-type]


def times(x: ir.Value, factor: Number) -> ir.Value:
    """`factor * x`; one pass over the tensor `x`, none where the factor is known to be 1."""
    if isinstance(factor, Scalar):
        return x * factor.like(x)
    return x if factor == 1 else x * factor


def plus(x: ir.Value, term: Number) -> ir.Value:
    """`x + term`; one pass over the tensor `x`, none where the term is known to be 0."""
    if isinstance(term, Scalar):
        return x + term.like(x)
    return x if term == 0 else x + term


def _is(x: Number, literal: float) -> bool:
    return not isinstance(x, Scalar) and x == literal


def _shared(op: Builder, op_type: str, *operands: Any, **attributes: Any) -> ir.Value:
    """The output of such a node, emitted unless the builder has it already."""
    known = _emitted.setdefault(op, {})
    key = (op_type, operands, tuple(attributes.items()))
    if key not in known:
        known[key] = op.reshape(*operands) if op_type == "Reshape" else op.emit(op_type, *operands, **attributes)
    return known[key]
