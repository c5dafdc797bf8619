"""Small models with the structures of the real ones, so that `make test` meets them without a download.

Gradients are compared with differences, in float64; then the model is run in float32 on onnxruntime.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onward import gradient
from onward.graph.prepare import prepare
from onward.graph.shapes import dims
from onward.testing import check_gradient, run_on_runtime


def model_from(text: str, opset: int = 16) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    onnx.checker.check_model(model)
    return model


def random_feeds(seed: int, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in prepare(model).graph.all_nodes()}


# A squeeze as the older torch exporter writes it; what follows says which branch is taken, as in Silero's detector.
SQUEEZE = """g (double[n, 3, t] x, double[4, 3, 3] w0, double[2, 4, 1] w1) => (double[n, 2, m] y) {
    h = Conv(x, w0)
    s = Shape(h)
    i = Constant<value_ints = [2]>()
    one = Constant<value_ints = [1]>()
    size = Gather(s, i)
    alone = Equal(size, one)
    z = If(alone) <
        then_branch = a () => (double[p, q] squeezed) { squeezed = Squeeze(h, i) },
        else_branch = b () => (double[p, q, r] same) { same = Identity(h) }
    >
    u = Unsqueeze(z, i)
    c = Relu(u)
    y = Conv(c, w1)
}"""


def test_a_branch_of_another_rank_than_what_follows_is_never_taken():
    model = model_from(SQUEEZE)
    assert "If" not in operators(model)
    check_gradient(model, random_feeds(0, x=(2, 3, 3), w0=(4, 3, 3), w1=(2, 4, 1)), wrt=["w0", "w1", "x"])


# Both branches can be taken: their ranks differ, and what follows takes either.
EITHER_RANK = """g (double[n, 3] x, double[3] scale) => (double y) {
    w = Mul(x, scale)
    rows = Shape<start = 0, end = 1>(x)
    one = Constant<value_ints = [1]>()
    zero = Constant<value_ints = [0]>()
    alone = Equal(rows, one)
    z = If(alone) <
        then_branch = a () => (double[3] squeezed) { squeezed = Squeeze(w, zero) },
        else_branch = b () => (double[n, 3] same) { same = Identity(w) }
    >
    e = Exp(z)
    y = ReduceSum<keepdims = 0>(e)
}"""


@pytest.mark.parametrize("rows", [1, 2])
def test_branches_of_different_rank(rows: int):
    check_gradient(model_from(EITHER_RANK), random_feeds(0, x=(rows, 3), scale=(3,)), wrt=["scale", "x"])


# TensorFlow and Paddle hand weights to a loop as states; others are written in each iteration and never read, and
# begin with a placeholder of another shape.
STATES = """g (double[n, 3] x, int64 count, double[3, 3] w, double[3] b, double[3, 2] v)
    => (double[n, 3] y, double[n, 2] last) {
    start = Constant<value = bool {1}>()
    placeholder = Constant<value_float = 0.0>()
    nothing = CastLike(placeholder, x)
    y, w_out, b_out, last, unused = Loop(count, start, x, w, b, nothing, x) <
        body = step (int64 i, bool go, double[n, 3] h, double[3, 3] w_in, double[3] b_in, double old, double[n, 3] idle)
            => (bool going, double[n, 3] h_out, double[3, 3] w_in, double[3] b_same, double[n, 2] part,
                double[n, 3] h2) {
            going = Identity(go)
            b_same = Identity(b_in)
            product = MatMul(h, w_in)
            sum = Add(product, b_same)
            h_out = Tanh(sum)
            part = MatMul(h_out, v)
            h2 = Identity(h_out)
        }
    >
}"""


@pytest.mark.parametrize("count", [1, 3])
def test_weights_and_results_as_states_of_a_loop(count: int):
    model = model_from(STATES)
    loop = next(node for node in prepare(model).graph if node.op_type == "Loop")
    assert len(loop.inputs) == 2 + 2, "h and the state that is written only"
    feeds = {**random_feeds(0, x=(2, 3), w=(3, 3), b=(3,), v=(3, 2)), "count": np.array(count)}
    # The reference evaluator joins the scan outputs of a Loop along their first axis instead of stacking them.
    check_gradient(model, feeds, wrt=["w", "b", "v", "x"], of=["y", "last"], run=run_on_runtime)


def test_a_state_that_no_iteration_reads_keeps_its_cotangent_when_none_runs():
    model = model_from("""g (double[2] x, int64 count) => (double[2] y) {
        start = Constant<value = bool {1}>()
        y = Loop(count, start, x) <
            body = step (int64 i, bool go, double[2] old) => (bool going, double[2] new) {
                going = Identity(go)
                new = Constant<value = double[2] {3, 4}>()
            }
        >
    }""")
    built = gradient(model, wrt=["x"])
    for count, expected in ((0, [5, 7]), (2, [0, 0])):
        feeds = {"x": np.array([1.0, 2.0]), "count": np.array(count), "y_grad": np.array([5.0, 7.0])}
        np.testing.assert_array_equal(run_on_runtime(built, feeds)["x_grad"], expected)


def test_minus_one_and_question_marks_are_no_dimensions():
    """Old exporters of Paddle write [-1, 3, '?', '?'] for three dimensions that have nothing to do with each other."""
    text = "g (double[a, 2, b, c] x, double[3, 2, 2, 2] w) => (double[d, 3, e, f] y) { y = Conv(x, w) }"
    model = model_from(text)
    for value in (model.graph.input[0], model.graph.output[0]):
        for axis, name in ((0, -1), (2, "?"), (3, "?")):
            dim = value.type.tensor_type.shape.dim[axis]
            if isinstance(name, int):
                dim.dim_value = name
            else:
                dim.dim_param = name
    x = next(value for value in prepare(model).graph.inputs if value.name == "x")
    assert dims(x) == (None, 2, None, None)
    check_gradient(model, random_feeds(0, x=(2, 2, 4, 3), w=(3, 2, 2, 2)), wrt=["w", "x"])


def test_numbers_of_the_example_that_a_model_was_traced_with():
    """They contradict what the model does with another length; a cotangent must have the length of the output."""
    model = model_from("""g (double[n, 3] x, double[3, 2] w) => (double[1, 11] y) {
        z = MatMul(x, w)
        s = Shape(z)
        target = ReduceProd<keepdims = 1>(s)
        one = Constant<value_ints = [1]>()
        shape = Concat<axis = 0>(one, target)
        y = Reshape(z, shape)
    }""")
    check_gradient(model, random_feeds(0, x=(4, 3), w=(3, 2)), wrt=["w", "x"])
    feeds = {**random_feeds(0, x=(4, 3), w=(3, 2)), "y_grad": np.ones((1, 8))}
    assert run_on_runtime(gradient(model, wrt=["w"]), feeds)["w_grad"].shape == (3, 2)


def test_spectrum_of_a_signal_without_its_last_axis():
    """The standard wants [batch, length, 1]; onnxruntime takes [batch, length], of which onnx infers nothing."""
    model = model_from(
        """g (float[n, m] x, float[8] window, float[5, 4] bank) => (float[n, k, 4] y)
        <int64 hop = {4}> {
        s = STFT<onesided = 1>(x, hop, window)
        power = ReduceSumSquare<axes = [-1], keepdims = 0>(s)
        mel = MatMul(power, bank)
        y = Log(mel)
    }""",
        17,
    )
    rng = np.random.default_rng(0)
    values = {
        "window": rng.uniform(0.5, 1, 8).astype(np.float32),
        "bank": rng.uniform(0.5, 1, (5, 4)).astype(np.float32),
    }
    feeds = {"x": rng.normal(size=(2, 20)).astype(np.float32)}
    built = gradient(model, wrt=["window", "bank"])
    seed = rng.normal(size=(2, 4, 4)).astype(np.float32)

    def loss(given: dict[str, np.ndarray]) -> float:
        return float((run_on_runtime(built, {**feeds, **given, "y_grad": seed})["y"] * seed).sum())

    found = run_on_runtime(built, {**feeds, **values, "y_grad": seed})
    for name, value in values.items():
        direction = rng.normal(size=value.shape).astype(np.float32)
        step = np.float32(1e-2)
        ahead, behind = (loss({**values, name: value + sign * step * direction}) for sign in (1, -1))
        # The differences are those of float32: onnxruntime alone takes such a signal.
        expected = (ahead - behind) / (2 * step)
        np.testing.assert_allclose((found[f"{name}_grad"] * direction).sum(), expected, rtol=1e-2)
