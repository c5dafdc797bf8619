"""`onward.training_step` as one file and its state beside it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

import onward
from onward.signature import METADATA_KEY
from tests.stateful_network import stateful_network

EXAMPLE = Path(__file__).parents[1] / "examples" / "train_in_node.mjs"
RATE = np.array(0.05, np.float32)
X = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
TARGET = np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)


def signature(step: onnx.ModelProto) -> dict[str, dict[str, str]]:
    return json.loads({entry.key: entry.value for entry in step.metadata_props}[METADATA_KEY])


def train(step: onnx.ModelProto, state: dict[str, np.ndarray], steps: int = 4) -> tuple[list[float], dict]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of every input that has an initial value
    session = onnxruntime.InferenceSession(step.SerializeToString(), options, providers=["CPUExecutionProvider"])
    links, losses = signature(step)["links"], []
    names = [output.name for output in session.get_outputs()]
    for number in range(1, steps + 1):
        feeds = {"x": X, "target": TARGET, "learning_rate": RATE, "step": np.array(number), **state}
        results = dict(zip(names, session.run(None, feeds), strict=True))
        state = state | {links[name]: value for name, value in results.items() if name in links}
        losses.append(float(results["loss"]))
    return losses, state


def test_every_input_is_required():
    step = onward.training_step(stateful_network(), "mse", onward.optim.adagrad(initial_accumulator_value=0.25), seed=5)
    initial = onward.initial_state(step, stateful_network())
    roles = signature(step)["inputs"]
    state = [name for name, role in roles.items() if role in ("parameter", "slot", "buffer", "seed")]
    assert list(initial) == state
    assert {roles[name] for name in state} == {"parameter", "slot", "buffer", "seed"}
    assert not {value.name for value in step.graph.input} & {tensor.name for tensor in step.graph.initializer}
    inputs = {value.name: value for value in step.graph.input}
    for name, array in initial.items():
        kind = inputs[name].type.tensor_type
        assert [dim.dim_value for dim in kind.shape.dim] == list(array.shape)
        assert helper.tensor_dtype_to_np_dtype(kind.elem_type) == array.dtype
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in stateful_network().graph.initializer}
    for name in ("w1", "w2", "mean", "var"):
        np.testing.assert_array_equal(initial[name], weights[name])
        assert initial[name].flags.writeable
    slot = next(name for name in state if name.startswith("w1."))
    np.testing.assert_array_equal(initial[slot], np.full((4, 6), 0.25, np.float32))
    assert initial["random_seed"] == 5


def test_the_three_places_of_the_initial_state_are_equal(tmp_path: Path):
    file = tmp_path / "start"
    step = onward.training_step(stateful_network(), "mse", seed=5, checkpoint=file)
    stored, computed = load_file(file), onward.initial_state(step, stateful_network())
    assert stored.keys() == computed.keys()
    for name, array in computed.items():
        np.testing.assert_array_equal(stored[name], array)
        assert stored[name].dtype == array.dtype
    whole = onward.training_step(stateful_network(), "mse", seed=5, self_contained=True)
    assert {tensor.name for tensor in whole.graph.initializer} >= computed.keys()
    losses, state = train(step, computed)
    assert losses[-1] < losses[0]
    by_defaults, final = train(whole, {})
    assert by_defaults == losses
    for name, array in final.items():
        np.testing.assert_array_equal(array, state[name])
    onnx.save(step, tmp_path / "step.onnx")
    assert onward.initial_state(tmp_path / "step.onnx", stateful_network()).keys() == computed.keys()


def test_inputs_of_the_model_that_have_default_values_are_weights():
    """Files of the older kind list every initializer as an input too; newer ones may."""
    model = stateful_network()
    model.graph.input.append(helper.make_tensor_value_info("w2", TensorProto.FLOAT, [6, 3]))
    step = onward.training_step(model, "mse")
    names = [value.name for value in step.graph.input]
    assert len(names) == len(set(names))
    assert signature(step)["inputs"]["w2"] == "parameter"
    plain = onward.training_step(stateful_network(), "mse")
    losses, _ = train(step, onward.initial_state(step, model))
    assert losses == train(plain, onward.initial_state(plain, stateful_network()))[0]


def test_mistakes(tmp_path: Path):
    step = onward.training_step(stateful_network(), "mse")
    other = stateful_network()
    other.graph.initializer[0].name = "renamed"
    other.graph.node[0].input[1] = "renamed"
    with pytest.raises(onward.OnwardError, match="the step trains 'w1', which the model does not have: it was made"):
        onward.initial_state(step, other)
    with pytest.raises(onward.OnwardError, match=r"it was not made by onward\.training_step"):
        onward.initial_state(stateful_network(), stateful_network())
    with pytest.raises(onward.OnwardError, match="there is no directory"):
        onward.training_step(stateful_network(), "mse", checkpoint=tmp_path / "nowhere" / "start")


def node_modules(package: str) -> Path:
    """Where npm has installed a package: in the project, or where NODE_PATH says."""
    folders = [
        Path(__file__).parents[1] / "node_modules",
        *map(Path, os.environ.get("NODE_PATH", "").split(os.pathsep)),
    ]
    found = next((folder for folder in folders if (folder / package).is_dir()), None)
    if shutil.which("node") is None or found is None:
        pytest.skip(f"needs node and the npm package {package}, in node_modules or in NODE_PATH")
    return found


@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
def test_javascript_trains_as_python_does(package: str, tmp_path: Path):
    (tmp_path / "node_modules").symlink_to(node_modules(package))
    script = shutil.copy(EXAMPLE, tmp_path)
    step = onward.training_step(stateful_network(), "mse", onward.optim.adamw(clip=1.0), checkpoint=tmp_path / "start")
    onnx.save(step, tmp_path / "step.onnx")
    save_file({"x": X, "target": TARGET}, tmp_path / "data")
    command = ["node", script, "step.onnx", "start", "data", "trained", "20", str(RATE)]
    environment = {**os.environ, "ORT_PACKAGE": package}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    losses, state = train(step, onward.initial_state(step, stateful_network()), 20)
    assert losses[-1] < losses[0] / 2
    # The same kernels in other builds, which may add in another order.
    np.testing.assert_allclose(json.loads(ran.stdout), losses, rtol=1e-6)
    trained = load_file(tmp_path / "trained")
    assert trained.keys() == state.keys()
    for name, array in state.items():
        np.testing.assert_allclose(trained[name], array, rtol=1e-5, atol=1e-6)
