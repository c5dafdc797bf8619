"""What is raised, and warned of.

Where the original raises a ValueError, a TypeError and so on, what is raised here is that and an OnwardError.
"""

from __future__ import annotations

from onward.errors import OnwardError, OnwardWarning


class ConvergenceError(OnwardError):
    """The loss is NaN or infinite: training failed."""


class ConvergenceWarning(OnwardWarning):
    """The loss is NaN or infinite, and training goes on."""


class EvaluationError(OnwardError):
    """The loss of the validation set is NaN or infinite."""


class ProviderError(OnwardError):
    """A tensor is on another device than where it is needed."""


class WrongValueError(OnwardError, ValueError):
    """An argument has a value that it cannot have."""


class WrongTypeError(OnwardError, TypeError):
    """An argument has a type that it cannot have."""


class NotFittedError(OnwardError, AttributeError):
    """`fit` was not called, or what is asked for was not kept."""


class UnsupportedError(OnwardError, NotImplementedError):
    """Neither the original does this, nor onward."""


class MissingFolderError(OnwardError, FileNotFoundError):
    """A folder that files are to be written to does not exist."""
