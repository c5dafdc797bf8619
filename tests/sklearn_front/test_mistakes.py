"""What estimators refuse, in the words of scikit-learn where it has some."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from sklearn.exceptions import NotFittedError

from onward.errors import OnwardError, UnknownNameError
from onward.sklearn import OnnxClassifier, OnnxFeatures, OnnxRegressor
from tests.sklearn_front.data import digits, iris, quiet

SMALL: dict[str, Any] = {"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0}


@pytest.mark.parametrize("estimator", [OnnxClassifier(), OnnxRegressor(), OnnxFeatures()])
def test_prediction_before_training(estimator: Any) -> None:
    method = estimator.transform if isinstance(estimator, OnnxFeatures) else estimator.predict
    with pytest.raises(NotFittedError):
        method(np.zeros((2, 3)))
    for name in ("model_", "coefs_"):
        if not isinstance(estimator, OnnxFeatures):
            with pytest.raises(NotFittedError):
                getattr(estimator, name)


def test_data() -> None:
    X, y = iris()  # noqa: N806
    with pytest.raises(ValueError, match="Input X contains NaN"):
        OnnxClassifier(**SMALL).fit(np.where(X > 1, np.nan, X), y)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        OnnxClassifier(**SMALL).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="y has one class only, 1"):
        OnnxClassifier(**SMALL).fit(X, np.ones(len(X), int))
    with pytest.raises(ValueError, match="several columns of classes"):
        OnnxClassifier(**SMALL).fit(X, np.stack([y, y], 1))
    with pytest.raises(ValueError, match=r"sample_weight.shape == \(3,\), expected \(150,\)"):
        OnnxClassifier(**SMALL).fit(X, y, np.ones(3))
    with pytest.raises(ValueError, match="at least one non-zero"):
        OnnxClassifier(**SMALL).fit(X, y, np.zeros(len(X)))
    with pytest.raises(ValueError, match="at least one non-zero"):
        OnnxClassifier(**SMALL, class_weight={0: 0, 1: 0, 2: 0}).fit(X, y)
    fitted = quiet(OnnxClassifier(**SMALL), X, y)
    with pytest.raises(ValueError, match="X has 3 features, but OnnxClassifier is expecting 4 features"):
        fitted.predict(X[:, :3])
    with pytest.raises(ValueError, match="dim 3"):
        fitted.predict(X[None])


def test_partial_fit_of_other_targets() -> None:
    X, y = iris()  # noqa: N806
    with pytest.raises(ValueError, match="classes must be passed on the first call to partial_fit"):
        OnnxClassifier(**SMALL).partial_fit(X, y)
    begun = OnnxClassifier(**SMALL).partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"`y` has classes not in `self\.classes_`"):
        begun.partial_fit(X, y + 1)
    with pytest.raises(ValueError, match="not the same as on last call to partial_fit"):
        begun.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="but the model was fitted to other targets"):
        begun.partial_fit(X, np.eye(3, dtype=int)[y])
    with pytest.raises(ValueError, match="class_weight 'balanced' is not supported for partial_fit"):
        OnnxClassifier(**SMALL, class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    numbers = OnnxRegressor(**SMALL).partial_fit(X, X[:, 0])
    with pytest.raises(ValueError, match="y has 2 columns, but the model was fitted to 1"):
        numbers.partial_fit(X, X[:, :2])


def test_parameters() -> None:
    X, y = iris()  # noqa: N806
    with pytest.raises(UnknownNameError, match=r"there is no solver 'lbfgs'; there are .*adam.*sgd"):
        OnnxClassifier(**SMALL, solver="lbfgs").fit(X, y)
    with pytest.raises(ValueError, match="The 'activation' parameter of OnnxClassifier must be a str among"):
        OnnxClassifier(**SMALL, activation="swish").fit(X, y)
    with pytest.raises(ValueError, match="hidden_layer_sizes must be > 0"):
        OnnxClassifier(**{**SMALL, "hidden_layer_sizes": (3, 0)}).fit(X, y)
    with pytest.raises(ValueError, match="The 'model' parameter"):
        OnnxClassifier(3, **SMALL).fit(X, y)
    with pytest.raises(UnknownNameError, match="there is no loss 'best'"):
        OnnxClassifier(**SMALL, loss="best").fit(X, y)
    with pytest.raises(ValueError, match="the loss takes the targets 'labels', 'input_lengths', 'target_lengths'"):
        OnnxClassifier(**SMALL, loss="ctc").fit(X, y)
    model = quiet(OnnxClassifier(**SMALL), X, y).model_
    with pytest.raises(AttributeError, match="of a model that was given has no layers"):
        quiet(OnnxClassifier(model, **SMALL), X, y).coefs_  # noqa: B018


@pytest.mark.parametrize(
    ("shape", "element", "message"),
    [
        (["N"], TensorProto.FLOAT, r"has shape \[N\]; rows of X become shape"),
        (["N", "C", 8], TensorProto.FLOAT, r"has shape \[N, C, 8\]"),
        (["N", 4], TensorProto.STRING, "has text; X is an array of numbers"),
    ],
)
def test_inputs_that_rows_do_not_fit(shape: list[Any], element: int, message: str) -> None:
    given = helper.make_tensor_value_info("X", element, shape)
    result = helper.make_tensor_value_info("y", element, shape)
    graph = helper.make_graph([helper.make_node("Identity", ["X"], ["y"])], "same", [given], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(OnwardError, match=message):
        OnnxRegressor(model, **SMALL).fit(*iris())


def test_integers_must_be_whole() -> None:
    X, y = digits()  # noqa: N806
    nodes = [
        helper.make_node("Cast", ["X"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "integers",
        [helper.make_tensor_value_info("X", TensorProto.INT64, ["N", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1])],
        [onnx.numpy_helper.from_array(np.zeros((64, 1), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    assert quiet(OnnxRegressor(model, **SMALL), X * 16, y).predict(X * 16).shape == y.shape
    with pytest.raises(OnwardError, match="input 'X' of the model takes int64, but X has other numbers"):
        OnnxRegressor(model, **SMALL).fit(X, y)


def test_a_fit_that_fails_leaves_nothing_half_done() -> None:
    X, y = iris()  # noqa: N806
    estimator = quiet(OnnxClassifier(**SMALL, warm_start=True), X, y)
    before = estimator.predict_proba(X)
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(np.where(X > 1, np.nan, X), y)
    np.testing.assert_array_equal(estimator.predict_proba(X), before)
    estimator.set_params(model=estimator.model_, output="nothing", warm_start=False)
    with pytest.raises(UnknownNameError):
        estimator.fit(X, y)
    estimator.set_params(model=None, warm_start=True)
    np.testing.assert_array_equal(quiet(estimator, X, y).classes_, [0, 1, 2])
