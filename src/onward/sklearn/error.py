"""What estimators raise."""

from __future__ import annotations

from onward.errors import OnwardError


class EstimatorError(OnwardError, ValueError):
    """Data or parameters that an estimator cannot take: a ValueError, as scikit-learn has it."""
