"""Models that are given: files of skl2onnx, images, several inputs; trained, they keep their inputs and outputs."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import to_onnx
from sklearn.datasets import load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeClassifier, SGDClassifier
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC

from onward.errors import OnwardError, UnknownNameError
from onward.sklearn import OnnxClassifier, OnnxRegressor
from onward.testing import run_on_runtime
from tests.sklearn_front.data import convolutional, digits, three_targets

pytestmark = pytest.mark.filterwarnings("ignore:Stochastic Optimizer")

_random = np.random.default_rng(0)
ROWS = (_random.normal(size=(200, 4)) * 3 + 1).astype(np.float32)
THREE = (ROWS[:, 0] > 1).astype(int) + (ROWS[:, 1] > 1)
TWO = (ROWS[:, 0] > 1).astype(int)
SEVERAL = (ROWS[:, :3] > 1).astype(int)
NUMBER = ROWS @ np.array([1.0, 2.0, 3.0, 4.0]) / 10
NAMES = np.array(["a", "b", "c"])

SETTINGS: dict[str, Any] = {"max_iter": 25, "learning_rate_init": 0.03, "random_state": 0, "alpha": 0.0}


def converted(estimator: Any, target: np.ndarray, **options: Any) -> onnx.ModelProto:
    """The file of an estimator that has not learned enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(ROWS, target)
        return to_onnx(estimator, ROWS[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options=options or None)


def poor_mlp() -> MLPClassifier:
    return MLPClassifier((6,), max_iter=2, random_state=0)


# What skl2onnx makes of: an estimator, its targets, and whether probabilities are those of the file.
CLASSIFIERS: dict[str, tuple[Any, np.ndarray, bool]] = {
    "logistic, three classes": (LogisticRegression(C=1e-3), THREE, True),
    "logistic, two classes": (LogisticRegression(C=1e-4), TWO, True),
    "logistic, names": (make_pipeline(StandardScaler(), LogisticRegression(C=1e-3)), NAMES[THREE], True),
    "perceptron, three classes": (make_pipeline(StandardScaler(), poor_mlp()), NAMES[THREE], True),
    "perceptron, two classes": (make_pipeline(MinMaxScaler(), poor_mlp()), TWO, True),
    "perceptron, several labels": (poor_mlp(), SEVERAL, True),
    "one against all": (SGDClassifier(loss="log_loss", alpha=10.0, random_state=0), THREE, True),
    "margins of two classes": (LinearSVC(C=1e-4), TWO, False),
    "margins of three classes": (RidgeClassifier(alpha=1e5), THREE, False),
}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_of_skl2onnx(name: str, tmp_path: Path) -> None:
    estimator, target, probabilities = CLASSIFIERS[name]
    model = converted(estimator, target)
    before = run_on_runtime(model, {"X": ROWS})
    tuned = OnnxClassifier(model, **SETTINGS).fit(ROWS, target)
    assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
    assert tuned.score(ROWS, target) > estimator.score(ROWS, target)
    np.testing.assert_array_equal(tuned.classes_, getattr(estimator, "classes_", np.arange(3)))

    tuned.export(tmp_path / "tuned.onnx")
    trained = onnx.load(tmp_path / "tuned.onnx")
    for values in ("input", "output"):
        names = [[value.name for value in getattr(proto.graph, values)] for proto in (trained, model)]
        assert names[0] == names[1]
    after = run_on_runtime(trained, {"X": ROWS})
    label, scores = after
    assert after[label].dtype == before[label].dtype
    np.testing.assert_array_equal(after[label].reshape(target.shape), tuned.predict(ROWS))
    if probabilities:
        got: Any = after[scores]
        if isinstance(got, list) and isinstance(got[0], dict):
            assert [list(row) for row in got] == [list(row) for row in before[scores]]
            got = [list(row.values()) for row in got]
        np.testing.assert_allclose(np.asarray(got).reshape(len(ROWS), -1), tuned.predict_proba(ROWS), atol=1e-5)
    assert tuned.model is model, "the given model stays as it was"


def test_without_dictionaries() -> None:
    estimator = LogisticRegression(C=1e-4).fit(ROWS, TWO)
    model = to_onnx(
        estimator, ROWS[:1], target_opset={"": 18, "ai.onnx.ml": 3}, options={id(estimator): {"zipmap": False}}
    )
    tuned = OnnxClassifier(model, **SETTINGS).fit(ROWS, TWO)
    said = run_on_runtime(tuned.to_onnx(), {"X": ROWS})
    assert list(said) == ["label", "probabilities"]
    np.testing.assert_allclose(said["probabilities"], tuned.predict_proba(ROWS), atol=2e-5)
    # The two columns are trained as mirrors of each other, and differ by rounding.
    np.testing.assert_allclose(said["probabilities"].sum(1), 1, atol=2e-5)


REGRESSORS: dict[str, Any] = {
    "linear": LinearRegression(),
    "linear behind a scaler": make_pipeline(StandardScaler(), LinearRegression()),
    "perceptron": MLPRegressor(hidden_layer_sizes=(6,), max_iter=2, random_state=0),
    "support vectors": make_pipeline(StandardScaler(), SVR(C=0.01)),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors_of_skl2onnx(name: str) -> None:
    noisy = (NUMBER + _random.normal(size=NUMBER.shape) * 5).astype(np.float32)
    model = converted(REGRESSORS[name], noisy)
    (start,) = run_on_runtime(model, {"X": ROWS}).values()
    tuned = OnnxRegressor(model, **SETTINGS).fit(ROWS, NUMBER)
    first = np.mean((start[:, 0] - NUMBER) ** 2)
    assert np.mean((tuned.predict(ROWS) - NUMBER) ** 2) < first / 2
    (said,) = run_on_runtime(tuned.model_, {"X": ROWS}).values()
    np.testing.assert_allclose(said[:, 0], tuned.predict(ROWS), rtol=1e-5)


def test_one_against_all_with_scores_beyond_the_range_of_exp() -> None:
    """skl2onnx writes 1 / (1 + exp(-s)) in steps, whose slope is 0 times infinity from s = -89 on."""
    rows, target = load_wine(return_X_y=True)
    rows = rows.astype(np.float32)
    given = make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)).fit(rows, target)
    assert given.decision_function(rows).min() < -100
    tuned = OnnxClassifier(to_onnx(given, rows[:1]), **SETTINGS).fit(rows, target)
    assert tuned.loss_curve_[0] == pytest.approx(log_loss(target, given.predict_proba(rows)), abs=1e-6)
    assert tuned.loss_curve_[-1] < tuned.loss_curve_[0]
    assert tuned.score(rows, target) >= given.score(rows, target)


def test_the_first_loss_is_that_of_the_file() -> None:
    """Fine-tuning begins where the file is: with steps of no length, nothing moves."""
    estimator = make_pipeline(StandardScaler(), LogisticRegression(C=1e-3)).fit(ROWS, THREE)
    model = converted(estimator, THREE)
    still = OnnxClassifier(model, **{**SETTINGS, "learning_rate_init": 1e-30, "max_iter": 1}).fit(ROWS, THREE)
    expected = -np.log(estimator.predict_proba(ROWS)[np.arange(len(ROWS)), THREE]).mean()
    np.testing.assert_allclose(still.loss_curve_, expected, rtol=1e-5)
    np.testing.assert_allclose(still.predict_proba(ROWS), estimator.predict_proba(ROWS), atol=1e-6)


# Images, and other models -------------------------------------------------------------------------------------------


def test_images() -> None:
    """A network of torch, made for training: rows become images, and statistics of batches stay in training."""
    X, y = digits()  # noqa: N806
    X = X.astype(np.float32)  # noqa: N806
    settings = {**SETTINGS, "max_iter": 4, "batch_size": 50, "learning_rate_init": 0.01}
    rows = OnnxClassifier(convolutional(), **settings).fit(X, y)
    images = OnnxClassifier(convolutional(), **settings).fit(X.reshape(-1, 1, 8, 8), y)
    np.testing.assert_array_equal(rows.loss_curve_, images.loss_curve_)
    np.testing.assert_array_equal(rows.predict_proba(X.reshape(-1, 1, 8, 8)), images.predict_proba(X))
    with pytest.raises(ValueError, match="dim 4"):
        rows.predict(X.reshape(-1, 1, 4, 16))
    assert rows.score(X, y) > 0.9
    one_by_one = np.concatenate([rows.predict_proba(X[index : index + 1]) for index in range(10)])
    np.testing.assert_allclose(one_by_one, rows.predict_proba(X[:10]), atol=1e-5, err_msg="running statistics")
    (said,) = run_on_runtime(rows.model_, {rows.model_.graph.input[0].name: X.reshape(-1, 1, 8, 8)}).values()
    np.testing.assert_array_equal(said.argmax(1), rows.predict(X))
    continued = pickle.loads(pickle.dumps(rows)).partial_fit(X, y)
    np.testing.assert_array_equal(continued.predict_proba(X), rows.partial_fit(X, y).predict_proba(X))
    with pytest.raises(ValueError, match="X has 60 features, but the model takes 64"):
        OnnxClassifier(convolutional(), **settings).fit(X[:, :60], y)


def test_parts_of_a_model() -> None:
    X, y = digits()  # noqa: N806
    settings = {**SETTINGS, "max_iter": 3, "batch_size": 50}
    model = convolutional()
    start = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    tuned = OnnxClassifier(model, **settings, trainable="4.*").fit(X, y)
    after = {tensor.name: numpy_helper.to_array(tensor) for tensor in tuned.model_.graph.initializer}
    changed = {name for name in start if name in after and not np.array_equal(start[name], after[name])}
    assert changed == {"4.weight", "4.bias", "1.running_mean", "1.running_var"}
    frozen = OnnxClassifier(model, **settings, frozen=["0.*", "1.*"]).fit(X, y)
    np.testing.assert_array_equal(frozen.loss_curve_, tuned.loss_curve_)
    with pytest.raises(OnwardError, match=r"`trainable` names 'nothing\.\*'\. There is no parameter of that kind"):
        OnnxClassifier(model, **settings, trainable="nothing.*").fit(X, y)


def linear(inputs: dict[str, int], outputs: int, element: int = TensorProto.FLOAT, rank: int = 2) -> onnx.ModelProto:
    """The sum of products, one for each input."""
    dtype = helper.tensor_dtype_to_np_dtype(element)
    nodes, weights, parts = [], [], []
    for name, width in inputs.items():
        shape = (width, outputs) if rank == 2 else (width,)
        weights.append(numpy_helper.from_array(np.full(shape, 0.1, dtype), f"{name}_weight"))
        nodes.append(helper.make_node("MatMul", [name, f"{name}_weight"], [f"{name}_product"]))
        parts.append(f"{name}_product")
    nodes.append(helper.make_node("Sum", parts, ["y"]))
    given = [helper.make_tensor_value_info(name, element, ["N", width]) for name, width in inputs.items()]
    result = helper.make_tensor_value_info("y", element, ["N", outputs][:rank])
    graph = helper.make_graph(nodes, "linear", given, [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_several_inputs_take_columns_from_left_to_right() -> None:
    model = linear({"first": 1, "second": 3}, 1)
    tuned = OnnxRegressor(model, **{**SETTINGS, "max_iter": 200, "learning_rate_init": 0.1}).fit(ROWS, NUMBER)
    feeds = {"first": ROWS[:, :1], "second": ROWS[:, 1:]}
    np.testing.assert_allclose(run_on_runtime(tuned.model_, feeds)["y"][:, 0], tuned.predict(ROWS), rtol=1e-5)
    np.testing.assert_allclose(tuned.predict(ROWS), NUMBER, atol=0.2)


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_types_and_ranks_of_outputs(element: int, rank: int) -> None:
    model = linear({"X": 4}, 1, element, rank)
    tuned = OnnxRegressor(model, **{**SETTINGS, "max_iter": 150}).fit(ROWS.astype(np.float64), NUMBER)
    assert tuned.predict(ROWS).shape == NUMBER.shape
    assert tuned.predict(ROWS).dtype == helper.tensor_dtype_to_np_dtype(element)
    assert tuned.score(ROWS, NUMBER) > 0.9


def test_files_bytes_and_models(tmp_path: Path) -> None:
    model = linear({"X": 4}, 1)
    onnx.save(model, tmp_path / "linear.onnx")
    settings = {**SETTINGS, "max_iter": 2}
    curves = [
        OnnxRegressor(given, **settings).fit(ROWS, NUMBER).loss_curve_
        for given in (model, model.SerializeToString(), tmp_path / "linear.onnx", str(tmp_path / "linear.onnx"))
    ]
    assert all(curve == curves[0] for curve in curves)
    with pytest.raises(OnwardError, match="not a readable ONNX model"):
        OnnxRegressor(b"nonsense", **settings).fit(ROWS, NUMBER)
    with pytest.raises(OnwardError, match=r"missing\.onnx' is not a readable ONNX model"):
        OnnxRegressor(str(tmp_path / "missing.onnx"), **settings).fit(ROWS, NUMBER)


def test_a_batch_axis_of_fixed_size_in_prediction() -> None:
    model = linear({"X": 4}, 1)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 50
    tuned = OnnxRegressor(model, **{**SETTINGS, "batch_size": 50}).fit(ROWS, NUMBER)
    free = OnnxRegressor(linear({"X": 4}, 1), **{**SETTINGS, "batch_size": 50}).fit(ROWS, NUMBER)
    np.testing.assert_allclose(tuned.predict(ROWS[:73]), free.predict(ROWS[:73]), rtol=1e-6)
    stopped = {**SETTINGS, "batch_size": 50, "early_stopping": True, "validation_fraction": 0.25}
    assert len(OnnxRegressor(model, **stopped).fit(ROWS, NUMBER).validation_scores_) > 0
    with pytest.raises(ValueError, match=r"takes batches of exactly 50 rows, but 200 rows .* in batches of 40"):
        OnnxRegressor(model, **{**SETTINGS, "batch_size": 40}).fit(ROWS, NUMBER)
    with pytest.raises(ValueError, match="a number of rows that 50 divides"):
        OnnxRegressor(model, **{**SETTINGS, "batch_size": 50}).fit(ROWS[:120], NUMBER[:120])


# What does not fit --------------------------------------------------------------------------------------------------


def test_other_numbers_of_targets_and_classes() -> None:
    with pytest.raises(ValueError, match=r"y has 3 numbers a row, but 'y' of the model has 1; onward\.new_head"):
        OnnxRegressor(linear({"X": 8}, 1), **SETTINGS).fit(*three_targets())
    with pytest.raises(
        ValueError,
        match=r"y has 3 classes, but 'y' of the model has 5 scores a row\. onward\.new_head\(model, classes=3\)",
    ):
        OnnxClassifier(linear({"X": 4}, 5), **SETTINGS).fit(ROWS, THREE)
    begun = OnnxClassifier(linear({"X": 4}, 5), **SETTINGS).partial_fit(ROWS, THREE, classes=range(5))
    assert begun.predict_proba(ROWS).shape == (len(ROWS), 5)


def test_a_new_head() -> None:
    """A network for ten digits learns three classes of its own."""
    X, y = digits()  # noqa: N806
    kinds = np.array(["low", "middle", "high"])[np.digitize(y, [3, 7])]
    settings = {**SETTINGS, "max_iter": 6, "batch_size": 50}
    tuned = OnnxClassifier(convolutional(), new_head=True, **settings).fit(X, kinds)
    assert tuned.score(X, kinds) > 0.8
    assert tuned.predict_proba(X).shape == (len(X), 3)
    again = OnnxClassifier(convolutional(), new_head=True, **settings).fit(X, kinds)
    np.testing.assert_array_equal(again.loss_curve_, tuned.loss_curve_)
    other = OnnxClassifier(convolutional(), new_head=True, **{**settings, "random_state": 1}).fit(X, kinds)
    assert other.loss_curve_[0] != tuned.loss_curve_[0]
    with pytest.raises(ValueError, match=r"y has 3 classes, but .* has 10 scores a row"):
        OnnxClassifier(convolutional(), **settings).fit(X, kinds)


def test_classes_that_the_file_does_not_know() -> None:
    model = converted(LogisticRegression(), NAMES[THREE])
    with pytest.raises(ValueError, match=r"y has the class 0, but the model's classes are \['a', 'b', 'c'\]"):
        OnnxClassifier(model, **SETTINGS).fit(ROWS, THREE)
    fewer = OnnxClassifier(model, **SETTINGS).fit(ROWS[THREE < 2], NAMES[THREE[THREE < 2]])
    assert list(fewer.classes_) == ["a", "b", "c"]
    assert fewer.predict_proba(ROWS).shape == (len(ROWS), 3)


def test_labels_that_do_not_follow_from_scores() -> None:
    """skl2onnx writes the scores of a support vector classifier of two classes in the other order."""
    model = converted(SVC(), TWO)
    with pytest.raises(ValueError, match="do not follow from its scores"):
        OnnxClassifier(model, output="probabilities", **SETTINGS).fit(ROWS, TWO)


def test_a_value_that_is_not_one_for_each_row() -> None:
    """skl2onnx 1.20 makes one column of the targets of a perceptron."""
    X, y = three_targets()  # noqa: N806
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = MLPRegressor(hidden_layer_sizes=(4,), max_iter=2).fit(X, y)
        model = to_onnx(estimator, X[:1].astype(np.float32), target_opset=18)
    if run_on_runtime(model, {"X": X[:5].astype(np.float32)})["variable"].shape == (5, 3):
        pytest.skip("repaired in this skl2onnx")
    with pytest.raises(ValueError, match=r"has 1; onward\.new_head|is not one value"):
        OnnxRegressor(model, **SETTINGS).fit(X, y)
    inner = OnnxRegressor(model, output="add_result1", **SETTINGS).fit(X, y)
    assert inner.predict(X).shape == y.shape


def test_names_of_outputs() -> None:
    model = linear({"X": 4}, 1)
    model.graph.output.append(helper.make_tensor_value_info("X_product", TensorProto.FLOAT, ["N", 1]))
    with pytest.raises(OnwardError, match=r"the model has the outputs 'y', 'X_product'; say which .* output='y'"):
        OnnxRegressor(model, **SETTINGS).fit(ROWS, NUMBER)
    assert OnnxRegressor(model, output="y", **SETTINGS).fit(ROWS, NUMBER).score(ROWS, NUMBER) > 0
    with pytest.raises(UnknownNameError, match="there is no value 'z' in the model"):
        OnnxRegressor(model, output="z", **SETTINGS).fit(ROWS, NUMBER)


def test_a_loss_that_is_not_finite() -> None:
    settings = {**SETTINGS, "learning_rate_init": 1e30, "solver": "sgd"}
    with pytest.raises(OnwardError, match=r"step \d+ \(epoch \d.*the loss is (inf|nan)"):
        OnnxRegressor(linear({"X": 4}, 1), **settings).fit(ROWS, NUMBER)
    begun, other = (OnnxRegressor(linear({"X": 4}, 1), **SETTINGS).partial_fit(ROWS, NUMBER) for _ in range(2))
    with pytest.raises(ValueError, match="the loss is inf"):
        begun.partial_fit(np.float32(1e30) * ROWS, NUMBER)
    np.testing.assert_array_equal(begun.predict(ROWS), other.predict(ROWS))
    begun.partial_fit(ROWS, NUMBER)
    np.testing.assert_array_equal(begun.predict(ROWS), other.partial_fit(ROWS, NUMBER).predict(ROWS))


def test_models_are_not_shown_in_full() -> None:
    model = linear({"X": 4}, 1)
    assert (
        repr(OnnxRegressor(model, alpha=0.5))
        == f"OnnxRegressor(alpha=0.5, model=<ModelProto, {model.ByteSize()} bytes>)"
    )
    assert "bytes>" in repr(OnnxClassifier(model.SerializeToString()))
