"""Files of scikit-learn, trained: a step is that of numpy, and the exported model predicts as the file, but better."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

import onward
from onward import artifacts
from onward.api import CheckpointState, Module, Optimizer
from onward.errors import NotDifferentiableError, OnwardError
from onward.testing import run_on_runtime

Array = np.ndarray

_random = np.random.default_rng(0)
ROWS = (_random.normal(size=(80, 4)) * 3 + 1).astype(np.float32)
CLASSES = (ROWS[:, 0] > 1).astype(np.int64) + (ROWS[:, 1] > 1)
NAMES = np.array(["no", "perhaps", "yes"])
NUMBERS = (ROWS @ [[1.0], [2.0], [3.0], [4.0]] + 5).astype(np.float32)
WRONG = (NUMBERS + 10 * _random.normal(size=NUMBERS.shape)).astype(np.float32)


def exported(estimator: Any, target: Array, scaled: bool = True) -> onnx.ModelProto:
    """The file of an estimator that has not learned enough."""
    model = make_pipeline(StandardScaler(), estimator) if scaled else estimator
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has not converged
        return to_onnx(model.fit(ROWS, target), ROWS[:1], target_opset={"": 18, "ai.onnx.ml": 3})


def generate(
    model: onnx.ModelProto, folder: Path, **settings: Any
) -> tuple[Module, Optimizer, artifacts.Artifacts, CheckpointState]:
    outputs = [value.name for value in model.graph.output]
    made = artifacts.generate_artifacts(
        model, artifact_directory=folder, additional_output_names=outputs, **{"optimizer": "SGD", **settings}
    )
    used = {node.domain for graph in (made.training_model, made.optimizer_model) if graph for node in graph.graph.node}
    assert used <= {""}, "training needs standard operators only"
    state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
    module = Module(made.paths["training_model"], state, made.paths["eval_model"])
    return module, Optimizer(made.paths["optimizer_model"], module), made, state


def train(module: Module, optimizer: Optimizer, target: Array, steps: int, rate: float) -> list[float]:
    optimizer.set_learning_rate(rate)
    module.train()
    losses = []
    for _ in range(steps):
        loss, *_ = module(ROWS, target)
        losses.append(float(loss))
        optimizer.step()
        module.lazy_reset_grad()
    return losses


def inference(module: Module, model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """The trained model, whose inputs and outputs are those of the file."""
    path = folder / "trained.onnx"
    module.export_model_for_inferencing(path, [value.name for value in model.graph.output])
    trained = onnx.load(path)
    assert [value.name for value in trained.graph.input] == [value.name for value in model.graph.input]
    assert [value.name for value in trained.graph.output] == [value.name for value in model.graph.output]
    kinds = [value.type.WhichOneof("value") for value in model.graph.output]
    assert [value.type.WhichOneof("value") for value in trained.graph.output] == kinds
    return trained


def test_mlp_classifier_behind_a_scaler(tmp_path: Path) -> None:
    model = exported(MLPClassifier((8,), max_iter=3, random_state=0), NAMES[CLASSES])
    assert [node.op_type for node in model.graph.node if node.domain] == ["Scaler", "ZipMap", "ArrayFeatureExtractor"]
    # What comes before the Softmax.
    module, optimizer, made, _ = generate(model, tmp_path, loss="CrossEntropyLoss", loss_input_names=["add_result1"])
    assert made.trainable == ["coefficient", "intercepts", "coefficient1", "intercepts1"], "the scaler stays as it is"
    losses = train(module, optimizer, CLASSES, 150, 0.5)
    assert losses[-1] < losses[0] / 3
    trained = inference(module, model, tmp_path)
    before, after = (run_on_runtime(proto, {"X": ROWS}) for proto in (model, trained))
    assert (before["output_label"] == NAMES[CLASSES]).mean() < 0.8
    assert (after["output_label"] == NAMES[CLASSES]).mean() > 0.9
    chances: Any = after["output_probability"]
    assert all(row[label] == max(row.values()) for row, label in zip(chances, after["output_label"], strict=True))


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_logistic_regression_behind_a_scaler(tmp_path: Path) -> None:
    model = exported(LogisticRegression(C=1e-3), CLASSES)
    module, optimizer, made, state = generate(
        model, tmp_path, loss="CrossEntropyLoss", loss_input_names=["LinearClassifier.scores"]
    )
    assert made.trainable == ["LinearClassifier.intercepts", "LinearClassifier.coefficients"]
    start = {name: np.array(value.data) for name, value in state.parameters}
    losses = train(module, optimizer, CLASSES, 1, 0.1)
    # The same step in numpy.
    x = (ROWS - ROWS.mean(0)) / ROWS.std(0)
    w, b = start["LinearClassifier.coefficients"], start["LinearClassifier.intercepts"]
    chances = softmax(x @ w.T + b)
    np.testing.assert_allclose(losses[0], -np.log(chances[range(80), CLASSES]).mean(), rtol=1e-5)
    error = (chances - np.eye(3)[CLASSES]) / 80
    after = {name: np.array(value.data) for name, value in state.parameters}
    np.testing.assert_allclose(after["LinearClassifier.coefficients"], w - 0.1 * error.T @ x, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["LinearClassifier.intercepts"], b - 0.1 * error.sum(0), rtol=1e-4, atol=1e-6)
    train(module, optimizer, CLASSES, 200, 1.0)
    results = run_on_runtime(inference(module, model, tmp_path), {"X": ROWS})
    assert (results["output_label"] == CLASSES).mean() > 0.8
    assert list(results["output_probability"][0]) == [0, 1, 2]


def test_linear_regression_behind_a_scaler(tmp_path: Path) -> None:
    model = exported(LinearRegression(), WRONG)
    module, optimizer, made, _ = generate(model, tmp_path, loss="MSELoss")
    assert made.trainable == ["LinearRegressor.intercepts", "LinearRegressor.coefficients"]
    losses = train(module, optimizer, NUMBERS, 200, 0.2)
    assert losses[-1] < 1e-3 < losses[0]
    results = run_on_runtime(inference(module, model, tmp_path), {"X": ROWS})
    np.testing.assert_allclose(results["variable"], NUMBERS, rtol=1e-2, atol=0.2)


def test_support_vectors_behind_a_scaler(tmp_path: Path) -> None:
    model = exported(SVR(C=0.1), NUMBERS[:, 0])
    module, optimizer, made, _ = generate(model, tmp_path, loss="MSELoss", optimizer="AdamW")
    assert sorted(made.trainable) == ["SVM.coefficients", "SVM.rho", "SVM.support_vectors"]
    losses = train(module, optimizer, NUMBERS, 60, 0.1)
    assert losses[-1] < losses[0] / 2
    results = run_on_runtime(inference(module, model, tmp_path), {"X": ROWS})
    mean = float(np.mean((results["variable"] - NUMBERS) ** 2))
    assert mean < losses[0] / 2


def test_the_scaler_is_trained_if_asked_for(tmp_path: Path) -> None:
    model = exported(LinearRegression(), WRONG)
    module, optimizer, made, _ = generate(
        model, tmp_path, loss="MSELoss", requires_grad=["Scaler.offset", "Scaler.scale"]
    )
    assert made.trainable == ["Scaler.offset", "Scaler.scale"]
    losses = train(module, optimizer, NUMBERS, 20, 1e-5)
    assert losses[-1] < losses[0]


def test_one_file() -> None:
    """`training_step` of a classifier whose file ends in dictionaries."""
    model = exported(LogisticRegression(C=1e-3), NAMES[CLASSES])
    step = onward.training_step(model, loss="cross_entropy", optimizer="sgd", loss_inputs=["LinearClassifier.scores"])
    assert not {node.op_type for node in step.graph.node if node.domain}
    assert all(value.type.HasField("tensor_type") for value in step.graph.output), "no dictionaries"


def test_a_loss_of_dictionaries_is_refused(tmp_path: Path) -> None:
    model, said = (
        exported(LogisticRegression(), CLASSES),
        r"seq\(map\(int64,tensor\(float\)\)\).*made of: 'probabilities'",
    )
    names = ["output_probability"]
    with pytest.raises(NotDifferentiableError, match=said):
        artifacts.generate_artifacts(
            model, loss="CrossEntropyLoss", loss_input_names=names, artifact_directory=tmp_path
        )
    with pytest.raises(NotDifferentiableError, match=said):
        onward.training_step(model, loss="cross_entropy", optimizer="sgd", loss_inputs=names)


def test_what_a_loss_could_take_instead_of_labels(tmp_path: Path) -> None:
    model = exported(LogisticRegression(), CLASSES)
    with pytest.raises(OnwardError, match=r"for instance loss_input_names=\['LinearClassifier\.scores'\]"):
        artifacts.generate_artifacts(model, loss="CrossEntropyLoss", artifact_directory=tmp_path)
    with pytest.raises(OnwardError, match=r"for instance \['LinearClassifier\.scores'\]"):
        onward.training_step(model, loss="cross_entropy", optimizer="sgd")


@pytest.mark.parametrize("loss_input", ["probabilities", "LinearClassifier.scores"])
def test_inner_values_have_types(tmp_path: Path, loss_input: str) -> None:
    """onnx infers nothing of what Normalizer makes; a loss on it needs to know all the same."""
    model = exported(LogisticRegression(), CLASSES)
    made = artifacts.generate_artifacts(
        model, loss="MSELoss", loss_input_names=[loss_input], optimizer="SGD", artifact_directory=tmp_path
    )
    target = next(value for value in made.training_model.graph.input if value.name == "target")
    assert len(target.type.tensor_type.shape.dim) == 2
