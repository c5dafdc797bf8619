"""Learning rates, steps, groups and gradients that can only be mistakes, in every way to train."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import api, artifacts, onnxblock, optim
from onward.errors import NonFiniteWarning, OnwardError, OnwardWarning
from onward.optim import Group, schedules
from onward.testing import run_on_runtime
from tests.api import toys

WRONG_RATES = [-1e-3, math.nan, math.inf, -math.inf, 1e39]


@pytest.fixture
def run(tmp_path: Path) -> toys.Run:
    return toys.Run.open(toys.generate(tmp_path / "artifacts", toys.mlp()))


REFUSED = "must be a finite number that is not negative"


def linear(size: int = 4) -> onnx.ModelProto:
    """loss = sum of x * w, so that the gradient of w is x."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[{size}] x) => (float loss) {{ y = Mul(x, w)  loss = ReduceSum<keepdims = 0>(y) }}
    """)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), "w"))
    return model


def run_step(optimizer: str | optim.Optimizer, *, number: int = 1, rate: float = 0.1) -> dict[str, np.ndarray]:
    step = onward.training_step(toys.mlp(), "cross_entropy", optimizer)
    x, labels = toys.batch()
    feeds = {"input": x, "labels": labels, "step": np.array(number), "learning_rate": np.array(rate, np.float32)}
    return run_on_runtime(step, {**feeds, **onward.initial_state(step, toys.mlp())})


def run_optimizer_model(optimizer: str, *, number: int = 1, rate: float = 0.1) -> list[list[np.ndarray]]:
    """The optimizer model as other programs run it."""
    recipe = onnxblock.optim.RecipeOptimizer(optimizer)
    weights = [numpy_helper.from_array(np.ones((2, 3), np.float32), "w")]
    with onnxblock.empty_base():
        recipe((weights, []))
        model = recipe.to_model_proto()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    feeds = {"learning_rate": np.array([rate], np.float32), "step": np.array([number])}
    for value in session.get_inputs():
        if value.name not in feeds:
            feeds[value.name] = [np.ones((2, 3), np.float32)]
    wanted = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value for name, value in feeds.items() if name in wanted})


# Learning rates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", WRONG_RATES)
def test_learning_rates(rate: float, tmp_path: Path) -> None:
    for make in (optim.sgd, optim.adamw, schedules.Constant, schedules.ReduceOnPlateau):
        with pytest.raises(OnwardError, match=REFUSED):
            make(rate)
    with pytest.raises(OnwardError, match=REFUSED):
        optim.Optimizer(optim.scale_by_learning_rate(), learning_rate=rate)
    for run in (run_step, run_optimizer_model) if rate != 1e39 else ():  # which numpy refuses to make a float32
        with pytest.raises(Exception, match=f"learning_rate {REFUSED}"):
            run("adamw", rate=rate)


def test_learning_rates_of_a_training_loop(run: toys.Run, tmp_path: Path) -> None:
    for rate in WRONG_RATES:
        with pytest.raises(OnwardError, match=REFUSED):
            run.optimizer.set_learning_rate(rate)
        with pytest.raises(OnwardError, match=REFUSED):
            api.LRScheduler(run.optimizer, schedules.Constant(0.1), rate)
    with pytest.raises(OnwardError, match="the learning rate must be a number, not 'high'"):
        run.optimizer.set_learning_rate("high")
    run.optimizer.set_learning_rate(0)
    run.optimizer.set_learning_rate(np.float32(0.5))
    assert run.optimizer.get_learning_rate() == 0.5
    growing = api.LRScheduler(run.optimizer, schedules.Exponential(0.1, 10.0))
    run.optimizer._optimizer.state.step = 1000
    with pytest.raises(OnwardError, match=r"Exponential\(.*\) has no learning rate after 1000 updates"):
        growing.step()

    class Falling(schedules.Schedule):
        def __call__(self, step: int) -> float:
            return -float(step)

    with pytest.raises(OnwardError, match=REFUSED):
        api.LRScheduler(run.optimizer, Falling())


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("Step", {"step_size": 2, "gamma": -0.1}),
        ("Exponential", {"gamma": math.nan}),
        ("MultiStep", {"milestones": (1,), "gamma": math.inf}),
        ("Cosine", {"total_step_count": 5, "minimum": -0.1}),
        ("CosineRestarts", {"first_cycle": 5, "minimum": math.nan}),
        ("Polynomial", {"total_step_count": 5, "power": -1.0}),
        ("OneCycle", {"total_step_count": 5, "div_factor": 0.0}),
        ("LinearFactor", {"start_factor": -1.0}),
        ("ReduceOnPlateau", {"min_lr": -1.0}),
        ("ReduceOnPlateau", {"factor": -0.5}),
    ],
)
def test_options_of_schedules(name: str, option: dict[str, object]) -> None:
    with pytest.raises(OnwardError, match=f"{list(option)[-1]} must be a finite number"):
        getattr(schedules, name)(0.1, **option)


@pytest.mark.parametrize("key", ["learning_rate", "initial_learning_rate"])
@pytest.mark.parametrize("rate", ["-0.5", "NaN", "Infinity"])
def test_learning_rates_of_a_checkpoint(run: toys.Run, tmp_path: Path, key: str, rate: str) -> None:
    setattr(run.optimizer._optimizer.state, key, 0.3125)
    api.CheckpointState.save_checkpoint(run.state, tmp_path / "checkpoint", include_optimizer_state=True)
    content = (tmp_path / "checkpoint").read_bytes()
    changed = content.replace(f'\\"{key}\\": 0.3125'.encode(), f'\\"{key}\\": {rate:6}'.encode())
    assert changed != content
    (tmp_path / "checkpoint").write_bytes(changed)
    with pytest.raises(OnwardError):
        api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")


def test_the_rate_of_a_plateau_in_a_checkpoint() -> None:
    plateau = schedules.ReduceOnPlateau(0.1)
    with pytest.raises(OnwardError, match=REFUSED):
        plateau.load_state_dict({"learning_rate": math.nan, "bad_count": 0, "cooldown_left": 0})


# The number of the step ----------------------------------------------------------------------------------------------


ASK_FOR_THE_STEP = ("adam", "adamax", "adamw", "adamw_hf", "lamb")


@pytest.mark.parametrize("optimizer", optim.names())
@pytest.mark.parametrize("number", [0, -1])
def test_a_step_before_the_first_is_an_error_or_right(optimizer: str, number: int) -> None:
    if optimizer in ASK_FOR_THE_STEP:
        with pytest.raises(Exception, match="step must be at least 1, at the first update"):
            run_step(optimizer, number=number)
        return
    got, expected = run_step(optimizer, number=number), run_step(optimizer, number=1)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_optimizer_models_refuse_it_too() -> None:
    with pytest.raises(Exception, match="step must be at least 1, at the first update"):
        run_optimizer_model("adamw", number=0)
    assert run_optimizer_model("adamw")
    assert run_optimizer_model("sgd", number=0)  # which does not ask


# Groups --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("front", ["step", "artifacts"])
def test_groups_without_parameters(front: str, tmp_path: Path) -> None:
    def build(*groups: Group) -> None:
        optimizer = optim.sgd(groups=groups)
        if front == "step":
            onward.training_step(toys.mlp(), "cross_entropy", optimizer)
        else:
            artifacts.generate_artifacts(
                toys.mlp(), loss=artifacts.LossType.CrossEntropyLoss, optimizer=optimizer, artifact_directory=tmp_path
            )

    build(Group("bias"), Group("weight"))
    with pytest.warns(
        OnwardWarning, match=r"group 'baises' changes nothing: nothing matches among .*'fc1.weight'"
    ) as w:
        build(Group("baises", lr_scale=2.0))
    assert [warning.filename for warning in w] == [__file__]
    with pytest.warns(OnwardWarning, match=r"group 'bias' changes nothing: groups before it have all that match, 'fc"):
        build(Group("fc"), Group("bias"))
    with pytest.raises(OnwardError, match=r"lists 'fc3.bias', which is not trained"):
        build(Group(["fc3.bias"]))


# Clipping ------------------------------------------------------------------------------------------------------------

LARGE = [1e19, 1e25, 1e30, 3e37]


def clipped(x: np.ndarray, clip: object, folder: Path, *, way: str) -> np.ndarray:
    """What an update by SGD subtracts of w where the gradient is x and the rate 1."""
    optimizer = optim.sgd(1.0, clip=clip)
    if way == "step":
        step = onward.training_step(linear(x.size), None, optimizer, trainable=["w"])
        feeds = {"x": x, "learning_rate": np.array(1, np.float32), "step": np.array(1)}
        return -run_on_runtime(step, {**feeds, "w": np.zeros_like(x)})["w.updated"]
    made = artifacts.generate_artifacts(
        linear(x.size), requires_grad=["w"], optimizer=optimizer, artifact_directory=folder
    )
    state = api.CheckpointState.load_checkpoint(made.paths["checkpoint"])
    state.parameters["w"].data[...] = 0
    module = api.Module(made.paths["training_model"], state)
    module(x)
    api.Optimizer(made.paths["optimizer_model"], module).step()
    return -state.parameters["w"].data


# The last has enough elements for compiled kernels, and for sums in rows.
@pytest.mark.parametrize(("way", "size"), [("step", 4), ("step", 3 * 2**16), ("kernels", 4), ("kernels", 3 * 2**16)])
@pytest.mark.parametrize("clip", [2.0, optim.clip_by_norm(2.0)], ids=["global", "own"])
def test_norms_beyond_float32_are_clipped(way: str, size: int, clip: object, tmp_path: Path) -> None:
    directions = np.random.default_rng(0).normal(size=size)
    for scale in (1e-3, *LARGE):
        x = (directions * scale).astype(np.float32)
        norm = np.linalg.norm(x.astype(np.float64))
        expected = x.astype(np.float64) * min(1, 2.0 / norm)
        np.testing.assert_allclose(clipped(x, clip, tmp_path, way=way), expected, rtol=1e-4)


def test_the_block_clips_them_too() -> None:
    class Clipping(onnxblock.ForwardBlock):
        def build(self, name: str) -> str:
            return onnxblock.optim.ClipGradNorm(2.0)(name)

    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    sequence = helper.make_value_info("gradients", helper.make_sequence_type_proto(tensor))
    node = helper.make_node("Identity", ["gradients"], ["same"])
    graph = helper.make_graph([node], "g", [sequence], [helper.make_value_info("same", sequence.type)])
    block = Clipping()
    with onnxblock.base(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)):
        output = block("same")
        model = block.to_model_proto()
    session = onnxruntime.InferenceSession(model.SerializeToString())
    gradients = [np.array([3e30, 0], np.float32), np.array([[4e30]], np.float32)]
    (got,) = session.run([output], {"gradients": gradients})
    np.testing.assert_allclose(got[0], [1.2, 0], rtol=1e-6)
    np.testing.assert_allclose(got[1], [[1.6]], rtol=1e-6)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_gradients_without_a_norm(wrong: float, tmp_path: Path) -> None:
    """As torch's clip_grad_norm_ does by default, but said."""
    x = np.array([1.0, wrong, 2.0, 0.0], np.float32)
    with pytest.warns(NonFiniteWarning) as said:
        update = clipped(x, 1.0, tmp_path, way="kernels")
    assert np.isnan(update[1])
    messages = [str(warning.message) for warning in said]
    assert any("the gradient of 'w' has elements that are NaN or infinite" in message for message in messages)
    assert {warning.filename for warning in said} == {__file__}


# Data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_losses_that_are_not_finite(run: toys.Run, mode: str) -> None:
    x, labels = toys.batch()
    module = getattr(run.module, mode)()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(x, labels)
    with pytest.warns(NonFiniteWarning, match="the loss is nan: input 'input' has elements that are NaN") as said:
        module(np.where(x > 1, np.nan, x).astype(np.float32), labels)
    assert said[0].filename == __file__
    with pytest.warns(NonFiniteWarning, match="all inputs and parameters are finite, so something overflows"):
        module(np.where(x > 0, 3e38, -3e38).astype(np.float32), labels)
    run.state.parameters["fc1.bias"].data[0] = np.inf
    with pytest.warns(NonFiniteWarning, match=r"the loss is (nan|inf): parameter 'fc1.bias' has elements"):
        module(x, labels)
