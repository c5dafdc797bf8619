"""Parameters, properties, saving and loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from onward import optim
from onward.api import CheckpointState, Module
from onward.errors import OnwardError
from tests.api import toys
from tests.api.toys import Run, batch


def test_parameters_are_a_mapping(frozen: Run) -> None:
    parameters = frozen.state.parameters
    assert len(parameters) == 4
    assert [name for name, _ in parameters] == sorted(toys.MLP_SHAPES)
    assert "fc1.weight" in parameters
    assert "fc9" not in parameters
    parameter = parameters["fc2.bias"]
    assert (parameter.name, parameter.requires_grad) == ("fc2.bias", True)
    assert repr(parameter) == "Parameter(name=fc2.bias, requires_grad=True)"
    assert repr(parameters).startswith("Parameters([Parameter(name=fc1.bias, requires_grad=False), ")
    assert repr(frozen.state) == "CheckpointState(4 parameters, 0 properties)"
    with pytest.raises(KeyError, match=r"Parameter fc9 not found\."):
        parameters["fc9"]
    with pytest.raises(KeyError, match=r"Parameter fc9 not found\."):
        parameters["fc9"] = np.ones(1)
    with pytest.raises(AttributeError):
        frozen.state.parameters = None  # type: ignore[misc, assignment]
    with pytest.raises(AttributeError):
        parameter.grad = None  # type: ignore[misc]


def test_gradients_of_parameters(frozen_folder: Path) -> None:
    state = CheckpointState.load_checkpoint(frozen_folder / "checkpoint")
    assert all(parameter.grad is None for _, parameter in state.parameters)
    module = Module(frozen_folder / "training_model.onnx", state)
    assert state.parameters["fc1.weight"].grad is None
    gradient = state.parameters["fc2.weight"].grad
    assert gradient is not None
    assert not gradient.any()
    module(*batch())
    assert gradient.any()  # a live view


def test_data_is_a_live_view(run: Run) -> None:
    data = run.state.parameters["fc1.weight"].data
    before = run.module(*batch())
    data[...] = 0
    assert run.module(*batch()) != before
    run.module.lazy_reset_grad()
    run.module(*batch())
    kept = data.copy()
    run.state.parameters["fc2.weight"].data = np.full((3, 5), 0.1, np.float32)
    run.module(*batch())
    run.optimizer.step()
    assert (data != kept).any()


@pytest.mark.parametrize("name", ["fc1.weight", "fc2.weight"])  # frozen, trained
@pytest.mark.parametrize("by_item", [False, True])
def test_setting_parameters(name: str, by_item: bool, frozen: Run, frozen_folder: Path) -> None:
    loss = frozen.module(*batch())
    original = frozen.values()[name]
    given = np.full_like(original, 0.25)

    def assign(value: object) -> None:
        if by_item:
            frozen.state.parameters[name] = value  # type: ignore[assignment]
        else:
            frozen.state.parameters[name].data = value  # type: ignore[assignment]

    assign(given)
    given[...] = 7  # copied, not kept
    np.testing.assert_array_equal(frozen.state.parameters[name].data, np.full_like(original, 0.25))
    trained, evaluated = frozen.module(*batch()), frozen.module.eval()(*batch())
    assert trained != loss
    assert evaluated == pytest.approx(float(trained), rel=1e-6)
    assign(frozen.state.parameters[name].data)
    assign(original)
    assert frozen.module.train()(*batch()) == loss
    for wrong, message in (
        (original[:1], r"Parameter data shape mismatch\. Expected: \(\d, \d\), Got: \(1, \d\)"),
        (original.astype(np.float64), r"Parameter data type mismatch\. Expected: float32, Got: float64"),
        (original.tolist(), "takes a numpy array, not list"),
        (None, "takes a numpy array, not NoneType"),
    ):
        with pytest.raises(OnwardError, match=message):
            assign(wrong)


def test_frozen_views_cannot_be_written(frozen: Run) -> None:
    """Sessions hold frozen parameters as constants: writing through a view would silently change nothing."""
    with pytest.raises(ValueError, match="read-only"):
        frozen.state.parameters["fc1.weight"].data[0, 0] = 1
    frozen.state.parameters["fc2.weight"].data[0, 0] = 1


def test_parameters_without_a_module(frozen_folder: Path) -> None:
    """The original crashes here."""
    state = CheckpointState.load_checkpoint(frozen_folder / "checkpoint")
    for name in ("fc1.weight", "fc2.weight"):
        state.parameters[name] = np.zeros_like(state.parameters[name].data)
        state.parameters[name].data[0, 0] = 0.5
    module = Module(frozen_folder / "training_model.onnx", state, frozen_folder / "eval_model.onnx")
    assert module(*batch()) == pytest.approx(float(module.eval()(*batch())))
    expected = Run.open(frozen_folder)
    for name in ("fc1.weight", "fc2.weight"):
        expected.state.parameters[name].data = state.parameters[name].data
    assert module.train()(*batch()) == expected.module(*batch())


# Buffers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable_only", [True, False])
def test_contiguous_parameters(trainable_only: bool, frozen: Run) -> None:
    module = frozen.module
    buffer = module.get_contiguous_parameters(trainable_only)
    size = module.get_parameters_size(trainable_only)
    assert size == (18 if trainable_only else 43)
    assert buffer.shape() == [size]
    kept = buffer.numpy().copy()
    frozen.train(1)
    np.testing.assert_array_equal(buffer.numpy(), kept)  # a copy, not a view
    assert (module.get_contiguous_parameters(trainable_only).numpy() != kept).any()
    for given in (buffer, buffer._get_c_value(), kept, onnxruntime.OrtValue.ortvalue_from_numpy(kept)):
        frozen.train(1)
        module.copy_buffer_to_parameters(given, trainable_only)
        np.testing.assert_array_equal(module.get_contiguous_parameters(trainable_only).numpy(), kept)
    module.copy_buffer_to_parameters(kept * 0, trainable_only)
    assert frozen.state.parameters["fc1.weight"].data.any() == trainable_only
    assert module(*batch()) == pytest.approx(np.log(3))


@pytest.mark.parametrize("trained", [["fc2.bias", "fc1.weight"], list(toys.MLP_SHAPES)])
def test_contiguous_parameters_have_the_order_of_the_model(trained: list[str], tmp_path: Path) -> None:
    """Trained and frozen ones mixed, as in the original."""
    rest = [name for name in toys.MLP_SHAPES if name not in trained]
    run = Run.open(toys.generate(tmp_path, toys.mlp(), requires_grad=trained, frozen_params=rest))
    expected = np.concatenate([run.values()[name].reshape(-1) for name in toys.MLP_SHAPES])
    np.testing.assert_array_equal(run.module.get_contiguous_parameters().numpy(), expected)
    expected = np.concatenate([run.values()[name].reshape(-1) for name in toys.MLP_SHAPES if name in trained])
    np.testing.assert_array_equal(run.module.get_contiguous_parameters(True).numpy(), expected)


def test_defaults_are_those_of_the_original(frozen: Run) -> None:
    assert frozen.module.get_contiguous_parameters().shape() == [43]
    assert frozen.module.get_parameters_size() == 18
    frozen.module.copy_buffer_to_parameters(frozen.module.get_contiguous_parameters(True))
    with pytest.raises(OnwardError, match=r"Parameters buffer size incorrect\. Expected:18, Actual:43"):
        frozen.module.copy_buffer_to_parameters(frozen.module.get_contiguous_parameters())


def test_buffers_of_another_type(frozen: Run, tmp_path: Path) -> None:
    with pytest.raises(OnwardError, match=r"Data types must match\. Parameter 'fc2.weight' is float32, the buffer is"):
        frozen.module.copy_buffer_to_parameters(np.zeros(18))
    text = """<ir_version: 8, opset_import: ["" : 17]>
    mixed (float[N, 4] x) => (float[N, 3] output) { y = MatMul(x, w) output = Reshape(y, shape) }"""
    model = toys.with_weights(text, {"w": (4, 3)})
    model.graph.initializer.append(toys.numpy_helper.from_array(np.array([-1, 3]), "shape"))
    run = Run.open(toys.generate(tmp_path, model, requires_grad=["w"], frozen_params=["shape"]))
    assert run.module.get_parameters_size(False) == 14
    with pytest.raises(OnwardError, match=r"Data types must match\. The parameters have the types float32, int64"):
        run.module.get_contiguous_parameters()
    assert run.module.get_contiguous_parameters(True).shape() == [12]


# Properties ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (-1, -1),
        (1234567890, 1234567890),
        (0.1, 0.1),
        (1e300, 1e300),
        ("onnxruntime", "onnxruntime"),
        ("", ""),
        (True, 1),
        (np.int64(5), 5),
        (np.float32(1.5), 1.5),
        (2**63, float(2**63)),
        (b"bytes", "bytes"),
    ],
)
def test_properties(given: object, kept: object, run: Run, tmp_path: Path) -> None:
    state = run.state
    assert len(state.properties) == 0
    state.properties["property"] = given  # type: ignore[assignment]
    for each in range(2):
        assert "property" in state.properties
        assert len(state.properties) == 1
        assert state.properties["property"] == kept
        assert type(state.properties["property"]) is type(kept)
        if not each:
            CheckpointState.save_checkpoint(state, tmp_path / "checkpoint")
            state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")


def test_properties_are_a_mapping(run: Run) -> None:
    properties = run.state.properties
    properties["b"], properties["a"] = 1, "x"
    assert list(properties) == [("a", "x"), ("b", 1)]
    assert repr(properties) == "Properties({'a': 'x', 'b': 1})"
    with pytest.raises(KeyError, match=r"Property c not found\."):
        properties["c"]
    for wrong in (None, [1], {}, 1j):
        with pytest.raises(TypeError, match="a property must be an int, a float or a str"):
            properties["c"] = wrong  # type: ignore[assignment]
    with pytest.raises(TypeError, match="the name of a property must be a str"):
        properties[3] = 1  # type: ignore[index]
    assert "c" not in properties


# Saving --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "optimizer", ["adamw_hf", optim.adamw(clip=0.1), "lamb", "sgd"], ids=lambda o: getattr(o, "name", o)
)
def test_resuming_is_exact(optimizer: str | optim.Optimizer, tmp_path: Path) -> None:
    folder = toys.generate(tmp_path, toys.mlp(), optimizer=optimizer)
    run = Run.open(folder)
    run.optimizer.set_learning_rate(0.03)
    run.train(3)
    CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
    resumed = Run.open(folder, "saved")
    assert resumed.optimizer.get_learning_rate() == 0.03
    assert resumed.train(4, 3) == run.train(4, 3)
    for name, array in run.values().items():
        np.testing.assert_array_equal(resumed.values()[name], array)


def test_running_statistics_are_saved(cnn_folder: Path, tmp_path: Path) -> None:
    run = Run.open(cnn_folder)
    run.train(3, data=toys.images)
    CheckpointState.save_checkpoint(run.state, tmp_path / "saved", include_optimizer_state=True)
    resumed = Run.open(cnn_folder, tmp_path / "saved")
    assert resumed.train(3, 3, toys.images) == run.train(3, 3, toys.images)
    assert resumed.module.eval()(*toys.images(9)) == run.module.eval()(*toys.images(9))
    np.testing.assert_array_equal(resumed.values()["norm.var"], run.values()["norm.var"])


def test_without_optimizer_state_the_optimizer_starts_anew(run: Run, mlp_folder: Path, tmp_path: Path) -> None:
    run.optimizer.set_learning_rate(0.5)
    run.train(2)
    CheckpointState.save_checkpoint(run.state, tmp_path / "saved")
    resumed = Run.open(mlp_folder, tmp_path / "saved")
    assert resumed.optimizer.get_learning_rate() == 0.001
    assert resumed.optimizer._optimizer.state.step == 0


def test_saving_without_a_module(mlp_folder: Path, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(mlp_folder / "checkpoint")
    CheckpointState.save_checkpoint(state, tmp_path / "saved", include_optimizer_state=True)
    assert (tmp_path / "saved").read_bytes() == (mlp_folder / "checkpoint").read_bytes()


def test_state_of_another_optimizer(run: Run, mlp_folder: Path, tmp_path: Path) -> None:
    run.train(1)
    CheckpointState.save_checkpoint(run.state, tmp_path / "adamw", include_optimizer_state=True)
    sgd = toys.generate(tmp_path / "sgd", toys.mlp(), optimizer="sgd")
    with pytest.raises(OnwardError, match="holds the optimizer state mu, nu, but optimizer 'sgd' needs nothing"):
        Run.open(sgd, tmp_path / "adamw")
    other = Run.open(sgd)
    other.train(1)
    CheckpointState.save_checkpoint(other.state, tmp_path / "sgd-state", include_optimizer_state=True)
    with pytest.raises(OnwardError, match="holds the optimizer state nothing, but optimizer 'adamw_hf' needs mu, nu"):
        Run.open(mlp_folder, tmp_path / "sgd-state")


def test_wrong_arguments(run: Run, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Invalid argument for save_checkpoint"):
        CheckpointState.save_checkpoint(run.module, tmp_path / "saved")  # type: ignore[arg-type]
    with pytest.raises(OnwardError, match="format='pickle' is not known; use 'onward' or 'onnxruntime'"):
        CheckpointState.save_checkpoint(run.state, tmp_path / "saved", format="pickle")  # type: ignore[arg-type]
    with pytest.raises(OnwardError, match="there is no directory"):
        CheckpointState.save_checkpoint(run.state, tmp_path / "missing" / "saved")
    with pytest.raises(OnwardError, match="there is no checkpoint at"):
        CheckpointState.load_checkpoint(tmp_path / "saved")
