"""The errors that onward raises on purpose, and its warnings.

Every message says what is wrong, where (node, operator, opset), why, and what to do about it.
All of them are RuntimeErrors, because that is what users of ``onnxruntime.training`` catch today.
"""

from __future__ import annotations

import sys
import warnings


class OnwardError(RuntimeError):
    """Base of all errors raised on purpose by onward."""


class InvalidModelError(OnwardError):
    """The model is not valid ONNX, or cannot be read."""


class OpsetError(OnwardError):
    """The model needs an opset that onnxruntime or onward does not accept."""


class UnknownNameError(OnwardError):
    """A name given by the caller does not exist in the model."""


class UnknownValueError(UnknownNameError, LookupError):
    """A value that a block names does not exist; a LookupError too, as in `onnxruntime.training.onnxblock`."""


class NotDifferentiableError(OnwardError):
    """A derivative was asked for where none exists (integers, strings, sequences)."""


class MissingRuleError(OnwardError):
    """Operators between the targets and the output have neither a gradient rule nor a function body."""


class UnknownShapeError(OnwardError):
    """A gradient rule needs a rank or a dimension that shape inference could not find."""


class NonFiniteError(OnwardError):
    """A loss or a parameter is NaN or infinite, so training stopped; parameters are those before that step."""


class PeerError(OnwardError):
    """Training in several processes cannot go on, because of another one of them: it failed, ended, or is elsewhere."""


class OnwardWarning(UserWarning):
    """Base of all warnings of onward: it works, but maybe not as meant."""


class ExporterWarning(OnwardWarning):
    """The file is another model than the one that was exported: torch's exporters merge, fold and drop parameters."""


class LossWarning(OnwardWarning):
    """A loss is given what it is not made for, such as probabilities in place of logits."""


class NonFiniteWarning(OnwardWarning):
    """A loss or a gradient is NaN or infinite."""


def warn(message: str, category: type[OnwardWarning] = OnwardWarning) -> None:
    """Warn at the line outside of onward that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "onward":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
