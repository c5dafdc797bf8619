"""generate_artifacts: every argument, every error, and files that are written whole or not at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward import artifacts, losses, onnxblock, optim
from onward.artifacts import LossType, OptimType, generate_artifacts
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.runtime import checkpoint
from tests.onnxblock.models import MLP, identity, mlp, model, names, operators, two_heads, weights

ALL = list(MLP)


def opset(proto: onnx.ModelProto) -> int:
    return next(imported.version for imported in proto.opset_import if imported.domain == "")


def files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Files ---------------------------------------------------------------------------------------------------------------


def test_the_four_files(tmp_path: Path) -> None:
    made = generate_artifacts(
        mlp(),
        requires_grad=["fc2.weight", "fc2.bias"],
        frozen_params=["fc1.weight", "fc1.bias", "a buffer that the exporter dropped"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    assert files(tmp_path) == {"training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"}
    assert made.trainable == ["fc2.weight", "fc2.bias"]
    assert made.frozen == ["fc1.weight", "fc1.bias"]
    assert made.paths == {
        "training_model": tmp_path / "training_model.onnx",
        "eval_model": tmp_path / "eval_model.onnx",
        "optimizer_model": tmp_path / "optimizer_model.onnx",
        "checkpoint": tmp_path / "checkpoint",
    }
    for what in ("training_model", "eval_model", "optimizer_model"):
        assert onnx.load(made.paths[what]) == getattr(made, what)
        onnxruntime.InferenceSession(str(made.paths[what]), providers=["CPUExecutionProvider"])
    state = checkpoint.load(tmp_path / "checkpoint")
    assert state.trainable_names == made.trainable
    assert state.frozen_names == made.frozen
    np.testing.assert_array_equal(state.trainable["fc2.bias"], weights(MLP)["fc2.bias"])


def test_prefix_and_nominal_checkpoint(tmp_path: Path) -> None:
    made = generate_artifacts(
        mlp(), loss=LossType.MSELoss, artifact_directory=str(tmp_path), prefix="my_", nominal_checkpoint=True
    )
    assert files(tmp_path) == {"my_training_model.onnx", "my_eval_model.onnx", "my_checkpoint", "my_nominal_checkpoint"}
    assert made.optimizer_model is None
    sizes = {name: (tmp_path / f"my_{name}").stat().st_size for name in ("checkpoint", "nominal_checkpoint")}
    assert sizes["nominal_checkpoint"] < sizes["checkpoint"]
    assert checkpoint.load(tmp_path / "my_nominal_checkpoint").nominal


def test_the_directory_is_made(tmp_path: Path) -> None:
    generate_artifacts(mlp(), loss=LossType.MSELoss, artifact_directory=bytes(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b" / "checkpoint").is_file()


def test_the_current_directory_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "temp.onnx").write_text("mine")
    generate_artifacts(mlp(), loss=LossType.MSELoss)
    assert files(tmp_path) == {"training_model.onnx", "eval_model.onnx", "checkpoint", "temp.onnx"}
    assert (tmp_path / "temp.onnx").read_text() == "mine"


def test_files_are_replaced_and_that_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoint").write_text("old")
    with caplog.at_level(logging.INFO):
        generate_artifacts(mlp(), loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert "checkpoint exists and is replaced" in caplog.text
    assert checkpoint.load(tmp_path / "checkpoint").trainable_names == ALL


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    contents = []
    for _ in range(2):
        generate_artifacts(mlp(), loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
        contents.append({path.name: path.read_bytes() for path in tmp_path.iterdir()})
    assert contents[0] == contents[1]


def test_the_callers_model_is_not_changed(tmp_path: Path) -> None:
    proto = mlp()
    before = proto.SerializeToString(deterministic=True)
    generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert proto.SerializeToString(deterministic=True) == before


def test_ort_format(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(), loss=LossType.CrossEntropyLoss, optimizer=OptimType.SGD, artifact_directory=tmp_path, ort_format=True
    )
    for what in ("training_model", "eval_model", "optimizer_model"):
        assert {f"{what}.onnx", f"{what}.ort", f"{what}.required_operators.config"} <= files(tmp_path)
        onnxruntime.InferenceSession(str(tmp_path / f"{what}.ort"), providers=["CPUExecutionProvider"])


# Models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path])
def test_models_as_paths(tmp_path: Path, kind: type) -> None:
    onnx.save(mlp(), tmp_path / "model.onnx")
    made = generate_artifacts(kind(tmp_path / "model.onnx"), loss=LossType.MSELoss, artifact_directory=tmp_path / "out")
    assert made.trainable == ALL


@pytest.mark.parametrize("one_file", [True, False])
@pytest.mark.parametrize(
    "loss", [LossType.MSELoss, LossType.CrossEntropyLoss, LossType.BCEWithLogitsLoss, LossType.L1Loss]
)
def test_external_data(tmp_path: Path, loss: LossType, one_file: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    onnx.save(
        mlp(), source / "model.onnx", save_as_external_data=True, all_tensors_to_one_file=one_file, size_threshold=0
    )
    generate_artifacts(
        source / "model.onnx",
        requires_grad=["fc2.weight"],
        frozen_params=["fc1.bias"],
        loss=loss,
        optimizer=OptimType.AdamW,
        artifact_directory=tmp_path / "out",
    )
    state = checkpoint.load(tmp_path / "out" / "checkpoint")
    np.testing.assert_array_equal(state.trainable["fc2.weight"], weights(MLP)["fc2.weight"])
    np.testing.assert_array_equal(state.frozen["fc1.bias"], weights(MLP)["fc1.bias"])
    # The weights that are not trained are inside, so that the files do not need the source any more.
    training = onnx.load(tmp_path / "out" / "training_model.onnx")
    inside = {tensor.name: numpy_helper.to_array(tensor) for tensor in training.graph.initializer}
    np.testing.assert_array_equal(inside["fc1.weight"], weights(MLP)["fc1.weight"])


def test_weights_that_do_not_fit_into_a_file_get_one_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above 2 GB; here with the limit of protobuf lowered."""
    monkeypatch.setattr("onward.graph.finish.LARGEST_PROTO", 100)
    source = tmp_path / "source"
    source.mkdir()
    body = {"body": np.arange(4 * 512, dtype=np.float32).reshape(4, 512) / 1e3, "head": np.ones((512, 3), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "body"], ["h"]), helper.make_node("MatMul", ["h", "head"], ["y"])]
    proto = model(nodes, {"x": ["N", 4]}, {"y": ["N", 3]}, body)
    onnx.save(proto, source / "model.onnx", save_as_external_data=True, size_threshold=0, location="weights")
    generate_artifacts(
        source / "model.onnx",
        requires_grad=["head"],
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path / "out",
    )
    assert {"training_model.onnx.data", "eval_model.onnx.data"} <= files(tmp_path / "out")
    (source / "weights").unlink()
    feeds = {"x": np.ones((1, 4), np.float32), "target": np.zeros((1, 3), np.float32), "head": body["head"]}
    session = onnxruntime.InferenceSession(
        str(tmp_path / "out" / "eval_model.onnx"), providers=["CPUExecutionProvider"]
    )
    (loss,) = session.run(None, feeds)
    np.testing.assert_allclose(loss, body["body"].sum() ** 2, rtol=1e-4)


def test_old_models(tmp_path: Path) -> None:
    """IR version 3 and opset 8, where initializers are inputs: what CNTK exported."""
    nodes = [
        helper.make_node("Conv", ["x", "filter"], ["a"], kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["c", "rows"], ["d"]),
        helper.make_node("Reshape", ["Parameter193", "columns"], ["e"]),
        helper.make_node("MatMul", ["d", "e"], ["f"]),
        helper.make_node("Add", ["f", "Parameter194"], ["y"]),
    ]
    shapes = {"filter": (2, 1, 3, 3), "Parameter193": (2, 2, 2, 5), "Parameter194": (1, 5)}
    integers = {"rows": np.array([1, 8]), "columns": np.array([8, 5])}
    proto = model(nodes, {"x": [1, 1, 4, 4]}, {"y": [1, 5]}, {**weights(shapes), **integers}, opset=8)
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    proto.ir_version = 3
    made = generate_artifacts(
        proto,
        requires_grad=["Parameter194", "Parameter193"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    assert made.trainable == ["Parameter193", "Parameter194"]
    assert names(made.eval_model.graph.input) == ["x", "labels", *made.trainable]
    assert generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path).trainable == list(shapes)


@pytest.mark.parametrize(("given", "expected"), [(9, 12), (12, 12), (14, 14), (20, 20)])
def test_all_models_have_one_opset(tmp_path: Path, given: int, expected: int) -> None:
    made = generate_artifacts(
        mlp(given), loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
    )
    assert made.optimizer_model is not None
    assert [opset(proto) for proto in (made.training_model, made.eval_model, made.optimizer_model)] == [expected] * 3


def test_all_models_move_to_the_opset_that_the_optimizer_needs(tmp_path: Path) -> None:
    made = generate_artifacts(mlp(9), loss=LossType.L1Loss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    assert made.optimizer_model is not None
    assert [opset(proto) for proto in (made.training_model, made.eval_model, made.optimizer_model)] == [11] * 3


def test_double_models(tmp_path: Path) -> None:
    made = generate_artifacts(
        mlp(dtype=np.float64), loss=LossType.BCEWithLogitsLoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
    )
    assert made.training_model.graph.output[0].type.tensor_type.elem_type == TensorProto.DOUBLE
    for path in tmp_path.glob("*.onnx"):
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


# Which parameters are trained ----------------------------------------------------------------------------------------


def test_all_parameters_by_default(tmp_path: Path) -> None:
    """The original makes a useless artifact here: it trains nothing, and the constants of the loss are inputs."""
    made = generate_artifacts(mlp(), loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert (made.trainable, made.frozen) == (ALL, [])


def test_all_but_the_frozen_ones(tmp_path: Path) -> None:
    made = generate_artifacts(mlp(), frozen_params=["fc1.bias"], loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert made.trainable == ["fc1.weight", "fc2.weight", "fc2.bias"]
    assert made.frozen == ["fc1.bias"]


def test_by_default_only_what_the_loss_depends_on(tmp_path: Path) -> None:
    made = generate_artifacts(
        two_heads(), loss=LossType.MSELoss, loss_input_names=["output1"], artifact_directory=tmp_path
    )
    assert made.trainable == ["weight1", "bias1", "weight3", "bias3"]


def test_constants_of_the_loss_are_not_trained(tmp_path: Path) -> None:
    class Weighted(onnxblock.Block):
        def build(self, name: str) -> str:
            half = onnxblock.blocks.Constant(0.5)
            loss = onnxblock.loss.CrossEntropyLoss(weight=np.array([1.0, 2.0, 3.0]))
            return onnxblock.blocks.Mul()(half(), loss(name))

    assert generate_artifacts(mlp(), loss=Weighted(), artifact_directory=tmp_path).trainable == ALL


def test_an_empty_list_trains_nothing(tmp_path: Path) -> None:
    made = generate_artifacts(mlp(), requires_grad=[], loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert made.trainable == []


def test_models_without_parameters(tmp_path: Path) -> None:
    made = generate_artifacts(identity(["N", 3, 5, 5]), loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path)
    assert made.trainable == []
    assert names(made.eval_model.graph.input) == ["x", "labels"]


def test_the_checkpoint_is_ordered_by_parameter_group(tmp_path: Path) -> None:
    """So that each group is one piece of the flat buffers at run time."""
    optimizer = optim.adamw(weight_decay=0.1, groups=[optim.no_decay()])
    made = generate_artifacts(mlp(), loss=LossType.MSELoss, optimizer=optimizer, artifact_directory=tmp_path)
    assert made.trainable == ["fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias"]
    assert checkpoint.load(tmp_path / "checkpoint").trainable_names == made.trainable


def test_running_statistics_are_in_the_checkpoint(tmp_path: Path) -> None:
    node = helper.make_node("BatchNormalization", ["x", "s", "b", "mean", "var"], ["y", "m", "v"], training_mode=1)
    statistics = {name: np.ones(3, np.float32) for name in ("s", "b", "mean", "var")}
    proto = model([node], {"x": ["N", 3, 2]}, {"y": ["N", 3, 2]}, statistics)
    made = generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert (made.trainable, made.frozen) == (["s", "b"], ["mean", "var"])
    (evaluation,) = [node for node in made.eval_model.graph.node if node.op_type == "BatchNormalization"]
    assert [attribute.i for attribute in evaluation.attribute if attribute.name == "training_mode"] == [0]
    assert len(evaluation.output) == 1
    onnxruntime.InferenceSession(str(made.paths["eval_model"]), providers=["CPUExecutionProvider"])


def test_dropout_is_off_in_the_eval_model(tmp_path: Path) -> None:
    node = helper.make_node("Dropout", ["x", "ratio", "on"], ["y"])
    constants = {"ratio": np.array(0.5, np.float32), "on": np.array(True)}
    proto = model([node], {"x": ["N", 3]}, {"y": ["N", 3]}, constants)
    made = generate_artifacts(proto, loss=LossType.MSELoss, artifact_directory=tmp_path)
    (dropout,) = [node for node in made.eval_model.graph.node if node.op_type == "Dropout"]
    assert list(dropout.input) == ["x", "ratio", ""]


# Losses --------------------------------------------------------------------------------------------------------------


def absolute(op: Builder, prediction: ir.Value, target: ir.Value) -> ir.Value:
    """Any function in the builder notation."""
    return op.ReduceMean(op.Abs(prediction - target), keepdims=0)


def loss_model() -> onnx.ModelProto:
    """The mean of squared differences, as a model."""
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("ReduceSumSquare", ["d"], ["l"], keepdims=0)]
    return model(nodes, {"a": ["N", "C"], "b": ["N", "C"]}, {"l": []}, {})


@pytest.mark.parametrize(
    ("loss", "target", "operator"),
    [
        ("mse", "target", "Pow"),
        ("cross_entropy", "labels", "SoftmaxCrossEntropyLoss"),
        ("L1Loss", "target", "Abs"),
        (losses.huber, "target", "Clip"),
        (absolute, "target", "Abs"),
        (onnxblock.loss.HuberLoss(delta=2.0), "target", "Clip"),
        (loss_model(), "b", "ReduceSumSquare"),
    ],
    ids=["name", "name of classes", "name of the enum", "function", "own function", "block", "model"],
)
def test_every_kind_of_loss(tmp_path: Path, loss: Any, target: str, operator: str) -> None:
    made = generate_artifacts(mlp(), loss=loss, artifact_directory=tmp_path)
    assert names(made.training_model.graph.input)[:2] == ["x", target]
    assert operator in operators(made.eval_model)
    assert made.trainable == ALL


@pytest.mark.parametrize("kind", [str, Path])
def test_a_loss_in_a_file(tmp_path: Path, kind: type) -> None:
    onnx.save(loss_model(), tmp_path / "loss.onnx")
    made = generate_artifacts(mlp(), loss=kind(tmp_path / "loss.onnx"), artifact_directory=tmp_path)
    assert names(made.eval_model.graph.input)[:2] == ["x", "b"]


@pytest.mark.parametrize("loss", LossType)
def test_every_loss_type(tmp_path: Path, loss: LossType) -> None:
    block = getattr(onnxblock.loss, loss.name)()
    proto = identity(["N", 3], outputs=block.predictions)
    for node in proto.graph.node:  # something to train
        node.op_type = "Mul"
        node.input.append("scale")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "scale"))
    made = generate_artifacts(proto, loss=loss, artifact_directory=tmp_path)
    assert made.trainable == ["scale"]
    onnxruntime.InferenceSession(str(made.paths["training_model"]), providers=["CPUExecutionProvider"])


def test_the_numbers_of_the_original() -> None:
    assert [LossType(n).name for n in (1, 2, 3, 4)] == ["MSELoss", "CrossEntropyLoss", "BCEWithLogitsLoss", "L1Loss"]
    assert [OptimType(n).name for n in (1, 2)] == ["AdamW", "SGD"]
    assert artifacts.USE_PATH_THRESHOLD == 2147483648


def test_no_loss_takes_the_first_output(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]
    proto = model(nodes, {"x": ["N", 3]}, {"total": [], "y": ["N", 3]}, {"w": np.ones(3, np.float32)})
    made = generate_artifacts(proto, artifact_directory=tmp_path)
    assert names(made.eval_model.graph.output) == ["total", "y"]
    assert made.trainable == ["w"]


@pytest.mark.parametrize("kind", [list, tuple])
def test_additional_outputs(tmp_path: Path, kind: type) -> None:
    """The original takes a list only."""
    made = generate_artifacts(
        mlp(), loss=LossType.MSELoss, additional_output_names=kind(["y", "hidden"]), artifact_directory=tmp_path
    )
    assert names(made.eval_model.graph.output) == ["onnx::loss::1", "y", "hidden"]
    assert names(made.training_model.graph.output)[:3] == ["onnx::loss::1", "y", "hidden"]


def test_scores_of_a_language_model(tmp_path: Path) -> None:
    """[batch, sequence, vocabulary] with labels [batch, sequence], beside another output."""
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "head"], ["scores"]),
    ]
    proto = model(
        nodes,
        {"tokens": ["B", "S"]},
        {"scores": ["B", "S", 7], "e": ["B", "S", 4]},
        weights({"embedding": (7, 4), "head": (4, 7)}),
    )
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    made = generate_artifacts(
        proto, loss=LossType.CrossEntropyLoss, loss_input_names=["scores"], artifact_directory=tmp_path
    )
    (node,) = [node for node in made.training_model.graph.node if node.op_type == "SoftmaxCrossEntropyLoss"]
    assert len(node.output) == 2
    assert made.trainable == ["embedding", "head"]
    feeds = {"tokens": np.array([[1, 2, 3]]), "labels": np.array([[2, 3, 4]])}
    parameters = weights({"embedding": (7, 4), "head": (4, 7)})
    session = onnxruntime.InferenceSession(str(made.paths["eval_model"]), providers=["CPUExecutionProvider"])
    (loss,) = session.run(None, {**feeds, **parameters})
    scores = parameters["embedding"][[1, 2, 3]] @ parameters["head"]
    shifted = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    np.testing.assert_allclose(loss, -shifted[[0, 1, 2], [2, 3, 4]].mean(), rtol=1e-5)


# Optimizers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OptimType)
def test_every_optimizer_type(tmp_path: Path, optimizer: OptimType) -> None:
    made = generate_artifacts(mlp(), loss=LossType.MSELoss, optimizer=optimizer, artifact_directory=tmp_path)
    onnxruntime.InferenceSession(str(made.paths["optimizer_model"]), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    "optimizer",
    ["lion", "AdamW", optim.sgd(0.1, momentum=0.9), onnxblock.optim.AdamW(weight_decay=123)],
    ids=["name", "name of the enum", "value", "block"],
)
def test_every_kind_of_optimizer(tmp_path: Path, optimizer: Any) -> None:
    made = generate_artifacts(mlp(), loss=LossType.MSELoss, optimizer=optimizer, artifact_directory=tmp_path)
    assert made.optimizer_model is not None
    assert names(made.optimizer_model.graph.output)[:2] == ["updated_flag", "updated_params"]


def test_a_forward_block_of_ones_own_as_optimizer(tmp_path: Path) -> None:
    class Mine(onnxblock.ForwardBlock):
        def build(self, parameters: tuple[list[onnx.TensorProto], list[onnx.TensorProto]]) -> str:
            assert self.base is not None
            assert [p.name for p in parameters[0]] == ALL
            rate = helper.make_tensor_value_info("learning_rate", TensorProto.FLOAT, [1])
            self.base.graph.input.append(rate)
            return onnxblock.blocks.Neg()("learning_rate")

    made = generate_artifacts(mlp(), loss=LossType.MSELoss, optimizer=Mine(), artifact_directory=tmp_path)
    assert made.optimizer_model is not None
    assert operators(made.optimizer_model) == ["Neg"]


# Errors: nothing is written ------------------------------------------------------------------------------------------


def with_unused_weight() -> onnx.ModelProto:
    proto = mlp()
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "unused"))
    return proto


ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "model of another type": ({"model": 3}, "Please pass in either a string or an ONNX ModelProto"),
    "model that is not there": ({"model": "nowhere.onnx"}, "there is no model file at 'nowhere.onnx'"),
    "model that is too new": ({"model": mlp(28)}, "uses opset 28 of the default domain, but the installed onnxruntime"),
    "model without graph": ({"model": onnx.ModelProto()}, "has no graph"),
    "loss of another type": ({"loss": 3}, "Unknown loss provided <class 'int'>"),
    "loss that is a class": ({"loss": onnxblock.loss.MSELoss}, "Unknown loss provided"),
    "unknown loss": ({"loss": "msee"}, "there is no loss 'msee'"),
    "optimizer of another type": ({"optimizer": 3}, "Unknown optimizer provided <class 'int'>"),
    "unknown optimizer": ({"optimizer": "adamm"}, "there is no optimizer 'adamm'"),
    "optimizer that is no forward block": (
        {"optimizer": onnxblock.blocks.Add()},
        "Expected optimizer to be an OptimType",
    ),
    "trained and frozen": (
        {"requires_grad": ALL, "frozen_params": ["fc1.bias"]},
        r"cannot be frozen and require gradient computation at the same time: \['fc1.bias'\]",
    ),
    "trained, but not there": ({"requires_grad": ["fc9.bias"]}, "'fc9.bias' should be trained"),
    "trained, but not used": (
        {"model": with_unused_weight(), "requires_grad": ["unused"]},
        "'unused' cannot be trained",
    ),
    "names as one string": ({"requires_grad": "fc1.bias"}, "Unknown type provided for requires_grad"),
    "outputs as one string": ({"additional_output_names": "y"}, "Unknown type provided for additional output names"),
    "outputs that are not there": (
        {"additional_output_names": ["zzz"]},
        "The provided name zzz is not a graph value info or a graph output",
    ),
    "loss inputs that are not there": ({"loss_input_names": ["zzz"]}, "Could not find 'zzz'"),
    "nothing to train": (
        {"requires_grad": [], "optimizer": OptimType.AdamW},
        "an optimizer needs at least one trainable parameter",
    ),
    "no loss and no scalar": ({"loss": None}, "the loss 'y' has shape .*; a loss has one element"),
    "loss that is not reduced": ({"loss": onnxblock.loss.MSELoss("none")}, "a loss has one element"),
    "library that is not there": ({"custom_op_library": "nowhere.so"}, "nowhere.so does not exist"),
    "two outputs, one loss": (
        {"model": two_heads()},
        r"the model has 2 outputs \(output1, output2\), but the loss takes 1.*loss_input_names=\['output1'\]",
    ),
    "two outputs, one block": (
        {"model": two_heads(), "loss": onnxblock.loss.MSELoss()},
        r"the model has 2 outputs \(output1, output2\), but the loss takes 1",
    ),
    "one output, three wanted": (
        {"loss": LossType.TripletMarginLoss},
        r"the model has 1 outputs \(y\), but the loss takes 3",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_leave_no_files(tmp_path: Path, case: str) -> None:
    arguments, message = ERRORS[case]
    defaults = {"model": mlp(), "loss": LossType.MSELoss, "optimizer": OptimType.SGD}
    with pytest.raises(OnwardError, match=message):
        generate_artifacts(**{**defaults, "artifact_directory": tmp_path / "out", **arguments})
    assert files(tmp_path) == set()


def test_errors_are_runtime_errors_and_lookups_are_lookup_errors(tmp_path: Path) -> None:
    assert issubclass(OnwardError, RuntimeError)
    with pytest.raises(LookupError):
        generate_artifacts(
            mlp(), loss=LossType.MSELoss, additional_output_names=["zzz"], artifact_directory=tmp_path / "out"
        )


def test_a_proto_above_two_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "USE_PATH_THRESHOLD", 100)
    with pytest.raises(OnwardError, match="model is larger than 2 GB"):
        generate_artifacts(mlp(), loss=LossType.MSELoss, artifact_directory=tmp_path / "out")


def test_a_failure_while_writing_keeps_the_old_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate_artifacts(mlp(), loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoint, "save", fail)
    for directory in (tmp_path, tmp_path / "new"):
        with pytest.raises(OSError, match="the disk is full"):
            generate_artifacts(mlp(20), loss=LossType.L1Loss, optimizer="adam", artifact_directory=directory)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.slow
def test_above_two_gigabytes(tmp_path: Path) -> None:
    """A table of 2.2 GB that is not trained; the file is sparse, but its copies are not."""
    rows, columns = 550_000, 1024
    size = rows * columns * 4
    table = onnx.TensorProto(
        name="table", data_type=TensorProto.FLOAT, dims=[rows, columns], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(size))):
        table.external_data.add(key=key, value=value)
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(size)
        file.seek(3 * columns * 4)
        file.write(np.ones(columns, np.float32).tobytes())
    nodes = [helper.make_node("Gather", ["table", "ids"], ["e"]), helper.make_node("MatMul", ["e", "head"], ["y"])]
    proto = model(nodes, {"ids": ["N"]}, {"y": ["N", 8]}, weights({"head": (columns, 8)}))
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    proto.graph.initializer.append(table)
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    made = generate_artifacts(
        tmp_path / "model.onnx", requires_grad=["head"], loss=LossType.MSELoss, artifact_directory=tmp_path / "out"
    )
    (tmp_path / "weights").unlink()
    session = onnxruntime.InferenceSession(str(made.paths["eval_model"]), providers=["CPUExecutionProvider"])
    head = weights({"head": (columns, 8)})["head"]
    (loss,) = session.run(None, {"ids": np.array([3]), "target": np.zeros((1, 8), np.float32), "head": head})
    np.testing.assert_allclose(loss, (head.sum(0) ** 2).mean(), rtol=1e-4)
