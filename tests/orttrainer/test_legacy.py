"""The first ORTTrainer, as the getting-started sample of the original calls it."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from onward.torch.orttrainer import ORTTrainer as NewTrainer
from onward.torch.orttrainer import optim
from onward.torch.orttrainer.ort_trainer import (
    IODescription,
    LossScaler,
    ModelDescription,
    ORTTrainer,
    generate_sample,
    load_checkpoint,
    save_checkpoint,
)
from tests.orttrainer.test_orttrainer import DESCRIPTION, batches, exported, linear_model, loss_fn, net

RATE = IODescription("Learning_Rate", [1], torch.float32)


def described() -> ModelDescription:
    inputs = [IODescription("x", ["batch", 6], torch.float32), IODescription("label", ["batch"], torch.int64)]
    outputs = [IODescription("loss", [], torch.float32), IODescription("prediction", ["batch", 4], torch.float32)]
    return ModelDescription(inputs, outputs)


def trainer_of(model: Any, optimizer: str = "AdamOptimizer", loss: Any = loss_fn, **options: Any) -> ORTTrainer:
    attributes, device = options.pop("attributes", None), options.pop("device", torch.device("cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ORTTrainer(model, loss, described(), optimizer, attributes, RATE, device, **options)


def trainer_of_model(optimizer: str = "AdamOptimizer", **options: Any) -> ORTTrainer:
    return trainer_of(exported(), optimizer, None, **options)


def rate(value: float = 0.01) -> torch.Tensor:
    return torch.tensor([value])


def test_it_says_that_it_is_the_first_one() -> None:
    with pytest.warns(UserWarning, match="experimental"):
        ORTTrainer(net(), loss_fn, described(), "SGDOptimizer", None, RATE, "cpu")


def test_both_trainers_are_equal() -> None:
    """The first export, in both; then the same numbers."""
    old, new = trainer_of(net()), NewTrainer(exported(), DESCRIPTION, optim.AdamConfig(lr=0.01))
    for x, label in batches(3):
        expected = new.train_step(x, label)
        got = old.train_step(x, label, rate())
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])
    assert (old.current_step, old.global_step_) == (3, 3)
    state = new._training_session.get_state()
    assert state.keys() == old.session.get_state().keys()
    np.testing.assert_equal(old.session.get_state(), state)
    names = {initializer.name for initializer in old.onnx_model_.graph.initializer}
    assert names >= {name for name, _ in net().named_parameters()}


def test_attributes_of_the_optimizer() -> None:
    def attributes(name: str) -> dict[str, float]:
        return {"alpha": 0.5, "lambda": 0.1, "do_bias_correction": 0} if name == "w" else {}

    description = ModelDescription([IODescription("g", [3])], [IODescription("loss", [])])
    config = optim.AdamConfig(alpha=0.5, lambda_coef=0.1, do_bias_correction=False)
    new = NewTrainer(linear_model(), {"inputs": [("g", [3])], "outputs": [("loss", [], True)]}, config)
    with pytest.warns(UserWarning, match="experimental"):
        old = ORTTrainer(linear_model(), None, description, "AdamOptimizer", attributes, RATE, "cpu")
    gradient = torch.tensor([0.1, -0.2, 0.3])
    assert old.train_step(gradient, rate(0.001)).shape == ()
    new.train_step(gradient)
    assert torch.equal(old.state_dict()["w"], new.state_dict(pytorch_format=True)["w"])
    with pytest.raises(ValueError, match="either float or int"):
        trainer_of_model(attributes=lambda name: {"alpha": "much"})


def test_steps_and_evaluations() -> None:
    trainer = trainer_of_model("SGDOptimizer")
    x, label = batches(1)[0]
    loss, prediction = trainer.train_step(x, label, Learning_Rate=rate())
    assert loss.shape == ()
    assert trainer.train_step([x, label, rate()], fetches=["prediction"]).shape == (8, 4)
    evaluated = trainer.eval_step(x, fetches=["prediction"])
    assert evaluated.shape == prediction.shape
    trainer.eval()
    assert torch.equal(trainer(x, label)[1], evaluated)
    trainer.train()
    trainer(x, label, rate())
    assert trainer.current_step == trainer.global_step_ == 3
    with pytest.raises(AssertionError, match=r"\['Learning_Rate'\] were not given"):
        trainer.train_step(x, label)
    with pytest.raises(RuntimeError, match="there is no output"):
        trainer.eval_step(x, fetches=["nothing"])


def test_rates_of_a_function_and_accumulation() -> None:
    seen = []

    def schedule(step: int) -> torch.Tensor:
        seen.append(step)
        return rate(0.1)

    trainer = trainer_of_model("SGDOptimizer", get_lr_this_step=schedule, gradient_accumulation_steps=2)
    before = trainer.state_dict()["fc2.bias"]
    for x, label in batches(4):
        trainer.train_step(x, label)
    assert seen == [0, 0, 1, 1]
    assert (trainer.current_step, trainer.global_step_) == (4, 2)
    assert not torch.equal(trainer.state_dict()["fc2.bias"], before)


def test_mixed_precision_returns_whether_gradients_were_finite() -> None:
    x, label = batches(1)[0]
    trainer = trainer_of_model(use_mixed_precision=True)
    assert (trainer.loss_scale_input_name, trainer_of_model().loss_scale_input_name) == ("loss_scale", None)
    *_, finite = trainer.train_step(x, label, rate(), torch.tensor([4.0]))
    assert finite
    before = trainer.state_dict()
    *_, finite = trainer.train_step(x * torch.inf, label, rate(), default_loss_scale_input_name=torch.tensor([4.0]))
    assert not finite
    assert trainer.global_step_ == 1
    after = trainer.state_dict()
    assert torch.equal(after["fc1.weight"], before["fc1.weight"])
    assert torch.equal(after["Moment_1_fc1.weight"], before["Moment_1_fc1.weight"])
    scaler = LossScaler("scale", True, loss_scale=8.0, up_scale_window=1)
    scaled = trainer_of_model(use_mixed_precision=True, loss_scaler=scaler)
    assert len(scaled.train_step(x, label, rate())) == 2
    assert scaler.loss_scale_ == 16
    scaler.update_loss_scale(False)
    assert (scaler.loss_scale_, scaler.stable_steps_) == (8, 0)
    scaler.reset()
    assert scaler.loss_scale_ == 8


def test_states_and_checkpoints(tmp_path: Path) -> None:
    data = batches(4)
    trainer = trainer_of(net(), "LambOptimizer", frozen_weights=["fc1.bias"])
    with pytest.warns(UserWarning, match="not initialized yet"):
        assert trainer.state_dict() == {}
    with pytest.warns(UserWarning, match="not initialized yet"):
        trainer.save_as_onnx(str(tmp_path / "early.onnx"))
    assert not list(tmp_path.iterdir())
    for x, label in data[:2]:
        trainer.train_step(x, label, rate())
    state = trainer.state_dict()
    assert torch.equal(state["fc1.bias"], net().fc1.bias)
    assert state["Step"] == 3
    assert "shift" in state
    assert "Step" not in trainer.state_dict(include_optimizer_state=False)
    save_checkpoint(trainer, str(tmp_path), "first", {"epoch": 7})
    with pytest.warns(UserWarning, match="already exists, overwriting"):
        save_checkpoint(trainer, str(tmp_path), "first", {"epoch": 8})
    expected = [trainer.train_step(x, label, rate())[0] for x, label in data[2:]]

    other = trainer_of_model("LambOptimizer", frozen_weights=["fc1.bias"])
    assert load_checkpoint(other, str(tmp_path), "first", strict=True) == {"epoch": 8}
    assert [other.train_step(x, label, rate())[0] for x, label in data[2:]] == expected
    changed = {"fc1.bias": state["fc1.bias"] + 1, "fc2.bias": state["fc2.bias"] * 0}
    other.load_state_dict(changed)
    assert torch.equal(other.state_dict()["fc1.bias"], changed["fc1.bias"])
    assert not other.state_dict()["fc2.bias"].any()
    with pytest.raises(RuntimeError, match="Checkpoint tensor: more is not present"):
        other.load_state_dict({"more": torch.ones(1)}, strict=True)
    with pytest.raises(AssertionError, match="doesn't exist"):
        save_checkpoint(other, str(tmp_path / "nowhere"))


def test_states_go_on_drawing(tmp_path: Path) -> None:
    """Dropout takes the numbers of the next pass, also from files; a module takes the state for its own."""
    data = batches(4)
    torch.manual_seed(1)
    trainer, module = trainer_of(net(dropout=0.5), "SGDOptimizer"), net()
    for x, label in data[:2]:
        trainer.train_step(x, label, rate())
    state = trainer.state_dict()
    module.load_state_dict(state)
    save_checkpoint(trainer, str(tmp_path))
    expected = [trainer.train_step(x, label, rate())[0] for x, label in data[2:]]
    trainer.load_state_dict(state)
    assert [trainer.train_step(x, label, rate())[0] for x, label in data[2:]] == expected
    other = trainer_of(net(dropout=0.5), "SGDOptimizer")
    load_checkpoint(other, str(tmp_path))
    with pytest.warns(UserWarning, match="not initialized"):
        waiting = other.state_dict()
    assert [other.train_step(x, label, rate())[0] for x, label in data[2:]] == expected
    other.load_state_dict(waiting)
    assert [other.train_step(x, label, rate())[0] for x, label in data[2:]] == expected
    other.load_state_dict(dict(waiting))  # knows of no passes: others are drawn
    assert [other.train_step(x, label, rate())[0] for x, label in data[2:]] != expected


def test_the_optimized_graph_is_written(tmp_path: Path) -> None:
    path = tmp_path / "optimized.onnx"
    trainer_of_model(optimized_model_filepath=str(path))
    assert len(onnx.load(path).graph.input) > 2


def test_states_that_wait_for_the_first_step() -> None:
    """One that does not fit is not forgotten: a second step must not train without it."""
    trainer = trainer_of(nn.Sequential(nn.Linear(6, 4)))
    trainer.load_state_dict({"0.bias": torch.ones(3)})
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"the state of '0.bias' has shape \[3\]"):
            trainer.train_step(*batches(1)[0], rate())


def test_all_of_a_state_is_taken_or_nothing() -> None:
    trainer = trainer_of_model(frozen_weights=["fc1.bias"])
    trainer.train_step(*batches(1)[0], rate())
    before = trainer.state_dict()
    state = {name: value * 0 for name, value in before.items()}
    with pytest.raises(RuntimeError, match=r"the state of 'fc2.bias' has shape \[9\]"):
        trainer.load_state_dict({**state, "fc2.bias": torch.ones(9)})
    after = trainer.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_state_begins_a_new_sum_of_gradients() -> None:
    data = batches(3)
    trainer, other = (trainer_of_model("SGDOptimizer", gradient_accumulation_steps=2) for _ in range(2))
    first = trainer.state_dict()
    trainer.train_step(*data[0], rate(0.5))
    trainer.load_state_dict(first)
    for one in (trainer, other):
        for batch in data[1:]:
            one.train_step(*batch, rate(0.5))
    for name, value in trainer.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_checkpoints_of_several_processes(tmp_path: Path) -> None:
    """Each has a part of the moments; the weights are whole."""
    trainer = trainer_of_model()
    trainer.train_step(*batches(1)[0], rate())
    state = trainer.state_dict()
    moments = state["Moment_1_fc1.weight"].reshape(-1)
    for number, part in enumerate(moments.split(15)):
        shard = {name: value for name, value in state.items() if name != "Moment_1_fc1.weight"}
        shard[f"Moment_1_fc1.weight_view_{number}"] = part
        torch.save({"model": shard, f"rank{number}": number}, tmp_path / f"split.ZeRO.{number}.1.ort.pt")
    other = trainer_of_model()
    with pytest.warns(UserWarning, match="Attempting to load ZeRO checkpoint"):
        assert load_checkpoint(other, str(tmp_path), "split") == {"rank0": 0, "rank1": 1}
    assert torch.equal(other.state_dict()["Moment_1_fc1.weight"], state["Moment_1_fc1.weight"])


def test_samples() -> None:
    sample = generate_sample(IODescription("label", ["batch", 3], torch.int64, num_classes=5))
    assert sample.shape == (1, 3)
    assert sample.dtype == torch.int64
    assert generate_sample(IODescription("x", [2], torch.float32)).shape == (2,)


def test_what_is_refused() -> None:
    with pytest.raises(RuntimeError, match="should take two arguments"):
        trainer_of(net(), loss=lambda x: x)
    with pytest.raises(RuntimeError, match="one process"):
        trainer_of(net(), world_size=2)
    with pytest.raises(RuntimeError, match="not found in the ONNX model"):
        trainer_of_model(frozen_weights=["nothing"])
    with pytest.warns(UserWarning, match="experimental"), pytest.warns(UserWarning, match="loss_fn is not used"):
        ORTTrainer(exported(), loss_fn, described(), "SGDOptimizer", None, RATE, "cpu")
    vector = trainer_of(net(), loss=lambda x, label: nn.functional.cross_entropy(x, label, reduction="none"))
    with pytest.raises(RuntimeError, match="a loss has one element"):
        vector.train_step(*batches(1)[0], rate())


NAMES = """
import onward.as_onnxruntime_training
from onnxruntime import set_seed
from onnxruntime.capi.ort_trainer import IODescription, ModelDescription, LossScaler, ORTTrainer, load_checkpoint
from onnxruntime.capi.ort_trainer import save_checkpoint
from onnxruntime.training import ORTTrainer as New, ORTTrainerOptions, TrainStepInfo, amp, checkpoint, optim, orttrainer
from onnxruntime.training import _utils, model_desc_validation, orttrainer_options, _checkpoint_storage
from onnxruntime.training.optim import AdamConfig, LambConfig, SGDConfig, _OptimizerConfig, lr_scheduler, config
from onnxruntime.training.optim.lr_scheduler import LinearWarmupLRScheduler
from onnxruntime.training.amp import loss_scaler
from onnxruntime.training.orttrainer import ORTTrainer as Same
from onward.torch.orttrainer import ORTTrainer as Ours
assert New is Same is Ours
assert optim.lr_scheduler.LinearWarmupLRScheduler is LinearWarmupLRScheduler
import onnxruntime
assert onnxruntime.training.orttrainer is orttrainer
from onnxruntime.capi.training import TrainStepInfo as Info, amp as scalers, optim as first, orttrainer as trainer
from onnxruntime.capi.training import _utils, model_desc_validation, orttrainer_options
from onnxruntime.capi.training.amp import loss_scaler
from onnxruntime.capi.training.optim.lr_scheduler import LinearWarmupLRScheduler as Linear
from onnxruntime.capi.training.training_session import TrainingSession
assert trainer is orttrainer and first is optim and scalers is amp and Info is TrainStepInfo
assert Linear is LinearWarmupLRScheduler and TrainingSession is onnxruntime.TrainingSession
"""


def test_names_of_the_original() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", NAMES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
