"""Models for inference: any value of the evaluation graph, with the current parameters as constants."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from onward.errors import OnwardError
from onward.runtime import graph as runtime_graph
from onward.runtime import wire
from tests.api import toys
from tests.api.toys import Run, batch


def load(path: Path) -> tuple[onnx.ModelProto, onnxruntime.InferenceSession]:
    onnx.checker.check_model(str(path), full_check=True)
    return onnx.load(path), onnxruntime.InferenceSession(path)


def test_an_exported_model_computes_what_the_module_does(run: Run, tmp_path: Path) -> None:
    run.train(3)
    run.module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"])
    model, session = load(tmp_path / "model.onnx")
    assert [value.name for value in model.graph.input] == ["input"]
    assert [value.name for value in model.graph.output] == ["output"]
    assert not model.metadata_props
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert sorted(found) == sorted(toys.MLP_SHAPES)
    for name, array in run.values().items():
        np.testing.assert_array_equal(found[name], array)
    inputs, labels = batch(9)
    (output,) = session.run(None, {"input": inputs})
    losses = np.log(np.exp(output).sum(1)) - output[np.arange(6), labels]
    assert losses.mean() == pytest.approx(float(run.module.eval()(inputs, labels)), rel=1e-5)
    run.train(1)  # the file does not change with the module any more
    np.testing.assert_array_equal(session.run(None, {"input": inputs})[0], output)


def test_any_value_can_be_an_output(run: Run, tmp_path: Path) -> None:
    loss = run.module.eval().output_names()[0]
    run.module.export_model_for_inferencing(tmp_path / "model.onnx", [loss, "hidden", "output", "hidden"])
    _, session = load(tmp_path / "model.onnx")
    assert [value.name for value in session.get_outputs()] == [loss, "hidden", "output"]
    assert [value.name for value in session.get_inputs()] == ["input", "labels"]
    inputs, labels = batch()
    found = session.run(None, {"input": inputs, "labels": labels})
    assert found[0] == pytest.approx(float(run.module(inputs, labels)))
    run.module.export_model_for_inferencing(tmp_path / "model.onnx", ["hidden"])
    model, session = load(tmp_path / "model.onnx")
    assert [tensor.name for tensor in model.graph.initializer] == ["fc1.weight", "fc1.bias"]
    np.testing.assert_array_equal(session.run(None, {"input": inputs})[0], found[1])


def test_values_without_a_description(mlp_folder: Path, tmp_path: Path) -> None:
    """Where the file does not say the type of a value, onnxruntime finds it."""
    evaluation = onnx.load(mlp_folder / "eval_model.onnx")
    del evaluation.graph.value_info[:]
    for name in ("training_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (tmp_path / name).write_bytes((mlp_folder / name).read_bytes())
    onnx.save(evaluation, tmp_path / "eval_model.onnx")
    run = Run.open(tmp_path)
    run.module.export_model_for_inferencing(tmp_path / "model.onnx", ["active"])
    model, _ = load(tmp_path / "model.onnx")
    tensor = model.graph.output[0].type.tensor_type
    assert tensor.elem_type == onnx.TensorProto.FLOAT
    assert [dim.dim_param or dim.dim_value for dim in tensor.shape.dim] == ["N", 5]


def test_batch_normalization_is_folded_into_convolution(cnn_folder: Path, tmp_path: Path) -> None:
    run = Run.open(cnn_folder)
    run.train(4, data=toys.images)
    run.module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"])
    model, session = load(tmp_path / "model.onnx")
    assert "BatchNormalization" in [node.op_type for node in model.graph.node]
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in ("norm.mean", "norm.var"):
        np.testing.assert_array_equal(found[name], run.values()[name])
    inputs, labels = toys.images(9)
    (output,) = session.run(None, {"image": inputs})
    losses = np.log(np.exp(output).sum(1)) - output[np.arange(6), labels]
    assert losses.mean() == pytest.approx(float(run.module.eval()(inputs, labels)), rel=1e-5)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options)
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "Conv" in operators
    assert "BatchNormalization" not in operators


def test_frozen_parameters_that_were_changed(frozen: Run, tmp_path: Path) -> None:
    frozen.state.parameters["fc1.bias"].data = np.ones(5, np.float32)
    frozen.module.export_model_for_inferencing(tmp_path / "model.onnx", ["hidden"])
    _, session = load(tmp_path / "model.onnx")
    (hidden,) = session.run(None, {"input": np.zeros((1, 4), np.float32)})
    np.testing.assert_array_equal(hidden, np.ones((1, 5)))


@pytest.mark.parametrize("large", [False, True])
def test_external_data(large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that the evaluation model keeps in another file move into the exported one, or beside it."""
    folder = toys.generate(
        tmp_path, toys.mlp(), requires_grad=["fc2.weight", "fc2.bias"], frozen_params=["fc1.bias"], optimizer="sgd"
    )
    for name in ("training_model", "eval_model"):
        model = onnx.load(folder / f"{name}.onnx")
        location = f"{name}.data"
        onnx.save(model, folder / f"{name}.onnx", save_as_external_data=True, location=location, size_threshold=100)
    if large:
        monkeypatch.setattr(wire, "LARGEST_MESSAGE", 0)
    run = Run.open(folder)
    run.train(2)
    target = tmp_path / "elsewhere"
    target.mkdir()
    run.module.export_model_for_inferencing(target / "model.onnx", ["output"])
    assert (target / "model.onnx.data").exists() == large
    _, session = load(target / "model.onnx")
    inputs, labels = batch()
    (output,) = session.run(None, {"input": inputs})
    losses = np.log(np.exp(output).sum(1)) - output[np.arange(6), labels]
    assert losses.mean() == pytest.approx(float(run.module.eval()(inputs, labels)), rel=1e-5)


def test_large_frozen_parameters_are_not_serialized(
    frozen_folder: Path, frozen: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than 2 GB of frozen parameters do not fit into a message; they are handed to onnxruntime as they are."""
    monkeypatch.setattr(runtime_graph, "_LARGE", 0)
    run = Run.open(frozen_folder)
    for each in (run, frozen):
        each.state.parameters["fc1.weight"].data = np.full((5, 4), 0.5, np.float32)
        each.state.parameters["fc1.bias"].data = np.full((5,), -0.5, np.float32)
    assert run.train(3) == frozen.train(3)
    assert run.module.eval()(*batch()) == frozen.module.eval()(*batch())


def test_errors(run: Run, mlp_folder: Path, tmp_path: Path) -> None:
    export = run.module.export_model_for_inferencing
    with pytest.raises(OnwardError, match="Expected a non empty vector"):
        export(tmp_path / "model.onnx", [])
    message = "Expected graph output for inference graph nothing could not be found. Please regenerate the eval graph."
    with pytest.raises(OnwardError, match=re.escape(message)):
        export(tmp_path / "model.onnx", ["output", "nothing"])
    with pytest.raises(TypeError, match="must be a list of names, not 'output'"):
        export(tmp_path / "model.onnx", "output")  # type: ignore[arg-type]
    with pytest.raises(OnwardError, match="there is no directory"):
        export(tmp_path / "missing" / "model.onnx", ["output"])
    assert not list(tmp_path.iterdir())


def test_the_evaluation_model_has_vanished(mlp_folder: Path, tmp_path: Path) -> None:
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (tmp_path / name).write_bytes((mlp_folder / name).read_bytes())
    run = Run.open(tmp_path)
    (tmp_path / "eval_model.onnx").unlink()
    with pytest.raises(OnwardError, match="there is no evaluation model at"):
        run.module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"])
