"""Schedules against torch.optim.lr_scheduler over a hundred steps."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler

from onward.errors import OnwardError
from onward.optim import schedules

LR = 0.3


def torch_rates(kind, steps=100, **options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = kind(optimizer, **options)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch minds that its optimizer never steps
        for step in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            if step < steps - 1:
                scheduler.step()
    return rates


CASES = [
    (schedules.Constant(LR), lr_scheduler.ConstantLR, {"factor": 1.0}),
    (
        schedules.LinearFactor(LR, 40, 0.2, 0.7),
        lr_scheduler.LinearLR,
        {"total_iters": 40, "start_factor": 0.2, "end_factor": 0.7},
    ),
    (schedules.Cosine(LR, 100), lr_scheduler.CosineAnnealingLR, {"T_max": 100}),
    (schedules.Cosine(LR, 30, minimum=0.1), lr_scheduler.CosineAnnealingLR, {"T_max": 30, "eta_min": 0.1}),
    (schedules.CosineRestarts(LR, 20), lr_scheduler.CosineAnnealingWarmRestarts, {"T_0": 20}),
    (
        schedules.CosineRestarts(LR, 7, growth=2, minimum=0.05),
        lr_scheduler.CosineAnnealingWarmRestarts,
        {"T_0": 7, "T_mult": 2, "eta_min": 0.05},
    ),
    (schedules.Polynomial(LR, 60, power=2.5), lr_scheduler.PolynomialLR, {"total_iters": 60, "power": 2.5}),
    (schedules.Linear(LR, 0, 60), lr_scheduler.PolynomialLR, {"total_iters": 60, "power": 1.0}),
    (schedules.Step(LR, 30), lr_scheduler.StepLR, {"step_size": 30}),
    (schedules.Step(LR, 7, gamma=0.5), lr_scheduler.StepLR, {"step_size": 7, "gamma": 0.5}),
    (schedules.MultiStep(LR, (80, 30)), lr_scheduler.MultiStepLR, {"milestones": [80, 30]}),
    (schedules.MultiStep(LR, (30, 30, 50), 0.5), lr_scheduler.MultiStepLR, {"milestones": [30, 30, 50], "gamma": 0.5}),
    (schedules.Exponential(LR, 0.97), lr_scheduler.ExponentialLR, {"gamma": 0.97}),
    (schedules.OneCycle(LR, 100), lr_scheduler.OneCycleLR, {"max_lr": LR, "total_steps": 100}),
    (
        schedules.OneCycle(LR, 100, pct_start=0.25, anneal="linear", div_factor=10, final_div_factor=50),
        lr_scheduler.OneCycleLR,
        {
            "max_lr": LR,
            "total_steps": 100,
            "pct_start": 0.25,
            "anneal_strategy": "linear",
            "div_factor": 10,
            "final_div_factor": 50,
        },
    ),
    (
        schedules.OneCycle(LR, 100, three_phase=True),
        lr_scheduler.OneCycleLR,
        {"max_lr": LR, "total_steps": 100, "three_phase": True},
    ),
    (
        schedules.OneCycle(LR, 100, pct_start=0.0),
        lr_scheduler.OneCycleLR,
        {"max_lr": LR, "total_steps": 100, "pct_start": 0.0},
    ),
]


@pytest.mark.parametrize(("schedule", "kind", "options"), CASES, ids=str)
def test_equals_torch(schedule, kind, options):
    np.testing.assert_allclose([schedule(step) for step in range(100)], torch_rates(kind, **options), rtol=1e-9)


# What onnxruntime-training's formula gives for warmup 2, total 6 (its Python wrapper swaps the two counts), and what
# its ORTTrainer gives for a warm-up of half of 10 steps.
WARMUPS = [
    (schedules.Linear(1.0, 2, 6), [0, 0.5, 1, 0.75, 0.5, 0.25, 0, 0]),
    (schedules.Linear(1.0, 0, 4), [1, 0.75, 0.5, 0.25, 0, 0]),
    (schedules.Linear(1.0, 1, 2), [0, 1, 0]),
    (schedules.Linear(1.0, 5, 10), [0, 0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2]),
    (schedules.Constant(1.0, 5), [0, 0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1]),
    (schedules.Cosine(1.0, 10, 5), [0, 0.2, 0.4, 0.6, 0.8, 1, 0.904508, 0.654508, 0.345492, 0.095492]),
    (schedules.Polynomial(1.0, 10, warmup_step_count=5), [0, 0.2, 0.4, 0.6, 0.8, 1, 0.8, 0.6, 0.4, 0.2]),
    (schedules.Polynomial(1.0, 4, power=2, minimum=0.2), [1, 0.65, 0.4, 0.25, 0.2, 0.2]),
    (schedules.CosineRestarts(1.0, 2, warmup_step_count=2), [0, 0.5, 1, 0.5, 1, 0.5]),
    (schedules.Cosine(1.0, 4, cycles=1.0), [1, 0.5, 0, 0.5, 1]),
    (schedules.Warmup(schedules.Step(1.0, 2, 0.5), 2), [0, 0.5, 1, 1, 0.5, 0.5, 0.25]),
    # After its end a cycle stays where it is; torch raises.
    (schedules.OneCycle(1.0, 3, pct_start=0.5), [1 / 25, 0.750001, 1 / 25 / 1e4, 1 / 25 / 1e4, 1 / 25 / 1e4]),
]


@pytest.mark.parametrize(("schedule", "rates"), WARMUPS, ids=str)
def test_rates(schedule, rates):
    np.testing.assert_allclose([schedule(step) for step in range(len(rates))], rates, atol=1e-6)


def metrics(kind):
    random = np.random.default_rng(0)
    noise = random.normal(size=100) * 0.02
    falling = np.maximum(1.0, 2 - np.arange(100) / 20) + noise
    return {"min": falling, "max": -falling}[kind].tolist()


PLATEAUS = [
    {"patience": 3},
    {"patience": 2, "factor": 0.5, "cooldown": 4, "min_lr": 0.01},
    {"patience": 0, "factor": 0.5, "threshold": 0.1, "threshold_mode": "abs"},
    {"patience": 1, "factor": 0.9, "threshold": 0.05, "eps": 0.01},
]


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("options", PLATEAUS, ids=str)
def test_reduce_on_plateau_equals_torch_and_resumes(mode, options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, mode=mode, **options)
    schedule = schedules.ReduceOnPlateau(LR, mode=mode, **options)
    seen = set()
    for step, metric in enumerate(metrics(mode)):
        scheduler.step(metric)
        rate = schedule.observe(metric)
        assert rate == schedule(step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        seen.add(rate)
        # Saved and restored in between, through text as in a checkpoint.
        state = json.loads(json.dumps(schedule.state_dict()))
        schedule = schedules.ReduceOnPlateau(99.0, mode=mode, **options)
        schedule.load_state_dict(state)
    assert len(seen) > 1


def test_state_before_the_first_observation():
    schedule = schedules.ReduceOnPlateau(LR)
    schedule.load_state_dict(json.loads(json.dumps(schedule.state_dict())))
    assert schedule.observe(float("nan")) == LR
    assert "best" not in schedule.state_dict()


def test_states_that_do_not_fit_are_refused():
    assert schedules.Constant(LR).state_dict() == {}
    schedules.Warmup(schedules.Constant(LR), 3).load_state_dict({})
    with pytest.raises(OnwardError, match=r"Constant has no state, but \['best'\] was given"):
        schedules.Constant(LR).load_state_dict({"best": 1.0})
    with pytest.raises(OnwardError, match="lacks bad_count, cooldown_left"):
        schedules.ReduceOnPlateau(LR).load_state_dict({"learning_rate": 1.0})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: schedules.Step(LR, 0), "step_size must be at least 1"),
        (lambda: schedules.CosineRestarts(LR, 0), "first_cycle must be at least 1"),
        (lambda: schedules.OneCycle(LR, 10, pct_start=2.0), "pct_start must be in"),
        (lambda: schedules.OneCycle(LR, 10, anneal="cosine"), "anneal='cosine' is not known"),
        (lambda: schedules.ReduceOnPlateau(LR, factor=1.0), "factor must be less than 1"),
        (lambda: schedules.ReduceOnPlateau(LR, mode="best"), "mode='best' is not known"),
        (lambda: schedules.ReduceOnPlateau(LR, threshold_mode="x"), "threshold_mode='x' is not known"),
    ],
)
def test_wrong_options_are_refused(make, message):
    with pytest.raises(OnwardError, match=message):
        make()


def test_schedules_need_neither_onnx_nor_numpy():
    code = """
import sys
for name in ("onnx", "onnx_ir", "numpy", "onnxruntime"):
    sys.modules[name] = None  # importing it raises ImportError
from onward.optim import schedules
assert schedules.Linear(1.0, 2, 6)(1) == 0.5
"""
    subprocess.run([sys.executable, "-c", code], check=True)
