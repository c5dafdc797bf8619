"""Say where numbers stopped being finite, once they did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from onward.errors import NonFiniteWarning, warn
from onward.runtime.bound import Output, UserInput
from onward.runtime.state import State
from onward.runtime.tensors import array_of

Alarm = Callable[[str], None]


def warn_of_nonfinite(message: str) -> None:
    """What is done about numbers that are not finite, unless somebody wants more."""
    warn(message, NonFiniteWarning)


def check_loss(loss: Output, inputs: Iterable[tuple[str, UserInput]], state: State, alarm: Alarm) -> None:
    """Tell of a loss that is not finite, with the inputs or else the parameters that are to blame."""
    value = array_of(loss)
    if np.isfinite(value).all():
        return
    wrong = list(_not_finite({name: array_of(x) for name, x in inputs}))
    what, why = "input", "Look at the data."
    if not wrong:
        wrong = nonfinite_parameters(state)
        what, why = "parameter", "An update made it so: the learning rate may be too high, or a gradient infinite."
    if wrong:
        said = f"{what} {', '.join(map(repr, wrong))} has elements that are NaN or infinite. {why}"
    else:
        said = "all inputs and parameters are finite, so something overflows between them, or is a logarithm of 0."
    alarm(f"the loss is {value.reshape(-1)[0]}: {said}")


def nonfinite_parameters(state: State) -> list[str]:
    """The parameters and running statistics that have elements which are NaN or infinite."""
    return [name for tensors in (state.trainable, state.frozen) for name in _not_finite(tensors)]


def check_clipping(coefficient: np.ndarray, gradients: Mapping[str, np.ndarray]) -> None:
    """Warn of gradients that have no norm to be clipped by."""
    if np.isfinite(coefficient) and coefficient != 0:
        return
    wrong = list(_not_finite(gradients))
    if wrong:
        warn(
            f"the gradient of {', '.join(map(repr, wrong))} has elements that are NaN or infinite, so the norm of all "
            "gradients is no number and clipping by it cannot help: the update makes parameters NaN, as it does in "
            "torch. Look at the loss and the data, and go back to a checkpoint.",
            NonFiniteWarning,
        )


def _not_finite(arrays: Mapping[str, np.ndarray]) -> Iterator[str]:
    for name, array in arrays.items():
        # bfloat16 is of no kind that numpy knows.
        if (array.dtype.kind in "fc" or array.dtype.name == "bfloat16") and not np.isfinite(array).all():
            yield name
