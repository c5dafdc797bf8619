"""Optimizers that are blocks of the user: the training loop runs the model that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward import onnxblock, optim
from onward.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from onward.errors import OnwardError
from tests.api import toys

FLOAT = TensorProto.FLOAT


class Momentum(onnxblock.ForwardBlock):
    """v = 0.9 v + g; p = p - lr v, written with onnx.helper, gradients clipped by another block."""

    def __init__(
        self, max_norm: float | None = None, *, outputs: tuple[str, str] = ("updated_params", "updated_speed")
    ):
        # Not calling the constructor of the base class is allowed.
        self.clip = None if max_norm is None else onnxblock.optim.ClipGradNorm(max_norm)
        self.outputs = outputs

    def build(self, parameters: Any) -> tuple[str, ...]:
        graph = self.base.graph
        graph.input.append(helper.make_tensor_value_info("learning_rate", FLOAT, [1]))
        for name in ("params", "gradients", "speed"):
            graph.input.append(helper.make_tensor_sequence_value_info(name, FLOAT, None))
        gradients = "gradients" if self.clip is None else self.clip("gradients")
        graph.initializer.append(numpy_helper.from_array(np.array(0.9, np.float32), "rate"))
        count = len(parameters[0])
        for i in range(count):
            graph.initializer.append(numpy_helper.from_array(np.array(i), f"i{i}"))
            for sequence, value in ((gradients, f"g{i}"), ("params", f"p{i}"), ("speed", f"v{i}")):
                graph.node.append(helper.make_node("SequenceAt", [sequence, f"i{i}"], [value]))
            graph.node.extend(
                [
                    helper.make_node("Mul", [f"v{i}", "rate"], [f"slow{i}"]),
                    helper.make_node("Add", [f"slow{i}", f"g{i}"], [f"new_v{i}"]),
                    helper.make_node("Mul", [f"new_v{i}", "learning_rate"], [f"step{i}"]),
                    helper.make_node("Sub", [f"p{i}", f"step{i}"], [f"new_p{i}"]),
                ]
            )
        for output, prefix in zip(self.outputs, ("new_p", "new_v"), strict=True):
            inputs = [f"{prefix}{i}" for i in range(count)]
            graph.node.append(helper.make_node("SequenceConstruct", inputs, [output]))
        return self.outputs


def losses(folder: Path, optimizer: Any, count: int = 6, **options: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    run = toys.Run.open(toys.generate(folder, toys.mlp(), optimizer=optimizer, **options))
    run.optimizer.set_learning_rate(0.1)
    return run.train(count), run.values()


@pytest.mark.parametrize("max_norm", [None, 0.3])
@pytest.mark.parametrize("outputs", [("updated_params", "updated_speed"), ("one", "other")], ids=["named", "in order"])
def test_equals_the_recipe(tmp_path, max_norm, outputs):
    own, values = losses(tmp_path / "own", Momentum(max_norm, outputs=outputs))
    recipe, expected = losses(tmp_path / "recipe", optim.sgd(momentum=0.9, clip=max_norm))
    np.testing.assert_allclose(own, recipe, rtol=1e-5)
    for name, array in expected.items():
        np.testing.assert_allclose(values[name], array, rtol=1e-5, atol=1e-6)


def test_checkpoint_and_schedule(tmp_path):
    folder = toys.generate(tmp_path, toys.mlp(), optimizer=Momentum())
    whole = toys.Run.open(folder)
    LinearLRScheduler(whole.optimizer, 2, 20, 0.1)
    whole.optimizer.set_learning_rate(0.05)
    whole.train(3)
    CheckpointState.save_checkpoint(whole.state, folder / "half", include_optimizer_state=True)
    expected = whole.train(3, 3)
    resumed = toys.Run.open(folder, "half")
    assert resumed.optimizer.get_learning_rate() == 0.05
    assert resumed.train(3, 3) == expected
    assert "step=6" in repr(resumed.optimizer)
    for name, array in whole.values().items():
        np.testing.assert_array_equal(resumed.values()[name], array)


def test_in_ort_format(tmp_path):
    folder = toys.generate(tmp_path, toys.mlp(), optimizer=Momentum(), ort_format=True)
    expected = toys.Run.open(folder).train(3)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    run = toys.Run(folder, state, module, Optimizer(folder / "optimizer_model.ort", module))
    assert run.train(3) == expected


class Adam(onnxblock.ForwardBlock):
    """Two slots and the step, over sequences of any length; the second moment is not corrected for its bias."""

    def build(self, _: Any) -> tuple[str, ...]:
        model = onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17]>
            adam (float learning_rate, int64[1] step, seq(float) params, seq(float) gradients,
                  seq(float) m, seq(float) v)
            => (seq(float) updated_params, seq(float) updated_m, seq(float) updated_v, bool flag)
            {
                b1 = Constant<value_float = 0.9>()   rest1 = Constant<value_float = 0.1>()
                b2 = Constant<value_float = 0.99>()  rest2 = Constant<value_float = 0.01>()
                tiny = Constant<value_float = 1e-8>()  one = Constant<value_float = 1.0>()
                t = Cast<to = 1>(step)  decay = Pow(b1, t)  correction = Sub(one, decay)
                rate = Div(learning_rate, correction)
                flag = Constant<value = bool {1}>()
                updated_m = SequenceMap(m, gradients) <body = bm (float a, float g) => (float n) {
                    left = Mul(a, b1)  right = Mul(g, rest1)  n = Add(left, right) }>
                updated_v = SequenceMap(v, gradients) <body = bv (float a, float g) => (float n) {
                    s = Mul(g, g)  left = Mul(a, b2)  right = Mul(s, rest2)  n = Add(left, right) }>
                updated_params = SequenceMap(params, updated_m, updated_v) <body = bp (float p, float a, float w) =>
                    (float n) { r = Sqrt(w)  d = Add(r, tiny)  q = Div(a, d)  u = Mul(q, rate)  n = Sub(p, u) }>
            }
        """)
        self.base.graph.CopyFrom(model.graph)
        outputs = [value.name for value in model.graph.output]
        self.base.graph.value_info.extend(model.graph.output)
        del self.base.graph.output[:]
        return tuple(outputs)


def test_two_slots_and_the_step(tmp_path):
    folder = toys.generate(tmp_path, toys.mlp(), optimizer=Adam())
    run = toys.Run.open(folder)
    run.optimizer.set_learning_rate(0.02)
    before = {name: array.astype(float) for name, array in run.values().items()}
    m, v = ({name: np.zeros_like(array) for name, array in before.items()} for _ in range(2))
    for step in range(1, 5):
        run.module(*toys.batch(step))
        for name, parameter in run.state.parameters:
            g = parameter.grad.astype(float)
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g * g
            before[name] -= 0.02 / (1 - 0.9**step) * m[name] / (np.sqrt(v[name]) + 1e-8)
        run.optimizer.step()
        run.module.lazy_reset_grad()
        for name, array in run.values().items():
            np.testing.assert_allclose(array, before[name], rtol=1e-4, atol=1e-5)


# Errors --------------------------------------------------------------------------------------------------------------


def optimizer_model(inputs: dict[str, Any], outputs: dict[str, str], *extra: onnx.NodeProto) -> onnx.ModelProto:
    """A model that hands inputs through as outputs."""
    values = [
        helper.make_tensor_sequence_value_info(name, FLOAT, None)
        if shape is None
        else helper.make_tensor_value_info(name, FLOAT, shape)
        for name, shape in inputs.items()
    ]
    nodes = [helper.make_node("Identity", [source], [name]) for name, source in outputs.items()]
    results = [helper.make_tensor_sequence_value_info(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph([*nodes, *extra], "own", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def reversed_parameters() -> onnx.ModelProto:
    model = optimizer_model({"params": None, "gradients": None}, {})
    for name, value in (("last", -1), ("first", 0)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    nodes = [
        helper.make_node("SequenceAt", ["params", "last"], ["a"]),
        helper.make_node("SequenceErase", ["params", "last"], ["rest"]),
        helper.make_node("SequenceInsert", ["rest", "a", "first"], ["updated_params"]),
    ]
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_sequence_value_info("updated_params", FLOAT, None))
    return model


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            optimizer_model({"params": None, "grads": None}, {"updated_params": "params"}),
            r"its inputs \(params, grads\)",
        ),
        (
            optimizer_model({"params": None, "gradients": None, "momentum": [1]}, {"updated_params": "params"}),
            "are not those of an optimizer model: the sequences params and gradients",
        ),
        (
            optimizer_model({"params": None, "gradients": None, "mu": None}, {"updated_params": "params"}),
            "should have the sequences updated_params, updated_mu as outputs, but it has updated_params",
        ),
    ],
)
def test_models_that_are_no_optimizers(tmp_path, model, message):
    run = toys.Run.open(toys.generate(tmp_path, toys.mlp()))
    onnx.save(model, tmp_path / "own.onnx")
    with pytest.raises(OnwardError, match=message):
        Optimizer(tmp_path / "own.onnx", run.module)


def test_results_in_another_order_change_nothing(tmp_path):
    run = toys.Run.open(toys.generate(tmp_path, toys.mlp(), optimizer="sgd"))
    onnx.save(reversed_parameters(), tmp_path / "own.onnx")
    run.optimizer = Optimizer(tmp_path / "own.onnx", run.module)
    before = run.values()
    run.module(*toys.batch())
    with pytest.raises(OnwardError, match=r"in the place of 'fc1\.weight', which is float32 \[5, 4\]"):
        run.optimizer.step()
    for name, array in run.values().items():
        np.testing.assert_array_equal(array, before[name])


def test_operators_of_the_original(tmp_path):
    run = toys.Run.open(toys.generate(tmp_path, toys.mlp()))
    node = helper.make_node("SGDOptimizerV2", ["params"], ["updated_flag"], domain="com.microsoft")
    model = optimizer_model({"params": None, "gradients": None}, {"updated_params": "params"}, node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "own.onnx")
    with pytest.raises(OnwardError, match="optimizer models of onnxruntime-training need that package's operators"):
        Optimizer(tmp_path / "own.onnx", run.module)
