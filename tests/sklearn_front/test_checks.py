"""scikit-learn's own checks of estimators, without expected failures."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from onward.sklearn import OnnxClassifier, OnnxFeatures, OnnxRegressor

# As little training as the checks of accuracy allow.
QUICK: dict[str, Any] = {
    "hidden_layer_sizes": (10,),
    "learning_rate_init": 0.05,
    "max_iter": 60,
    "tol": 1e-3,
    "n_iter_no_change": 3,
    "random_state": 0,
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
]


@parametrize_with_checks([OnnxClassifier(**QUICK), OnnxRegressor(**QUICK), OnnxFeatures(hidden_layer_sizes=(10,))])
def test_check(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([OnnxClassifier(), OnnxRegressor(), OnnxFeatures()])
def test_check_of_defaults(estimator: Any, check: Any) -> None:
    check(estimator)
