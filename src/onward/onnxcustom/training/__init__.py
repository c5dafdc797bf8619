"""Estimators, losses, penalties, learning rates and the data loader."""

from onward.onnxcustom.training.excs import ConvergenceError, ConvergenceWarning, EvaluationError, ProviderError

__all__ = ["ConvergenceError", "ConvergenceWarning", "EvaluationError", "ProviderError"]
