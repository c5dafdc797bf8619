"""`onward.edge`: a folder that other runtimes train with, and training with it in Python."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from safetensors.numpy import load_file

import onward
from onward.edge import Exported, Training, export
from onward.optim import schedules

BATCH = {
    "x": np.random.default_rng(1).normal(size=(8, 40)).astype(np.float32),
    "target": np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32),
}


def network() -> onnx.ModelProto:
    """Every kind of state, and a weight of 6 kB that may stay as it is."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 40] x) => (float[N, 3] y) {
            f = MatMul(x, w0)
            h = MatMul(f, w1)
            n, mean_1, var_1 = BatchNormalization<training_mode = 1>(h, scale, shift, mean, var)
            d = Dropout(n, ratio, on)
            y = MatMul(d, w2)
        }
    """)
    random = np.random.default_rng(0)
    weights = {"w0": random.normal(size=(40, 40)), "w1": random.normal(size=(40, 6)), "w2": random.normal(size=(6, 3))}
    weights |= {"scale": np.ones(6), "shift": np.zeros(6), "mean": np.full(6, 0.5), "var": np.full(6, 2.0)}
    weights |= {"ratio": 0.25}
    tensors = {name: np.asarray(array, np.float32) for name, array in weights.items()} | {"on": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in tensors.items())
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    directory = tmp_path_factory.mktemp("edge") / "folder"
    return export(network(), directory, "mse", "adamw", frozen="w0", learning_rate=0.05, seed=3)


def run(training: Training, steps: int) -> list[float]:
    return [training.step(BATCH).loss for _ in range(steps)]


def test_trains_as_training_step_does(exported: Exported):
    step = onward.training_step(network(), "mse", "adamw", trainable=exported.trainable, seed=3)
    state = onward.initial_state(step, network())
    links = json.loads(next(x.value for x in step.metadata_props if x.key == "onward.signature"))["links"]
    session = onnxruntime.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    names, expected = [output.name for output in session.get_outputs()], []
    for number in range(1, 6):
        feeds = {**BATCH, **state, "learning_rate": np.array(0.05, np.float32), "step": np.array(number)}
        results = dict(zip(names, session.run(None, feeds), strict=True))
        state |= {links[name]: value for name, value in results.items() if name in links}
        expected.append(float(results["loss"]))
    training = Training(exported.directory)
    assert run(training, 5) == expected
    assert expected[-1] < expected[0]
    for name, array in training.state.items():
        np.testing.assert_array_equal(array, state[name])


def test_frozen_weights_are_stored_once_and_slots_not_at_all(exported: Exported):
    folder = exported.directory
    assert sorted(load_file(folder / "checkpoint.safetensors")) == ["mean", "scale", "shift", "var", "w1", "w2"]
    assert (folder / "frozen.data").stat().st_size == 40 * 40 * 4
    for file in ("step.onnx", "eval.onnx", "inference.onnx"):
        model = onnx.load(folder / file, load_external_data=False)
        places = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer if t.external_data}
        assert places == {"w0": {"location": "frozen.data", "offset": "0", "length": str(40 * 40 * 4)}}
        assert not {value.name for value in model.graph.input} & {tensor.name for tensor in model.graph.initializer}
        onnx.checker.check_model(folder / file)


def test_every_state_that_is_fed_counts(exported: Exported):
    training = Training(exported.directory)
    run(training, 2)
    before = training.step(BATCH).loss
    for name in ("w1", "w2", "scale", "shift"):
        other = Training(exported.directory)
        run(other, 2)
        other.state[name][...] += 0.5  # type: ignore[index]
        assert other.step(BATCH).loss != before, name


def test_resumes_exactly(exported: Exported, tmp_path: Path):
    whole = Training(exported.directory)
    expected = run(whole, 6)
    first = Training(exported.directory)
    assert run(first, 3) == expected[:3]
    first.save(tmp_path / "middle.safetensors")
    second = Training(exported.directory, tmp_path / "middle.safetensors")
    assert second.step_count == 3
    assert run(second, 3) == expected[3:]


def test_exports_an_ordinary_model(exported: Exported, tmp_path: Path):
    training = Training(exported.directory)
    run(training, 3)
    training.export(tmp_path / "trained.onnx")
    onnx.checker.check_model(tmp_path / "trained.onnx", full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert session.get_overridable_initializers() == []
    (y,) = session.run(None, {"x": BATCH["x"]})
    np.testing.assert_allclose(training.predict({"x": BATCH["x"]})["y"], y, rtol=1e-5, atol=1e-6)
    evaluated = training.evaluate(BATCH)
    np.testing.assert_allclose(evaluated.outputs["y"], y, rtol=1e-5, atol=1e-6)
    assert evaluated.loss == pytest.approx(float(np.mean((y - BATCH["target"]) ** 2)), rel=1e-5)


def test_parameters_are_one_vector(exported: Exported):
    training, other = Training(exported.directory), Training(exported.directory)
    run(training, 2)
    vector = training.parameters()
    assert vector.shape == (40 * 6 + 6 * 3 + 6 + 6,)
    other.set_parameters(vector)
    np.testing.assert_array_equal(other.state["w1"], training.state["w1"])
    with pytest.raises(onward.OnwardError, match="vector of 270 numbers"):
        other.set_parameters(vector[:-1])


def test_schedules_are_described(tmp_path: Path):
    schedule = schedules.Warmup(schedules.Cosine(0.1, total_step_count=10), 3)
    export(network(), tmp_path, "mse", "sgd", schedule=schedule)
    training = Training(tmp_path)
    rates = []
    for _ in range(6):
        rates.append(training.learning_rate)
        training.step(BATCH)
    assert rates == [schedule(step) for step in range(6)]
    for other in (
        schedules.MultiStep(0.1, (3, 6)),
        schedules.ReduceOnPlateau(0.1, patience=3),
        schedules.OneCycle(1.0, 9),
    ):
        again = schedules.described(json.loads(json.dumps(other.describe())))
        assert again.describe() == json.loads(json.dumps(other.describe())) or again == other


def test_the_manifest_names_everything(exported: Exported):
    manifest = json.loads((exported.directory / "manifest.json").read_text("utf-8"))
    assert manifest == exported.manifest
    assert [x["name"] for x in manifest["inputs"]] == ["x"]
    assert manifest["targets"] == [{"name": "target", "type": "float32", "shape": ["N", 3]}]
    assert manifest["seed"] == {"name": "random_seed", "type": "int64", "shape": [], "initial": 3}
    slots = [x for x in manifest["state"] if x["role"] == "slot"]
    assert {(x["parameter"], x["slot"], x["initial"]) for x in slots} >= {("w1", "mu", 0), ("w1", "nu", 0)}
    assert manifest["optimizer"] == {"name": "adamw", "learning_rate": 0.05}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"x": BATCH["x"]}, "'target' is missing"),
        ({**BATCH, "z": 1}, "no input 'z'"),
        ({**BATCH, "x": BATCH["x"][:, :3]}, "'x' must have shape"),
        ({**BATCH, "target": BATCH["target"][:5]}, "target"),
    ],
)
def test_wrong_batches_are_refused(exported: Exported, batch: dict, message: str):
    with pytest.raises(onward.OnwardError, match=message):
        Training(exported.directory).step(batch)


def test_damaged_folders_are_refused(exported: Exported, tmp_path: Path):
    with pytest.raises(onward.OnwardError, match=r"no manifest\.json"):
        Training(tmp_path)
    folder = tmp_path / "copy"
    shutil.copytree(exported.directory, folder)
    (folder / "step.onnx").write_bytes((folder / "step.onnx").read_bytes() + b"\0")
    with pytest.raises(onward.OnwardError, match="not the file that"):
        Training(folder).step(BATCH)
    with pytest.raises(onward.OnwardError, match="`target` is one of"):
        export(network(), tmp_path / "none", "mse", target="abacus")
    assert not (tmp_path / "none").exists()


def test_ort_format_and_operators_on_request(tmp_path: Path):
    export(network(), tmp_path, "mse", "sgd", ort_format=True)
    for name in ("step", "eval", "inference"):
        assert (tmp_path / f"{name}.ort").is_file()
    assert "MatMul" in (tmp_path / "step.required_operators.config").read_text("utf-8")


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_webgpu_trains_as_wasm_does(tmp_path: Path, optimizer: str):
    losses = []
    for target in ("wasm", "webgpu"):
        made = export(network(), tmp_path / target, "mse", optimizer, frozen="w0", seed=3, target=target)
        training = Training(made.directory)
        losses.append(run(training, 20))
        assert made.manifest["target"] == target
        assert made.manifest["step"]["type"] == ("int32" if target == "webgpu" else "int64")
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    for file in ("step.onnx", "eval.onnx", "inference.onnx"):
        model = onnx.load(tmp_path / "webgpu" / file)
        types = {
            value.type.tensor_type.elem_type for value in onnx.shape_inference.infer_shapes(model).graph.value_info
        }
        assert onnx.TensorProto.DOUBLE not in types
        assert not [x for node in model.graph.node for x in node.attribute if x.name == "training_mode" and x.i]


def test_webgpu_takes_labels_of_32_bits(tmp_path: Path):
    folders = [
        export(network(), tmp_path / target, "cross_entropy", "sgd", target=target).directory
        for target in ("wasm", "webgpu")
    ]
    batch = {"x": BATCH["x"], "labels": np.arange(8) % 3}
    losses = [run_on(folder, batch) for folder in folders]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    training = Training(folders[1])
    for labels in ([0, 1, 2, 0, 1, 2, 0, 3], [0, 1, 2, 0, 1, 2, 0, -1], [2**40] * 8):
        with pytest.raises(onward.OnwardError, match=r"labels"):
            training.step({**batch, "labels": np.array(labels)})
    for folder in folders:
        with pytest.raises(onward.OnwardError, match=r"^labels 'labels' must be from 0 to 2\. "):
            Training(folder).evaluate({**batch, "labels": np.full(8, 3)})
    assert training.step_count == 0


def run_on(folder: Path, batch: dict) -> list[float]:
    training = Training(folder)
    return [training.step(batch).loss for _ in range(5)]
