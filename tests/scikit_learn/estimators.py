"""Every estimator of scikit-learn that skl2onnx converts, fitted on small data."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx
import sklearn
from skl2onnx import to_onnx
from sklearn.base import BaseEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVR
from sklearn.utils import all_estimators

Array = np.ndarray

_random = np.random.default_rng(0)
ROWS = _random.normal(size=(60, 5)).astype(np.float32)
POSITIVE = np.abs(ROWS) + np.float32(0.1)
THREE = (ROWS[:, 0] + ROWS[:, 1] / 2 > 0).astype(int) + (ROWS[:, 2] > 0.8)
TWO = (THREE > 0).astype(int)
NUMBER = ROWS @ _random.normal(size=5) + _random.normal(size=60) / 10
PAIR = np.stack([NUMBER, ROWS[:, 0] - NUMBER], 1)
# What an estimator is fitted on: the first that it takes.
DATA: list[tuple[Array, Array | None]] = [
    (ROWS, THREE),
    (ROWS, NUMBER),
    (POSITIVE, THREE),
    (POSITIVE, np.exp(NUMBER)),
    (ROWS, PAIR),
    (ROWS, TWO),
    (ROWS, None),
]

# Settings of estimators that are made of others, and second forms of some, which are called by two words.
SETTINGS: dict[str, dict[str, Any]] = {
    "ColumnTransformer": {"transformers": [("a", StandardScaler(), [0, 2]), ("b", MinMaxScaler(), [1, 3, 4])]},
    "FeatureUnion": {"transformer_list": [("a", StandardScaler()), ("b", MinMaxScaler())]},
    "GammaRegressor": {"alpha": 0.1},
    "GaussianRandomProjection": {"n_components": 3},
    "GridSearchCV": {"estimator": Ridge(), "param_grid": {"alpha": [0.1, 1.0]}},
    "MultiOutputRegressor": {"estimator": Ridge()},
    "OneVsOneClassifier": {"estimator": LogisticRegression()},
    "OneVsRestClassifier": {"estimator": LogisticRegression()},
    "Pipeline": {"steps": [("a", StandardScaler()), ("b", MLPClassifier((6,), max_iter=20, random_state=0))]},
    "RFE": {"estimator": Ridge(), "n_features_to_select": 3},
    "RFECV": {"estimator": Ridge()},
    "SelectFromModel": {"estimator": Ridge()},
    "StackingClassifier": {
        "estimators": [("a", LogisticRegression()), ("b", MLPClassifier((6,), max_iter=20, random_state=0))]
    },
    "StackingRegressor": {"estimators": [("a", Ridge()), ("b", SVR())], "final_estimator": LinearRegression()},
    "VotingClassifier": {
        "estimators": [("a", LogisticRegression()), ("b", LogisticRegression(C=0.1))],
        "voting": "soft",
    },
    "VotingRegressor": {"estimators": [("a", Ridge()), ("b", SVR())]},
    "AdaBoostRegressor linear": {"estimator": Ridge(), "n_estimators": 3},
    "BaggingRegressor linear": {"estimator": Ridge(), "n_estimators": 3},
    "LinearSVC two": {},
    "LogisticRegression two": {},
    "MLPClassifier logistic": {"activation": "logistic", "hidden_layer_sizes": (6,), "max_iter": 50},
    "MLPClassifier two": {"hidden_layer_sizes": (6,), "max_iter": 50},
    "MLPRegressor tanh": {"activation": "tanh", "hidden_layer_sizes": (6, 4), "max_iter": 50},
    "NuSVC two": {"kernel": "sigmoid", "gamma": 0.1},
    "Normalizer l1": {"norm": "l1"},
    "Normalizer max": {"norm": "max"},
    "RadiusNeighborsClassifier": {"radius": 10.0},
    "RadiusNeighborsRegressor": {"radius": 10.0},
    "SGDClassifier logistic": {"loss": "log_loss", "alpha": 1.0},
    "SVC linear": {"kernel": "linear"},
    "SVC poly": {"kernel": "poly", "degree": 2, "coef0": 0.5},
    "SVC two": {},
    "SVR linear": {"kernel": "linear"},
    "SVR poly": {"kernel": "poly", "coef0": 1.0},
    "SVR sigmoid": {"kernel": "sigmoid", "gamma": 0.1},
}
# What they are fitted on instead.
TARGETS = {name: TWO for name in SETTINGS if name.endswith(" two")}
# They would only take longer.
SMALL = {"n_estimators": 5, "hidden_layer_sizes": (6,), "max_iter": 50}


@cache
def _classes() -> dict[str, type[BaseEstimator]]:
    return dict(all_estimators())


def names() -> list[str]:
    """All estimators of scikit-learn, and their second forms."""
    return sorted({*_classes(), *SETTINGS})


@cache
def converted(name: str, zipmap: bool) -> onnx.ModelProto | None:
    """The model of an estimator, None where skl2onnx has none for it, or not for numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of estimators that stop early, are deprecated, and the like
        fitted = _fitted(name)
        if fitted is None:
            return None
        options = {id(fitted): {"zipmap": False}} if not zipmap and sklearn.base.is_classifier(fitted) else None
        try:
            return to_onnx(fitted, ROWS[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=options)
        except Exception:
            return None


def _fitted(name: str) -> BaseEstimator | None:
    cls = _classes()[name.split()[0]]
    for rows, target in [(ROWS, TARGETS[name])] if name in TARGETS else DATA:
        try:
            estimator = cls(**SETTINGS.get(name, {}))
            if name not in SETTINGS:
                known = estimator.get_params()
                estimator.set_params(**{key: value for key, value in SMALL.items() if key in known})
            if "random_state" in estimator.get_params():
                estimator.set_params(random_state=0)
            return estimator.fit(rows) if target is None else estimator.fit(rows, target)
        except Exception:
            continue
    return None
