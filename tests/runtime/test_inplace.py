"""Where an optimizer may write over what it reads."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onward import optim
from onward.plan import GRADIENT, LEARNING_RATE, PARAMETER, SLOT, STEP, UPDATED
from onward.runtime import wire
from onward.runtime.inplace import may_overwrite
from onward.runtime.optimizer import TrainingOptimizer
from onward.runtime.state import State
from onward.training.update import update_plan

SHAPE = (3, 4)
TYPES = {"w": (ir.DataType.FLOAT, SHAPE), "v": (ir.DataType.FLOAT, (7,))}


def parse(body: str) -> wire.WireModel:
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n] p, float[n] q) => (float[n] r, float[n] s) {{ {body} }}'
    )
    return wire.parse(onnx.parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize(
    ("body", "safe"),
    [
        ("s = Neg(q) r = Add(p, q)", True),
        ("s = Neg(p) r = Add(p, q)", False),  # s may be computed after p was overwritten
        ("s = Neg(p) r = Add(s, q)", True),
        ("s = Neg(p) r = Add(p, s)", True),
        ("s = Neg(q) r = Add(p, p)", True),
        ("s = Neg(q) r = CumSum(p, zero)", False),  # not elementwise
    ],
)
def test_may_overwrite(body: str, safe: bool) -> None:
    assert may_overwrite(parse(body), "p", "r") is safe


def swap() -> optim.Optimizer:
    """An optimizer that cannot work in place: each of its tensors becomes the old value of the other."""

    def update(op, g, ctx):  # type: ignore[no-untyped-def]
        old = ctx.mu
        ctx.mu = ctx.p + g
        return ctx.p - old

    return optim.Optimizer(optim.Transformation(update, {"mu": optim.Slot()}), "swap")


@pytest.mark.parametrize("optimizer", [*optim.names(), swap()], ids=lambda o: getattr(o, "name", o))
def test_in_place_is_the_same_as_out_of_place(optimizer: str | optim.Optimizer) -> None:
    plan = update_plan(optim.get(optimizer), TYPES, 17)
    random = np.random.default_rng(0)
    start = {name: random.normal(size=shape).astype(np.float32) for name, (_, shape) in TYPES.items()}
    state = State(start, {})
    gradients = state.trainable.zeros_like()
    stepper = TrainingOptimizer(plan, SimpleNamespace(state=state, gradients=gradients))
    session = onnxruntime.InferenceSession(plan.kernels[0].model)
    wanted = {value.name for value in session.get_inputs()}
    outside = {}
    for name, array in start.items():
        slots = {f"{SLOT}{slot}": np.full_like(array, plan.slots[slot].initial) for slot in plan.slots}
        outside[name] = {PARAMETER: array, **slots}
    for step in range(1, 4):
        for name, array in start.items():
            gradients.assign(name, random.normal(size=array.shape).astype(np.float32))
        stepper.step()
        scalars = {STEP: np.array(step), LEARNING_RATE: np.array(plan.learning_rate, np.float32)}
        for name, tensors in outside.items():
            feeds = {**tensors, **scalars, GRADIENT: gradients[name]}
            flat = {key: value.reshape(-1) if value.ndim else value for key, value in feeds.items() if key in wanted}
            keys = list(tensors)
            new = session.run([f"{key}{UPDATED}" for key in keys], flat)
            tensors.update({key: value.reshape(start[name].shape) for key, value in zip(keys, new, strict=True)})
    for name, tensors in outside.items():
        # Vector instructions round differently at other positions of a buffer: that is one unit in the last place.
        np.testing.assert_allclose(state.trainable[name], tensors[PARAMETER], rtol=1e-6, atol=1e-7)
        for slot in plan.slots:
            np.testing.assert_allclose(stepper.state.slots[slot][name], tensors[f"{SLOT}{slot}"], rtol=1e-6, atol=1e-7)
