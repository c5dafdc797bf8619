"""Values from the inside of a model as features."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline

from onward.errors import OnwardError, UnknownNameError
from onward.sklearn import OnnxClassifier, OnnxFeatures
from tests.sklearn_front.data import convolutional, digits, iris, quiet
from tests.sklearn_front.test_files import linear


def test_what_the_last_layer_takes() -> None:
    X, y = digits()  # noqa: N806
    features = OnnxFeatures(convolutional()).fit(X)
    made = features.transform(X)
    assert made.shape == (len(X), 144)
    assert (made >= 0).all(), "behind a Relu"
    assert features.get_feature_names_out()[0] == "onnxfeatures0"
    assert len(features.get_feature_names_out()) == 144
    images = OnnxFeatures(convolutional()).fit_transform(X.reshape(-1, 1, 8, 8))
    np.testing.assert_array_equal(images, made)
    pipeline = make_pipeline(OnnxFeatures(convolutional()), RidgeClassifier()).fit(X, y)
    assert pipeline.score(X, y) > 0.95


def test_any_value_of_a_trained_estimator() -> None:
    X, y = iris()  # noqa: N806
    trained = quiet(OnnxClassifier(None, (7,), max_iter=20, random_state=0), X, y)
    hidden = np.maximum(X @ trained.coefs_[0] + trained.intercepts_[0], 0)
    np.testing.assert_allclose(OnnxFeatures(trained).fit_transform(X), hidden, rtol=1e-12)
    by_name = OnnxFeatures(trained, output="layer0").fit(X)
    np.testing.assert_allclose(by_name.transform(X), X @ trained.coefs_[0] + trained.intercepts_[0], rtol=1e-12)
    np.testing.assert_array_equal(OnnxFeatures(trained, output="label").fit_transform(X)[:, 0], trained.predict(X))
    with pytest.raises(UnknownNameError, match="the model has no value 'layer9'"):
        OnnxFeatures(trained, output="layer9").fit(X)


def test_random_features() -> None:
    X, _ = iris()  # noqa: N806
    settings: dict[str, Any] = {"hidden_layer_sizes": (20, 30), "activation": "tanh", "random_state": 4}
    first = OnnxFeatures(**settings).fit(X)
    assert first.transform(X).shape == (150, 30)
    assert np.abs(first.transform(X)).max() < 1
    np.testing.assert_array_equal(OnnxFeatures(**settings).fit_transform(X), first.transform(X))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).transform(X), first.transform(X))
    assert OnnxFeatures(**settings, dtype="float32").fit_transform(X).dtype == np.float32


def test_mistakes() -> None:
    X, _ = iris()  # noqa: N806
    with pytest.raises(ValueError, match="X has 4 features, but the model takes 3"):
        OnnxFeatures(linear({"X": 3}, 2)).fit(X)
    with pytest.raises(OnwardError, match=r"the model has one layer only, which takes X; .* output='...'"):
        OnnxFeatures(linear({"X": 4}, 2)).fit(X)
    with pytest.raises(ValueError, match=r"'X_weight' of the model has shape \[4, 2\] for 1 rows, which is not one"):
        OnnxFeatures(linear({"X": 4}, 2), output="X_weight").fit(X)
