"""An optimizer: a chain of transformations, clipping by the global norm, and parameter groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onward.errors import OnwardError, warn
from onward.graph.builder import Builder
from onward.optim.base import Context, Slot, Transformation, Update
from onward.optim.clipping import GlobalNorm
from onward.optim.groups import Group, group_of, partition, warn_of_idle
from onward.optim.scalar import number
from onward.rate import checked_rate


@dataclass(frozen=True)
class Optimizer:
    """How parameters follow from gradients, as a value: it holds no state and belongs to no graph.

    Attributes:
        transformation: turns the gradient of one parameter into what is subtracted from it; usually a `chain`.
        name: of the recipe.
        learning_rate: the one to start with; the graph takes the rate of each step as an input.
        global_norm: clipping that needs all gradients together, if any.
        groups: parameters that are treated differently; the first that has a parameter counts.
    """

    transformation: Transformation
    name: str = "custom"
    learning_rate: float = 1e-3
    global_norm: GlobalNorm | None = None
    groups: tuple[Group, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", tuple(self.groups))
        object.__setattr__(self, "learning_rate", checked_rate(self.learning_rate, "learning_rate"))
        for group in self.groups:
            self._require_decay(group.weight_decay)

    @property
    def slots(self) -> dict[str, Slot]:
        """The state of each parameter by name; each slot has the type and shape of the parameter."""
        return dict(self.transformation.slots)

    @property
    def elementwise(self) -> bool:
        """Whether `apply` takes any flat chunk of many parameters (of one group) instead of one whole parameter."""
        return self.transformation.elementwise

    def group_of(self, name: str) -> Group:
        """The group of a parameter."""
        return group_of(name, self.groups)

    def partition(self, names: Iterable[str]) -> dict[Group, list[str]]:
        """The parameters of each group; UnknownNameError where a group lists a name that is not among `names`."""
        return partition(names, self.groups)

    def check_groups(self, names: Iterable[str]) -> None:
        """The same error, and a warning of groups without parameters."""
        warn_of_idle(names, self.groups)

    def apply(
        self,
        op: Builder,
        p: ir.Value,
        g: ir.Value,
        slots: Mapping[str, ir.Value],
        t: ir.Value | float,
        lr: ir.Value | float,
        *,
        lr_scale: float = 1.0,
        weight_decay: float | None = None,
        grad_scale: ir.Value | float | None = None,
    ) -> tuple[ir.Value, dict[str, ir.Value]]:
        """Emit the update of one parameter, or of one flat chunk; returns the new parameter and the new slots.

        Args:
            p: the parameter, `g` its gradient, `slots` its state: all of one shape.
            t: the step as one element of any numeric type, 1 at the first one; `lr` the learning rate likewise.
            lr_scale: those of the parameter's group; so is `weight_decay`, None for the optimizer's own.
            grad_scale: what the gradient is multiplied with first, such as `GlobalNorm.coefficient`.
        """
        if slots.keys() != self.transformation.slots.keys():
            raise OnwardError(
                f"optimizer {self.name!r} has the slots {sorted(self.transformation.slots)}, not {sorted(slots)}"
            )
        self._require_decay(weight_decay)
        assert p.dtype is not None
        if p.dtype == ir.DataType.FLOAT16:
            self._warn_of_squares()
        state = dict(slots)
        with op, op.scope(f"update/{p.name}"):
            ctx = Context(p, number(op, t), number(op, lr) * lr_scale, weight_decay, state)
            start = Update(op.cast(g, p.dtype), 1.0 if grad_scale is None else number(op, grad_scale))
            updated = self.transformation(op, start, ctx).subtracted_from(p)
        for value in (updated, *(value for name, value in state.items() if value is not slots[name])):
            value.shape = None if p.shape is None else p.shape.copy()
        return updated, state

    def _warn_of_squares(self) -> None:
        squares = [name for name, slot in self.transformation.slots.items() if slot.squares]
        if squares:
            warn(
                f"weights are float16, and so is what optimizer {self.name!r} keeps of squared gradients "
                f"({', '.join(squares)}): squares of gradients below 0.0002 are zero there, and steps come out far too "
                "large. Convert the model to float32 for training, or take an optimizer without them (sgd, lion)"
            )

    def _require_decay(self, weight_decay: float | None) -> None:
        if weight_decay and not self.transformation.decays:
            raise OnwardError(
                f"a group asks for weight_decay={weight_decay}, but optimizer {self.name!r} has no weight decay: put "
                "add_decayed_weights into its chain"
            )
