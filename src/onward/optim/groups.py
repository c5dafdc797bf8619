"""Parameter groups: a learning rate factor and a weight decay of their own for some parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onward.errors import OnwardError, UnknownNameError, warn

# The last part of the name is a bias (bias, bias_ih_l0, q_bias, beta, gamma), or some part names a normalisation
# (norm1, LayerNorm, batch_norm, bn2, ln_f).
_BIASES_AND_NORMS = (
    r"(?i)(^|[._/])(\w*bias\w*|beta|gamma)(:\d+)?$"
    r"|norm(?!al)"
    r"|(^|[._/])(bn|ln)(_?\d+|_[a-z]+)?[._/]"
)


@dataclass(frozen=True)
class Group:
    """Some parameters and what is different about them.

    Attributes:
        parameters: a regular expression that is searched in the name of a parameter, or a list of exact names.
        lr_scale: the learning rate is multiplied with it.
        weight_decay: replaces that of the optimizer; None keeps it.
    """

    parameters: str | Sequence[str]
    lr_scale: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.parameters, str):
            try:
                re.compile(self.parameters)
            except re.error as error:
                raise OnwardError(f"{self.parameters!r} is not a regular expression: {error}") from error
        else:
            object.__setattr__(self, "parameters", tuple(self.parameters))
        if self.weight_decay is not None and not 0 <= self.weight_decay < math.inf:
            raise OnwardError(f"weight_decay of a group must be at least 0 and finite, not {self.weight_decay}")
        if not 0 <= self.lr_scale < math.inf:
            raise OnwardError(f"lr_scale of a group must be at least 0 and finite, not {self.lr_scale}")

    def has(self, name: str) -> bool:
        """Whether the parameter called `name` belongs to this group."""
        if isinstance(self.parameters, str):
            return re.search(self.parameters, name) is not None
        return name in self.parameters


# The group of the parameters that no other group has.
_OTHERS = Group("")


def no_decay() -> Group:
    """No weight decay on biases and on the weights of normalisations, told by their names.

    Names that an exporter invented (``onnx::Add_12``) tell nothing: list those in a Group of your own.
    """
    return Group(_BIASES_AND_NORMS, weight_decay=0.0)


def group_of(name: str, groups: Iterable[Group]) -> Group:
    """The first group that has the parameter; one that changes nothing when none has."""
    return next((group for group in groups if group.has(name)), _OTHERS)


def partition(names: Iterable[str], groups: Sequence[Group]) -> dict[Group, list[str]]:
    """The parameters of each group, in the order of `names`; groups without any are left out.

    A runtime with flat buffers gives each of them a buffer. A name that is listed in a group and does not exist is an
    error; for patterns see `warn_of_idle`.
    """
    names = list(names)
    listed = [name for group in groups if not isinstance(group.parameters, str) for name in group.parameters]
    unknown = sorted(set(listed) - set(names))
    if unknown:
        raise UnknownNameError(
            f"a parameter group lists {', '.join(map(repr, unknown))}, which is not trained; there "
            f"{'is' if len(names) == 1 else 'are'} {', '.join(map(repr, names)) or 'no parameters'}"
        )
    found: dict[Group, list[str]] = {}
    for name in names:
        found.setdefault(group_of(name, groups), []).append(name)
    return found


def warn_of_idle(names: Iterable[str], groups: Sequence[Group]) -> None:
    """Warn of groups without parameters: a pattern has a slip, or the names are not what it expects."""
    names = list(names)
    used = partition(names, groups)
    for group in groups:
        if group in used:
            continue
        taken = [name for name in names if group.has(name)]
        why = (
            f"groups before it have all that match, {', '.join(map(repr, taken))}"
            if taken
            else f"nothing matches among {', '.join(map(repr, names))}"
        )
        warn(f"the parameter group {group.parameters!r} changes nothing: {why}")
