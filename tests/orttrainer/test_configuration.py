"""Options, descriptions, optimizers, schedulers and loss scalers: defaults, refusals and numbers of the original."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from onward.errors import OnwardError
from onward.torch.orttrainer import ORTTrainerOptions, amp, optim
from onward.torch.orttrainer import model_desc_validation as md
from onward.torch.orttrainer.optim import lr_scheduler

SCHEDULERS = {
    "constant": (lr_scheduler.ConstantWarmupLRScheduler, [0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1]),
    "cosine": (
        lr_scheduler.CosineWarmupLRScheduler,
        [0, 0.2, 0.4, 0.6, 0.8, 1, 0.904508, 0.654508, 0.345492, 0.095492],
    ),
    "linear": (lr_scheduler.LinearWarmupLRScheduler, [0, 0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2]),
    "poly": (lr_scheduler.PolyWarmupLRScheduler, [0, 0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2]),
}


def at(step: int, lr: float = 1.0) -> Any:
    return SimpleNamespace(optimization_step=step, optimizer_config=optim.SGDConfig(lr=lr))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_give_the_numbers_of_the_specification(name: str) -> None:
    make, expected = SCHEDULERS[name]
    scheduler = make(total_steps=10, warmup=0.5)
    rates = [scheduler._step(at(step)) for step in range(10)]
    assert all(len(rate) == 1 for rate in rates)
    assert scheduler.get_last_lr() == rates[-1]
    np.testing.assert_allclose([rate for (rate,) in rates], expected, atol=1e-6)
    assert make(10, warmup=0.5).total_steps == 10


def test_a_warm_up_need_not_be_whole() -> None:
    scheduler = lr_scheduler.LinearWarmupLRScheduler(total_steps=10, warmup=0.25)  # 2.5 steps
    assert [scheduler.get_lr(at(step))[0] for step in (1, 2, 3)] == pytest.approx([0.4, 0.8, 7 / 7.5])
    poly = lr_scheduler.PolyWarmupLRScheduler(total_steps=10, warmup=0.95, lr_end=0.125)
    assert poly.get_lr(at(10)) == [0.125]
    assert poly.get_lr(at(99)) == [0.125]


def test_rates_are_never_negative() -> None:
    assert lr_scheduler.LinearWarmupLRScheduler(10).get_lr(at(99)) == [0.0]


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_polynomials_end_where_they_end(power: float) -> None:
    scheduler = lr_scheduler.PolyWarmupLRScheduler(10, lr_end=0.25, power=power)
    assert [scheduler.get_lr(at(step)) for step in (11, 99)] == [[0.25], [0.25]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lr_scheduler.ConstantWarmupLRScheduler(0), "total_steps must be a strict positive number"),
        (lambda: lr_scheduler.ConstantWarmupLRScheduler(1.5), "total_steps must be a strict positive number"),
        (lambda: lr_scheduler.LinearWarmupLRScheduler(10, warmup=1.0), "warmup must be a float between"),
        (lambda: lr_scheduler.LinearWarmupLRScheduler(10, warmup=0), "warmup must be a float between"),
        (lambda: lr_scheduler.CosineWarmupLRScheduler(10, cycles=1), "cycles must be a positive float"),
        (lambda: lr_scheduler.PolyWarmupLRScheduler(10, lr_end=1), "lr_end must be a positive float"),
        (lambda: lr_scheduler.PolyWarmupLRScheduler(10, power=2), "power must be a positive float"),
        (lambda: lr_scheduler.PolyWarmupLRScheduler(10, 0.5).get_lr(at(0, lr=0.5)), "must be be smaller than initial"),
        (lambda: optim.SGDConfig([{"params": ["w"], "lr": 0.1}]), "'params' must be an empty list for SGD optimizer"),
        (lambda: optim.AdamConfig([{"params": ["w"], "lr": 0.1}]), "'lr' is not supported inside params"),
        (lambda: optim.LambConfig([{"params": ["w"], "lr": 0.1}]), "'lr' is not supported inside params"),
        (lambda: optim.AdamConfig([{"params": ["w"]}]), "Each dict inside 'params' must contain"),
        (lambda: optim.AdamConfig([{"params": "fc.weight", "alpha": 0.1}]), r"a list of names .*, not 'fc.weight'"),
        (lambda: optim.AdamConfig([{"params": [nn.Parameter(torch.ones(1))], "alpha": 0.1}]), "a list of names"),
        (
            lambda: optim.AdamConfig([{"params": ["v", "w"], "alpha": 0.1}, {"params": ["w"], "alpha": 0.2}]),
            r"\['w'\] are in more than one group",
        ),
        (lambda: optim.AdamConfig([{"params": ["w"], "ratio_min": 0.1}]), "'ratio_min' hyper parameter not present"),
        (lambda: optim.AdamConfig(lr=-1), "'lr' must be a positive number"),
        (lambda: optim.AdamConfig(max_norm_clip=0.0), "'max_norm_clip' must not be 0"),
        (lambda: optim.AdamConfig(weight_decay_mode=0), "must be a AdamConfig.DecayMode"),
        (lambda: optim.LambConfig(ratio_min=0), "'ratio_min' must be a valid float"),
        (lambda: optim.LambConfig(do_bias_correction=1), "'do_bias_correction' must be a boolean"),
        (lambda: optim._OptimizerConfig("FooOptimizer", [], {"lr": 0.1}), "'name' must be one of"),
        (lambda: optim._OptimizerConfig(optim.AdamConfig, [], {"lr": 0.1}), "'name' must be a string"),
        (lambda: optim._OptimizerConfig("SGDOptimizer", [], []), "'defaults' must be a dict"),
        (lambda: optim._OptimizerConfig("SGDOptimizer", [], {"lr": None}), "lr must be a positive number"),
        (lambda: optim._OptimizerConfig("SGDOptimizer", [], {}), "'defaults' must contain"),
        (lambda: optim._OptimizerConfig("SGDOptimizer", {}, {"lr": 0.1}), "'params' must be a list"),
        (lambda: optim._OptimizerConfig("AdamOptimizer", [[]], {"lr": 0.1}), "Each dict inside 'params'"),
    ],
)
def test_assertions_of_schedulers_and_optimizers(make: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        make()
    assert isinstance(caught.value, OnwardError)


def test_defaults_of_optimizers() -> None:
    sgd, adam, lamb = optim.SGDConfig(), optim.AdamConfig(), optim.LambConfig()
    assert [sgd.name, adam.name, lamb.name] == ["SGDOptimizer", "AdamOptimizer", "LambOptimizer"]
    assert sgd.lr == adam.lr == lamb.lr == 0.001
    assert adam.defaults == {
        "lr": 0.001,
        "alpha": 0.9,
        "beta": 0.999,
        "lambda_coef": 0.0,
        "epsilon": 1e-8,
        "max_norm_clip": 1.0,
        "do_bias_correction": True,
        "weight_decay_mode": optim.AdamConfig.DecayMode.BEFORE_WEIGHT_UPDATE,
    }
    assert lamb.defaults == {
        "lr": 0.001,
        "alpha": 0.9,
        "beta": 0.999,
        "lambda_coef": 0.0,
        "ratio_min": -math.inf,
        "ratio_max": math.inf,
        "epsilon": 1e-6,
        "max_norm_clip": 1.0,
        "do_bias_correction": False,
    }
    assert all(getattr(lamb, name) == value for name, value in lamb.defaults.items())


def test_groups_are_filled_with_the_other_settings() -> None:
    group = {"params": ["w"], "alpha": 0.1}
    config = optim.AdamConfig([group], alpha=0.2, lambda_coef=0.5)
    assert config.params == [group]
    assert (group["alpha"], group["lambda_coef"]) == (0.1, 0.5)


def test_dynamic_loss_scaler() -> None:
    scaler = amp.DynamicLossScaler(up_scale_window=2, loss_scale=4.0, min_loss_scale=2.0, max_loss_scale=8.0)
    fine, overflow = SimpleNamespace(all_finite=True), SimpleNamespace(all_finite=False)
    assert [scaler.update(step) for step in (fine, fine, fine, fine)] == [4, 8, 8, 8]
    assert [scaler.update(step) for step in (overflow, overflow, overflow)] == [4, 2, 2]
    assert scaler.update(fine) == 2
    assert scaler._stable_steps_count == 1
    scaler.reset()
    assert (scaler.loss_scale, scaler._stable_steps_count) == (4, 0)
    scaler.input_name = "scale"
    assert scaler.input_name == "scale"
    with pytest.raises(AssertionError, match="cannot be empty"):
        scaler.input_name = ""
    with pytest.raises(AssertionError, match="must be a positive float"):
        scaler.loss_scale = -1.0
    with pytest.raises(NotImplementedError):
        amp.LossScaler(1.0).update(fine)


SECTIONS = ["batch", "device", "distributed", "mixed_precision", "graph_transformer", "utils", "debug", "_internal_use"]


@pytest.mark.parametrize("given", [{}, {name: {} for name in SECTIONS}, dict.fromkeys(SECTIONS)])
def test_defaults_of_options(given: dict[str, Any]) -> None:
    options = ORTTrainerOptions(given)
    assert options._validated_opts["batch"] == {"gradient_accumulation_steps": 1}
    assert options._validated_opts["device"] == {"id": "cpu", "mem_limit": 0}
    assert options._validated_opts["mixed_precision"] == {"enabled": False, "loss_scaler": None}
    assert options._validated_opts["_internal_use"] == {
        "enable_internal_postprocess": True,
        "extra_postprocess": None,
        "onnx_opset_version": 12,
        "enable_onnx_contrib_ops": True,
    }
    assert options.distributed.world_size == 1
    assert options.distributed.deepspeed_zero_optimization.stage == 0
    assert options.graph_transformer.propagate_cast_ops_config.strategy.name == "NONE"
    assert options.utils.frozen_weights == []
    assert options.utils.grad_norm_clip is True
    assert options.lr_scheduler is None
    options.utils.frozen_weights.append("w")
    assert ORTTrainerOptions(given).utils.frozen_weights == []
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = options.nothing


@pytest.mark.parametrize(
    ("given", "errors"),
    [
        ({"mixed_precision": {"enabled": 1}}, "{'mixed_precision': [{'enabled': ['must be of boolean type']}]}"),
        (
            {"batch": {"gradient_accumulation_steps": 0}},
            "{'batch': [{'gradient_accumulation_steps': ['min value is 1']}]}",
        ),
        (
            {"device": {"id": 1}, "speed": 3},
            "{'device': [{'id': ['must be of string type']}], 'speed': ['unknown field']}",
        ),
        ({"batch": 3}, "{'batch': ['must be of dict type']}"),
        ({"lr_scheduler": 3}, "{'lr_scheduler': ['must be of lr_scheduler type']}"),
        (
            {"mixed_precision": {"loss_scaler": 2.0}},
            "{'mixed_precision': [{'loss_scaler': ['must be of loss_scaler type']}]}",
        ),
        (
            {"_internal_use": {"onnx_opset_version": 14}},
            "{'_internal_use': [{'onnx_opset_version': ['max value is 13']}]}",
        ),
        (
            {"_internal_use": {"extra_postprocess": 1}},
            "{'_internal_use': [{'extra_postprocess': ['Must be callable or None']}]}",
        ),
        (
            {"distributed": {"deepspeed_zero_optimization": {"stage": 2}}},
            "{'distributed': [{'deepspeed_zero_optimization': [{'stage': ['max value is 1']}]}]}",
        ),
        ({"utils": {"frozen_weights": "w"}}, "{'utils': [{'frozen_weights': ['must be of list type']}]}"),
    ],
)
def test_invalid_options(given: dict[str, Any], errors: str) -> None:
    with pytest.raises(ValueError, match="Invalid options") as caught:
        ORTTrainerOptions(given)
    assert str(caught.value) == f"Invalid options: {errors}"
    assert isinstance(caught.value, OnwardError)


NAME = "the first element of the tuple (aka name) must be a string"
SHAPE = "the second element of the tuple (aka shape) must be a list"
SIZE = "each shape must be either a string or integer"


@pytest.mark.parametrize(
    ("inputs", "outputs", "errors"),
    [
        ([(True, [])], [(True, [])], f"{{'inputs': [{{0: ['{NAME}']}}], 'outputs': [{{0: ['{NAME}']}}]}}"),
        ([("x", None)], [("y", [])], f"{{'inputs': [{{0: ['{SHAPE}']}}]}}"),
        ([("x", [True])], [("y", [1.0])], f"{{'inputs': [{{0: ['{SIZE}']}}], 'outputs': [{{0: ['{SIZE}']}}]}}"),
        (
            [("x", [])],
            [("y", [], None)],
            "{'outputs': [{0: ['the third element of the tuple (aka is_loss) must be a boolean']}]}",
        ),
        (
            [("x", [])],
            [("y", [], True), ("z", [], True)],
            "{'outputs': [{1: ['only one is_loss can bet set to True']}]}",
        ),
        ([], [("y", [])], "{'inputs': ['min length is 1']}"),
        (
            [("x",)],
            [("y", [], True, 1)],
            "{'inputs': [{0: ['must be a tuple with size 2']}], "
            "'outputs': [{0: ['must be a tuple with size 2 or 3']}]}",
        ),
    ],
)
def test_invalid_descriptions(inputs: Any, outputs: Any, errors: str) -> None:
    with pytest.raises(ValueError, match="Invalid model_desc") as caught:
        md._ORTTrainerModelDesc({"inputs": inputs, "outputs": outputs})
    assert str(caught.value) == f"Invalid model_desc: {errors}"


def test_descriptions_without_inputs() -> None:
    with pytest.raises(ValueError, match="Invalid") as caught:
        md._ORTTrainerModelDesc({"inputz": [("x", [])], "outputs": [("y", [], True)]})
    assert str(caught.value) == "Invalid model_desc: {'inputs': ['required field'], 'inputz': ['unknown field']}"


def test_descriptions_get_types() -> None:
    given = {"inputs": [("x", ["batch", 2]), ("y", [])], "outputs": [("loss", [], True), ("out", ["batch"])]}
    described = md._ORTTrainerModelDesc(given)
    assert described.inputs == given["inputs"]
    assert described.outputs == [("loss", [], True), ("out", ["batch"], False)]
    assert isinstance(described.inputs[0], described._InputDescription)
    assert described.learning_rate == ("__learning_rate", [1], torch.float32)
    for dtype in (torch.int8, torch.float64):
        described.add_type_to_input_description(0, dtype)
        described.add_type_to_output_description(1, dtype, torch.float16)
    assert described.inputs == [("x", ["batch", 2], torch.float64), ("y", [])]
    assert described.outputs[1] == ("out", ["batch"], False, torch.float64, torch.float16)
    assert isinstance(described.outputs[1], described._OutputDescriptionTyped)
    described.all_finite = md.ALL_FINITE_IO_DESCRIPTION_NAME
    described.loss_scale_input = md.LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME
    assert described.all_finite[:2] == (md.ALL_FINITE_IO_DESCRIPTION_NAME, [1])
    assert described.loss_scale_input == (md.LOSS_SCALE_INPUT_IO_DESCRIPTION_NAME, [], torch.float32)
    assert "(name=x, shape=['batch', 2], dtype=torch.float64)" in repr(described)
    with pytest.raises(AssertionError, match="must be a torch"):
        described.add_type_to_input_description(0, "float")
