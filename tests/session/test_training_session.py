"""TrainingSession: runs train, and state goes in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.errors import NotDifferentiableError, OnwardError, OnwardWarning, UnknownNameError
from onward.session import RunOptions, TrainingParameters, TrainingSession
from tests.session.models import REGRESSION, WEIGHTS, batch, model_of, parameters, rate, regression

NAMES = ["coef", "intercept"]


def session_of(model: onnx.ModelProto | None = None, **fields: Any) -> TrainingSession:
    return TrainingSession((model or regression()).SerializeToString(), parameters(NAMES, **fields))


def gradients(state: dict[str, np.ndarray], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    d = 2 * (feeds["X"] @ state["coef"] + state["intercept"] - feeds["label"])
    return {"coef": feeds["X"].T @ d, "intercept": d.sum(0)}


def evaluating(training_mode: bool = False) -> RunOptions:
    options = RunOptions()
    options.only_execute_path_to_fetches = True
    options.training_mode = training_mode
    return options


def test_inputs_and_outputs() -> None:
    session = session_of()
    assert isinstance(session, onnxruntime.InferenceSession)
    assert [(value.name, value.shape, value.type) for value in session.get_inputs()] == [
        ("X", ["N", 2], "tensor(float)"),
        ("label", ["N", 1], "tensor(float)"),
        ("Learning_Rate", [1], "tensor(float)"),
    ]
    assert [value.name for value in session.get_outputs()] == ["loss", "Y", "global_gradient_norm"]
    assert [value.name for value in session_of(enable_grad_norm_clip=False).get_outputs()] == ["loss", "Y"]
    assert session.loss_scale_input_name is None
    assert session.is_output_fp32_node("loss")
    assert session.get_partition_info_map() == {}


def test_each_run_descends_whatever_is_fetched() -> None:
    session = session_of()
    state = {name: np.array(value) for name, value in WEIGHTS.items()}
    for step in range(5):
        feeds, lr = batch(seed=step), 0.01 * (step + 1)
        slopes = gradients(state, feeds)
        expected = ((feeds["X"] @ state["coef"] + state["intercept"] - feeds["label"]) ** 2).sum()
        found = session.run([["loss"], ["Y"], None][step % 3], {**feeds, **rate(lr)})
        if step % 3 == 0:
            (loss,) = found
            assert loss.shape == (1, 1)
            np.testing.assert_allclose(loss, [[expected]], rtol=1e-5)
        elif step % 3 == 2:
            norm = np.sqrt(sum((g**2).sum() for g in slopes.values()))
            np.testing.assert_allclose(found[2], norm, rtol=1e-5)
        state = {name: value - np.float32(lr) * slopes[name] for name, value in state.items()}
        held = session.get_state()
        assert set(held) == set(NAMES)
        for name in NAMES:
            np.testing.assert_allclose(held[name], state[name], rtol=1e-5)


def test_gradients_of_all_layers_are_those_before_the_update() -> None:
    """The original's CPU kernels update the last layer first, and then use it."""
    text = """g (float[N,2] x) => (float loss) { h = MatMul(x, first) y = MatMul(h, last) e = Mul(y, y)
        loss = ReduceSum<keepdims=0>(e) }"""
    random = np.random.default_rng(0)
    first, last = (random.normal(size=shape).astype(np.float32) for shape in ((2, 3), (3, 1)))
    model = model_of(text, {"first": first, "last": last})
    session = TrainingSession(model.SerializeToString(), parameters(["first", "last"]))
    x = random.normal(size=(5, 2)).astype(np.float32)
    for _ in range(3):
        dy = 2 * x @ first @ last
        session.run(None, {"x": x, **rate(0.01)})
        first, last = first - 0.01 * x.T @ (dy @ last.T), last - 0.01 * (x @ first).T @ dy
        np.testing.assert_allclose(session.get_state()["first"], first, rtol=1e-4)
        np.testing.assert_allclose(session.get_state()["last"], last, rtol=1e-4)


def test_bindings_train_as_runs_do() -> None:
    first, second = session_of(), session_of()
    binding = second.io_binding()
    for step in range(4):
        feeds = {**batch(seed=step), **rate(0.02)}
        loss, y, _ = first.run(None, feeds)
        binding.bind_cpu_input("X", feeds["X"])
        value = onnxruntime.OrtValue.ortvalue_from_numpy(feeds["label"])
        binding.bind_ortvalue_input("label", value)
        lr = onnxruntime.OrtValue.ortvalue_from_numpy(feeds["Learning_Rate"])
        binding.bind_input("Learning_Rate", "cpu", 0, np.float32, [1], lr.data_ptr())
        if step == 0:
            binding.bind_output("loss")
            binding.bind_output("Y", "cpu")
        second.run_with_iobinding(binding)
        outputs = binding.get_outputs()
        assert len(outputs) == 2
        np.testing.assert_array_equal(outputs[0].numpy(), loss)
        np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], y)
        assert len(binding.get_outputs_as_ortvaluevector()) == 2
    for name in NAMES:
        np.testing.assert_array_equal(first.get_state()[name], second.get_state()[name])
    with pytest.raises(OnwardError, match="belongs to another session"):
        first.run_with_iobinding(binding)


def test_runs_of_a_path_change_nothing() -> None:
    """Bindings too, also one that has trained before: what it has bound then must not be written again."""
    session, feeds = session_of(), batch()
    binding = session.io_binding()
    for name, array in {**feeds, **rate(0.05)}.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("loss")
    session.run_with_iobinding(binding)
    before = session.get_state()
    expected = ((feeds["X"] @ before["coef"] + before["intercept"] - feeds["label"]) ** 2).sum()
    for mode in (True, False):
        options = evaluating(training_mode=mode)
        (loss,) = session.run(["loss"], feeds, options)  # no learning rate
        np.testing.assert_allclose(loss, [[expected]], rtol=1e-5)
        (y,) = session.run(["Y"], {"X": feeds["X"]}, options)  # nor labels
        np.testing.assert_allclose(y, feeds["X"] @ before["coef"] + before["intercept"], rtol=1e-5)
        session.run_with_iobinding(binding, options)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), loss)
    (norm,) = session.run(["global_gradient_norm"], feeds, evaluating(training_mode=True))
    assert norm > 0
    after = session.get_state()
    for name in NAMES:
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize(
    ("optimizer", "attributes", "integers", "first", "second"),
    [
        # The table of the specification, measured on the original's kernels (those of LAMB from its formula).
        ("AdamOptimizer", {"epsilon": 1e-8}, {"do_bias_correction": 0},
         [0.682771, -1.681771, 0.18327], [0.292067, -1.566906, 0.121672]),
        ("AdamOptimizer", {}, {}, [0.899, -1.898, 0.3995], [0.806323, -1.869468, 0.384648]),
        ("AdamOptimizer", {}, {"weight_decay_mode": 1, "do_bias_correction": 0},
         [0.683087, -1.682087, 0.183587], [0.292773, -1.567335, 0.122049]),
        ("AdamOptimizer", {}, {"weight_decay_mode": 1}, [0.8991, -1.8981, 0.3996], [0.806515, -1.869595, 0.384763]),
        ("LambOptimizer", {}, {}, [0.867798, -1.867361, 0.367979], [0.669399, -1.808968, 0.33662]),
        ("LambOptimizer", {}, {"do_bias_correction": 1},
         [0.867933, -1.866625, 0.368586], [0.670346, -1.805842, 0.336978]),
    ],
)  # fmt: skip
def test_optimizers(optimizer: str, attributes: Any, integers: Any, first: list[float], second: list[float]) -> None:
    """w = [1, -2, 0.5] with the gradients [0.1, -0.2, 0.3] and [0.3, 0.1, -0.2]: the loss is their product with w."""
    text = "g (float[3] g) => (float loss) { p = Mul(g, w) loss = ReduceSum<keepdims=0>(p) }"
    model = model_of(text, {"w": np.array([1, -2, 0.5], np.float32)})
    made = parameters(["w"], optimizer, enable_grad_norm_clip=False)
    made.optimizer_attributes_map["w"] = {"lambda": 0.01, **attributes}
    made.optimizer_int_attributes_map["w"] = integers
    session = TrainingSession(model.SerializeToString(), made)
    for gradient, expected in (([0.1, -0.2, 0.3], first), ([0.3, 0.1, -0.2], second)):
        session.run(None, {"g": np.array(gradient, np.float32), **rate(0.1)})
        # The original rounds 1 - 0.999 to float32, which is off by 1e-5.
        np.testing.assert_allclose(session.get_state()["w"], expected, atol=5e-6)
    state = session.get_optimizer_state()
    g1, g2 = np.array([0.1, -0.2, 0.3]), np.array([0.3, 0.1, -0.2])
    np.testing.assert_allclose(state["w"]["Moment_1"], 0.1 * (0.9 * g1 + g2), rtol=1e-5)
    np.testing.assert_allclose(state["w"]["Moment_2"], 0.001 * (0.999 * g1**2 + g2**2), rtol=1e-4)
    if optimizer == "AdamOptimizer":
        np.testing.assert_array_equal(state["w"]["Update_Count"], [3])
        assert set(session.get_state()) == {"w", "Moment_1_w", "Moment_2_w", "Update_Count_w"}
    else:
        np.testing.assert_array_equal(state["shared_optimizer_state"]["Step"], [3])


def test_adam_clips_by_the_norm_of_all_gradients() -> None:
    """Up to 1 unless `max_norm_clip` says otherwise; the original does so on GPUs only."""
    text = """g (float[2] g, float[2] h) => (float loss) { p = Mul(g, w) q = Mul(h, v) r = Add(p, q)
        loss = ReduceSum<keepdims=0>(r) }"""
    weights = {"w": np.zeros(2, np.float32), "v": np.zeros(2, np.float32)}
    g, h = np.array([3, 0], np.float32), np.array([0, 4], np.float32)
    for bound, enabled, scale in ((None, True, 1 / 5), (2.5, True, 1 / 2), (10.0, True, 1), (1.0, False, 1)):
        made = parameters(["w", "v"], "AdamOptimizer", enable_grad_norm_clip=enabled)
        if bound is not None:
            made.optimizer_attributes_map = {name: {"max_norm_clip": bound} for name in weights}
        session = TrainingSession(model_of(text, weights).SerializeToString(), made)
        session.run(None, {"g": g, "h": h, **rate(0.1)})
        moments = session.get_optimizer_state()
        np.testing.assert_allclose(moments["w"]["Moment_1"], 0.1 * g * scale, rtol=1e-5)
        np.testing.assert_allclose(moments["v"]["Moment_1"], 0.1 * h * scale, rtol=1e-5)


def test_attributes_of_each_weight() -> None:
    made = parameters(NAMES, "AdamOptimizer", enable_grad_norm_clip=False)
    made.optimizer_attributes_map = {"coef": {"lambda": 0.5}, "intercept": {}}
    session, feeds = TrainingSession(regression().SerializeToString(), made), batch()
    session.run(None, {**feeds, **rate(0.1)})
    signs = {name: np.sign(g) for name, g in gradients(WEIGHTS, feeds).items()}
    state = session.get_state()
    np.testing.assert_allclose(
        state["coef"], WEIGHTS["coef"] - 0.1 * (signs["coef"] + 0.5 * WEIGHTS["coef"]), rtol=1e-5
    )
    np.testing.assert_allclose(state["intercept"], WEIGHTS["intercept"] - 0.1 * signs["intercept"], rtol=1e-5)


def test_accumulation() -> None:
    """Passes to the group of gradients add up; a whole run adds its own, divides by their number and begins again."""
    session = session_of(gradient_accumulation_steps=3, enable_grad_norm_clip=False)
    assert [value.name for value in session.get_outputs()] == ["loss", "Y", "Group_Accumulated_Gradients"]
    state = {name: np.array(value) for name, value in WEIGHTS.items()}
    for round_ in range(2):
        batches = [batch(seed=10 * round_ + index) for index in range(3)]
        before = session.get_state()
        for feeds in batches[:2]:
            session.run(["loss", "Group_Accumulated_Gradients"], feeds, evaluating(training_mode=True))
            session.run(["loss"], feeds, evaluating(training_mode=True))  # which adds nothing
            np.testing.assert_array_equal(session.get_state()["coef"], before["coef"])
        session.run(None, {**batches[2], **rate(0.05)})
        slopes = [gradients(state, feeds) for feeds in batches]
        for name in NAMES:
            mean = sum(g[name] for g in slopes) / 3
            state[name] = state[name] - np.float32(0.05) * mean
            np.testing.assert_allclose(session.get_state()[name], state[name], rtol=1e-5)
    assert set(session.get_state()) == set(NAMES)


def test_gradients_as_outputs_and_sessions_without_an_optimizer() -> None:
    feeds = batch()
    slopes = gradients(WEIGHTS, feeds)
    session = session_of(set_gradients_as_graph_outputs=True)
    assert [value.name for value in session.get_outputs()][2:] == [
        "coef_grad",
        "intercept_grad",
        "global_gradient_norm",
    ]
    found = session.run(["coef_grad", "intercept_grad"], {**feeds, **rate(0.1)})
    np.testing.assert_allclose(found[0], slopes["coef"], rtol=1e-5)
    made = parameters(NAMES, "")
    session = TrainingSession(regression().SerializeToString(), made)
    assert [value.name for value in session.get_inputs()] == ["X", "label"]
    found = session.run(["intercept_grad"], feeds)
    np.testing.assert_allclose(found[0], slopes["intercept"], rtol=1e-5)
    np.testing.assert_array_equal(session.get_state()["coef"], WEIGHTS["coef"])


def test_states_come_back() -> None:
    first = session_of(training_optimizer_name="AdamOptimizer")
    for step in range(3):
        first.run(None, {**batch(seed=step), **rate(0.1)})
    state = first.get_state()
    second = session_of(training_optimizer_name="AdamOptimizer")
    second.load_state({**state, "something": np.zeros(3)})
    third = parameters(NAMES, "AdamOptimizer")
    third.set_optimizer_initial_state(first.get_optimizer_state())
    initialised = TrainingSession(regression().SerializeToString(), third)
    initialised.load_state(first.get_model_state()["full_precision"])
    results = []
    for session in (first, second, initialised):
        session.run(None, {**batch(seed=9), **rate(0.1)})
        results.append(session.get_state())
    for other in results[1:]:
        for name, array in results[0].items():
            np.testing.assert_allclose(other[name], array, rtol=1e-6)
            assert other[name].dtype == array.dtype
    state["coef"][:] = 7  # a copy
    assert not (first.get_state()["coef"] == 7).any()
    with pytest.raises(UnknownNameError, match="the state has 'something'"):
        second.load_state({"something": np.zeros(3)}, strict=True)
    with pytest.raises(OnwardError, match=r"'coef' has shape \[3, 1\], not \[2, 1\]"):
        second.load_state({"coef": np.zeros((3, 1), np.float32)})


def test_weights_that_are_found() -> None:
    made = parameters([], optimizer_attributes_map={"coef": {}}, optimizer_int_attributes_map={"coef": {}})
    made.weights_not_to_train = {"intercept"}
    session = TrainingSession(regression().SerializeToString(), made)
    assert set(session.get_state()) == {"coef"}
    text = REGRESSION.replace("e = Mul(d, d)", "f = Mul(d, d) e = Mul(f, half)")
    model = model_of(text, {**WEIGHTS, "half": np.array(0.5, np.float32)})
    made = parameters([*NAMES, "half"], immutable_weights={"Mul": {1: 0.5}})
    assert set(TrainingSession(model.SerializeToString(), made).get_state()) == set(NAMES)
    made.immutable_weights = {"Mul": {0: 0.5}}
    assert set(TrainingSession(model.SerializeToString(), made).get_state()) == {*NAMES, "half"}


def test_weights_that_the_loss_does_not_depend_on_stay() -> None:
    model = model_of(REGRESSION, {**WEIGHTS, "idle": np.ones(3, np.float32)})
    with pytest.warns(OnwardWarning, match="'idle' cannot be trained"):
        session = TrainingSession(model.SerializeToString(), parameters([*NAMES, "idle"]))
    assert set(session.get_state()) == set(NAMES)


DROPOUT = """g (float[N,50] x) => (float loss, float[N,50] y) <float ratio = {0.5}, bool on = {1}> {
    h = Mul(x, w) y = Dropout(h, ratio, on) loss = ReduceSum<keepdims=0>(y) }"""


def test_dropout_is_on_in_training_and_off_in_evaluation() -> None:
    model = model_of(DROPOUT, {"w": np.ones(50, np.float32)})
    session = TrainingSession(model.SerializeToString(), parameters(["w"], enable_grad_norm_clip=False))
    assert [value.name for value in session.get_inputs()] == ["x", "Learning_Rate"]
    x = np.ones((4, 50), np.float32)
    drawn = [session.run(["y"], {"x": x, **rate(0)})[0] for _ in range(2)]
    assert set(np.unique(drawn[0])) == {0.0, 2.0}
    assert (drawn[0] != drawn[1]).any()
    (kept,) = session.run(["y"], {"x": x}, evaluating())
    np.testing.assert_array_equal(kept, x)
    (kept,) = session.run(["y"], {"x": x, "training_mode": np.array(False)}, evaluating(training_mode=True))
    np.testing.assert_array_equal(kept, x)
    (still,) = session.run(["y"], {"x": x}, evaluating(training_mode=True))
    assert set(np.unique(still)) == {0.0, 2.0}
    # The gradient has the mask of its own pass.
    y = session.run(["y"], {"x": x, **rate(0.1)})[0]
    np.testing.assert_allclose(session.get_state()["w"], 1 - 0.1 * y.sum(0), rtol=1e-5)
    for given in ({"x": x, "training_mode": np.array(False), **rate(0)},):
        with pytest.raises(OnwardError, match="asks for an evaluation, but a run updates the weights"):
            session.run(None, given)


def test_running_statistics() -> None:
    text = """g (float[N,2,3] x) => (float loss, float[N,2,3] y) {
        y, m, v = BatchNormalization<training_mode=1, momentum=0.5>(x, scale, bias, mean, var)
        q = Mul(y, x) loss = ReduceMean<keepdims=0>(q) }"""
    start = {"scale": [1, 2], "bias": [0, 1], "mean": [0, 0], "var": [1, 1]}
    model = model_of(text, {name: np.array(value, np.float32) for name, value in start.items()})
    session = TrainingSession(model.SerializeToString(), parameters(["scale", "bias"]))
    x = np.random.default_rng(0).normal(2, 3, size=(8, 2, 3)).astype(np.float32)
    session.run(None, {"x": x, **rate(0)})
    state = session.get_state()
    np.testing.assert_allclose(state["mean"], 0.5 * x.mean((0, 2)), rtol=1e-5)
    np.testing.assert_allclose(state["var"], 0.5 + 0.5 * x.var((0, 2)), rtol=1e-5)
    (y,) = session.run(["y"], {"x": x}, evaluating())
    c = [None, slice(None), None]
    mean, var = (state[name][tuple(c)] for name in ("mean", "var"))
    wanted = (x - mean) / np.sqrt(var + 1e-5) * np.array([1, 2])[tuple(c)] + np.array([0, 1])[tuple(c)]
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(session.get_state()["mean"], state["mean"])


def test_graphs_are_written(tmp_path: Path) -> None:
    names = ["model_after_graph_transforms", "model_with_gradient_graph", "model_with_training_graph"]
    paths = {f"{name}_path": str(tmp_path / f"{name}.onnx") for name in names}
    session_of(**paths)
    for path in paths.values():
        onnx.checker.check_model(onnx.load(path))


def test_models_from_files(tmp_path: Path) -> None:
    onnx.save(regression(), tmp_path / "model.onnx")
    for path in (str(tmp_path / "model.onnx"), tmp_path / "model.onnx"):
        session = TrainingSession(path, parameters(NAMES), providers=["CPUExecutionProvider"])
        session.run(["loss"], {**batch(), **rate(0.1)})
    with pytest.raises(TypeError, match="Unable to load from type"):
        TrainingSession(3, parameters(NAMES))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="parameters must be TrainingParameters"):
        TrainingSession(regression().SerializeToString(), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"loss_output_name": ""}, OnwardError, "loss_output_name is empty"),
        ({"loss_output_name": "lost"}, UnknownNameError, "'lost'; the model has the outputs 'loss', 'Y'"),
        ({"loss_output_name": "Y"}, OnwardError, "a loss has one element"),
        ({"weights_to_train": {"coeff"}}, UnknownNameError, "'coeff', but the model has no initializer"),
        ({"weights_not_to_train": set(NAMES)}, OnwardError, "there is nothing to train"),
        ({"training_optimizer_name": "Adam"}, UnknownNameError, "there is no optimizer 'Adam'"),
        ({"optimizer_attributes_map": {}}, OnwardError, "Failed to find attribute map for weight 'coef'"),
        (
            {"optimizer_attributes_map": {name: {"alpha": 1.0} for name in NAMES}},
            UnknownNameError,
            "SGDOptimizer of 'coef' has no attributes, and not alpha",
        ),
        ({"lr_params_feed_name": "X"}, OnwardError, "a value called 'X' already"),
        ({"use_mixed_precision": True}, OnwardError, "use_mixed_precision is True, which belongs to mixed precision"),
        ({"world_size": 2}, OnwardError, "world_size is 2, which belongs to distributed training"),
        ({"deepspeed_zero_stage": 1}, OnwardError, "belongs to distributed training"),
        ({"gradient_accumulation_steps": 0}, OnwardError, "it is at least 1"),
    ],
)
def test_mistakes(fields: dict[str, Any], error: type[OnwardError], message: str) -> None:
    with pytest.raises(error, match=message):
        session_of(**fields)


def test_a_loss_of_integers() -> None:
    text = REGRESSION.replace("float[1,1] loss", "int64 loss").replace(
        "loss = ReduceSum<keepdims=1>(e)", "loss = Size(e)"
    )
    model = model_of(text, WEIGHTS)
    with pytest.raises(NotDifferentiableError, match="not floating point"):
        session_of(model)


def test_mistakes_at_run_time() -> None:
    session, feeds = session_of(), batch()
    with pytest.raises(ValueError, match=r"Required inputs \(\['Learning_Rate'\]\) are missing"):
        session.run(None, feeds)
    with pytest.raises(UnknownNameError, match="there is no input 'Z'"):
        session.run(None, {**feeds, **rate(0), "Z": feeds["X"]})
    with pytest.raises(UnknownNameError, match="there is no output 'lost'"):
        session.run(["lost"], {**feeds, **rate(0)})
    with pytest.raises(OnwardError, match="Learning_Rate must be a finite number that is not negative"):
        session.run(None, {**feeds, **rate(-1)})
    with pytest.raises(OnwardError, match="could not run"):
        session.run(None, {**feeds, **rate(0.1), "label": np.ones((3, 1), np.float32)})
    with pytest.raises(OnwardError, match="one step after the other"):
        session.run_async(None, {}, None, None)
    with pytest.raises(OnwardError, match="an evaluation has no 'global_gradient_norm'"):
        session.run(["global_gradient_norm"], feeds, evaluating())
    for name in NAMES:  # nothing of it has changed anything
        np.testing.assert_array_equal(session.get_state()[name], WEIGHTS[name])


def test_parameters_have_the_fields_and_defaults_of_the_original() -> None:
    """Printed by onnxruntime-training 1.19.2."""
    expected = {
        "allreduce_post_accumulation": False, "attn_dropout_recompute": False, "data_parallel_size": 1,
        "deepspeed_zero_stage": 0, "enable_adasum": False, "enable_grad_norm_clip": True, "gelu_recompute": False,
        "gradient_accumulation_steps": 1, "horizontal_parallel_size": 1, "loss_output_name": "", "loss_scale": 0.0,
        "lr_params_feed_name": "Learning_Rate", "model_after_graph_transforms_path": "",
        "model_with_gradient_graph_path": "", "model_with_training_graph_path": "", "num_pipeline_micro_batches": 1,
        "number_recompute_layers": 0, "optimizer_attributes_map": {}, "optimizer_int_attributes_map": {},
        "pipeline_cut_info_string": "", "pipeline_parallel_size": 1, "propagate_cast_ops_allow": [],
        "propagate_cast_ops_level": 1, "set_gradients_as_graph_outputs": False, "sliced_axes": {}, "sliced_schema": {},
        "sliced_tensor_names": [], "training_optimizer_name": "", "transformer_layer_recompute": False,
        "use_fp16_moments": False, "use_memory_efficient_gradient": False, "use_mixed_precision": False,
        "weights_not_to_train": set(), "weights_to_train": set(), "world_rank": 0, "world_size": 1,
    }  # fmt: skip
    made = TrainingParameters()
    assert {name: getattr(made, name) for name in expected} == expected
    with pytest.raises(AttributeError):
        made.learning_rate = 0.1  # type: ignore[attr-defined]
