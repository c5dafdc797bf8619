"""Layer 5: ONNX models as estimators of scikit-learn."""

from __future__ import annotations

try:
    from sklearn.utils.validation import validate_data as _needed  # noqa: F401
except ImportError as error:
    raise ImportError("onward.sklearn needs scikit-learn 1.6 or newer: pip install 'onward[sklearn]'") from error

from onward.sklearn.classifier import OnnxClassifier
from onward.sklearn.features import OnnxFeatures
from onward.sklearn.regressor import OnnxRegressor

__all__ = ["OnnxClassifier", "OnnxFeatures", "OnnxRegressor"]
