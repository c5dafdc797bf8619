"""Training and evaluation steps, gradients, names, devices, and what is wrong with inputs."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort_native

from onward import artifacts, losses
from onward.api import CheckpointState, Module, Optimizer
from onward.errors import OnwardError, OnwardWarning
from tests.api import toys
from tests.api.toys import Run, batch
from tests.runtime.test_tensors import Elsewhere


def values(*arrays: np.ndarray) -> list[onnxruntime.OrtValue]:
    return [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]


def gradients(run: Run) -> dict[str, np.ndarray]:
    return {name: p.grad.copy() for name, p in run.state.parameters if p.grad is not None}


# Steps ---------------------------------------------------------------------------------------------------------------


def test_training_lowers_the_loss(run: Run) -> None:
    run.optimizer.set_learning_rate(0.1)
    losses = run.train(20, data=lambda _: batch())
    assert losses[-1] < losses[0] / 2
    loss = run.module(*batch())
    assert (loss.shape, loss.dtype) == ((), np.float32)


def test_arrays_in_arrays_out_and_values_in_values_out(run: Run) -> None:
    inputs, labels = batch()
    expected = run.module(inputs, labels)
    assert isinstance(expected, np.ndarray)
    for mode in (run.module.train, run.module.eval):
        mode()
        loss = run.module(*values(inputs, labels))
        assert isinstance(loss, onnxruntime.OrtValue)
        assert loss.numpy() == expected
        native = [value._get_c_value() for value in values(inputs, labels)]
        assert isinstance(native[0], ort_native.OrtValue)
        assert isinstance(run.module(*native), onnxruntime.OrtValue)
        # One array is enough for arrays to come out; lists are arrays of the type that the model takes.
        assert isinstance(run.module(inputs, values(labels)[0]), np.ndarray)
        assert run.module(inputs, labels.tolist()) == expected
        assert run.module(inputs[:, ::-1][:, ::-1], labels) == expected  # not contiguous
        assert run.module(inputs.astype(">f4"), labels) == expected  # of another byte order


def test_several_outputs_are_a_tuple(tmp_path: Path) -> None:
    run = Run.open(toys.generate(tmp_path, toys.mlp(), additional_output_names=["output"]))
    loss, output = run.module(*batch())
    assert (loss.shape, output.shape) == ((), (6, 3))
    assert run.module.output_names()[1:] == ["output"]
    kept = output.copy()
    run.module(*batch(1))
    np.testing.assert_array_equal(output, kept)  # results are not overwritten by the next step


def test_gradients_add_up_until_they_are_reset(run: Run) -> None:
    assert all(not gradient.any() for gradient in gradients(run).values())
    run.module(*batch(0))
    first = gradients(run)
    run.module(*batch(1))
    both = gradients(run)
    run.module.eval()
    run.module(*batch(2))
    run.module.train()
    run.module.lazy_reset_grad()
    for name, gradient in gradients(run).items():  # lazily: nothing has changed yet
        np.testing.assert_array_equal(gradient, both[name])
    run.module(*batch(1))
    second = gradients(run)
    for name in first:
        assert first[name].any()
        np.testing.assert_allclose(both[name], first[name] + second[name], rtol=1e-6, atol=1e-7)
    run.optimizer.step()
    for name, gradient in gradients(run).items():  # an update does not reset, either
        np.testing.assert_array_equal(gradient, second[name])


def test_a_second_module_shows_its_own_gradients(run: Run, mlp_folder: Path) -> None:
    run.module(*batch())
    other = Module(mlp_folder / "training_model.onnx", run.state)
    assert not any(gradient.any() for gradient in gradients(run).values())
    other(*batch())
    assert all(gradient.any() for gradient in gradients(run).values())


def test_train_and_eval(run: Run) -> None:
    module = run.module
    assert module.training
    assert module.eval() is module
    assert not module.training
    assert module.train() is module
    assert module.training
    assert module.train(False) is module
    assert not module.training
    assert "training=False" in repr(module)


def test_names(run: Run, mlp_folder: Path) -> None:
    for model, mode in (("training_model", run.module.train), ("eval_model", run.module.eval)):
        mode()
        graph = onnx.load(mlp_folder / f"{model}.onnx").graph
        assert run.module.input_names() == [value.name for value in graph.input][:2]
        assert run.module.output_names() == [value.name for value in graph.output][:1]


def test_without_an_evaluation_model(mlp_folder: Path, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
    module = Module(mlp_folder / "training_model.onnx", state).eval()
    assert module.input_names() == module.output_names() == []
    for inputs in (batch(), values(*batch())):
        with pytest.raises(OnwardError, match="Evaluation session not initialized"):
            module(*inputs)
    with pytest.raises(OnwardError, match=r"Eval model was not provided\. Cannot export a model for inferencing"):
        module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"])


def test_running_statistics_move_in_training_only(cnn_folder: Path) -> None:
    run = Run.open(cnn_folder)
    before = run.values()
    run.module.eval()
    run.module(*toys.images())
    np.testing.assert_array_equal(run.values()["norm.mean"], before["norm.mean"])
    run.module.train()
    run.train(1, data=toys.images)
    after = run.values()
    session = onnxruntime.InferenceSession(_convolution().SerializeToString())
    weights = {name: before[name] for name in ("conv.weight", "conv.bias")}
    (convolved,) = session.run(None, {"image": toys.images()[0], **weights})
    mean, variance = convolved.mean((0, 2, 3)), convolved.var((0, 2, 3))
    np.testing.assert_allclose(after["norm.mean"], 0.9 * before["norm.mean"] + 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(after["norm.var"], 0.9 * before["norm.var"] + 0.1 * variance, rtol=1e-5)
    trained, evaluated = run.module(*toys.images()), run.module.eval()(*toys.images())
    assert trained != evaluated


def _convolution() -> onnx.ModelProto:
    helper = onnx.helper
    node = helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1])
    inputs = [helper.make_tensor_value_info(name, 1, None) for name in node.input]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("c", 1, None)])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(("dtype", "name"), [(np.float64, "double"), (np.float16, "float16")])
@pytest.mark.parametrize("optimizer", ["adamw_hf", "sgd"])
def test_other_precisions(dtype: type, name: str, optimizer: str, tmp_path: Path, mlp_folder: Path) -> None:
    """The original trains float32 only."""
    model = toys.with_weights(toys.MLP.replace("float[", f"{name}["), toys.MLP_SHAPES, dtype)
    squares = name == "float16" and optimizer == "adamw_hf"
    with pytest.warns(OnwardWarning, match="squared gradients") if squares else contextlib.nullcontext():
        run = Run.open(toys.generate(tmp_path / name, model, optimizer=optimizer))
    expected = Run.open(toys.generate(tmp_path / "float", toys.mlp(), optimizer=optimizer))
    losses = run.train(3, data=lambda step: (batch(step)[0].astype(dtype), batch(step)[1]))
    np.testing.assert_allclose(losses, expected.train(3), rtol=2e-3 if name == "float16" else 1e-5)
    assert run.values()["fc1.weight"].dtype == dtype
    CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
    resumed = Run.open(tmp_path / name, tmp_path / "saved")
    np.testing.assert_array_equal(resumed.values()["fc1.weight"], run.values()["fc1.weight"])


def test_text_inputs(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    words (string[N, 4] input) => (float[N, 3] output) { x = Cast<to = 1>(input) output = MatMul(x, w) }"""
    run = Run.open(toys.generate(tmp_path, toys.with_weights(text, {"w": (4, 3)})))
    numbers, labels = batch()
    words = numbers.astype(str)
    expected = None
    for strings in (words, words.astype(object), words.tolist()):
        loss = run.module(strings, labels)
        assert expected is None or loss == expected
        expected = loss
    assert run.state.parameters["w"].grad.any()  # type: ignore[union-attr]
    assert run.module.eval()(words, labels) == pytest.approx(float(loss), rel=1e-6)
    before = run.values()["w"]
    run.optimizer.step()
    assert (run.values()["w"] != before).any()
    with pytest.raises(OnwardError, match=r"input 'input' must be tensor\(string\), not tensor\(float\)"):
        run.module(numbers, labels)


# Wrong inputs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_wrong_inputs(run: Run, training: bool) -> None:
    module, (inputs, labels) = run.module.train(training), batch()
    for given in ([], [inputs], [inputs, labels, labels]):
        with pytest.raises(OnwardError, match=rf"takes 2 inputs \(input, labels\), but {len(given)} were given"):
            module(*given)
    with pytest.raises(TypeError):
        module(inputs, labels=labels)
    cases = [
        (inputs, labels.astype(np.int32), r"'labels' must be tensor\(int64\), not tensor\(int32\); convert it with"),
        (inputs.astype(np.float64), labels, r"'input' must be tensor\(float\), not tensor\(double\)"),
        (inputs[:, :3], labels, r"'input' must have shape \['N', 4\], not \[6, 3\]"),
        (inputs[0], labels, r"'input' must have shape \['N', 4\], not \[4\]"),
        (inputs, None, "'labels' is None"),
        (inputs, "text", "'labels' must be"),
        (inputs, labels + 0.5, r"must be tensor\(int64\)"),
        (inputs, (labels + 0.5).tolist(), r"must be tensor\(int64\)"),
    ]
    for one, other, message in cases:
        with pytest.raises(OnwardError, match=message):
            module(one, other)
        if isinstance(other, np.ndarray):
            with pytest.raises(OnwardError, match=message.split(";")[0]):
                module(*values(one, other))
    for fewer in ([inputs, labels[:-1]], values(inputs, labels[:-1])):
        with pytest.raises(OnwardError, match=r"'labels' has shape \[5\], but 'input' has 6 as 'N'"):
            module(*fewer)
    assert np.isfinite(module(inputs, labels))


# Construction --------------------------------------------------------------------------------------------------------


def test_devices_and_providers(mlp_folder: Path) -> None:
    def module(**options: object) -> Module:
        state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
        return Module(mlp_folder / "training_model.onnx", state, **options)  # type: ignore[arg-type]

    assert module(device="cpu").get_contiguous_parameters().device_name() == "cpu"
    assert np.isfinite(module(providers=["CPUExecutionProvider"])(*batch()))
    for device in ("tpu", "cuda:x", "", "cpu,cuda"):
        with pytest.raises(OnwardError, match="Unsupported device type"):
            module(device=device)
    for options in ({"device": "cuda"}, {"device": "cuda:1"}, {"providers": ["CUDAExecutionProvider"]}):
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            with pytest.raises(OnwardError, match="CUDAExecutionProvider is not in the installed onnxruntime"):
                module(**options)
    with pytest.raises(OnwardError, match="`providers` is empty"):
        module(providers=[])


@pytest.mark.parametrize("folder", ["mlp_folder", "frozen_folder"])
def test_on_another_device(folder: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of a device are not views, and the graph adds gradients up itself: everything else is the same."""
    path = request.getfixturevalue(folder)
    here = Run.open(path)
    device = Elsewhere()
    monkeypatch.setattr("onward.runtime.module.choose", lambda *_: (device, ["CPUExecutionProvider"]))
    there = Run.open(path)
    assert there.state._state.trainable.device is device
    for run in (here, there):
        run.module(*batch(9))
        run.train(4)  # accumulates once
        run.module.lazy_reset_grad()
    for name, array in here.values().items():
        np.testing.assert_allclose(there.values()[name], array, rtol=1e-6, atol=1e-7)
    assert there.module.eval()(*batch()) == pytest.approx(float(here.module.eval()(*batch())), rel=1e-6)
    there.state.parameters["fc1.weight"].data = np.zeros((5, 4), np.float32)
    there.state.parameters["fc2.weight"].data = np.zeros((3, 5), np.float32)
    assert not there.values()["fc1.weight"].any()
    assert not there.values()["fc2.weight"].any()
    buffer = here.module.get_contiguous_parameters()
    there.module.copy_buffer_to_parameters(buffer, trainable_only=False)
    np.testing.assert_array_equal(there.values()["fc1.weight"], here.values()["fc1.weight"])


def test_session_options_are_used(mlp_folder: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
    module = Module(mlp_folder / "training_model.onnx", state, session_options=options)
    module(*batch())
    del module
    assert list(tmp_path.glob("profile*"))


# onnxruntime's own converter leaves files open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_models_in_onnxruntimes_own_format(tmp_path: Path) -> None:
    folder = toys.generate(
        tmp_path, toys.mlp(), requires_grad=["fc2.weight", "fc2.bias"], frozen_params=["fc1.weight"], ort_format=True
    )
    expected = Run.open(folder)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.ort", state, folder / "eval_model.ort")
    run = Run(folder, state, module, Optimizer(folder / "optimizer_model.ort", module))
    assert run.module.get_parameters_size() == 18
    for each in (run, expected):
        each.module(*batch(9))
    np.testing.assert_allclose(run.train(4), expected.train(4), rtol=1e-5)
    for name, array in expected.values().items():
        np.testing.assert_allclose(run.values()[name], array, rtol=1e-5, atol=1e-6)
    with pytest.raises(OnwardError, match="own format, which cannot be edited"):
        module.export_model_for_inferencing(folder / "inference.onnx", ["output"])
    state.parameters["fc1.weight"].data = np.zeros((5, 4), np.float32)
    with pytest.raises(OnwardError, match=r"frozen parameters are constants; use the \.onnx"):
        module(*batch())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_gradient_of_an_input(tmp_path: Path) -> None:
    """Asking for it is allowed, as in the original; it belongs to no parameter."""
    names = ["input", *toys.MLP_SHAPES]
    folder = toys.generate(tmp_path, toys.mlp(), requires_grad=names, ort_format=True)
    run = Run.open(folder)
    assert sorted(gradients(run)) == sorted(toys.MLP_SHAPES)
    losses = run.train(3)
    assert run.module.input_names() == ["input", "labels"]
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.ort", state)
    as_it_is = Run(folder, state, module, Optimizer(folder / "optimizer_model.onnx", module))
    np.testing.assert_allclose(as_it_is.train(3), losses, rtol=1e-5)


def test_files_that_do_not_fit(run: Run, mlp_folder: Path, frozen_folder: Path, tmp_path: Path) -> None:
    state = run.state
    training = mlp_folder / "training_model.onnx"
    with pytest.raises(OnwardError, match="there is no model file at"):
        Module(tmp_path / "nothing.onnx", state)
    with pytest.raises(OnwardError, match="there is no model file at"):
        Module(training, state, tmp_path / "nothing.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(OnwardError, match=r"text\.onnx' cannot be read: this is not an ONNX model"):
        Module(tmp_path / "text.onnx", state)
    onnx.save(toys.mlp(), tmp_path / "forward.onnx")
    with pytest.raises(OnwardError, match="was not made by onward"):
        Module(tmp_path / "forward.onnx", state)
    with pytest.raises(OnwardError, match="has no update plan of onward"):
        Optimizer(tmp_path / "forward.onnx", run.module)
    with pytest.raises(OnwardError, match="there is no optimizer model at"):
        Optimizer(tmp_path / "nothing.onnx", run.module)
    with pytest.raises(OnwardError, match=r"computes no gradient of 'fc1\.weight'"):
        Module(frozen_folder / "training_model.onnx", state)
    with pytest.raises(OnwardError, match=r"the optimizer updates fc2\.bias, fc2\.weight, but the checkpoint has"):
        Optimizer(frozen_folder / "optimizer_model.onnx", run.module)
    cnn = toys.generate(tmp_path / "cnn", toys.cnn())
    with pytest.raises(OnwardError, match=r"needs the parameter '.*', which the checkpoint does not have"):
        Module(cnn / "training_model.onnx", state)
    shapes = {"fc1.weight": (9, 4), "fc1.bias": (9,), "fc2.weight": (3, 9), "fc2.bias": (3,)}
    larger = toys.with_weights(toys.MLP, shapes)
    wide = toys.generate(tmp_path / "wide", larger)
    with pytest.raises(OnwardError, match=r"needs '.*' of shape .*, but the checkpoint has it of shape"):
        Module(wide / "training_model.onnx", state)


def test_wrong_types(run: Run, mlp_folder: Path) -> None:
    with pytest.raises(TypeError, match="Module needs a CheckpointState, not dict"):
        Module(mlp_folder / "training_model.onnx", {})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Optimizer needs a Module, not CheckpointState"):
        Optimizer(mlp_folder / "optimizer_model.onnx", run.state)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Invalid argument for CheckpointState received <class 'dict'>"):
        CheckpointState({})  # type: ignore[arg-type]


def test_paths_may_be_texts(mlp_folder: Path, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(str(mlp_folder / "checkpoint"))
    module = Module(str(mlp_folder / "training_model.onnx"), state, str(mlp_folder / "eval_model.onnx"))
    Optimizer(str(mlp_folder / "optimizer_model.onnx"), module)
    module.export_model_for_inferencing(str(tmp_path / "model.onnx"), ["output"])
    CheckpointState.save_checkpoint(state, str(tmp_path / "checkpoint"))
    assert len(list(tmp_path.iterdir())) == 2


def test_loss_may_be_the_first_output(tmp_path: Path) -> None:
    """A model that computes its own loss has no targets besides its inputs."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    own (float[N, 4] x) => (float loss) { y = MatMul(x, w) s = Mul(y, y) loss = ReduceMean<keepdims = 0>(s) }"""
    artifacts.generate_artifacts(toys.with_weights(text, {"w": (4, 2)}), artifact_directory=tmp_path, optimizer="sgd")
    run = Run.open(tmp_path)
    assert run.module.input_names() == ["x"]
    assert np.isfinite(run.module(batch()[0]))


def test_a_copy_of_the_parameters_outlives_its_value(run: Run) -> None:
    """Arrays of onnxruntime's values do not keep the memory alive that such a value was made over."""
    copies = []
    for number in range(10):
        for _, parameter in run.state.parameters:
            parameter.data[...] = number
        copies.append(run.module.get_contiguous_parameters().numpy())
    for number, copy in enumerate(copies):
        assert copy.min() == copy.max() == number


def test_a_batch_of_nothing(tmp_path: Path) -> None:
    """onnxruntime fuses products with transpositions, and ends the process when such a product has no samples."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    depthwise (float[N, 3, 4, 4] image) => (float[N, 3, 4, 4] output) {
        output = Conv<group = 3, pads = [1, 1, 1, 1]>(image, weight)
    }"""
    model = toys.with_weights(text, {"weight": (3, 1, 3, 3)})
    loss = functools.partial(losses.mse, reduction="sum")
    artifacts.generate_artifacts(model, loss=loss, optimizer="SGD", artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    full, empty = (np.ones((samples, 3, 4, 4), np.float32) for samples in (2, 0))
    module(full, full)
    gradient = state.parameters["weight"].grad.copy()
    assert module(empty, empty) == 0
    np.testing.assert_array_equal(state.parameters["weight"].grad, gradient)  # added to
    assert module.eval()(empty, empty) == 0
