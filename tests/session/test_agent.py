"""TrainingAgent and the builder of its graphs, compared with onnxruntime-training 1.19.2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import _pybind_state as ort

from onward.errors import OnwardError, UnknownNameError
from onward.runtime.two_phase import TwoPhases
from onward.session import (
    GradientGraphBuilder,
    GraphInfo,
    OrtModuleGraphBuilder,
    OrtModuleGraphBuilderConfiguration,
    OrtValueCache,
    PartialGraphExecutionState,
    PropagateCastOpsStrategy,
    TrainingAgent,
    TrainingGraphTransformerConfiguration,
)
from onward.testing import run_on_runtime
from tests.session.models import REGRESSION, WEIGHTS, batch, model_of, wave

LINEAR = "g (float[N,2] X) => (float[N,1] Y) { h = MatMul(X, coef) Y = Add(h, intercept) }"
MLP = """g (float[N,3] X) => (float[N,2] Y, float[N,4] H) {
    a = MatMul(X, W1) b = Add(a, B1) H = Tanh(b) c = MatMul(H, W2) Y = Add(c, B2) }"""
MLP_WEIGHTS = {"B1": wave(4), "B2": wave(2), "W1": wave(3, 4), "W2": wave(4, 2)}
CPU = ort.OrtDevice(ort.OrtDevice.cpu(), ort.OrtDevice.default_memory(), 0)


def built(
    model: onnx.ModelProto, names: Sequence[str], train: Sequence[str], inputs: Sequence[str] = ()
) -> OrtModuleGraphBuilder:
    config = OrtModuleGraphBuilderConfiguration()
    config.initializer_names = list(names)
    config.initializer_names_to_train = list(train)
    config.input_names_require_grad = list(inputs)
    builder = OrtModuleGraphBuilder()
    builder.initialize(model.SerializeToString(), config)
    builder.build(TrainingGraphTransformerConfiguration())
    return builder


def agent_of(builder: OrtModuleGraphBuilder) -> TrainingAgent:
    info = builder.get_graph_info()
    session = onnxruntime.InferenceSession(builder.get_gradient_model(), providers=["CPUExecutionProvider"])
    fetched = [*info.user_input_grad_names.values(), *info.initializer_grad_names_to_train]
    outputs = [CPU] * len(info.user_output_names)
    feeds = [*info.user_input_names, *info.initializer_names]
    return TrainingAgent(session._sess, feeds, outputs, fetched, [CPU] * len(fetched), 0)


def vector(*arrays: np.ndarray) -> Any:
    made = ort.OrtValueVector()
    for array in arrays:
        made.push_back(ort.OrtValue.ortvalue_from_numpy(array, CPU))
    return made


def forward(agent: TrainingAgent, *feeds: np.ndarray) -> tuple[list[np.ndarray], PartialGraphExecutionState]:
    outputs, state = ort.OrtValueVector(), PartialGraphExecutionState()
    agent.run_forward(vector(*feeds), outputs, state, None)
    return [np.array(outputs[index].numpy()) for index in range(len(outputs))], state


def backward(agent: TrainingAgent, state: PartialGraphExecutionState, *gradients: np.ndarray) -> list[np.ndarray]:
    found = ort.OrtValueVector()
    agent.run_backward(vector(*gradients), found, state)
    return [np.array(found[index].numpy()) for index in range(len(found))]


def names_of(model: bytes) -> tuple[list[str], list[str]]:
    graph = onnx.load_model_from_string(model).graph
    return [value.name for value in graph.input], [value.name for value in graph.output]


def test_graphs_of_a_linear_regression() -> None:
    """Inputs in the order given, gradients in that of the weights to train; gradients of outputs besides."""
    builder = built(model_of(LINEAR, WEIGHTS), ["intercept", "coef"], ["coef", "intercept"], ["X"])
    gradient = builder.get_gradient_model()
    assert names_of(gradient) == (["X", "intercept", "coef", "Y_grad"], ["X_grad", "coef_grad", "intercept_grad"])
    assert names_of(builder.get_forward_model()) == (["X", "intercept", "coef"], ["Y"])
    assert builder.get_model() == gradient
    assert builder.get_inference_optimized_model() == builder.get_forward_model()
    assert builder.get_graph_info() == GraphInfo(
        user_input_names=["X"],
        user_input_grad_names={"X": "X_grad"},
        initializer_names=["intercept", "coef"],
        initializer_names_to_train=["coef", "intercept"],
        initializer_grad_names_to_train=["coef_grad", "intercept_grad"],
        user_output_names=["Y"],
        output_grad_indices_require_full_shape=[0],
        module_output_gradient_name=["Y_grad"],
    )


def test_the_gradient_model_is_a_model() -> None:
    """A session runs it as a whole, with the gradients of outputs as inputs."""
    builder = built(model_of(LINEAR, WEIGHTS), ["coef", "intercept"], ["coef", "intercept"], ["X"])
    x, dy = wave(5, 2), wave(5, 1)
    found = run_on_runtime(onnx.load_model_from_string(builder.get_gradient_model()), {"X": x, "Y_grad": dy, **WEIGHTS})
    np.testing.assert_allclose(found["coef_grad"], x.T @ dy, rtol=1e-5)
    np.testing.assert_allclose(found["intercept_grad"], dy.sum(0), rtol=1e-5)
    np.testing.assert_allclose(found["X_grad"], dy @ WEIGHTS["coef"].T, rtol=1e-5)
    (y,) = run_on_runtime(onnx.load_model_from_string(builder.get_forward_model()), {"X": x, **WEIGHTS}).values()
    np.testing.assert_allclose(y, x @ WEIGHTS["coef"] + 0.5, rtol=1e-5)


# What onnxruntime-training 1.19.2 gives for MLP on the same numbers.
OUTPUTS = [
    [[0.545682, 0.627194], [0.682632, 0.793309], [0.855967, 0.696805], [0.720667, 0.443002], [0.463829, 0.431948]],
    [[0.740104, 0.678497, -0.822224, -0.482675], [0.849873, 0.316975, -0.871742, 0.017096],
     [0.683687, -0.151636, -0.662146, 0.343536], [0.21055, -0.018456, -0.206, 0.072187],
     [0.161612, 0.51109, -0.299008, -0.45002]],
]  # fmt: skip
GRADIENTS = {
    "X_grad": [[-0.336276, -0.091945, 0.176403], [0.602701, 0.905976, 0.972605], [0.657279, 1.1375, 1.320599],
               [1.233811, 1.244596, 0.930286], [1.37792, 1.259865, 0.812727]],
    "B1_grad": [1.220837, -2.818635, -0.066643, 2.420235],
    "B2_grad": [0.37678, -0.566664],
    "W1_grad": [[-0.597276, 0.279895, 0.905866, -0.674643], [-0.75266, -0.382734, 0.032705, 0.930287],
                [0.791228, -0.181268, -0.914294, 0.434918]],
    "W2_grad": [[0.127557, -0.357946], [0.279889, -0.416877], [-0.22105, 0.452354], [-0.257744, 0.390428]],
}  # fmt: skip


@pytest.fixture(scope="module")
def mlp() -> TrainingAgent:
    names = sorted(MLP_WEIGHTS)
    return agent_of(built(model_of(MLP, MLP_WEIGHTS), names, names, ["X"]))


def test_passes_give_what_the_original_gives(mlp: TrainingAgent) -> None:
    outputs, state, x = ort.OrtValueVector(), PartialGraphExecutionState(), wave(5, 3)
    mlp.run_forward(vector(x, *(MLP_WEIGHTS[name] for name in sorted(MLP_WEIGHTS))), outputs, state, None)
    found = backward(mlp, state, np.ascontiguousarray(wave(5, 2)[::-1]), np.ascontiguousarray(wave(5, 4)[::-1]))
    for got, wanted in zip(found, GRADIENTS.values(), strict=True):
        np.testing.assert_allclose(got, wanted, atol=3e-6)
    for index, wanted in enumerate(OUTPUTS):  # the original's are written over by the backward pass
        np.testing.assert_allclose(outputs[index].numpy(), wanted, atol=2e-6)


def test_states_interleave_and_serve_once(mlp: TrainingAgent) -> None:
    weights = [MLP_WEIGHTS[name] for name in sorted(MLP_WEIGHTS)]
    batches = [wave(rows, 3) for rows in (2, 4)]

    def slopes(state: PartialGraphExecutionState, rows: int) -> np.ndarray:
        return backward(mlp, state, np.ones((rows, 2), np.float32), np.zeros((rows, 4), np.float32))[3]

    alone = [slopes(forward(mlp, x, *weights)[1], len(x)) for x in batches]
    states = [forward(mlp, x, *weights)[1] for x in batches]
    for index in (1, 0):
        np.testing.assert_array_equal(slopes(states[index], len(batches[index])), alone[index])
    with pytest.raises(RuntimeError, match="Error in backward pass execution: the state of this forward pass is used"):
        slopes(states[0], 2)
    with pytest.raises(RuntimeError, match="Error in backward pass execution: no forward pass"):
        slopes(PartialGraphExecutionState(), 2)
    with pytest.raises(RuntimeError, match="Error in forward pass execution: 1 values were given, but 5 are needed"):
        forward(mlp, batches[0])
    _, state = forward(mlp, batches[0], *weights)
    with pytest.raises(RuntimeError, match="Error in backward pass execution: 1 values were given, but 2 are needed"):
        backward(mlp, state, np.ones((2, 2), np.float32))
    with pytest.raises(RuntimeError, match="Error in backward pass execution: the gradient of output 'Y'"):
        backward(mlp, state, np.ones((3, 2), np.float32), np.ones((2, 4), np.float32))


def test_vectors_that_are_used_again_do_not_change_what_a_backward_pass_reads(mlp: TrainingAgent) -> None:
    """H is an output that the backward pass needs; the second run writes its results to the same memory."""
    weights = [MLP_WEIGHTS[name] for name in sorted(MLP_WEIGHTS)]
    ones = [np.ones((2, 2), np.float32), np.ones((2, 4), np.float32)]
    x, other = wave(2, 3), -3 * wave(2, 3)
    expected = backward(mlp, forward(mlp, x, *weights)[1], *ones)
    outputs, state = ort.OrtValueVector(), PartialGraphExecutionState()
    mlp.run_forward(vector(x, *weights), outputs, state, None)
    mlp.run_forward(vector(other, *weights), outputs, PartialGraphExecutionState(), OrtValueCache())
    assert len(outputs) == 2
    np.testing.assert_array_equal(outputs[1].numpy(), forward(mlp, other, *weights)[0][1])
    for got, wanted in zip(backward(mlp, state, *ones), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)
    with pytest.raises(OnwardError, match=r"result 0 has shape \[3, 2\]"):
        mlp.run_forward(vector(wave(3, 3), *weights), outputs, PartialGraphExecutionState(), None)


def test_outputs_without_gradients() -> None:
    text = "g (float[N,2] X) => (float[N,2] Y, int64[N] z, float[N,2] T) { Y = Mul(X, w) z = ArgMax<axis=1, keepdims=0>(Y) T = Tanh(Y) }"  # noqa: E501
    builder = built(model_of(text, {"w": wave(2)}), ["w"], ["w"])
    info = builder.get_graph_info()
    assert info.output_grad_indices_non_differentiable == [1]
    assert info.output_grad_indices_require_full_shape == [0, 2]
    assert info.module_output_indices_requires_save_for_backward == [2]
    agent, x = agent_of(builder), wave(3, 2)
    (y, z, t), state = forward(agent, x, wave(2))
    np.testing.assert_array_equal(z, y.argmax(1))
    dy, dt = wave(3, 2), 2 * wave(3, 2)
    (dw,) = backward(agent, state, dy, dt)
    np.testing.assert_allclose(dw, ((dy + dt * (1 - t * t)) * x).sum(0), rtol=1e-5)


def test_weights_that_are_trained_but_not_fed() -> None:
    agent = agent_of(built(model_of(LINEAR, WEIGHTS), ["intercept"], ["coef", "intercept"]))
    x = wave(3, 2)
    (y,), state = forward(agent, x, WEIGHTS["intercept"])
    np.testing.assert_allclose(y, x @ WEIGHTS["coef"] + 0.5, rtol=1e-5)
    dw, _ = backward(agent, state, np.ones((3, 1), np.float32))
    np.testing.assert_allclose(dw[:, 0], x.sum(0), rtol=1e-5)


NORMALISED = """g (float[N,2,3] x) => (float[N,2,3] y) {
    y, m, v = BatchNormalization<training_mode=1, momentum=0.5>(x, scale, bias, mean, var) }"""
STATISTICS = {name: np.array(value, np.float32) for name, value in
              {"scale": [1, 2], "bias": [0, 1], "mean": [0, 0], "var": [1, 1]}.items()}  # fmt: skip


def test_running_statistics() -> None:
    x = np.random.default_rng(0).normal(2, 3, (8, 2, 3)).astype(np.float32)
    agent = agent_of(built(model_of(NORMALISED, STATISTICS), ["scale", "bias"], ["scale", "bias"]))
    forward(agent, x, STATISTICS["scale"], STATISTICS["bias"])
    np.testing.assert_allclose(agent.statistics["mean"], 0.5 * x.mean((0, 2)), rtol=1e-5)
    names = list(STATISTICS)
    agent = agent_of(built(model_of(NORMALISED, STATISTICS), names, ["scale", "bias"]))
    held = {name: np.array(value) for name, value in STATISTICS.items()}
    forward(agent, x, *held.values())
    assert agent.statistics == {}
    np.testing.assert_allclose(held["mean"], 0.5 * x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(held["var"], 0.5 + 0.5 * x.var((0, 2)), rtol=1e-5)


def test_each_pass_draws() -> None:
    text = """g (float[N,40] x) => (float[N,40] y) <float ratio = {0.5}, bool on = {1}> {
        h = Mul(x, w) y = Dropout(h, ratio, on) }"""
    agent = agent_of(built(model_of(text, {"w": np.ones(40, np.float32)}), ["w"], ["w"]))
    x, w = np.ones((3, 40), np.float32), np.ones(40, np.float32)
    drawn = [forward(agent, x, w) for _ in range(2)]
    assert (drawn[0][0][0] != drawn[1][0][0]).any()
    for (y,), state in drawn:
        (dw,) = backward(agent, state, x)
        np.testing.assert_allclose(dw, y.sum(0), rtol=1e-6)
    agent.seed(0)
    np.testing.assert_array_equal(forward(agent, x, w)[0][0], drawn[0][0][0])
    agent.seed(1)
    assert (forward(agent, x, w)[0][0] != drawn[0][0][0]).any()


def test_gradient_models_from_files(tmp_path: Path) -> None:
    """All that an agent needs is in the model."""
    builder = built(model_of(LINEAR, WEIGHTS), ["coef", "intercept"], ["coef"])
    (tmp_path / "gradient.onnx").write_bytes(builder.get_gradient_model())
    session = onnxruntime.InferenceSession(str(tmp_path / "gradient.onnx"))
    agent = TrainingAgent(session, ["X", "coef", "intercept"], [CPU], ["coef_grad"], [CPU])
    x = wave(3, 2)
    outputs: list[Any] = []
    state = PartialGraphExecutionState()
    agent.run_forward([x, WEIGHTS["coef"], WEIGHTS["intercept"]], outputs, state)  # lists will do
    agent.run_backward([np.ones((3, 1), np.float32)], gradients := [], state)
    np.testing.assert_allclose(gradients[0].numpy()[:, 0], x.sum(0), rtol=1e-5)


def test_no_gradient_graph(tmp_path: Path) -> None:
    config = OrtModuleGraphBuilderConfiguration()
    config.initializer_names, config.build_gradient_graph = ["coef"], False
    transformer = TrainingGraphTransformerConfiguration()
    transformer.optimized_pre_grad_filepath = str(tmp_path / "forward.onnx")
    builder = OrtModuleGraphBuilder()
    builder.initialize(model_of(LINEAR, WEIGHTS).SerializeToString(), config)
    builder.build(transformer, [[3, 2]])
    assert builder.get_graph_info().user_input_names == ["X"]
    assert (tmp_path / "forward.onnx").read_bytes() == builder.get_forward_model()
    with pytest.raises(OnwardError, match="there is no gradient model"):
        builder.get_gradient_model()


def test_mistakes() -> None:
    model = model_of(LINEAR, WEIGHTS)
    with pytest.raises(UnknownNameError, match="initializer_names has 'q'"):
        built(model, ["q"], [])
    with pytest.raises(UnknownNameError, match="'q' should be trained"):
        built(model, ["coef"], ["q"])
    with pytest.raises(UnknownNameError, match="`requires_grad_inputs` names 'Q'"):
        built(model, ["coef"], ["coef"], ["Q"])
    with pytest.raises(OnwardError, match="call initialize"):
        OrtModuleGraphBuilder().build()
    with pytest.raises(OnwardError, match="call build"):
        OrtModuleGraphBuilder().get_graph_info()
    with pytest.raises(TypeError, match="takes a serialized model"):
        OrtModuleGraphBuilder().initialize(model, OrtModuleGraphBuilderConfiguration())  # type: ignore[arg-type]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    with pytest.raises(OnwardError, match="not made of a gradient model of onward"):
        TrainingAgent(session, ["X"], [CPU], [], [])
    builder = built(model, ["coef"], ["coef"])
    session = onnxruntime.InferenceSession(builder.get_gradient_model())
    with pytest.raises(UnknownNameError, match="fw_feed_names must be 'X', 'coef'"):
        TrainingAgent(session, ["X"], [CPU], ["coef_grad"], [CPU])
    with pytest.raises(UnknownNameError, match="bw_fetches_names has 'X_grad'"):
        TrainingAgent(session, ["X", "coef"], [CPU], ["X_grad"], [CPU])


def test_damaged_pairs() -> None:
    builder = built(model_of(LINEAR, WEIGHTS), ["coef"], ["coef"])
    model = onnx.load_model_from_string(builder.get_gradient_model())
    (entry,) = (entry for entry in model.metadata_props if entry.key == "onward.phases")
    for text in ("", "{}", '{"forward": "?", "backward": "", "stored": {}}'):
        entry.value = text
        session = onnxruntime.InferenceSession(model.SerializeToString())
        with pytest.raises(OnwardError, match="the pair of graphs in the metadata"):
            TrainingAgent(session, ["X", "coef"], [CPU], ["coef_grad"], [CPU])
    with pytest.raises(OnwardError):
        TwoPhases(b"", b"")


def test_caches() -> None:
    cache = OrtValueCache()
    cache.insert("a", ort.OrtValue.ortvalue_from_numpy(wave(2), CPU))
    assert (cache.keys(), cache.count("a"), cache.count("b")) == (["a"], 1, 0)
    with pytest.raises(RuntimeError, match="NodeArg not found in cache: b"):
        cache.remove("b")
    cache.remove("a")
    cache.insert("c", None)
    cache.clear()
    assert cache.keys() == []


def test_defaults_of_configurations() -> None:
    """Printed by onnxruntime-training 1.19.2."""
    config = OrtModuleGraphBuilderConfiguration()
    assert (config.initializer_names, config.initializer_names_to_train, config.input_names_require_grad) == (
        [],
        [],
        [],
    )
    assert (config.use_memory_efficient_gradient, config.build_gradient_graph, config.enable_caching) == (
        False, True, False)  # fmt: skip
    assert config.loglevel.name == "WARNING"
    transformer = TrainingGraphTransformerConfiguration()
    assert transformer.propagate_cast_ops_config.strategy is PropagateCastOpsStrategy.FLOOD_FILL
    assert (transformer.propagate_cast_ops_config.level, transformer.propagate_cast_ops_config.allow) == (1, [])
    assert transformer.number_recompute_layers == 0
    with pytest.raises(AttributeError):
        config.unknown = 1  # type: ignore[attr-defined]


def test_gradients_of_a_loss(tmp_path: Path) -> None:
    model = model_of(REGRESSION, WEIGHTS)
    builder = GradientGraphBuilder(model.SerializeToString(), {"loss", "Y"}, {"intercept", "coef", "X"}, "loss")
    with pytest.raises(OnwardError, match="call build"):
        builder.get_model()
    builder.build()
    builder.save(tmp_path / "gradient.onnx")
    assert names_of((tmp_path / "gradient.onnx").read_bytes()) == (
        ["X", "label"], ["loss", "Y", "X_grad", "coef_grad", "intercept_grad"])  # fmt: skip
    feeds = batch()
    found = run_on_runtime(onnx.load_model_from_string(builder.get_model()), feeds)
    d = 2 * (feeds["X"] @ WEIGHTS["coef"] + 0.5 - feeds["label"])
    np.testing.assert_allclose(found["coef_grad"], feeds["X"].T @ d, rtol=1e-5)
    for arguments in (({"q"}, {"coef"}, "loss"), ({"loss"}, {"coef"}, "q"), ({"loss"}, {"q"}, "loss")):
        with pytest.raises(UnknownNameError, match="'q'"):
            GradientGraphBuilder(model.SerializeToString(), *arguments).build()
