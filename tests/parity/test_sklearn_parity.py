"""Gradients against scikit-learn: where its solver has converged, the gradient of what it minimises is zero."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from onward import gradient
from onward.testing import run_on_runtime

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
logistic (double[N, 4] x, int64[N] labels) => (double loss) {
    scores = Gemm <transB = 1> (x, coef, intercept)
    loss = SoftmaxCrossEntropyLoss <reduction = "sum"> (scores, labels)
}
"""


def test_logistic_regression_is_stationary() -> None:
    """scikit-learn minimises C * cross-entropy + |coef|^2 / 2, so C * coef_grad = -coef, and intercept_grad = 0."""
    x, labels = load_iris(return_X_y=True)
    fitted = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(x, labels)
    model = onnx.parser.parse_model(MODEL)
    weights = {"coef": fitted.coef_, "intercept": fitted.intercept_}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    results = run_on_runtime(gradient(model), {"x": x, "labels": labels.astype(np.int64)})
    np.testing.assert_allclose(0.5 * results["coef_grad"], -fitted.coef_, atol=1e-4)
    np.testing.assert_allclose(results["intercept_grad"], 0, atol=1e-4)
