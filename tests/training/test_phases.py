"""A forward and a backward graph compute what one graph does, and keep little in between."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import onward
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.runtime.two_phase import PhaseState, TwoPhases
from onward.signature import METADATA_KEY, Role, Signature
from onward.testing import run_on_runtime
from onward.testing.training import assert_equal
from onward.training.phases import Phases, phases
from onward.training.phases.flow import SINK, SOURCE, Network
from tests.training.cases import CASES

Feeds = dict[str, np.ndarray]
EXPENSIVE = {"Conv", "ConvTranspose", "Gemm", "If", "Loop", "LSTM", "MatMul", "Scan", "Softmax", "BatchNormalization"}


def model_of(text: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')


def with_weights(text: str, weights: Mapping[str, Sequence[int]], dtype: Any = np.float32) -> onnx.ModelProto:
    model = model_of(text)
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype(dtype), name))
    return model


def opened(made: Phases) -> TwoPhases:
    return TwoPhases(made.forward.SerializeToString(), made.backward.SerializeToString())


def weights_of(made: Phases) -> Feeds:
    return {name: tensor.numpy() for name, tensor in made.weights.items()}


def drawn_like(arrays: Mapping[str, np.ndarray], seed: int = 0) -> Feeds:
    """Cotangents; that of one element is 1, because `onward.gradient` takes that for it."""
    random = np.random.default_rng(seed)
    drawn = {name: random.normal(size=array.shape).astype(array.dtype) for name, array in arrays.items()}
    return {name: np.ones_like(array) if array.size == 1 else array for name, array in drawn.items()}


def run(made: Phases, feeds: Feeds, given: Feeds | None = None) -> tuple[Feeds, Feeds, Feeds]:
    """Outputs, the gradients of outputs, and the gradients."""
    pair = opened(made)
    result = pair.forward({**feeds, **weights_of(made)})
    outputs = {name: value.numpy() for name, value in result.outputs.items()}
    given = drawn_like({name: outputs[name] for name in pair.output_gradients}) if given is None else given
    found = pair.backward(result.state, given)
    return outputs, given, {f"{name}_grad": value.numpy() for name, value in found.items()}


def check(model: onnx.ModelProto, feeds: Feeds, inputs: Sequence[str] = (), trainable: Sequence[str] = ()) -> Phases:
    """Compare with `onward.gradient`."""
    made = phases(model, trainable=trainable, requires_grad_inputs=inputs)
    for graph in (made.forward, made.backward):
        onnx.checker.check_model(graph, full_check=True)
    outputs, given, gradients = run(made, feeds)
    one = onward.gradient(model, wrt=[*inputs, *trainable], of=list(given))
    wanted = run_on_runtime(one, {**feeds, **{f"{name}_grad": array for name, array in given.items()}})
    assert_equal({**outputs, **gradients}, {**wanted, **{name: wanted[name] for name in gradients}}, "phases")
    assert len(gradients) == len(inputs) + len(trainable)
    return made


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES)[::3])
def test_gradients_of_any_output(name: str) -> None:
    """With gradients of outputs that are drawn; `onward.testing.PATHS` has all models, with a loss."""
    case = CASES[name]
    trainable = [parameter for parameter in case.wrt if parameter not in case.inputs]
    made = check(case.model(), case.feeds(), list(case.inputs), trainable)
    assert not ran_twice(made)


def ran_twice(made: Phases) -> list[str]:
    """Expensive nodes that are in both graphs."""
    names = [
        {node.name for node in model.graph.node if node.op_type in EXPENSIVE} for model in (made.forward, made.backward)
    ]
    return sorted(names[0] & names[1])


def test_expensive_nodes_run_once() -> None:
    """As often as in the one graph: the backward pass does not run the forward pass again."""
    text = "g (float[4,5] x) => (float[4,3] y) { h = MatMul(x, w) r = Relu(h) s = Softmax(r) y = MatMul(s, v) }"
    model = with_weights(text, {"w": (5, 6), "v": (6, 3)})
    made = phases(model, trainable=["w", "v"])
    products = [
        sum(node.op_type in ("MatMul", "Gemm", "Softmax") for node in graph.graph.node)
        for graph in (made.forward, made.backward)
    ]
    assert products == [3, 3]  # v_grad, s_grad, w_grad: x requires none
    assert not ran_twice(made)


MANY = """g (float[N,3] x, float[N,3] z) => (float[N,4] h, float[N,4] y, int64[N] best, float[N,3] x, float[3,4] w,
           float[4] frozen, float[N,4] h, float[N,3] same)
    <float[4] frozen = {1, 2, 3, 4}> { h = MatMul(x, w) y = Tanh(h) best = ArgMax<axis=1, keepdims=0>(y)
    same = Identity(z) }"""


def test_outputs_of_every_kind() -> None:
    """Integers, an input, a trained and a frozen initializer, one that is used by another, one that is listed twice."""
    model = with_weights(MANY, {"w": (3, 4)})
    made = phases(model, trainable=["w"], requires_grad_inputs=["x", "z"])
    info = made.info
    assert info.outputs == ["h", "y", "best", "x", "w", "frozen", "h_1", "same"]
    assert list(info.output_gradients) == ["h", "y", "x", "w", "h_1", "same"]
    assert info.gradients == {"x": "x_grad", "z": "z_grad", "w": "w_grad"}
    random = np.random.default_rng(1)
    x, z = (random.normal(size=(2, 3)).astype(np.float32) for _ in range(2))
    outputs, given, gradients = run(made, {"x": x, "z": z})
    w = weights_of(made)["w"]
    np.testing.assert_array_equal(outputs["frozen"], [1, 2, 3, 4])
    np.testing.assert_array_equal(outputs["best"], outputs["y"].argmax(1))
    dh = given["h"] + given["h_1"] + given["y"] * (1 - np.tanh(x @ w) ** 2)
    np.testing.assert_allclose(gradients["x_grad"], dh @ w.T + given["x"], rtol=1e-5)
    np.testing.assert_allclose(gradients["w_grad"], x.T @ dh + given["w"], rtol=1e-5)
    np.testing.assert_array_equal(gradients["z_grad"], given["same"])


def test_outputs_without_a_gradient_count_as_zeros() -> None:
    model = with_weights(MANY, {"w": (3, 4)})
    made = phases(model, trainable=["w"])
    x = np.ones((2, 3), np.float32)
    given: Any = {"h": np.ones((2, 4), np.float32), "y": None}
    _, _, gradients = run(made, {"x": x, "z": x}, given)
    np.testing.assert_array_equal(gradients["w_grad"], x.T @ given["h"])
    _, _, nothing = run(made, {"x": x, "z": x}, {})
    assert not nothing["w_grad"].any()


def test_chosen_outputs() -> None:
    model = with_weights(MANY, {"w": (3, 4)})
    made = phases(model, trainable=["w"], outputs=["y"])
    assert list(made.info.output_gradients) == ["y"]
    assert made.info.kept == ["y"]


def test_what_no_output_depends_on_has_a_gradient_of_zeros() -> None:
    text = "g (float[N,2] x) => (float[N,2] y, int64[1] c) { y = Mul(x, w) u = Size(v) c = Reshape(u, o) }"
    model = with_weights(text, {"w": (2,), "v": (3, 2)})
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "o"))
    _, _, gradients = run(phases(model, trainable=["w", "v"]), {"x": np.ones((4, 2), np.float32)})
    assert gradients["v_grad"].shape == (3, 2)
    assert not gradients["v_grad"].any()
    # ... also where that is all there is.
    _, _, gradients = run(phases(model, trainable=["v"]), {"x": np.ones((4, 2), np.float32)})
    assert not gradients["v_grad"].any()


def test_running_statistics_are_outputs_of_the_forward_graph() -> None:
    case = CASES["normalised, momentum 0.9"]
    made = phases(case.model(), trainable=["w", "scale", "bias"])
    assert made.info.statistics == {"mean.updated": "mean", "var.updated": "var"}
    pair = opened(made)
    result = pair.forward({**case.feeds(), **weights_of(made)})
    wanted = run_on_runtime(onward.gradient(case.model(), wrt=["w"], of=["y", "m", "v"]), {
        **case.feeds(), **drawn_like({"y_grad": result.outputs["y"].numpy()}), "m_grad": np.zeros(3, np.float32),
        "v_grad": np.zeros(3, np.float32),
    })  # fmt: skip
    np.testing.assert_allclose(result.statistics["mean"].numpy(), wanted["m"], rtol=1e-5)
    np.testing.assert_allclose(result.statistics["var"].numpy(), wanted["v"], rtol=1e-5)


def test_running_statistics_that_are_fed() -> None:
    case = CASES["normalised, momentum 0.9"]
    order = ["var", "w", "mean", "bias", "scale"]
    made = phases(case.model(), trainable=["w", "scale", "bias"], fed=order)
    assert [value.name for value in made.forward.graph.input] == ["x", *order]
    result = opened(made).forward({**case.feeds(), **weights_of(made)})
    other = phases(case.model(), trainable=["w", "scale", "bias"])
    wanted = opened(other).forward({**case.feeds(), **weights_of(other)})
    for name in ("mean", "var"):
        np.testing.assert_array_equal(result.statistics[name].numpy(), wanted.statistics[name].numpy())


DROPOUT = """g (float[N,40] x) => (float[N,40] y) <float ratio = {0.25}, bool on = {1}> {
    a = Dropout(x, ratio, on) h = Mul(a, w) y = Dropout(h, ratio, on) }"""


def test_both_phases_draw_the_same_mask() -> None:
    made = phases(with_weights(DROPOUT, {"w": (40,)}), trainable=["w"], requires_grad_inputs=["x"])
    assert set(made.info.random.values()) == {Role.SEED, Role.PASS}
    assert not set(made.info.random) & {value.name for value in made.backward.graph.input}
    # A byte an element of each mask; what they are applied to is an input, or computed again from them.
    assert sorted(name.rpartition("/")[2] for name in made.info.kept) == ["packed", "packed"]
    pair, w = opened(made), weights_of(made)["w"]
    x = np.random.default_rng(0).normal(size=(8, 40)).astype(np.float32)
    seed, number = sorted(made.info.random, key=lambda name: made.info.random[name] is Role.PASS)
    results = [pair.forward({"x": x, "w": w, seed: np.array(7), number: np.array(count)}) for count in (0, 1, 0)]
    outputs = [result.outputs["y"].numpy() for result in results]
    assert (outputs[0] != outputs[1]).any()
    np.testing.assert_array_equal(outputs[0], outputs[2])
    for result, y in zip(results, outputs, strict=True):
        dy = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
        gradients = pair.backward(result.state, {"y": dy})
        factor = y / (x * w)  # both masks
        np.testing.assert_allclose(gradients["x"].numpy(), dy * factor * w, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradients["w"].numpy(), (dy * factor * x).sum(0), rtol=1e-4, atol=1e-5)


LOOP = """g (float[2,2] x, int64 n) => (float[2,2] y, float[K,2,2] all) <bool go = {1}> {
    y, all = Loop(n, go, x) <body = b (int64 i, bool c, float[2,2] s) => (bool d, float[2,2] t, float[2,2] u)
        { d = Identity(c) p = MatMul(s, w) t = Tanh(p) u = Mul(t, v) }> }"""
IF = """g (float[2,2] x, bool c) => (float[2,2] y) {
    h = MatMul(x, w) y = If(c) <then_branch = t () => (float[2,2] a) { a = Mul(h, v) },
                                else_branch = e () => (float[2,2] b) { r = Tanh(h) b = MatMul(r, v) }> }"""
SCAN = """g (float[2,2] x, float[3,2,2] z) => (float[2,2] y, float[3,2,2] all) {
    y, all = Scan<num_scan_inputs=1, body = b (float[2,2] s, float[2,2] e) => (float[2,2] t, float[2,2] u)
        { p = MatMul(s, w) q = Add(p, e) t = Tanh(q) u = Mul(t, v) }>(x, z) }"""


@pytest.mark.parametrize(
    ("text", "others"),
    [
        (LOOP, {"n": np.array(3)}),
        (LOOP, {"n": np.array(0)}),
        (IF, {"c": np.array(True)}),
        (IF, {"c": np.array(False)}),
        (SCAN, {"z": np.random.default_rng(2).normal(size=(3, 2, 2)).astype(np.float32)}),
    ],
)
def test_control_flow(text: str, others: Feeds) -> None:
    model = with_weights(text, {"w": (2, 2), "v": (2, 2)})
    x = np.random.default_rng(3).normal(size=(2, 2)).astype(np.float32)
    made = check(model, {"x": x, **others}, ["x"], ["w", "v"])
    assert not ran_twice(made)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("rows", [1, 5])
def test_symbols_and_types(dtype: Any, rows: int) -> None:
    kind = {np.float64: "double", np.float16: "float16"}[dtype]
    text = f"""g ({kind}[batch,?] x) => ({kind}[batch,M] y) {{ h = MatMul(x, w) s = Shape(h) f = Tanh(h)
        r = Reshape(f, s) m = Max(r, h) y = MatMul(m, v) }}"""
    model = with_weights(text, {"w": (3, 4), "v": (4, 2)}, dtype)
    x = np.random.default_rng(rows).normal(size=(rows, 3)).astype(dtype)
    check(model, {"x": x}, ["x"], ["w", "v"])


def test_gradients_are_those_of_differences() -> None:
    text = """g (double[N,3] x) => (double[N,4] y, double[N] z) { h = MatMul(x, w) t = Tanh(h) s = Softmax(t)
        y = Mul(s, t) e = Mul(y, y) z = ReduceSum<keepdims=0>(e, axis) }"""
    model = with_weights(text, {"w": (3, 4)}, np.float64)
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axis"))
    made = phases(model, trainable=["w"], requires_grad_inputs=["x"])
    x = np.random.default_rng(0).normal(size=(5, 3))
    _, given, gradients = run(made, {"x": x})
    pair, w = opened(made), weights_of(made)["w"]

    def value(x: np.ndarray, w: np.ndarray) -> float:
        outputs = pair.forward({"x": x, "w": w}).outputs
        return float(sum((outputs[name].numpy() * weight).sum() for name, weight in given.items()))

    for name, array in (("x", x), ("w", w)):
        for place in itertools.product(*map(range, array.shape)):
            step = np.zeros_like(array)
            step[place] = 1e-5
            moved = [(x + sign * step, w) if name == "x" else (x, w + sign * step) for sign in (1, -1)]
            up, down = (value(*point) for point in moved)
            np.testing.assert_allclose(gradients[f"{name}_grad"][place], (up - down) / 2e-5, rtol=1e-6, atol=1e-8)


def test_initializers_that_are_fed_but_not_trained() -> None:
    text = "g (float[2,3] x) => (float[2,5] y) { h = MatMul(x, w) t = Tanh(h) y = MatMul(t, v) }"
    model = with_weights(text, {"w": (3, 4), "v": (4, 5)})
    made = phases(model, trainable=["w"], fed=["v", "w"])
    assert [value.name for value in made.forward.graph.input] == ["x", "v", "w"]
    roles = Signature.from_json(made.forward.metadata_props[0].value).inputs
    assert roles == {"x": Role.INPUT, "v": Role.FROZEN, "w": Role.PARAMETER}
    assert not made.forward.graph.initializer
    frozen = phases(model, trainable=["w"])
    feeds = {"x": np.ones((2, 3), np.float32)}
    np.testing.assert_array_equal(run(made, feeds)[2]["w_grad"], run(frozen, feeds)[2]["w_grad"])


def test_names_that_are_taken() -> None:
    """By inputs, outputs, inner values, and what the graphs themselves add."""
    text = """g (float[2] x, float[2] x_grad) => (float[2] y, float[2] y_grad) {
        w_grad = Mul(x, w) y_grad = Tanh(w_grad) y = Mul(y_grad, x_grad) }"""
    model = with_weights(text, {"w": (2,)})
    made = phases(model, trainable=["w"], requires_grad_inputs=["x"])
    assert made.info.gradients == {"x": "x_grad_1", "w": "w_grad"}
    assert made.info.output_gradients == {"y": "y_grad_1", "y_grad": "y_grad_grad"}
    x = np.array([0.3, -0.4], np.float32)
    _, given, gradients = run(made, {"x": x, "x_grad": 2 * x})
    w = weights_of(made)["w"]
    dt = given["y_grad"] + given["y"] * 2 * x
    np.testing.assert_allclose(gradients["w_grad"], dt * (1 - np.tanh(x * w) ** 2) * x, rtol=1e-5)


def test_sizes_that_only_inference_has_a_name_for() -> None:
    """Their names must not meet those that it gives in the backward graph: equal names are equal sizes."""
    text = """g (float[N,4] x) => (float[M,2] y) <int64[2] pairs = {-1, 2}, int64[2] quads = {-1, 4}> {
        h = MatMul(x, w) t = Tanh(h) r = Reshape(t, pairs) u = MatMul(r, v) s = Sigmoid(u) q = Reshape(s, quads)
        z = MatMul(q, w) e = Tanh(z) y = Reshape(e, pairs) }"""
    model = with_weights(text, {"w": (4, 4), "v": (2, 2)})
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    made = check(model, {"x": x}, ["x"], ["w", "v"])
    shapes = [value.type.tensor_type.shape.dim for value in made.backward.graph.input]
    names = {dim.dim_param for shape in shapes for dim in shape if dim.dim_param}
    assert names
    assert not any(name.startswith("unk__") for name in names)


def test_no_rows() -> None:
    text = "g (float[N,3] x) => (float[N,2] y) { h = MatMul(x, w) t = Relu(h) y = MatMul(t, v) }"
    made = phases(with_weights(text, {"w": (3, 4), "v": (4, 2)}), trainable=["w", "v"])
    _, _, gradients = run(made, {"x": np.zeros((0, 3), np.float32)})
    assert gradients["w_grad"].shape == (3, 4)
    assert not gradients["w_grad"].any()


def test_the_model_stays_as_it_is_and_the_result_is_always_the_same() -> None:
    model = with_weights(MANY, {"w": (3, 4)})
    before = model.SerializeToString()
    made = [phases(model, trainable=["w"]) for _ in range(2)]
    assert model.SerializeToString() == before
    assert made[0].forward.SerializeToString() == made[1].forward.SerializeToString()
    assert made[0].backward.SerializeToString() == made[1].backward.SerializeToString()


def test_signatures() -> None:
    made = phases(with_weights(MANY, {"w": (3, 4)}), trainable=["w"], requires_grad_inputs=["x"])
    for model, kind in ((made.forward, "forward"), (made.backward, "backward")):
        signature = Signature.from_json({entry.key: entry.value for entry in model.metadata_props}[METADATA_KEY])
        assert signature.kind == kind
        assert list(signature.inputs) == [value.name for value in model.graph.input]
        assert list(signature.outputs) == [value.name for value in model.graph.output]
    assert signature.links == {f"{name}_grad": name for name in ("h", "y", "h_1")} | {
        "x_grad_1": "x", "w_grad_1": "w", "x_grad": "x", "w_grad": "w"}  # fmt: skip


# What is kept ---------------------------------------------------------------------------------------------------------

KEPT = {
    # Not h: the mask of Relu is computed from r.
    "rectified": ("h = MatMul(x, w) r = Relu(h) y = MatMul(r, v)", {"w": (5, 6), "v": (6, 3)}, ["r"]),
    # One byte an element instead of four, where nothing else needs r.
    "a mask": ("h = MatMul(x, w) r = Relu(h) t = Mul(r, three) y = MatMul(t, u)", {"w": (5, 6)}, ["*/packed"]),
    # Views of one value are kept once, and as it is.
    "views": (
        """h = MatMul(x, w) a = Reshape(h, flat) e = Unsqueeze(h, one) t = Transpose<perm=[1,0]>(h) b = MatMul(h, t)
        c = Mul(a, a) d = Mul(e, e) f = ReduceSum<keepdims=0>(c) g = ReduceSum<keepdims=0>(d) k = Add(f, g)
        y = Mul(b, k)""",
        {"w": (5, 6)},
        ["h", "b", "k"],
    ),
    # A sum of what is kept is computed again.
    "sums": (
        "a = MatMul(x, w) c = Tanh(a) d = Add(c, c) e = Mul(d, d) f = Mul(e, d) y = MatMul(f, v)",
        {"w": (5, 6), "v": (6, 3)},
        ["c"],
    ),
    # Inputs and parameters are not kept.
    "linear": ("y = MatMul(x, w)", {"w": (5, 6)}, []),
    "of inputs": ("a = Mul(x, x) h = MatMul(a, w) y = Mul(h, s)", {"w": (5, 6), "s": (6,)}, ["h"]),
}


def kind(made: Phases, name: str) -> int:
    """The element type of what is kept."""
    (given,) = (value.type.tensor_type.elem_type for value in made.forward.graph.output if value.name == name)
    (taken,) = (value.type.tensor_type.elem_type for value in made.backward.graph.input if value.name == name)
    assert given == taken
    return given


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("rows", [512, "N"])
def test_what_is_kept(name: str, rows: Any) -> None:
    text, weights, kept = KEPT[name]
    settings = "int64[1] flat = {-1}, int64[1] one = {0}, float three = {3}, float[6, 1] u = {1, 2, 3, 4, 5, 6}"
    model = with_weights(f"g (float[{rows},5] x) => (float y) <{settings}> {{ {text} }}", weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    made = phases(model, trainable=list(weights))
    assert ["*/packed" if name.endswith("/packed") else name for name in made.info.kept] == kept
    assert all(kind(made, name) == onnx.TensorProto.BOOL for name in made.info.kept if name.endswith("/packed"))
    feeds = {"x": np.random.default_rng(0).normal(size=(16 if rows == "N" else rows, 5)).astype(np.float32)}
    check(model, feeds, ["x"], list(weights))


def test_the_minimum_cut() -> None:
    """Against all cuts of small random networks: the value, and of equal ones that nearest to the sink."""
    random = np.random.default_rng(0)
    for _ in range(200):
        places = int(random.integers(2, 8))
        edges = [
            (int(a), int(b), int(random.integers(1, 6)))
            for a, b in random.integers(0, places, (int(random.integers(1, 16)), 2))
            if a != b and a != SINK and b != SOURCE
        ]
        network = Network()
        for _ in range(places - 2):
            network.place()
        for edge in edges:
            network.connect(*edge)
        found = network.cut()

        def value(behind: set[int], edges: Sequence[tuple[int, int, int]] = edges) -> int:
            return sum(capacity for a, b, capacity in edges if a not in behind and b in behind)

        others = range(2, places)
        cuts = [{SINK, *chosen} for size in range(len(others) + 1) for chosen in itertools.combinations(others, size)]
        best = min(map(value, cuts))
        assert SINK in found
        assert SOURCE not in found
        assert value(found) == best
        assert all(found <= cut for cut in cuts if value(cut) == best)


# States ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> tuple[TwoPhases, Feeds]:
    text = "g (float[N,3] x) => (float[N,2] y) { h = MatMul(x, w) t = Tanh(h) y = MatMul(t, v) }"
    made = phases(with_weights(text, {"w": (3, 4), "v": (4, 2)}), trainable=["w", "v"])
    return opened(made), weights_of(made)


def test_states_interleave(pair: tuple[TwoPhases, Feeds]) -> None:
    both, weights = pair
    random = np.random.default_rng(0)
    batches = [random.normal(size=(rows, 3)).astype(np.float32) for rows in (2, 5, 3)]

    def gradient(result: Any) -> np.ndarray:
        ones = np.ones(result.outputs["y"].shape(), np.float32)
        return both.backward(result.state, {"y": ones})["w"].numpy()

    alone = [gradient(both.forward({"x": x, **weights})) for x in batches]
    started = [both.forward({"x": x, **weights}) for x in batches]
    for index in (1, 2, 0):
        np.testing.assert_array_equal(gradient(started[index]), alone[index])


def test_a_state_serves_once_and_then_holds_nothing(pair: tuple[TwoPhases, Feeds]) -> None:
    both, weights = pair
    result = both.forward({"x": np.ones((2, 3), np.float32), **weights})
    state = result.state
    assert set(state.values or ()) == {"x", "v", "t"}
    both.backward(state, {"y": np.ones((2, 2), np.float32)})
    assert state.values is None
    with pytest.raises(OnwardError, match="used up"):
        both.backward(state, {"y": np.ones((2, 2), np.float32)})


def test_a_backward_pass_that_is_refused_leaves_the_state(pair: tuple[TwoPhases, Feeds]) -> None:
    both, weights = pair
    state = both.forward({"x": np.ones((2, 3), np.float32), **weights}).state
    for wrong, message in (
        ({"y": np.ones((3, 2), np.float32)}, r"gradient of output 'y' must have its shape \[2, 2\], not \[3, 2\]"),
        ({"z": None}, "there is no output 'z'; the model has y"),
        ({"y": np.ones((2, 2))}, r"must be tensor\(float\), not tensor\(double\)"),
    ):
        with pytest.raises(OnwardError, match=message):
            both.backward(state, wrong)
    assert both.backward(state, {"y": np.ones((2, 2), np.float32)})["v"].shape() == [4, 2]


def test_feeds_are_checked(pair: tuple[TwoPhases, Feeds]) -> None:
    both, weights = pair
    with pytest.raises(OnwardError, match="the forward graph takes x, w, v; 'x' is missing"):
        both.forward(weights)
    with pytest.raises(OnwardError, match="'z' is none of them"):
        both.forward({"x": np.ones((2, 3), np.float32), "z": np.ones(1), **weights})


def test_pairs_that_do_not_belong_together(pair: tuple[TwoPhases, Feeds]) -> None:
    made = [
        phases(with_weights(MANY, {"w": (3, 4)}), trainable=["w"]),
        phases(with_weights(LOOP, {"w": (2, 2), "v": (2, 2)}), trainable=["w", "v"]),
    ]
    with pytest.raises(OnwardError, match="not made together"):
        TwoPhases(made[0].forward.SerializeToString(), made[1].backward.SerializeToString())
    with pytest.raises(OnwardError, match="not the forward graph of a pair"):
        TwoPhases(made[0].backward.SerializeToString(), made[0].forward.SerializeToString())
    assert PhaseState(None, {}).values is None


# Errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"trainable": ["u"]},
            UnknownNameError,
            "'u' should be trained, but the model has no initializer of that name",
        ),
        ({"trainable": ["x"]}, OnwardError, "which the caller feeds"),
        ({"trainable": ["w"], "requires_grad_inputs": ["w"]}, UnknownNameError, "which the model does not have"),
        ({"trainable": ["w"], "outputs": ["q"]}, UnknownNameError, "`outputs` names 'q'"),
        ({"trainable": ["w"], "outputs": ["best"]}, NotDifferentiableError, "'best' have no gradient"),
        ({"trainable": ["w"], "fed": ["q"]}, UnknownNameError, "`fed` names 'q'"),
        ({"trainable": []}, OnwardError, "nothing to differentiate with respect to"),
        ({"trainable": "w"}, OnwardError, "`trainable` is a list of names"),
    ],
)
def test_mistakes(options: dict[str, Any], error: type[OnwardError], message: str) -> None:
    with pytest.raises(error, match=message):
        phases(with_weights(MANY, {"w": (3, 4)}), **options)
