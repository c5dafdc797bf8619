"""What an optimizer is made of: transformations of a gradient into an update, as values that compose.

A transformation is written in the builder notation. It sees the gradient `g` (or what the transformation before it
made of it) and a context with the parameter, the step, the learning rate and its own slots::

    def update(op, g, ctx):
        ctx.mu = ctx.mu * decay + g
        return ctx.mu

    momentum = Transformation(update, slots={"mu": Slot()})

The graph runs at every step over every parameter and is bound by memory: each operator on a whole tensor is a pass. So
scalar factors are gathered in an `Update` and touch a tensor once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.tracing import traced
from onward.optim.scalar import Number, times

_RESERVED = frozenset({"p", "t", "lr", "weight_decay", "values", "names"})


@dataclass(frozen=True)
class Slot:
    """One tensor of state, shaped like the parameter.

    Attributes:
        initial: what every element is before the first step.
        scale: what the stored tensor is multiplied with to get the quantity of the textbook (and of other programs'
            checkpoints). Adam stores mu / (1 - b1): that saves a pass over memory at each step.
        squares: whether it holds squares of gradients, which in half precision are often zero.
    """

    initial: float = 0.0
    scale: float = 1.0
    squares: bool = False


@dataclass(frozen=True)
class Update:
    """What will be subtracted from the parameter, as a sum not added up yet: factor * direction + decay * p."""

    direction: ir.Value
    factor: Number = 1.0
    decay: Number = 0.0

    def times(self, scalar: Number) -> Update:
        return Update(self.direction, self.factor * scalar, self.decay * scalar)

    def tensor(self, p: ir.Value) -> ir.Value:
        """The sum: no pass at all when it is only a direction."""
        scaled = times(self.direction, self.factor)
        return scaled if _is_zero(self.decay) else times(p, self.decay) + scaled

    def without_decay(self, p: ir.Value) -> Update:
        """The same with the decay added to the direction, where there is one: a norm takes factors, not sums."""
        return self if _is_zero(self.decay) else Update(self.tensor(p))

    def subtracted_from(self, p: ir.Value) -> ir.Value:
        """(1 - decay) p - factor direction."""
        return times(p, 1 - self.decay) - times(self.direction, self.factor)


class Context:
    """What a transformation sees besides the gradient.

    Attributes:
        p: the parameter, or a flat chunk of many.
        t: the step, 1 at the first one.
        lr: the learning rate of this step, the factor of the parameter's group included.
        weight_decay: that of the parameter's group; None where the group does not say.

    The slots of the transformation are attributes too, to be read (``ctx.mu``) and replaced (``ctx.mu = ...``).
    """

    p: ir.Value
    t: Number
    lr: Number
    weight_decay: float | None
    values: dict[str, ir.Value]
    names: Mapping[str, str]

    def __init__(
        self,
        p: ir.Value,
        t: Number,
        lr: Number,
        weight_decay: float | None,
        values: dict[str, ir.Value],
        names: Mapping[str, str] | None = None,
    ) -> None:
        names = {name: name for name in values} if names is None else names
        vars(self).update(p=p, t=t, lr=lr, weight_decay=weight_decay, values=values, names=names)

    def __getattr__(self, slot: str) -> ir.Value:
        if slot not in vars(self).get("names", {}):
            raise AttributeError(f"the transformation has no slot {slot!r}")
        return self.values[self.names[slot]]

    def __setattr__(self, slot: str, value: ir.Value) -> None:
        if slot not in self.names:
            raise AttributeError(f"the transformation has no slot {slot!r}")
        self.values[self.names[slot]] = value

    def for_slots(self, names: Mapping[str, str]) -> Context:
        """The same, seen by a transformation whose slots are known outside by other names."""
        outer = {inner: self.names[name] for inner, name in names.items()}
        return Context(self.p, self.t, self.lr, self.weight_decay, self.values, outer)


@dataclass(frozen=True)
class Transformation:
    """A step on the way from a gradient to what is subtracted from the parameter.

    Attributes:
        update: ``(op, g, ctx) -> update``; takes a tensor and returns a tensor, or an `Update` when it has a scalar
            factor to add.
        slots: its state, by name.
        elementwise: whether it may be applied to any flat chunk of many parameters; False when it needs one whole
            parameter, for its norm.
        linear: whether `update` takes an `Update` instead of a tensor and returns another, so that scalars keep
            gathering.
        decays: whether it applies weight decay, so that groups can set it.
    """

    update: Callable[[Builder, Any, Context], ir.Value | Update]
    slots: Mapping[str, Slot] = field(default_factory=dict)
    elementwise: bool = True
    linear: bool = False
    decays: bool = False

    def __post_init__(self) -> None:
        taken = sorted(_RESERVED & self.slots.keys())
        if taken:
            raise OnwardError(f"a slot cannot be called {', '.join(taken)}: the context has an attribute of that name")

    def __call__(self, op: Builder, update: Update, ctx: Context) -> Update:
        with traced(f"the transformation {getattr(self.update, '__qualname__', self.update)}"):
            result = self.update(op, update if self.linear else update.tensor(ctx.p), ctx)
        if not isinstance(result, (Update, ir.Value)):
            raise OnwardError(
                f"the transformation {getattr(self.update, '__qualname__', self.update)} returned "
                f"{type(result).__name__}; it returns a value that operators of `op` make, or an Update"
            )
        return result if isinstance(result, Update) else Update(result)


def chain(*transformations: Transformation) -> Transformation:
    """One transformation that applies several, first to last.

    A slot whose name is taken by an earlier transformation gets a number: mu, mu_1, mu_2.
    """
    wrong = [one for one in transformations if not isinstance(one, Transformation)]
    if wrong:
        raise OnwardError(f"chain takes transformations, such as scale_by_adam(), not {wrong[0]!r}")
    slots: dict[str, Slot] = {}
    links: list[tuple[Transformation, dict[str, str]]] = []
    for transformation in transformations:
        names = {}
        for name, slot in transformation.slots.items():
            names[name] = _free(name, slots)
            slots[names[name]] = slot
        links.append((transformation, names))

    def update(op: Builder, start: Update, ctx: Context) -> Update:
        for transformation, names in links:
            start = transformation(op, start, ctx.for_slots(names))
        return start

    return Transformation(
        update,
        slots,
        elementwise=all(link.elementwise for link in transformations),
        linear=True,
        decays=any(link.decays for link in transformations),
    )


def _free(wanted: str, taken: Mapping[str, Slot]) -> str:
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    return name


def _is_zero(x: Number) -> bool:
    return isinstance(x, (int, float)) and x == 0
