"""Which parameters are trained: names and patterns that the caller gives, against those of the model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.autodiff.sweep import differentiable_path
from onward.errors import OnwardError
from onward.graph.naming import matching, quoted
from onward.graph.parameters import parameters


def selected(
    model: ir.Model,
    trainable: str | Sequence[str] | None = None,
    frozen: str | Sequence[str] | None = None,
    *,
    loss: ir.Value | None = None,
    constants: Collection[str] = (),
) -> list[str] | None:
    """The parameters to train, in the order of the model; None, where nothing is said, means all that can be.

    A pattern stands for parameters that are trained by default; any other initializer has to be named in full. What is
    both in `trainable` and in `frozen` is frozen.

    Args:
        model: a prepared model.
        loss: the value that training makes small; patterns leave out what it does not depend on.
        constants: initializers that are no parameters of the model, because the loss brought them.
    """
    if trainable is None and frozen is None:
        return None
    known = [parameter for parameter in parameters(model) if parameter.name not in constants]
    reasons = {parameter.name: parameter.reason for parameter in known if not parameter.trainable}
    candidates = [parameter.value for parameter in known if parameter.trainable]
    if loss is not None:
        _, carrying = differentiable_path(model.graph, candidates, [loss])
        unused = [value.name or "" for value in candidates if value not in carrying]
        reasons.update(dict.fromkeys(unused, "the loss does not depend on it"))
    default = [value.name or "" for value in candidates if value.name not in reasons]
    names = default if trainable is None else matching("trainable", trainable, default, reasons)
    held = set() if frozen is None else set(matching("frozen", frozen, default, reasons))
    left = [name for name in names if name not in held]
    if not left:
        what = f"`frozen` holds all of them: {quoted(names)}" if names else "`trainable` is empty"
        raise OnwardError(f"there is nothing to train: {what}")
    return left
