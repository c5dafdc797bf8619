"""Gradients follow parameters that rules would like to know: nothing is concluded from values that change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onward
from onward import api, artifacts
from onward.graph.changing import changing
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime

# Of each a model, its parameters but for the weight, and what these become.
MODELS = {
    "exponent": ("y = Pow(h, p)", {"p": np.array(2)}, {"p": np.array(3)}),
    "bounds": ("y = Clip(h, p, q)", {"p": np.array(0), "q": np.array(6)}, {"p": np.array(1.5), "q": np.array(2)}),
    "maximum": ("y = Max(h, p)", {"p": np.array(0)}, {"p": np.array(1.5)}),
    "bias": ("i = Reshape(h, as_image) c = Conv(i, k, p) y = Tanh(c)", {"p": np.zeros(2)}, {"p": np.ones(2)}),
    "state": (
        "s = Unsqueeze(h, first) y = LSTM<hidden_size=2>(s, u, r, , , p, q)",
        {"p": np.zeros((1, 2, 2)), "q": np.zeros((1, 2, 2))},
        {"p": np.ones((1, 2, 2)), "q": np.ones((1, 2, 2))},
    ),
}
FIXED = {"k": (2, 1, 1, 1), "u": (1, 8, 4), "r": (1, 8, 2)}
FEEDS = {"x": np.random.default_rng(0).uniform(0.2, 1, (2, 3)).astype(np.float32)}


def model_of(name: str, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    text = f"h = MatMul(x, w) {MODELS[name][0]}"
    settings = "int64[4] as_image = {2, 1, 2, 2}, int64[1] first = {0}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float y) <{settings}> {{ {text} }}'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    random = np.random.default_rng(1)
    drawn = {"w": random.uniform(0, 2, (3, 4))} | {key: random.uniform(0, 1, shape) for key, shape in FIXED.items()}
    for key, array in (drawn | values).items():
        if key in text.replace("(", " ").replace(")", " ").replace(",", " ").split():
            model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), key))
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parameters", ["initializers", "inputs"])
def test_gradient(name: str, parameters: str) -> None:
    _, before, after = MODELS[name]
    wanted = onward.gradient(model_of(name, after), wrt=["w", *after], of="y")
    made = onward.gradient(model_of(name, before), wrt=["w", *after], of="y", parameters=parameters)
    values = {key: array.astype(np.float32) for key, array in after.items()}
    for tensor in [tensor for tensor in made.graph.initializer if tensor.name in values]:
        tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    seed = {"y_grad": np.ones_like(run_on_runtime(model_of(name, after), FEEDS)["y"])}
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model_of(name, after).graph.initializer}
    given = {value.name: {**FEEDS, **seed, **stored}[value.name] for value in made.graph.input}
    results, expected = run_on_runtime(made, given), run_on_runtime(wanted, {**FEEDS, **seed})
    for key in ("w_grad", *(f"{key}_grad" for key in after)):
        np.testing.assert_allclose(results[key], expected[key], rtol=1e-5, atol=1e-6, err_msg=key)
    assert np.abs(expected["w_grad"]).max() > 0


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("frozen", [True, False])
def test_parameters_that_the_owner_of_a_checkpoint_replaces(name: str, frozen: bool, tmp_path: Path) -> None:
    _, before, after = MODELS[name]

    def first_gradient(values: dict[str, np.ndarray], change: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
        model = model_of(name, values)
        target = np.zeros_like(run_on_runtime(model, FEEDS)["y"])
        artifacts.generate_artifacts(
            model,
            requires_grad=["w", *(() if frozen else after)],
            frozen_params=[*after] if frozen else [],
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=tmp_path,
        )
        state = api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = api.Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        module.train()
        for key, array in change.items():
            state.parameters[key].data = array.astype(np.float32)
        loss = module(FEEDS["x"], target)
        return float(loss), np.array(state.parameters["w"].grad)

    loss, grad = first_gradient(before, after)
    wanted, expected = first_gradient(after, {})
    assert loss == pytest.approx(wanted, rel=1e-5)
    np.testing.assert_allclose(grad, expected, rtol=1e-5, atol=1e-6)


def test_a_learned_exponent_as_in_torch() -> None:
    torch = pytest.importorskip("torch")
    _, before, _ = MODELS["exponent"]
    model = model_of("exponent", before)
    step = onward.training_step(model, "mse", onward.optim.sgd(0.05), trainable=["w", "p"])
    state = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    mine = {key: torch.nn.Parameter(torch.tensor(state[key])) for key in ("w", "p")}
    optimizer = torch.optim.SGD(mine.values(), lr=0.05)
    feeds = {**FEEDS, "learning_rate": np.array(0.05, np.float32)}
    target = np.ones((2, 4), np.float32)
    (label,) = {value.name for value in step.graph.input} - {*feeds, *mine, "step"}
    for number in range(1, 6):
        given = {**feeds, label: target, "step": np.array(number), **{key: state[key] for key in mine}}
        results = run_on_runtime(step, given)
        state |= {key: results[f"{key}.updated"] for key in mine}
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(
            (torch.tensor(FEEDS["x"]) @ mine["w"]) ** mine["p"], torch.tensor(target)
        ).backward()
        optimizer.step()
    for key, parameter in mine.items():
        np.testing.assert_allclose(state[key], parameter.detach().numpy(), rtol=1e-5, err_msg=key)
    assert abs(state["p"] - 2) > 0.01


def test_sizes_stay_known() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 4] y)
            <float[4] scales = {1, 1, 2, 2}, float[1] w = {3}> { z = Mul(x, w) y = Resize(z, , scales) }"""
    )
    graph = prepare(model).graph
    inputs = list(graph.inputs)
    with changing(graph, ["scales", "w"]):
        assert [value.name for value in graph.inputs] == ["x", "w"]
    assert list(graph.inputs) == inputs
