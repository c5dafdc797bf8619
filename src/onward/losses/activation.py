"""Losses that take logits, or logarithms of probabilities, and are given what an activation made of them."""

from __future__ import annotations

import warnings

import onnx_ir as ir

from onward.errors import LossWarning
from onward.graph.nodes import describe

_ORIGIN = "onward.origin"
_LOGITS, _LOG_PROBABILITIES = "logits", "logarithms of probabilities"
# By the names of losses of `onward.losses`, and of the standard's operators.
_TAKEN = {
    **dict.fromkeys(("cross_entropy", "soft_cross_entropy", "focal", "SoftmaxCrossEntropyLoss"), _LOGITS),
    **dict.fromkeys(("bce_with_logits", "binary_focal"), _LOGITS),
    **dict.fromkeys(("nll", "kl_div", "ctc", "NegativeLogLikelihoodLoss"), _LOG_PROBABILITIES),
}
_BINARY = ("bce_with_logits", "binary_focal")
_ACTIVATIONS = ("LogSoftmax", "Sigmoid", "Softmax")
# What does not change numbers, or only their places.
_TRANSPARENT = frozenset("Cast Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())


def remember_origin(copy: ir.Value, origin: ir.Value) -> None:
    """Note which value of a model another one, in a graph of its own, stands for."""
    copy.meta[_ORIGIN] = origin.meta.get(_ORIGIN, origin)


def warn_of_activation(loss: str, prediction: ir.Value) -> None:
    """Warn if a loss would undo or repeat the activation that a prediction comes out of."""
    advice = advice_on(loss, prediction)
    if advice is not None:
        warnings.warn(advice, LossWarning, stacklevel=2)


def advice_on(loss: str, prediction: ir.Value) -> str | None:
    """What to do about a prediction that is not what a loss takes, as far as that can be seen."""
    taken, node = _TAKEN.get(loss), _activation(prediction)
    if taken is None or node is None or node.inputs[0] is None:
        return None
    if node.op_type == "Sigmoid" and loss not in _BINARY:
        return None  # not what the loss is for, but logits may be anything
    name = prediction.meta.get(_ORIGIN, prediction).name
    said = f"the loss {loss} takes {taken}, but {name!r} comes out of the {describe(node)}"
    if taken is _LOGITS:
        return (
            f"{said}: training would be slow and end early, since gradients pass two activations. Give it the input of "
            f"that node: loss_input_names=[{node.inputs[0].name!r}] (loss_inputs in onward.training_step)."
        )
    instead = {"ctc": "ctc with logits=True", "kl_div": "kl_div behind a LogSoftmax"}.get(loss, "cross_entropy")
    return (
        f"{said}, which makes probabilities: the loss would be wrong. Use {instead}, with the input of that node: "
        f"loss_input_names=[{node.inputs[0].name!r}] (loss_inputs in onward.training_step)."
    )


def activation_of(value: ir.Value) -> str | None:
    """The operator that makes probabilities, or logarithms of them, of what comes out as `value`."""
    node = _origin(value)
    return None if node is None or node.op_type not in _ACTIVATIONS else node.op_type


def _activation(value: ir.Value) -> ir.Node | None:
    """The Softmax or Sigmoid that a value comes out of, up to its shape and type."""
    node = _origin(value.meta.get(_ORIGIN, value))
    return node if node is not None and node.op_type in ("Softmax", "Sigmoid") else None


def _origin(value: ir.Value) -> ir.Node | None:
    """The node of the standard that computes a value, up to its shape and type."""
    node = value.producer()
    while node is not None and node.domain == "" and node.op_type in _TRANSPARENT and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.domain == "" else None
