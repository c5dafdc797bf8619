"""Files and element types of every kind, through the whole training path."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import artifacts
from onward.api import CheckpointState, Module, Optimizer
from onward.runtime.ort_format import convert_to_ort_format
from onward.runtime.tensorfile import TensorFile
from tests.api import toys

# Models in onnxruntime's own format -----------------------------------------------------------------------------------


def test_ort_files_are_told_what_they_are(tmp_path: Path, mlp_folder: Path) -> None:
    onnx.save(toys.mlp(), tmp_path / "mlp.onnx")
    convert_to_ort_format(tmp_path / "mlp.onnx")
    path = (tmp_path / "mlp.onnx").rename(tmp_path / "hidden.onnx").with_name("mlp.ort")
    uses = {
        "gradient": lambda: onward.gradient(path),
        "check": lambda: onward.check(path),
        "training_step": lambda: onward.training_step(path, "cross_entropy"),
        "artifacts": lambda: artifacts.generate_artifacts(path, artifact_directory=tmp_path / "out"),
    }
    for what, use in uses.items():
        with pytest.raises(onward.OnwardError, match=r"mlp.ort' is in onnxruntime's own format \(.ort\): .* Give the"):
            print(what, use())
    assert not (tmp_path / "out").exists()
    state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
    with pytest.raises(onward.OnwardError, match=r"mlp.ort' was not made by onward"):
        Module(path, state)


@pytest.fixture(scope="module")
def mlp_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.generate(tmp_path_factory.mktemp("mlp"), toys.mlp())


# Half precision -------------------------------------------------------------------------------------------------------


def in_type(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """The model with weights, inputs and outputs of another type."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(dtype)
        tensor.CopyFrom(helper.make_tensor(tensor.name, kind, array.shape, array.tobytes(), raw=True))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = kind
    return model


@pytest.mark.filterwarnings("ignore:weights are float16")  # gradients are large enough here
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_float16(tmp_path: Path, optimizer: str) -> None:
    """Artifacts, checkpoints, export and the one-file step, next to float32."""
    recipe = onward.optim.get(optimizer, learning_rate=0.05, clip=1.0)
    half, whole = in_type(toys.mlp(), TensorProto.FLOAT16), toys.mlp()
    run, expected = (
        toys.Run.open(toys.generate(tmp_path / name, model, optimizer=recipe))
        for name, model in (("half", half), ("whole", whole))
    )
    losses = run.train(5, data=lambda step: (toys.batch(step)[0].astype(np.float16), toys.batch(step)[1]))
    tolerance = 1e-2  # ten bits, five steps
    np.testing.assert_allclose(losses, expected.train(5), rtol=tolerance)
    for name, array in expected.values().items():
        assert run.values()[name].dtype == np.float16
        np.testing.assert_allclose(run.values()[name], array, atol=tolerance)

    CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
    resumed = toys.Run.open(tmp_path / "half", tmp_path / "saved")
    more = {"start": 5, "data": lambda step: (toys.batch(step)[0].astype(np.float16), toys.batch(step)[1])}
    assert resumed.train(2, **more) == run.train(2, **more)

    x = toys.batch()[0].astype(np.float16)
    run.module.export_model_for_inferencing(tmp_path / "exported.onnx", ["output"])
    (output,) = onnxruntime.InferenceSession(tmp_path / "exported.onnx").run(None, {"input": x})
    assert output.dtype == np.float16
    assert np.isfinite(output).all()

    step = onward.training_step(half, "cross_entropy", recipe, checkpoint=tmp_path / "start")
    state, links = onward.initial_state(step, half), json.loads(step.metadata_props[0].value)["links"]
    with TensorFile(tmp_path / "start") as file:
        assert all(file.read(name).dtype == array.dtype for name, array in state.items())
    session = onnxruntime.InferenceSession(step.SerializeToString())
    names = [value.name for value in session.get_outputs()]
    for number in range(5):
        x, labels = toys.batch(number)
        feeds = {"input": x.astype(np.float16), "labels": labels, "step": np.array(number + 1)}
        feeds["learning_rate"] = np.array(0.05, np.float32)
        results = dict(zip(names, session.run(None, {**feeds, **state}), strict=True))
        state |= {links[name]: value for name, value in results.items() if name in links}
        assert float(results["loss"]) == pytest.approx(losses[number], rel=tolerance)


def test_bfloat16_is_refused_by_the_name_of_what_is_missing(tmp_path: Path) -> None:
    """onnxruntime has next to no kernels for it on a CPU."""
    model = in_type(toys.mlp(), TensorProto.BFLOAT16)
    with pytest.raises(onward.OnwardError, match="parameters are bfloat16, and ONNX has no sequences of that type"):
        toys.generate(tmp_path, model)
    folder = toys.generate(tmp_path, model, optimizer=None)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    assert state.parameters["fc1.weight"].data.dtype.name == "bfloat16"
    with pytest.raises(onward.OnwardError, match=r"has no kernel of \w+ \(opset \d+\) for the element type|bfloat16"):
        Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    step = onward.training_step(model, "cross_entropy", "adamw", checkpoint=tmp_path / "start")
    initial = onward.initial_state(step, model)
    assert {array.dtype.name for array in initial.values()} == {"bfloat16"}
    with TensorFile(tmp_path / "start") as file:
        for name, array in initial.items():
            np.testing.assert_array_equal(file.read(name).astype(np.float32), array.astype(np.float32))


def test_bfloat16_weights_of_a_model_that_computes_in_float32(tmp_path: Path) -> None:
    """Casts are what onnxruntime has: gradients, checkpoints, outputs and exports in bfloat16."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    cast (float[N, 4] x) => (bfloat16[N, 3] y) { f = Cast<to = 1>(w)  z = MatMul(x, f)  y = Cast<to = 16>(z) }"""
    model = onnx.parser.parse_model(text)
    array = np.random.default_rng(0).normal(size=(4, 3)).astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
    model.graph.initializer.append(
        helper.make_tensor("w", TensorProto.BFLOAT16, array.shape, array.tobytes(), raw=True)
    )
    scalar = onnx.parser.parse_node("loss = ReduceSum <keepdims = 0> (z)")
    model.graph.node.append(scalar)
    model.graph.output.insert(0, helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    folder = toys.generate(tmp_path, model, requires_grad=["w"], loss=None, optimizer=None)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    x = toys.batch()[0]
    loss, y = module(x)
    assert float(loss) == pytest.approx(float((x @ array.astype(np.float32)).sum()), rel=1e-4)
    assert y.dtype.name == "bfloat16"
    np.testing.assert_allclose(y.astype(np.float32), x @ array.astype(np.float32), rtol=1e-2, atol=1e-2)
    gradient = state.parameters["w"].grad
    np.testing.assert_allclose(gradient.astype(np.float32), np.tile(x.sum(0)[:, None], 3), rtol=1e-2)
    module.export_model_for_inferencing(tmp_path / "exported.onnx", ["z"])
    (z,) = onnxruntime.InferenceSession(tmp_path / "exported.onnx").run(None, {"x": x})
    np.testing.assert_allclose(z, x @ array.astype(np.float32), rtol=1e-5)


# More than 2 GB -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_than_two_gigabytes(tmp_path: Path) -> None:
    """A table of 2.2 GB beside a small head that is trained: artifacts, module, checkpoint, export, and the step.

    The file of the table is sparse, those that are made of it are not; nothing holds it in memory more than twice.
    """
    rows, columns, used = 550_000, 1024, 3
    size = rows * columns * 4
    table = onnx.TensorProto(
        name="table", data_type=TensorProto.FLOAT, dims=[rows, columns], data_location=TensorProto.EXTERNAL
    )
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(size))):
        table.external_data.add(key=key, value=value)
    row = np.random.default_rng(0).normal(size=columns).astype(np.float32)
    with open(tmp_path / "weights", "wb") as file:
        file.truncate(size)
        file.seek(used * columns * 4)
        file.write(row.tobytes())
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        lookup (int64[N] ids) => (float[N, 8] y) { e = Gather(table, ids)  y = MatMul(e, head) }""")
    head = (np.random.default_rng(1).normal(size=(columns, 8)) / 32).astype(np.float32)
    model.graph.initializer.extend([table, numpy_helper.from_array(head, "head")])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())

    made = artifacts.generate_artifacts(
        path, requires_grad=["head"], loss="mse", optimizer="sgd", artifact_directory=tmp_path / "out"
    )
    state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
    module = Module(made.paths["training_model"], state, made.paths["eval_model"])
    optimizer = Optimizer(made.paths["optimizer_model"], module)
    optimizer.set_learning_rate(1e-3)
    ids, target = np.array([used, used]), np.ones((2, 8), np.float32)
    losses, expected = [], head.astype(np.float64)
    for _ in range(3):
        losses.append(float(module(ids, target)))
        optimizer.step()
        module.lazy_reset_grad()
        error = row @ expected - 1
        assert losses[-1] == pytest.approx((error**2).mean(), rel=1e-3)
        expected -= 1e-3 * np.outer(row, 2 * error / 8)
    np.testing.assert_allclose(state.parameters["head"].data, expected, rtol=1e-3, atol=1e-4)
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    assert "head" in CheckpointState.load_checkpoint(tmp_path / "saved").parameters
    module.export_model_for_inferencing(tmp_path / "exported.onnx", ["y"])
    del module, optimizer
    (y,) = onnxruntime.InferenceSession(tmp_path / "exported.onnx").run(None, {"ids": ids})
    np.testing.assert_allclose(y, np.tile(row @ state.parameters["head"].data, (2, 1)), rtol=1e-3, atol=1e-4)

    step = onward.training_step(path, "mse", "sgd", trainable=["head"], checkpoint=tmp_path / "start")
    np.testing.assert_array_equal(onward.initial_state(step, path)["head"], head)
    with pytest.raises(onward.OnwardError, match=r"have 2.\d GB, but one ONNX file has 2 GB at most; write the state"):
        onward.training_step(path, "mse", "sgd", trainable=["table"], self_contained=True)
