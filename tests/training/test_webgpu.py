"""Training graphs for devices without numbers of 64 bits (WebGPU) compute what the others do."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onward import OnwardError, losses, optim
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.prepare import prepare
from onward.graph.width import narrow_numbers
from onward.optim.scalar import Scalar
from onward.testing import run_on_runtime
from onward.testing.training import assert_equal, by_gradient, by_step_for_webgpu, subject_of
from onward.training.lowering import webgpu
from onward.training.lowering.webgpu import lower_for_webgpu
from onward.training.step import step_model
from onward.training.update import add_input, empty_model
from tests.training.cases import CASES
from tests.training.firing import fired, functions

RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
RUNNABLE = [name for name, case in CASES.items() if case.since <= RUNTIME and case.dtype != np.float64]
MINE = [name for name in RUNNABLE if "vector" in name or "normalised" in name or "classes" in name]


def check(name: str) -> None:
    case = CASES[name]
    for layout in case.layouts:
        subject = subject_of(case.model(), case.feeds(), case.wrt, None, (), layout)
        assert_equal(by_step_for_webgpu(subject), by_gradient(subject), f"for WebGPU, {layout}", None)


@pytest.mark.parametrize("name", MINE)
def test_gradients_are_those_of_the_rules(name: str) -> None:
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNNABLE if name not in MINE])
def test_gradients_of_all_models_are_those_of_the_rules(name: str) -> None:
    check(name)


def test_every_lowering_is_used() -> None:
    with fired() as found:
        for name in MINE:
            subject = subject_of(CASES[name].model(), CASES[name].feeds(), CASES[name].wrt, None, (), "static")
            by_step_for_webgpu(subject)
    assert {name for name in functions() if name.startswith("lowering/webgpu.")} <= found


def test_a_lowering_that_is_off_by_a_hundredth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = webgpu._LOWERINGS["BatchNormalization"]

    def wrong(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        found = right(op, node)
        return None if found is None else [value * 1.01 for value in found]

    monkeypatch.setitem(webgpu._LOWERINGS, "BatchNormalization", wrong)
    with pytest.raises(AssertionError, match="for WebGPU, static"):
        check("normalised, momentum 0.9")


@pytest.mark.parametrize("beta", [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999])
def test_corrections_of_a_bias_lose_no_digits(beta: float) -> None:
    """1 - beta^t in float32 against float64, for the first million steps: three roundings of float32 at most."""
    steps = np.arange(1, 1_000_001)
    model = empty_model(17, "correction")
    op = Builder(model.graph, 17)
    t = Scalar(op, add_input(model.graph, "t", ir.DataType.FLOAT, ["n"]))
    with narrow_numbers(), op:
        publish((1 - beta**t).value, "correction", model.graph)
    found = run_on_runtime(finish(model), {"t": steps.astype(np.float32)})["correction"].astype(np.float64)
    exact = -np.expm1(steps * math.log(beta))
    assert np.abs(found / exact - 1).max() < 3 * 2**-23


@pytest.mark.parametrize("recipe", optim.names())
def test_updates_are_those_in_double_precision(recipe: str) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[4, 5] x, float[5, 3] w) => (float[4, 3] y) { y = MatMul(x, w) }
    """)
    random = np.random.default_rng(0)
    model.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(size=(5, 3)).astype(np.float32), "w"))
    del model.graph.input[1]
    x, target = (random.normal(size=shape).astype(np.float32) for shape in ((4, 5), (4, 3)))
    states: list[dict[str, np.ndarray]] = []
    for narrow in (False, True):
        optimizer = optim.get(recipe, clip=0.5)
        with narrow_numbers(narrow):
            step = step_model(prepare(model), "mse", optimizer)
        assert narrow != any(value.type.tensor_type.elem_type == onnx.TensorProto.DOUBLE for value in values_of(step))
        state = {"w": onnx.numpy_helper.to_array(model.graph.initializer[0])}
        state |= {f"w.{name}": np.full((5, 3), slot.initial, np.float32) for name, slot in optimizer.slots.items()}
        for number in range(1, 8):
            counter = np.array(number, np.int32 if narrow else np.int64)
            feeds = {"x": x, "target": target, **state, "step": counter, "learning_rate": np.array(0.01, np.float32)}
            results = run_on_runtime(step, feeds)
            state = {name: results[f"{name}.updated"] for name in state}
        states.append(state)
    for name, array in states[0].items():
        np.testing.assert_allclose(states[1][name], array, rtol=2e-5, atol=1e-6, err_msg=name)


def values_of(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    return [*model.graph.input, *model.graph.output, *onnx.shape_inference.infer_shapes(model).graph.value_info]


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_norms_of_gradients_whose_squares_are_no_floats(size: float) -> None:
    model = empty_model(17, "norm")
    op = Builder(model.graph, 17)
    tensors = [add_input(model.graph, name, ir.DataType.FLOAT, [3, 2]) for name in ("a", "b")]
    with narrow_numbers(), op:
        publish(optim.clip_by_global_norm(1.0).coefficient(op, tensors), "coefficient", model.graph)
    feeds = {name: np.full((3, 2), size, np.float32) for name in ("a", "b")}
    feeds["b"][0] = 0
    found = run_on_runtime(finish(model), feeds)["coefficient"]
    assert found == pytest.approx(min(1, 1 / (math.sqrt(10) * size + 1e-6)), rel=1e-6)


def scores(classes: str = "3") -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4] x) => (float[N, {classes}] y) {{ y = MatMul(x, w) }}
    """)
    weight = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return model


@pytest.mark.parametrize("labels", [[0, 2, 3], [0, -1, 1], [0, 1, 2**31 - 1]])
@pytest.mark.parametrize("loss", ["cross_entropy", "focal", "multi_margin"])
def test_labels_that_are_no_class_are_refused_without_the_help_of_kernels(loss: str, labels: list[int]) -> None:
    """A GPU gathers from any index: the check must fail by itself."""
    with narrow_numbers():
        step = step_model(prepare(scores()), loss, "sgd")
    target = next(value for value in step.graph.input if value.type.tensor_type.elem_type == onnx.TensorProto.INT32)
    feeds = {"x": np.ones((3, 4), np.float32), "w": onnx.numpy_helper.to_array(scores().graph.initializer[0])}
    feeds |= {"learning_rate": np.array(0.1, np.float32), "step": np.array(1, np.int32)}
    checks = [node for node in step.graph.node if node.name.startswith("check: labels")]
    assert "Reshape" in {node.op_type for node in checks}
    run_on_runtime(step, {**feeds, target.name: np.array([0, 2, 1], np.int32)})
    with pytest.raises(Exception, match="must be from 0 to 2"):
        run_on_runtime(step, {**feeds, target.name: np.array(labels, np.int32)})


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", -1.0), ("learning_rate", math.nan), ("learning_rate", math.inf), ("step", 0)]
)
def test_rates_and_steps_are_checked(name: str, value: float) -> None:
    with narrow_numbers():
        step = step_model(prepare(scores()), "mse", "adamw")
    weight = onnx.numpy_helper.to_array(scores().graph.initializer[0])
    feeds = {"x": np.ones((2, 4), np.float32), "target": np.ones((2, 3), np.float32), "w": weight}
    feeds |= {"w.mu": weight * 0, "w.nu": weight * 0}
    feeds |= {"learning_rate": np.array(0.1, np.float32), "step": np.array(1, np.int32)}
    run_on_runtime(step, feeds)
    with pytest.raises(Exception, match=f"{name} must be"):
        run_on_runtime(step, {**feeds, name: np.array(value, feeds[name].dtype)})


@pytest.mark.parametrize("loss", [name for name in losses.names() if name != "ctc"])
def test_losses_with_labels_of_32_bits(loss: str) -> None:
    """Each loss can be written; those with class labels take int32."""
    with narrow_numbers():
        try:
            step = step_model(prepare(scores()), loss, "sgd")
        except OnwardError as error:
            assert "outputs" in str(error) or "predictions" in str(error)  # noqa: PT017  it takes several predictions
            return
    kinds = {value.name: value.type.tensor_type.elem_type for value in step.graph.input}
    assert onnx.TensorProto.INT64 not in kinds.values()


def test_statistics_of_an_unknown_rank_are_refused() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float x, float[3] a, bool c) => (float y) {
            y = If (c) <
                then_branch = t () => (float p) {
                    p, m, v = BatchNormalization<training_mode = 1>(x, a, a, a, a)
                },
                else_branch = e () => (float q) { q = Identity(x) }
            >
        }
    """)
    graph = ir.from_proto(model).graph
    with pytest.raises(OnwardError, match="WebGPU has no BatchNormalization in training"):
        lower_for_webgpu(Builder(graph, 17))
