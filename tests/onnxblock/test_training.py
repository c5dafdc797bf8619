"""Training blocks: parameters, the two models, checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward import onnxblock
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.signature import METADATA_KEY, Role, Signature
from tests.onnxblock.models import MLP, identity, mlp, model, names, run, two_heads

RNG = np.random.default_rng(5)


class Training(onnxblock.TrainingBlock):
    """Like many users' blocks, it does not call __init__."""

    def __init__(self, loss: onnxblock.Block) -> None:
        self.loss = loss

    def build(self, *args: str) -> str:
        return self.loss(*args)


def built(base: onnx.ModelProto, loss: onnxblock.Block, *args: str, **requires_grad: bool) -> Training:
    block = Training(loss)
    for name, value in requires_grad.items():
        block.requires_grad(name.replace("__", "."), value)
    with onnxblock.base(base) as accessor:
        block(*args)
        assert accessor.model is block.to_model_proto()[0]
    return block


def test_inputs_and_outputs_of_the_training_model() -> None:
    block = built(mlp(), onnxblock.loss.CrossEntropyLoss(), "y", fc2__weight=True, fc1__bias=True, fc1__weight=False)
    training, evaluation = block.to_model_proto()
    # Trained parameters are inputs; frozen ones stay initializers, which onnxruntime folds and pre-packs.
    assert names(training.graph.input) == [
        "x",
        "labels",
        "fc1.bias",
        "fc2.weight",
        "fc1.bias_grad.accumulation.buffer",
        "fc2.weight_grad.accumulation.buffer",
        "lazy_reset_grad",
    ]
    outputs = ["onnx::loss::1", "fc1.bias_grad.accumulation.out", "fc2.weight_grad.accumulation.out"]
    assert names(training.graph.output) == outputs
    assert names(evaluation.graph.input) == ["x", "labels", "fc1.bias", "fc2.weight"]
    assert names(evaluation.graph.output) == ["onnx::loss::1"]
    trainable, frozen = block.parameters()
    assert [p.name for p in trainable] == ["fc1.bias", "fc2.weight"]
    assert [p.name for p in frozen] == ["fc1.weight"]
    for proto in (training, evaluation):
        assert proto.opset_import[0].version == 17
        assert {node.domain for node in proto.graph.node} == {""}


def test_roles_are_in_the_metadata() -> None:
    training, evaluation = built(mlp(), onnxblock.loss.MSELoss(), "y", fc1__bias=True).to_model_proto()
    metadata = {entry.key: entry.value for entry in training.metadata_props}
    signature = Signature.from_json(metadata[METADATA_KEY])
    assert signature.input_names(Role.INPUT) == ["x"]
    assert signature.input_names(Role.TARGET) == ["target"]
    assert signature.input_names(Role.PARAMETER) == ["fc1.bias"]
    assert signature.output_names(Role.LOSS) == ["onnx::loss::1"]
    assert METADATA_KEY in {entry.key for entry in evaluation.metadata_props}


@pytest.mark.parametrize("reset", [True, False])
def test_gradients_are_added_to_the_buffers_or_replace_them(reset: bool) -> None:
    base = mlp()
    training, evaluation = built(
        base, onnxblock.loss.MSELoss(), "y", **{k.replace(".", "__"): True for k in MLP}
    ).to_model_proto()
    parameters = {tensor.name: numpy_helper.to_array(tensor) for tensor in base.graph.initializer}
    users = {"x": RNG.standard_normal((6, 4)).astype(np.float32), "target": np.zeros((6, 3), np.float32)}
    buffers = {f"{name}_grad.accumulation.buffer": np.ones_like(p) for name, p in parameters.items()}
    outputs = run(training, {**users, **parameters, **buffers, "lazy_reset_grad": np.array([reset])})
    before = run(evaluation, {**users, **parameters})["onnx::loss::1"]
    np.testing.assert_allclose(outputs["onnx::loss::1"], before, rtol=1e-6)
    gradient = outputs["fc2.bias_grad.accumulation.out"] - (0 if reset else 1)
    step = 1e-2 * gradient
    after = run(evaluation, {**users, **parameters, "fc2.bias": parameters["fc2.bias"] - step})["onnx::loss::1"]
    np.testing.assert_allclose(before - after, (gradient * step).sum(), rtol=0.05)  # to first order


def test_parameters_have_the_values_of_the_model() -> None:
    base = mlp()
    trainable, _ = built(base, onnxblock.loss.L1Loss(), "y", fc1__weight=True).parameters()
    array = np.frombuffer(trainable[0].raw_data, np.float32).reshape(4, 8)
    np.testing.assert_array_equal(array, numpy_helper.to_array(base.graph.initializer[0]))


def test_nothing_is_trained_by_default() -> None:
    block = built(mlp(), onnxblock.loss.MSELoss(), "y")
    assert block.parameters() == ([], [])
    assert names(block.to_model_proto()[0].graph.input) == ["x", "target", "lazy_reset_grad"]


def test_only_true_means_trained() -> None:
    block = Training(onnxblock.loss.MSELoss())
    block.requires_grad("fc1.bias")
    block.requires_grad("fc2.bias", 1)  # type: ignore[arg-type]  # as the original has it
    with onnxblock.base(mlp()):
        block("y")
    trainable, frozen = block.parameters()
    assert ([p.name for p in trainable], [p.name for p in frozen]) == (["fc1.bias"], ["fc2.bias"])


def test_the_last_word_counts() -> None:
    block = Training(onnxblock.loss.MSELoss())
    for value in (True, False, True):
        block.requires_grad("fc1.bias", value)
    with onnxblock.base(mlp()):
        block("y")
    assert [p.name for p in block.parameters()[0]] == ["fc1.bias"]


def test_gradients_of_graph_inputs() -> None:
    training, _ = built(mlp(), onnxblock.loss.MSELoss(), "y", x=True).to_model_proto()
    assert "x_grad.accumulation.buffer" in names(training.graph.input)
    assert "x_grad.accumulation.out" in names(training.graph.output)


def test_further_outputs_follow_the_loss() -> None:
    class Two(onnxblock.TrainingBlock):
        def build(self, name: str) -> tuple[str, str]:
            return onnxblock.loss.MSELoss()(name), "hidden"

    block = Two()
    block.requires_grad("fc2.bias")
    with onnxblock.base(mlp()):
        assert block("y") == ("onnx::loss::1", "hidden")
    for proto in block.to_model_proto():
        assert names(proto.graph.output)[:2] == ["onnx::loss::1", "hidden"]


def test_retrieving_before_building() -> None:
    block = Training(onnxblock.loss.MSELoss())
    with pytest.raises(OnwardError, match="Please build the training model first before trying to retrieve the param"):
        block.parameters()
    with pytest.raises(OnwardError, match="Please build the training and eval models first"):
        block.to_model_proto()


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ({"nowhere": True}, UnknownNameError, "'nowhere' should be trained, but the model has no initializer"),
        ({"hidden": True}, UnknownNameError, "'hidden' should be trained"),
        ({"weight2": True}, OnwardError, "'weight2' cannot be trained: the loss 'onnx::loss::1' does not depend on it"),
        ({"shape": True}, NotDifferentiableError, "'shape' cannot be trained: not floating point"),
    ],
)
def test_what_cannot_be_trained(names: dict[str, bool], error: type[OnwardError], message: str) -> None:
    base = two_heads()
    base.graph.initializer.append(numpy_helper.from_array(np.array([-1, 4]), "shape"))
    base.graph.node.insert(0, helper.make_node("Reshape", ["x", "shape"], ["flat"]))
    with pytest.raises(error, match=message):
        built(base, onnxblock.loss.MSELoss(), "output1", **names)


def test_operators_without_a_gradient_are_named() -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"]),
        helper.make_node("Twist", ["a"], ["y"], "the-node", domain="custom"),
    ]
    base = model(nodes, {"x": ["N", 2]}, {"y": ["N", 2]}, {"w": np.ones((2, 2), np.float32)})
    base.opset_import.append(helper.make_opsetid("custom", 1))
    with pytest.raises(OnwardError, match=r"(?s)no gradient rule.*custom\.Twist: the-node"):
        built(base, onnxblock.loss.MSELoss(), "y", w=True)


def test_custom_operators_before_the_trained_part() -> None:
    nodes = [
        helper.make_node("Twist", ["x"], ["a"], domain="custom"),
        helper.make_node("Gemm", ["a", "w"], ["y"]),
    ]
    base = model(nodes, {"x": ["N", 2]}, {"y": ["N", 2]}, {"w": np.ones((2, 2), np.float32)})
    base.opset_import.append(helper.make_opsetid("custom", 1))
    base.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, ["N", 2]))
    training, _ = built(base, onnxblock.loss.MSELoss(), "y", w=True).to_model_proto()
    assert ("custom", 1) in [(imported.domain, imported.version) for imported in training.opset_import]


# Checkpoints -------------------------------------------------------------------------------------------------------


def test_checkpoints_go_into_models(tmp_path: Path) -> None:
    base = mlp()
    block = built(base, onnxblock.loss.MSELoss(), "y", fc1__weight=True, fc2__bias=False)
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "checkpoint")
    other = mlp()
    for tensor in other.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    onnxblock.load_checkpoint_to_model(str(tmp_path / "checkpoint"), other)
    for mine, given in zip(base.graph.initializer, other.graph.initializer, strict=True):
        stored = mine.name in ("fc1.weight", "fc2.bias")
        np.testing.assert_array_equal(numpy_helper.to_array(given), numpy_helper.to_array(mine) * stored)


def test_nominal_checkpoints_have_no_values(tmp_path: Path) -> None:
    block = built(mlp(), onnxblock.loss.MSELoss(), "y", fc1__weight=True)
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "nominal", nominal_checkpoint=True)
    onnxblock.save_checkpoint(block.parameters(), tmp_path / "full")
    assert (tmp_path / "nominal").stat().st_size < (tmp_path / "full").stat().st_size
    with pytest.raises(OnwardError, match="Cannot load a nominal checkpoint to a model proto"):
        onnxblock.load_checkpoint_to_model(tmp_path / "nominal", mlp())


def test_checkpoints_need_parameters(tmp_path: Path) -> None:
    with pytest.raises(OnwardError, match="No checkpoint parameters provided"):
        onnxblock.save_checkpoint(None, tmp_path / "checkpoint")  # type: ignore[arg-type]
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "w")
    with pytest.raises(OnwardError, match="several parameters have the same name: 'w'"):
        onnxblock.save_checkpoint(([tensor], [tensor]), tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == []


def test_losses_without_parameters() -> None:
    block = built(identity(["N", 3]), onnxblock.loss.MSELoss(), "y", x=True)
    assert block.parameters() == ([], [])
