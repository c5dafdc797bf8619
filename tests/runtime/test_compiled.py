"""Compiled update loops against the same kernels on onnxruntime: the same bits."""

from __future__ import annotations

import sys

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward import optim
from onward.plan import GRAD_SCALE, GRADIENT, LEARNING_RATE, PARAMETER, SLOT, STEP
from onward.runtime import compiled, kernels, wire
from onward.runtime.tensors import FlatTensors
from onward.training.update import update_plan

SHAPES = {"a.weight": (37, 5), "a.bias": (7,), "b.weight": (1000,)}

RECIPES = {
    "sgd": optim.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": optim.adam(0.1, weight_decay=0.1),
    "adamw": optim.adamw(0.1, amsgrad=True),
    "adamw_hf": optim.adamw_hf(0.1),
    "adamax": optim.adamax(0.1),
    "adagrad": optim.adagrad(0.1, lr_decay=0.1),
    "rmsprop": optim.rmsprop(0.1, centered=True, momentum=0.5),
    "adadelta": optim.adadelta(0.1),
    "lion": optim.lion(0.1, weight_decay=0.1),
    "clipped": optim.adamw(0.1, clip=1.0),
    "clipped_by_value": optim.sgd(0.1, clip=optim.clip(0.5)),
    "no_decay_on_biases": optim.adamw(0.1, groups=[optim.no_decay()]),
}


def trained(optimizer: optim.Optimizer, dtype: type, steps: int = 5) -> tuple[dict[str, np.ndarray], list[type]]:
    """Tensors after some steps with the same gradients, and what the steps consisted of."""
    types = {name: (ir.DataType.from_numpy(np.dtype(dtype)), shape) for name, shape in SHAPES.items()}
    plan = update_plan(optimizer, types, 17)
    random = np.random.default_rng(0)
    parameters = FlatTensors.holding({name: random.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()})
    gradients = parameters.zeros_like()
    slots = {f"{SLOT}{name}": parameters.zeros_like() for name in plan.slots}
    for name, slot in plan.slots.items():
        slots[f"{SLOT}{name}"].fill(slot.initial)
    scalars = {
        LEARNING_RATE: np.array(0.1, np.float32),
        STEP: np.array(0, np.int64),
        GRAD_SCALE: np.array(1, np.float32),
    }
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in scalars.items()}
    tensors = {PARAMETER: parameters, GRADIENT: gradients, **slots}
    runs = kernels.Binder(plan, tensors, values, None, ["CPUExecutionProvider"]).runs()
    for step in range(1, steps + 1):
        scalars[STEP][...] = step
        for name, shape in SHAPES.items():
            gradients.assign(name, random.normal(size=shape).astype(dtype))
        for run in runs:
            run()
    results = {f"{kind}/{name}": t[name].copy() for kind, t in tensors.items() for name in SHAPES}
    return results, [type(run) for run in runs]


CASES = [*((name, np.float32) for name in RECIPES), ("adamw_hf", np.float64), ("lion", np.float64)]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_same_bits_as_onnxruntime(name: str, dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, how = trained(RECIPES[name], dtype)
    assert kernels._LoopRun not in how, "too small to be compiled"
    monkeypatch.setattr(kernels, "_WORTH_COMPILING", 1)
    got, how = trained(RECIPES[name], dtype)
    assert kernels._LoopRun in how
    for key, array in expected.items():
        np.testing.assert_array_equal(got[key], array, err_msg=key)


def test_same_bits_on_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trained(RECIPES["adamw_hf"], np.float32)
    monkeypatch.setattr(kernels, "_WORTH_COMPILING", 1)
    monkeypatch.setattr(kernels, "_WORTH_A_THREAD", 100)
    monkeypatch.setattr(kernels.Binder, "_threads", lambda _: 3)
    got, _ = trained(RECIPES["adamw_hf"], np.float32)
    for key, array in expected.items():
        np.testing.assert_array_equal(got[key], array, err_msg=key)


def test_runs_without_llvmlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    monkeypatch.setattr(kernels, "_WORTH_COMPILING", 1)
    _, how = trained(RECIPES["adamw_hf"], np.float32, steps=1)
    assert set(how) == {kernels._SessionRun}


def test_what_cannot_be_a_loop() -> None:
    types = {"p": (ir.DataType.FLOAT16, (4,))}
    kernel = wire.parse(update_plan(optim.sgd(0.1, momentum=0.9), types, 17).kernels[0].model)
    assert compiled.loop_of(kernel, np.dtype(np.float16)) is None
    lamb = update_plan(optim.lamb(0.1), {"p": (ir.DataType.FLOAT, (4,))}, 17)
    assert compiled.loop_of(wire.parse(lamb.kernels[0].model), np.dtype(np.float32)) is None
