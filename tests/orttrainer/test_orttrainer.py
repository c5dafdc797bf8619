"""The newer ORTTrainer: updates, steps, states and files."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from onward.errors import OnwardError, OnwardWarning
from onward.torch.orttrainer import ORTTrainer, ORTTrainerOptions, TrainStepInfo, amp, checkpoint, optim
from onward.torch.orttrainer import _checkpoint_storage as storage

DESCRIPTION = {
    "inputs": [("x", ["batch", 6]), ("label", ["batch"])],
    "outputs": [("loss", [], True), ("prediction", ["batch", 4])],
}


class Net(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(5, 4)
        self.register_buffer("shift", torch.tensor(0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(torch.tanh(self.norm(self.fc1(x))))) + self.shift


def loss_fn(prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(prediction, label)


def batches(count: int, rows: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    random = torch.Generator().manual_seed(3)
    return [
        (torch.randn(rows, 6, generator=random), torch.randint(0, 4, (rows,), generator=random)) for _ in range(count)
    ]


def net(seed: int = 0, dropout: float = 0.0) -> Net:
    torch.manual_seed(seed)
    return Net(dropout)


def trainer_of(model: Any, config: Any = None, options: dict[str, Any] | None = None, **others: Any) -> ORTTrainer:
    config = config or optim.AdamConfig(lr=0.01)
    return ORTTrainer(model, DESCRIPTION, config, loss_fn=loss_fn, options=ORTTrainerOptions(options or {}), **others)


@functools.cache
def exported() -> onnx.ModelProto:
    """The module with its loss: trainers of it need not export."""
    trainer = trainer_of(net())
    trainer.eval_step(*batches(1)[0])
    return trainer._onnx_model


def trainer_of_model(config: Any = None, options: dict[str, Any] | None = None) -> ORTTrainer:
    config = config or optim.AdamConfig(lr=0.01)
    return ORTTrainer(exported(), DESCRIPTION, config, options=ORTTrainerOptions(options or {}))


def linear_model() -> onnx.ModelProto:
    """loss = sum(w g): the gradient of w is what is fed."""
    nodes = [helper.make_node("Mul", ["w", "g"], ["p"]), helper.make_node("ReduceSum", ["p"], ["loss"], keepdims=0)]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("g", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.array([1, -2, 0.5], np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


LINEAR = {"inputs": [("g", [3])], "outputs": [("loss", [], True)]}
GRADIENTS = ([0.1, -0.2, 0.3], [0.3, 0.1, -0.2])
AFTER = optim.AdamConfig.DecayMode.AFTER_WEIGHT_UPDATE
ADAM = {"lr": 0.1, "lambda_coef": 0.01}
VECTORS = {
    "Adam, before": (
        optim.AdamConfig(**ADAM, do_bias_correction=False),
        [0.682771, -1.681771, 0.18327],
        [0.292067, -1.566906, 0.121672],
    ),
    "Adam, before, corrected": (optim.AdamConfig(**ADAM), [0.899, -1.898, 0.3995], [0.806323, -1.869468, 0.384648]),
    "Adam, after": (
        optim.AdamConfig(**ADAM, do_bias_correction=False, weight_decay_mode=AFTER),
        [0.683087, -1.682087, 0.183587],
        [0.292773, -1.567335, 0.122049],
    ),
    "Adam, after, corrected": (
        optim.AdamConfig(**ADAM, weight_decay_mode=AFTER),
        [0.8991, -1.8981, 0.3996],
        [0.806515, -1.869595, 0.384763],
    ),
    "LAMB": (optim.LambConfig(**ADAM), [0.867798, -1.867361, 0.367979], [0.669399, -1.808968, 0.33662]),
    "LAMB, corrected": (
        optim.LambConfig(**ADAM, do_bias_correction=True),
        [0.867933, -1.866625, 0.368586],
        [0.670346, -1.805842, 0.336978],
    ),
    "SGD": (optim.SGDConfig(lr=0.1), [0.99, -1.98, 0.47], [0.96, -1.99, 0.49]),
}


def weights_after(config: Any, gradients: Any, options: dict[str, Any] | None = None) -> list[np.ndarray]:
    trainer = ORTTrainer(linear_model(), LINEAR, config, options=ORTTrainerOptions(options or {}))
    found = []
    for gradient in gradients:
        trainer.train_step(torch.tensor(gradient))
        found.append(trainer.state_dict(pytorch_format=True)["w"].numpy())
    return found


@pytest.mark.parametrize("name", VECTORS)
def test_updates_are_those_of_the_specification(name: str) -> None:
    config, *expected = VECTORS[name]
    # The original computes 1 - beta in float32, which gives 0.00100005.
    np.testing.assert_allclose(weights_after(config, GRADIENTS), expected, atol=1e-5)


def test_lamb_keeps_the_bounds_of_its_ratio() -> None:
    config = optim.LambConfig(lr=0.1, ratio_min=0.01, ratio_max=0.02)
    bounded, free = weights_after(config, GRADIENTS[:1])[0], weights_after(optim.LambConfig(lr=0.1), GRADIENTS[:1])[0]
    start = np.array([1, -2, 0.5])
    direction = (start - free) / 0.1 / np.linalg.norm(start)  # of length 1
    gradient = np.array(GRADIENTS[0])
    length = np.linalg.norm(0.1 * gradient / (np.sqrt(0.001) * np.abs(gradient) + 1e-6))
    assert np.linalg.norm(start) / length > 0.02
    np.testing.assert_allclose(start - bounded, 0.1 * 0.02 * length * direction, rtol=1e-3)


@pytest.mark.parametrize(
    "config", [optim.LambConfig(lr=0.1), optim.AdamConfig(lr=0.1, epsilon=0.5)], ids=["LAMB", "Adam"]
)
def test_clipping_clips(config: Any) -> None:
    """An update by a gradient above the bound is that of the gradient on the bound."""
    large = np.array([3.0, -4.0, 0.0])
    (clipped,) = weights_after(config, [large.astype(np.float32)])
    (small,) = weights_after(config, [(large / 5).astype(np.float32)])
    (free,) = weights_after(config, [large.astype(np.float32)], {"utils": {"grad_norm_clip": False}})
    np.testing.assert_allclose(clipped, small, rtol=1e-5)
    if config.name == "AdamOptimizer":  # LAMB does not see the length of a gradient at its first step
        assert np.abs(free - clipped).max() > 1e-3


def test_groups_have_settings_of_their_own() -> None:
    decayed = [{"params": ["fc1.weight"], "lambda_coef": 0.5}]
    data = batches(3)
    model = net()
    trainer = trainer_of(model, optim.AdamConfig(decayed, lr=0.01, epsilon=1e-3), {"utils": {"grad_norm_clip": False}})
    reference = net()
    named = dict(reference.named_parameters())
    rest = [value for name, value in named.items() if name != "fc1.weight"]
    adam = torch.optim.AdamW(
        [{"params": [named["fc1.weight"]], "weight_decay": 0.5}, {"params": rest, "weight_decay": 0.0}],
        lr=0.01,
        eps=1e-3,  # the gradient of a bias before BatchNorm is nothing but rounding
    )
    for x, label in data:
        loss = loss_fn(reference(x), label)
        adam.zero_grad()
        loss.backward()
        adam.step()
        got, prediction = trainer.train_step(x, label)
        torch.testing.assert_close(got, loss.detach(), rtol=1e-5, atol=1e-6)
        assert prediction.shape == (8, 4)
    state = trainer.state_dict(pytorch_format=True)
    for name, value in reference.state_dict().items():
        if name != "norm.num_batches_tracked":
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def trained() -> tuple[ORTTrainer, list[Any]]:
    """A trainer after three steps."""
    trainer = trainer_of(net(), optim.LambConfig(lr=0.05))
    return trainer, [trainer.train_step(*batch) for batch in batches(3)]


def test_the_model_is_exported_with_its_loss(trained: Any) -> None:
    trainer, _ = trained
    model = trainer._onnx_model
    assert [value.name for value in model.graph.input] == ["x", "label"]
    assert [value.name for value in model.graph.output] == ["loss", "prediction"]
    names = {initializer.name for initializer in model.graph.initializer}
    assert names >= {name for name, _ in Net().named_parameters()}
    assert names <= set(Net().state_dict())
    assert trainer.model_desc.inputs[1].dtype == torch.int64
    assert trainer.model_desc.outputs[1].dtype == torch.float32


def test_steps_take_batches_of_any_size_and_inputs_by_name() -> None:
    trainer = trainer_of_model()
    (x, label), *_ = batches(1)
    first = trainer.train_step(x=x, label=label)
    assert trainer._train_step_info.step == trainer._train_step_info.optimization_step == 1
    trainer.train_step([x[:5], label[:5]])
    with pytest.raises(AssertionError, match="Mismatch in dynamic shape batch"):
        trainer.train_step(x[:3], label)
    with pytest.raises(AssertionError, match=r"\['label'\] were not given"):
        trainer.train_step(x)
    with pytest.raises(AssertionError, match="given twice"):
        trainer.train_step(x, label, x=x)
    with pytest.raises(AssertionError, match="no input 'y'"):
        trainer.train_step(x, label, y=x)
    with pytest.raises(AssertionError, match="3 inputs were given"):
        trainer.train_step(x, label, x)
    with pytest.raises(AssertionError, match="the input 'x' is a NoneType, not a tensor"):
        trainer.train_step(None, label)
    assert trainer._train_step_info.step == 2
    trainer._train_step_info.fetches = ["prediction"]
    assert trainer.eval_step(x).shape == (8, 4)
    trainer._train_step_info.fetches = ["nothing"]
    with pytest.raises(RuntimeError, match="invalid output names"):
        trainer.train_step(x, label)
    assert len(first) == 2


def test_evaluation_is_that_of_the_module(trained: Any) -> None:
    trainer, _ = trained
    x, label = batches(1)[0]
    loss, prediction = trainer.eval_step(x, label)
    module = net(7)
    missing = module.load_state_dict(trainer.state_dict(pytorch_format=True), strict=False)
    assert not missing.unexpected_keys
    module.eval()
    with torch.no_grad():
        torch.testing.assert_close(prediction, module(x), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loss, loss_fn(module(x), label), rtol=1e-5, atol=1e-6)


def test_gradients_of_several_batches_are_added_up() -> None:
    """As one batch of all rows, without BatchNorm, which sees less at a time."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    description = {**DESCRIPTION, "inputs": [("input", ["batch", 6]), ("label", ["batch"])]}
    data = batches(4)
    config = optim.SGDConfig(lr=0.5)
    options = ORTTrainerOptions({"batch": {"gradient_accumulation_steps": 2}})
    trainer = ORTTrainer(model, description, config, loss_fn, options)
    for count, (x, label) in enumerate(data, start=1):
        trainer.train_step(x, label)
        assert trainer._train_step_info.optimization_step == count // 2
    state = trainer.state_dict(pytorch_format=True)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5)
    for first, second in (data[:2], data[2:]):
        sgd.zero_grad()
        loss_fn(model(torch.cat([first[0], second[0]])), torch.cat([first[1], second[1]])).backward()
        sgd.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("config", [optim.AdamConfig(lr=0.01), optim.LambConfig(lr=0.01)], ids=["Adam", "LAMB"])
def test_half_precision_is_updated_in_single_precision(config: Any, steps: int) -> None:
    """The squares of these gradients are zeros in half precision, and so is epsilon."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).half()
    options = {"batch": {"gradient_accumulation_steps": steps}, "utils": {"grad_norm_clip": False}}

    def small(prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return loss_fn(prediction, label) * 1e-2

    found = []
    for module in (model, copy.deepcopy(model).float()):
        description = {**DESCRIPTION, "inputs": [("input", ["batch", 6]), ("label", ["batch"])]}
        trainer = ORTTrainer(module, description, config, small, ORTTrainerOptions(options))
        for x, label in batches(4):
            trainer.train_step(x.to(module[0].weight.dtype), label)
        found.append(trainer.state_dict(pytorch_format=True))
    for name, value in found[0].items():
        assert value.dtype == torch.float16
        torch.testing.assert_close(value.float(), found[1][name], rtol=2e-3, atol=1e-3)  # four roundings


def test_running_statistics_see_every_batch() -> None:
    """Also those whose gradients are only added up."""
    trainer, module = trainer_of_model(options={"batch": {"gradient_accumulation_steps": 4}}), net()
    for x, label in batches(3):
        trainer.train_step(x, label)
        module(x)
    state = trainer.state_dict(pytorch_format=True)
    for name in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(state[name], module.state_dict()[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.1, 1.0])
def test_running_statistics_are_those_of_torch(momentum: float) -> None:
    """With momentum 1, those of the last batch alone."""
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=momentum))
    trainer = trainer_of(copy.deepcopy(module), optim.SGDConfig(lr=0.0))
    for x, label in batches(2):
        trainer.train_step(x, label)
        module(x)
    for name, value in trainer.state_dict(pytorch_format=True).items():
        if "running" in name:
            torch.testing.assert_close(value, module.state_dict()[name], rtol=1e-5, atol=1e-6)


def test_statistics_of_a_single_row_are_refused() -> None:
    """torch refuses them, too; their variance, n / (n - 1) times, is no number."""
    trainer = trainer_of(net())
    (x, label), *_ = batches(1)
    trainer.train_step(x, label)
    before = trainer.state_dict()["model"]["full_precision"]
    with pytest.raises(OnwardError, match=r"the batch norm of 'norm.running_var' needs more than one row"):
        trainer.train_step(x[:1], label[:1])
    np.testing.assert_equal(trainer.state_dict()["model"]["full_precision"], before)


def test_states_between_updates(tmp_path: Path) -> None:
    """Gradients that were added up are part of a state; one without them has none."""
    accumulating: dict[str, Any] = {"batch": {"gradient_accumulation_steps": 3}}
    config, data = optim.SGDConfig(lr=0.5), batches(8)
    trainer, other = (trainer_of_model(config, accumulating) for _ in range(2))
    for batch in data[:3]:
        trainer.train_step(*batch)
    at_update = trainer.state_dict()
    trainer.train_step(*data[3])
    trainer.save_checkpoint(str(tmp_path / "between"))
    for batch in data[4:]:
        trainer.train_step(*batch)
    expected = trainer.state_dict(pytorch_format=True)

    other.load_checkpoint(str(tmp_path / "between"))
    for batch in data[4:]:
        other.train_step(*batch)
    trainer.load_state_dict(at_update)
    for batch in data[3:]:
        trainer.train_step(*batch)
    for again in (other, trainer):
        assert again._train_step_info.optimization_step == 2
        for name, value in again.state_dict(pytorch_format=True).items():
            assert torch.equal(value, expected[name]), name
    trainer._load_flat_state({}, strict=True)
    assert trainer._training_session.added == 0
    with pytest.raises(RuntimeError, match=r"gradients of 1 steps .* but gradient_accumulation_steps is 1"):
        trainer_of_model(config).load_checkpoint(str(tmp_path / "between"))
    state = other.state_dict()
    state["accumulated_gradients"]["sums"]["fc1.bias"] = np.ones(2)
    with pytest.raises(RuntimeError, match=r"the gradient of 'fc1.bias' has shape \[2\], not \[5\]"):
        other.load_state_dict(state)


def test_modules_train_in_training_mode() -> None:
    """Also one that is given in evaluation mode, and a loss that has weights of its own, which are not the module's."""
    model, module = net().eval(), net().train()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    trainer = ORTTrainer(model, DESCRIPTION, optim.SGDConfig(lr=0.5), loss)
    sgd = torch.optim.SGD(module.parameters(), lr=0.5)
    for x, label in batches(2):
        sgd.zero_grad()
        expected = loss(module(x), label)
        expected.backward()
        sgd.step()
        torch.testing.assert_close(trainer.train_step(x, label)[0], expected.detach(), rtol=1e-5, atol=1e-6)
    model.load_state_dict(trainer.state_dict(pytorch_format=True))
    for name, value in module.named_buffers():
        if name != "norm.num_batches_tracked":
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert not model.training


class Words(nn.Module):
    """Padding, and layers that are detached, have no gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5, padding_idx=0)
        self.out, self.still = nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.words(x).mean(1)
        return self.out(found) + self.still(found).detach()


def test_what_has_no_gradient_in_torch_has_none_here(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Words()
    with torch.no_grad():
        module.words.weight += 1  # the row of padding is not zero, and stays as it is
    reference = copy.deepcopy(module)
    description = {**DESCRIPTION, "inputs": [("x", ["batch", 3]), ("label", ["batch"])]}
    trainer = ORTTrainer(module, description, optim.SGDConfig(lr=0.5), loss_fn)
    sgd = torch.optim.SGD(reference.parameters(), lr=0.5)
    x, label = torch.tensor([[0, 1, 2], [3, 0, 0], [4, 5, 6]]), torch.tensor([0, 1, 3])
    for _ in range(3):
        trainer.train_step(x, label)
        sgd.zero_grad()
        loss_fn(reference(x), label).backward()
        sgd.step()
    for name, value in trainer.state_dict(pytorch_format=True).items():
        torch.testing.assert_close(value, reference.state_dict()[name], rtol=1e-5, atol=1e-6)
    trainer.save_as_onnx(str(tmp_path / "saved.onnx"))
    again = ORTTrainer(onnx.load(tmp_path / "saved.onnx"), description, optim.SGDConfig(lr=0.5))
    assert torch.equal(again.train_step(x, label)[0], trainer.train_step(x, label)[0])
    assert torch.equal(again.train_step(x, label)[0], trainer.train_step(x, label)[0])
    trainer.export_model_for_inferencing(tmp_path / "inference.onnx")
    (prediction,) = onnxruntime.InferenceSession(tmp_path / "inference.onnx").run(None, {"x": x.numpy()})
    np.testing.assert_allclose(prediction, trainer.eval_step(x, label)[1], rtol=1e-5, atol=1e-6)


def test_schedulers_see_the_number_of_updates() -> None:
    scheduler = optim.lr_scheduler.LinearWarmupLRScheduler(total_steps=10, warmup=0.5)
    config = optim.SGDConfig(lr=1.0)
    trainer = ORTTrainer(linear_model(), LINEAR, config, options=ORTTrainerOptions({"lr_scheduler": scheduler}))
    rates = []
    for _ in range(6):
        trainer.train_step(torch.tensor([1.0, 0.0, 0.0]))
        rates += scheduler.get_last_lr()
    assert rates == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert trainer.state_dict(pytorch_format=True)["w"][0] == pytest.approx(1 - 3)


def test_frozen_weights_stay() -> None:
    trainer = trainer_of_model(options={"utils": {"frozen_weights": ["fc1.weight", "fc2.bias"]}})
    for batch in batches(2):
        trainer.train_step(*batch)
    state, before = trainer.state_dict(pytorch_format=True), net().state_dict()
    assert torch.equal(state["fc1.weight"], before["fc1.weight"])
    assert not torch.equal(state["fc2.weight"], before["fc2.weight"])
    assert not {"fc1.weight", "fc2.bias"} & trainer._training_session.get_state().keys()
    with pytest.raises(RuntimeError, match=r"'fc9.weight'.* params from 'frozen_weights' not found"):
        trainer_of_model(options={"utils": {"frozen_weights": ["fc9.weight"]}})


def test_mixed_precision_skips_updates_that_are_not_finite() -> None:
    scaler = amp.DynamicLossScaler(up_scale_window=2, loss_scale=8.0)
    options = ORTTrainerOptions({"mixed_precision": {"enabled": True, "loss_scaler": scaler}})
    trainer = ORTTrainer(linear_model(), LINEAR, optim.AdamConfig(lr=0.1), options=options)
    before = trainer.state_dict()
    trainer.train_step(torch.tensor([1.0, np.inf, 0.0]))
    info = trainer._train_step_info
    assert (info.all_finite, info.optimization_step, info.step, scaler.loss_scale) == (False, 0, 1, 4)
    after = trainer.state_dict()
    np.testing.assert_equal(after["model"], before["model"])
    np.testing.assert_equal(after["optimizer"], before["optimizer"])
    for _ in range(2):
        trainer.train_step(torch.tensor([1.0, 0.5, 0.0]))
    assert (info.all_finite, info.optimization_step, scaler.loss_scale) == (True, 2, 8)
    assert not np.array_equal(
        trainer.state_dict()["model"]["full_precision"]["w"], before["model"]["full_precision"]["w"]
    )


def test_loss_scalers_need_mixed_precision() -> None:
    options = ORTTrainerOptions({"mixed_precision": {"loss_scaler": amp.DynamicLossScaler()}})
    with pytest.raises(ValueError, match="Loss Scaler cannot be specified"):
        ORTTrainer(linear_model(), LINEAR, optim.SGDConfig(), options=options)
    enabled = ORTTrainerOptions({"mixed_precision": {"enabled": True}})
    trainer = ORTTrainer(linear_model(), LINEAR, optim.SGDConfig(), options=enabled)
    assert isinstance(trainer.options.mixed_precision.loss_scaler, amp.DynamicLossScaler)


def test_files_of_the_model(trained: Any, tmp_path: Path) -> None:
    trainer, _ = trained
    path = tmp_path / "model.onnx"
    trainer.save_as_onnx(str(path))
    saved = onnx.load(path)
    weights = {one.name: numpy_helper.to_array(one) for one in saved.graph.initializer}
    np.testing.assert_array_equal(weights["fc1.weight"], trainer.state_dict(pytorch_format=True)["fc1.weight"])
    again = ORTTrainer(saved, DESCRIPTION, optim.LambConfig(lr=0.05))
    assert again._onnx_model == trainer._onnx_model
    batch = batches(1)[0]
    torch.testing.assert_close(again.eval_step(*batch)[0], trainer.eval_step(*batch)[0])
    with pytest.warns(UserWarning, match="not valid"):
        trainer.save_as_onnx(str(tmp_path / "nowhere" / "model.onnx"))
    fresh = trainer_of(net())
    with pytest.warns(UserWarning, match="not initialized yet"):
        fresh.save_as_onnx(str(tmp_path / "fresh.onnx"))
    assert not (tmp_path / "fresh.onnx").exists()


def test_a_file_for_inference_has_no_loss(trained: Any, tmp_path: Path) -> None:
    trainer, _ = trained
    trainer.export_model_for_inferencing(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    x, label = batches(1)[0]
    (prediction,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(prediction, trainer.eval_step(x, label)[1], rtol=1e-5, atol=1e-6)


def continued(trainer: ORTTrainer) -> list[torch.Tensor]:
    return [trainer.train_step(*batch)[0] for batch in batches(5)[3:]]


def fresh_trainer() -> ORTTrainer:
    """A trainer of the same module, exported already, whose Dropout has the same seed."""
    model = dropping_model()
    torch.manual_seed(9)
    return ORTTrainer(model, DESCRIPTION, optim.LambConfig(lr=0.05))


@functools.cache
def dropping_model() -> onnx.ModelProto:
    trainer = trainer_of(net(5, dropout=0.5))
    trainer.eval_step(*batches(1)[0])
    return trainer._onnx_model


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: Any) -> tuple[dict[str, Any], Path, list[torch.Tensor]]:
    """The state after three steps with Dropout, a checkpoint of it, and the losses of the steps that follow."""
    trainer = trainer_of(net(9, dropout=0.5), optim.LambConfig(lr=0.05))
    for batch in batches(3):
        trainer.train_step(*batch)
    path = tmp_path_factory.mktemp("checkpoint") / "state"
    user = {"epoch": 3, "best": [0.5, None], "rng": torch.arange(3), "names": ("a", {"b": np.float32(2)})}
    trainer.save_checkpoint(str(path), user)
    state = trainer.state_dict()
    return state, path, continued(trainer)


def test_a_state_continues_bit_by_bit(dropping: Any) -> None:
    """Before the first step, when loading waits for it, and afterwards."""
    state, _, expected = dropping
    early = trainer_of(net(9, dropout=0.5), optim.LambConfig(lr=0.05))
    early.load_state_dict(state)
    with pytest.warns(UserWarning, match="not initialized yet"):
        assert early.state_dict() is state
    assert continued(early) == expected
    assert early._train_step_info.step == 5
    early.load_state_dict(state)
    assert continued(early) == expected


def test_a_checkpoint_continues_bit_by_bit(dropping: Any, tmp_path: Path) -> None:
    _, path, expected = dropping
    trainer = fresh_trainer()
    user = trainer.load_checkpoint(str(path))
    assert user["epoch"] == 3
    assert user["best"] == [0.5, None]
    assert torch.equal(user["rng"], torch.arange(3))
    assert user["names"] == ("a", {"b": np.float32(2)})
    assert continued(trainer) == expected
    with pytest.raises(FileExistsError):
        trainer.save_checkpoint(str(path))
    trainer.save_checkpoint(str(tmp_path / "weights"), include_optimizer_states=False)
    assert "optimizer" not in storage.load(tmp_path / "weights")
    assert storage.load(tmp_path / "weights", key="train_step_info/step") == 5


def test_layout_of_a_state(dropping: Any) -> None:
    state, *_ = dropping
    assert state["trainer_options"] == {
        "mixed_precision": False,
        "zero_stage": 0,
        "world_rank": 0,
        "world_size": 1,
        "optimizer_name": "LambOptimizer",
        "data_parallel_size": 1,
        "horizontal_parallel_size": 1,
    }
    assert state["train_step_info"] == {"optimization_step": 3, "step": 3}
    assert state["optimizer"]["fc1.weight"].keys() == {"Moment_1", "Moment_2"}
    assert state["optimizer"]["shared_optimizer_state"]["Step"] == [4]
    assert {"fc1.weight", "shift", "norm.running_mean"} <= state["model"]["full_precision"].keys()
    adam = ORTTrainer(linear_model(), LINEAR, optim.AdamConfig())
    assert adam.state_dict()["optimizer"]["w"]["Update_Count"] == [1]


def without(state: dict[str, Any], *place: str) -> dict[str, Any]:
    inner = {key: value for key, value in state.items() if key != place[0]}
    return inner if len(place) == 1 else {**inner, place[0]: without(state[place[0]], *place[1:])}


def test_states_that_do_not_fit(dropping: Any) -> None:
    state, *_ = dropping
    trainer = fresh_trainer()
    trainer.train_step(*batches(1)[0])
    for place, message in (
        (("model", "full_precision"), "Missing keys"),
        (("model", "full_precision", "fc1.bias"), r"Missing keys: \['fc1.bias'\]"),
        (("optimizer", "fc1.bias"), r"Missing keys: \['fc1.bias'\] in state_dict\[optimizer\]"),
        (("optimizer", "fc1.bias", "Moment_1"), r"\['Moment_1'\] in state_dict\[optimizer\]\[fc1.bias\]"),
    ):
        with pytest.raises(RuntimeError, match=message):
            trainer.load_state_dict(without(state, *place))
    extra = {**state, "model": {"full_precision": {**state["model"]["full_precision"], "more": np.ones(2)}}}
    with pytest.raises(RuntimeError, match=r"Unexpected keys: \['more'\]"):
        trainer.load_state_dict(extra)
    trainer.load_state_dict(extra, strict=False)
    for section in ("model", "optimizer", "train_step_info"):
        with pytest.warns(UserWarning, match=f"Missing key: {section} in state_dict"):
            trainer.load_state_dict(without(state, section))
    other = {**state, "trainer_options": {"optimizer_name": "AdamOptimizer"}}
    with pytest.raises(AssertionError, match="Optimizer mismatch"):
        trainer.load_state_dict(other)
    weights = {**state["model"]["full_precision"], "fc1.bias": np.ones(7, np.float32)}
    with pytest.raises(RuntimeError, match=r"'fc1.bias' has shape \[7\]"):
        trainer.load_state_dict({**state, "model": {"full_precision": weights}})


@pytest.mark.parametrize("frozen", [[], ["fc1.weight"]], ids=["trained", "frozen"])
def test_all_of_a_state_is_taken_or_nothing(frozen: list[str]) -> None:
    trainer = trainer_of_model(options={"utils": {"frozen_weights": frozen}})
    trainer.train_step(*batches(1)[0])
    before = trainer.state_dict()
    model = {name: array * 0 for name, array in before["model"]["full_precision"].items()}
    optimizer = {**before["optimizer"], "fc2.bias": {**before["optimizer"]["fc2.bias"], "Moment_1": np.ones(9)}}
    with pytest.raises(OnwardError, match=r"the state of 'Moment_1_fc2.bias' has shape \[9\], not \[4\]"):
        trainer.load_state_dict({**before, "model": {"full_precision": model}, "optimizer": optimizer})
    flat = {**{name: torch.tensor(array) for name, array in model.items()}, "Moment_1_fc2.bias": torch.ones(9)}
    with pytest.raises(OnwardError, match="has shape"), pytest.deprecated_call():
        checkpoint.experimental_load_state_dict(trainer, flat)
    np.testing.assert_equal(trainer.state_dict(), before)


def test_a_state_that_does_not_fit_is_not_forgotten() -> None:
    """A second step must not train without it."""
    trainer = trainer_of(nn.Sequential(nn.Linear(6, 4)))
    trainer.load_state_dict({"model": {"full_precision": {"other": np.ones(2)}}})
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Missing keys"):
            trainer.train_step(*batches(1)[0])
    trainer = trainer_of(nn.Sequential(nn.Linear(6, 4)))
    with pytest.deprecated_call():
        checkpoint.experimental_load_state_dict(trainer, {"other": np.ones(2)}, strict=True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="other is not present in the model"):
            trainer.train_step(*batches(1)[0])


def test_untrained_weights_are_loaded_too() -> None:
    trainer = trainer_of_model(options={"utils": {"frozen_weights": ["fc1.weight"]}})
    x, label = batches(1)[0]
    before = trainer.eval_step(x, label)[0]
    state = trainer.state_dict()
    changed = dict(state["model"]["full_precision"])
    changed["fc1.weight"] = changed["fc1.weight"] * 0
    trainer.load_state_dict({**state, "model": {"full_precision": changed}})
    assert trainer.eval_step(x, label)[0] != before
    assert not trainer.state_dict()["model"]["full_precision"]["fc1.weight"].any()


def shards(path: Path, mixed: bool) -> list[str]:
    """Two checkpoints, each with half of the moments of a weight."""
    files = []
    for rank in (1, 0):
        part = slice(3 * rank, 3 * rank + 3)
        weight = np.arange(6.0)
        state = {
            "model": {"full_precision": {"w": weight[part] if mixed else weight.reshape(2, 3), "b": np.ones(2)}},
            "optimizer": {
                "w": {"Moment_1": weight[part] * 2, "Moment_2": weight[part] * 3, "Update_Count": np.array([5])},
                "b": {"Moment_1": np.zeros(2), "Moment_2": np.ones(2), "Update_Count": np.array([5])},
            },
            "trainer_options": {
                "mixed_precision": mixed,
                "zero_stage": 1,
                "world_rank": rank,
                "world_size": 2,
                "optimizer_name": "AdamOptimizer",
                "data_parallel_size": 2,
                "horizontal_parallel_size": 1,
            },
            "partition_info": {"w": {"original_dim": np.array([2, 3])}},
        }
        files.append(str(path / f"shard{rank}"))
        storage.save(state, files[-1])
    return files


@pytest.mark.parametrize("mixed", [False, True])
def test_aggregated_checkpoints(mixed: bool, tmp_path: Path) -> None:
    whole = checkpoint.aggregate_checkpoints(shards(tmp_path, mixed), pytorch_format=False)
    weight = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(whole["model"]["full_precision"]["w"], weight)
    np.testing.assert_array_equal(whole["optimizer"]["w"]["Moment_1"], weight * 2)
    np.testing.assert_array_equal(whole["optimizer"]["b"]["Moment_2"], np.ones(2))
    assert whole["optimizer"]["w"]["Update_Count"] == [5]
    assert (whole["trainer_options"]["world_size"], whole["trainer_options"]["zero_stage"]) == (1, 0)
    flat = checkpoint.aggregate_checkpoints([str(tmp_path / "shard0"), str(tmp_path / "shard1")])
    assert torch.equal(flat["w"], torch.from_numpy(weight))
    with pytest.raises(AssertionError, match="Unexpected rank"):
        checkpoint.aggregate_checkpoints([str(tmp_path / "shard1")])


def test_flat_states_and_their_checkpoints(tmp_path: Path) -> None:
    data = batches(3)
    trainer, other = trainer_of(net()), trainer_of(net())
    with (
        pytest.warns(DeprecationWarning, match="will be deprecated"),
        pytest.warns(UserWarning, match="not initialized"),
    ):
        assert checkpoint.experimental_state_dict(trainer) == {}
    trainer.train_step(*data[0])
    with pytest.warns(DeprecationWarning, match="will be deprecated"):
        state = checkpoint.experimental_state_dict(trainer)
    with pytest.warns(DeprecationWarning, match="will be deprecated"):
        checkpoint.experimental_save_checkpoint(trainer, str(tmp_path), "first", {"epoch": 2})
    with pytest.warns(DeprecationWarning, match="will be deprecated"):
        assert checkpoint.experimental_load_checkpoint(other, str(tmp_path), "first") == {"epoch": 2}
    assert {"fc1.weight", "Moment_1_fc1.weight", "Update_Count_fc1.weight", "shift"} <= state.keys()
    assert checkpoint._split_state_dict(state)["optimizer"].keys() == {k for k in state if "_fc" in k or "_norm" in k}
    assert torch.equal(other._state_dict["fc1.weight"], state["fc1.weight"])
    expected = [trainer.train_step(*batch)[0] for batch in data[1:]]
    assert [other.train_step(*batch)[0] for batch in data[1:]] == expected
    with (
        pytest.warns(DeprecationWarning, match="will be deprecated"),
        pytest.raises(AssertionError, match="No checkpoint found with prefix 'last'"),
    ):
        checkpoint.experimental_load_checkpoint(other, str(tmp_path), "last")


def test_modules_take_the_whole_state() -> None:
    """Where weights are tied, and where some are not used, too."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused, self.first, self.second = nn.Linear(2, 3), nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight
            self.out = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.second(torch.tanh(self.first(x))))

    module = Tied()
    trainer = trainer_of(module, optim.SGDConfig(lr=0.5))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for x, label in batches(2):
        trainer.train_step(x, label)
    other = Tied()
    other.load_state_dict(trainer.state_dict(pytorch_format=True))
    assert torch.equal(other.unused.weight, before["unused.weight"])
    assert not torch.equal(other.second.weight, before["second.weight"])
    torch.testing.assert_close(trainer.eval_step(x, label)[1], other(x).detach())


def test_flat_states_go_on_drawing() -> None:
    data = batches(4)
    trainer = trainer_of(net(dropout=0.5))
    for batch in data[:2]:
        trainer.train_step(*batch)
    with pytest.deprecated_call():
        state = checkpoint.experimental_state_dict(trainer)
    expected = [trainer.train_step(*batch)[0] for batch in data[2:]]
    with pytest.deprecated_call():
        checkpoint.experimental_load_state_dict(trainer, state)
    assert trainer._train_step_info.step == 2
    assert [trainer.train_step(*batch)[0] for batch in data[2:]] == expected


def test_graphs_are_written_where_options_say(tmp_path: Path) -> None:
    names = ("after_graph_transforms", "with_gradient_graph", "with_training_graph")
    paths = {f"model_{name}_path": str(tmp_path / f"{name}.onnx") for name in names}
    last = tmp_path / "optimized.onnx"
    paths["model_with_training_graph_after_optimization_path"] = str(last)
    own = onnxruntime.SessionOptions()
    for session_options in (None, own):
        trainer_of_model(options={"debug": {"graph_save_paths": paths}, "session_options": session_options})
        assert {path.stem for path in tmp_path.iterdir()} == {*names, "optimized"}
        written = (onnx.load(path).graph for path in (last, tmp_path / "with_training_graph.onnx"))
        assert len({tuple(value.name for value in graph.input) for graph in written}) == 1
        last.unlink()
    assert not own.optimized_model_filepath


def test_modules_that_compute_their_loss_and_unused_arguments() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 4)

        def forward(self, y: Any = None, x: Any = None, label: Any = None) -> Any:
            out = self.linear(x) + (torch.ones(2, 4) if y is None else y)
            return loss_fn(out, label), out

    description = {"inputs": [("x", [2, 2]), ("label", [2])], "outputs": [("loss", [], True), ("output", [2, 4])]}
    module = Own()
    trainer = ORTTrainer(module, description, optim.SGDConfig(lr=0.1))
    x, label = torch.randn(2, 2), torch.tensor([0, 1])
    torch.testing.assert_close(trainer.train_step(x, label)[0], module(x=x, label=label)[0].detach())


def test_predictions_need_no_label_and_one_tensor_may_be_two_inputs() -> None:
    """Also where sizes are those of the label, and where one size follows from others."""

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) + torch.ones(x.shape[0], x.shape[1], 3)

    def flat_loss(prediction: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return ((prediction.reshape(-1) - label.reshape(-1)) ** 2).mean()

    module, x = Steps(), torch.randn(4, 5, 3)
    sizes = ["steps", "batch", 3]
    for label, described in ((x, sizes), (x.reshape(-1), ["all"])):
        description = {"inputs": [("x", sizes), ("label", described)], "outputs": [("loss", [], True), ("y", sizes)]}
        trainer = ORTTrainer(module, description, optim.SGDConfig(lr=0.0), flat_loss)
        loss, _ = trainer.train_step(x, label)
        torch.testing.assert_close(loss, flat_loss(module(x), x).detach())
        longer = torch.randn(6, 2, 3)
        torch.testing.assert_close(
            trainer.train_step(longer, -longer if label.ndim > 1 else -longer.reshape(-1))[0],
            flat_loss(module(longer), -longer).detach(),
        )
        trainer._train_step_info.fetches = ["y"]
        torch.testing.assert_close(trainer.eval_step(longer), module(longer).detach())


def test_modules_that_cannot_be_copied_train_with_a_warning() -> None:
    import threading

    class Locked(Net):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    trainer = trainer_of(Locked())
    with pytest.warns(UserWarning, match="cannot be deep copied"):
        trainer.train_step(*batches(1)[0])


def test_a_model_without_parameters_runs() -> None:
    class Mean(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.mean(x)

    description = {"inputs": [("x", [2]), ("y", [1])], "outputs": [("loss", [], True)]}
    trainer = ORTTrainer(Mean(), description, optim.LambConfig())
    with pytest.warns(OnwardWarning, match="nothing is trained"):
        assert trainer.train_step(torch.tensor([1.0, 2.0]), torch.zeros(1)) == 1.5


def test_an_extra_pass_over_the_model() -> None:
    seen = []

    def extra(model: onnx.ModelProto) -> onnx.ModelProto:
        seen.append(model)
        return model

    ORTTrainer(
        linear_model(),
        LINEAR,
        optim.SGDConfig(),
        options=ORTTrainerOptions({"_internal_use": {"extra_postprocess": extra}}),
    )
    assert len(seen) == 1
    nothing = ORTTrainerOptions({"_internal_use": {"extra_postprocess": lambda model: None}})
    with pytest.raises(AssertionError, match="must return a ONNX model"):
        ORTTrainer(linear_model(), LINEAR, optim.SGDConfig(), options=nothing)


def trainer_with(output: str) -> ORTTrainer:
    outputs = [("loss", [], True), (output, ["batch", 4])]
    return ORTTrainer(net(), {**DESCRIPTION, "outputs": outputs}, optim.SGDConfig(), loss_fn)


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no model": (lambda: ORTTrainer(None, LINEAR, optim.SGDConfig()), AssertionError, "'model' is required"),
    "a text": (lambda: ORTTrainer("m.onnx", LINEAR, optim.SGDConfig()), ValueError, "must be either 'torch.nn.Module'"),
    "description": (lambda: ORTTrainer(linear_model(), [], optim.SGDConfig()), AssertionError, "must be a 'dict'"),
    "optimizer": (lambda: ORTTrainer(linear_model(), LINEAR, "adam"), AssertionError, "'optim_config' is required"),
    "loss": (
        lambda: ORTTrainer(linear_model(), LINEAR, optim.SGDConfig(), loss_fn),
        AssertionError,
        "'loss_fn' must not be specified",
    ),
    "loss of one": (
        lambda: ORTTrainer(net(), DESCRIPTION, optim.SGDConfig(), lambda x: x),
        AssertionError,
        "callable with two parameters",
    ),
    "options": (lambda: ORTTrainer(net(), LINEAR, optim.SGDConfig(), None, {}), AssertionError, "'options' must be"),
    "processes": (
        lambda: trainer_of(net(), options={"distributed": {"world_size": 2}}),
        OnwardError,
        "distributed.world_size=2: ORTTrainer trains in one process",
    ),
    "names": (
        lambda: ORTTrainer(linear_model(), {**LINEAR, "inputs": [("x", [3])]}, optim.SGDConfig()),
        AssertionError,
        r"unknown input type \(x\)",
    ),
    "no function for the label": (
        lambda: ORTTrainer(net(), DESCRIPTION, optim.SGDConfig()).train_step(*batches(1)[0]),
        OnwardError,
        r"of Net does not take the inputs \['x', 'label'\].*without a loss_fn, the label is one of them",
    ),
    "too few inputs": (
        lambda: ORTTrainer(nn.Bilinear(6, 6, 4), DESCRIPTION, optim.SGDConfig(), loss_fn).train_step(*batches(1)[0]),
        OnwardError,
        r"of Bilinear does not take the inputs \['x'\].*the last one goes to loss_fn",
    ),
    "one name twice": (
        lambda: trainer_with("fc1.bias").train_step(*batches(1)[0]),
        OnwardError,
        r"\['fc1.bias'\] name more than one thing",
    ),
    "an output called like an input": (
        lambda: trainer_with("label").train_step(*batches(1)[0]),
        OnwardError,
        r"\['label'\] name more than one thing",
    ),
    "no loss": (
        lambda: ORTTrainer(linear_model(), {**LINEAR, "outputs": [("loss", [])]}, optim.SGDConfig()),
        AssertionError,
        r"Only one loss output is supported \(0 were",
    ),
    "step info": (lambda: TrainStepInfo(-1), AssertionError, "must be a optim._OptimizerConfig"),
    "fetches": (lambda: TrainStepInfo(optim.SGDConfig(), fetches="loss"), AssertionError, "must be a list of str"),
    "steps": (lambda: TrainStepInfo(optim.SGDConfig(), step=-1), AssertionError, "step must be a positive int"),
    "device": (
        lambda: ORTTrainer(
            linear_model(), LINEAR, optim.SGDConfig(), options=ORTTrainerOptions({"device": {"id": "tpu"}})
        ),
        OnwardError,
        "Unsupported device type: 'tpu'",
    ),
    "no checkpoint": (lambda: trainer_of_model().load_checkpoint(), AssertionError, "needs the path of a checkpoint"),
    "no checkpoints": (lambda: checkpoint.aggregate_checkpoints([]), AssertionError, "paths of the checkpoints"),
    "bfloat16": (
        lambda: trainer_of(net().bfloat16()).train_step(batches(1)[0][0].bfloat16(), batches(1)[0][1]),
        OnwardError,
        r"no kernels on a CPU that compute with bfloat16 \(.*Gemm.*train the module in float32",
    ),
    "user_dict": (lambda: storage.to_serialized_hex({"f": print}), ValueError, "cannot be kept in a checkpoint"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        make()


def test_groups_that_name_nothing_are_warned_of() -> None:
    config = optim.AdamConfig([{"params": ["v"], "alpha": 0.5}])
    with pytest.warns(OnwardWarning, match="'v'"):
        ORTTrainer(linear_model(), LINEAR, config)
