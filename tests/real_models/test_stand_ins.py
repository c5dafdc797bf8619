"""Small models with the structures of the real ones, so that `make test` meets them without a download.

Gradients are compared with differences, in float64; then the model is run in float32 on onnxruntime.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onward import gradient
from onward.errors import NotDifferentiableError, OnwardError
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


def test_an_output_of_another_rank_than_it_claims():
    """A recognizer of captchas says [1, seqlen] of what a Reshape to three computed sizes returns."""
    model = model_from(
        """g (double[n, 3, t] x, double[3, 2] w) => (double[n, seqlen] y) {
        z = Transpose<perm = [0, 2, 1]>(x)
        m = MatMul(z, w)
        s = Shape(m)
        twice = Add(s, s)
        shape = Sub(twice, s)
        y = Reshape(m, shape)
    }""",
        12,
    )
    check_gradient(model, random_feeds(0, x=(2, 3, 4), w=(3, 2)), wrt=["w", "x"])
    feeds = {**random_feeds(0, x=(2, 3, 4), w=(3, 2)), "y_grad": np.ones((2, 4, 2))}
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


def in_constants(model: onnx.ModelProto, **values: np.ndarray) -> onnx.ModelProto:
    """`model` with inputs turned into Constant nodes, as Paddle's exporter writes weights."""
    kept = [value for value in model.graph.input if value.name not in values]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    for name, value in values.items():
        tensor = onnx.numpy_helper.from_array(value, name)
        model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [name], value=tensor))
    return model


def test_weights_in_constant_nodes():
    text = """g (double[n, 3] x, double[3, 4] w, double[4] b) => (double[n, 4] y) {
        z = MatMul(x, w)
        s = Add(z, b)
        y = Softmax(s)
    }"""
    feeds = random_feeds(0, x=(2, 3), w=(3, 4), b=(4,))
    x, cotangent = feeds.pop("x"), np.random.default_rng(1).normal(size=(2, 4))
    expected = run_on_runtime(gradient(model_from(text), wrt=["w", "b"]), {"x": x, **feeds, "y_grad": cotangent})
    found = run_on_runtime(gradient(in_constants(model_from(text), **feeds)), {"x": x, "y_grad": cotangent})
    assert {"w_grad", "b_grad"} <= set(found), "trainable by default"
    for name in ("w_grad", "b_grad"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-12)


# Silero: a network for each rate, each with an LSTM whose weights are cut and joined anew, inside of an If.
LSTM_IN_IF = """g (double[n, 3, t] x, int64 rate, double[8, 3] w, double[8, 2] r, double[16] b, double[3, 2] v)
    => (double[n, 2] y) {
    fast = Constant<value_int = 16000>()
    is_fast = Equal(rate, fast)
    y = If(is_fast) <
        then_branch = wide () => (double[n, 2] yes) {
            order = Constant<value_ints = [2, 0, 1]>()
            sequence = Transpose<perm = [2, 0, 1]>(x)
            i, ofg = Split<axis = 0>(w, parts)
            again = Concat<axis = 0>(i, ofg)
            zero = Constant<value_ints = [0]>()
            w3 = Unsqueeze(again, zero)
            r3 = Unsqueeze(r, zero)
            b2 = Unsqueeze(b, zero)
            all, last = LSTM<hidden_size = 2>(sequence, w3, r3, b2)
            yes = Squeeze(last, zero)
        },
        else_branch = narrow () => (double[n, 2] no) {
            mean = ReduceMean<axes = [2], keepdims = 0>(x)
            no = MatMul(mean, v)
        }
    >
}"""


@pytest.mark.parametrize("rate", [16000, 8000])
def test_lstm_inside_of_a_branch(rate: int):
    model = model_from(LSTM_IN_IF.replace("=> (double[n, 2] y) {", "=> (double[n, 2] y) <int64[2] parts = {2, 6}> {"))
    shapes = {"x": (2, 3, 4), "w": (8, 3), "r": (8, 2), "b": (16,), "v": (3, 2)}
    feeds = {**random_feeds(0, **shapes), "rate": np.array(rate)}
    check_gradient(model, feeds, wrt=["w", "r", "b", "v", "x"])


# Vowels of Arabic: a bidirectional GRU over sequences of their own lengths, sorted by TopK and put back by scattering.
SORTED_GRU = """g (double[t, n, 3] x, int64[n] lengths, double[2, 6, 3] w, double[2, 6, 2] r, double[2, 12] b)
    => (double[t, n, 4] y) {
    count = Shape(lengths)
    sorted, order = TopK<axis = 0>(lengths, count)
    by_length = Gather<axis = 1>(x, order)
    short = Cast<to = 6>(sorted)
    h, last = GRU<hidden_size = 2, direction = "bidirectional", linear_before_reset = 1>(by_length, w, r, b, short)
    moved = Transpose<perm = [0, 2, 1, 3]>(h)
    shape = Constant<value_ints = [0, 0, 4]>()
    joined = Reshape(moved, shape)
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    size = Squeeze(count)
    places = Range(zero, size, one)
    positions = ScatterElements<axis = 0>(order, order, places)
    y = Gather<axis = 1>(joined, positions)
}"""


def test_sorted_sequences_through_a_bidirectional_gru():
    shapes = {"x": (4, 3, 3), "w": (2, 6, 3), "r": (2, 6, 2), "b": (2, 12)}
    feeds = {**random_feeds(0, **shapes), "lengths": np.array([2, 4, 3])}
    check_gradient(model_from(SORTED_GRU), feeds, wrt=["w", "r", "b", "x"])


# Vowels of Hebrew: tf2onnx writes an LSTM of Keras that runs backwards as ReverseSequence around a Loop.
REVERSED_LOOP = """g (double[n, t, 2] x, int64[n] lengths, double[2, 3] w, double[3, 3] r) => (double[n, t, 3] y) {
    turned = ReverseSequence<batch_axis = 0, time_axis = 1>(x, lengths)
    steps = Transpose<perm = [1, 0, 2]>(turned)
    sizes = Shape(steps)
    zero = Constant<value_int = 0>()
    one = Constant<value_ints = [1]>()
    two = Constant<value_ints = [2]>()
    count = Gather(sizes, zero)
    batch = Slice(sizes, one, two)
    width = Constant<value_ints = [3]>()
    shape = Concat<axis = 0>(batch, width)
    none = ConstantOfShape<value = double[1] {0}>(shape)
    start = Less(zero, count)
    h, all = Loop("", start, none) <
        body = step (int64 i, bool go, double[n, 3] before) => (bool going, double[n, 3] after, double[n, 3] copy) {
            this = Gather<axis = 0>(steps, i)
            a = MatMul(this, w)
            c = MatMul(before, r)
            s = Add(a, c)
            after = Tanh(s)
            copy = Identity(after)
            next = Add(i, one_more)
            going = Less(next, count)
        }
    >
    back = Transpose<perm = [1, 0, 2]>(all)
    y = ReverseSequence<batch_axis = 0, time_axis = 1>(back, lengths)
}"""


def test_loop_between_reversed_sequences():
    model = model_from(REVERSED_LOOP.replace("=> (double[n, t, 3] y)", "=> (double[n, t, 3] y) <int64 one_more = {1}>"))
    shapes = {"x": (2, 4, 2), "w": (2, 3), "r": (3, 3)}
    feeds = {**random_feeds(0, **shapes), "lengths": np.array([4, 3])}
    check_gradient(model, feeds, wrt=["w", "r", "x"])


# Structure of tables: what a Loop finds is written into a row of a state, at the place of the iteration.
WRITTEN_ROWS = """g (double[n, 3] x, double[3, 3] w, double[n, 4, 3] rows) => (double[n, 4, 3] y) <int64 last = {4}> {
    start = Constant<value = bool {1}>()
    h, y = Loop(last, start, x, rows) <
        body = step (int64 i, bool go, double[n, 3] before, double[n, 4, 3] old)
            => (bool going, double[n, 3] after, double[n, 4, 3] new) {
            going = Identity(go)
            z = MatMul(before, w)
            after = Tanh(z)
            axis = Constant<value_ints = [1]>()
            row = Unsqueeze(after, axis)
            shape = Shape(row)
            places = Expand(i, shape)
            new = ScatterElements<axis = 1>(old, places, row)
        }
    >
}"""


def test_rows_written_by_a_loop():
    feeds = random_feeds(0, x=(2, 3), w=(3, 3), rows=(2, 4, 3))
    check_gradient(model_from(WRITTEN_ROWS), feeds, wrt=["w", "x", "rows"])


def test_a_model_in_two_precisions():
    """A network in float whose last steps are in double, as that of swift-f0."""
    model = model_from("""g (float[n, 3] x, float[3, 4] w) => (double[n] y) {
        z = MatMul(x, w)
        e = Sigmoid(z)
        d = Cast<to = 11>(e)
        y = ReduceLogSumExp<axes = [1], keepdims = 0>(d)
    }""")
    feeds = {name: value.astype(np.float32) for name, value in random_feeds(0, x=(2, 3), w=(3, 4)).items()}
    found = run_on_runtime(gradient(model, wrt=["w"]), {**feeds, "y_grad": np.array([1.0, -2.0])})["w_grad"]
    x, w = feeds["x"].astype(float), feeds["w"].astype(float)
    e = 1 / (1 + np.exp(-x @ w))
    shares = np.exp(e) / np.exp(e).sum(1, keepdims=True) * np.array([[1.0], [-2.0]])
    np.testing.assert_allclose(found, x.T @ (shares * e * (1 - e)), rtol=1e-5, atol=1e-6)
    assert found.dtype == np.float32


def test_initializers_of_bodies_are_lifted_without_touching_the_model():
    """Two bodies have a weight of the same name; one of them gets another name, in our copy only."""
    model = model_from("""g (double[n, 2] x, bool first) => (double[n, 2] y) {
        y = If(first) <
            then_branch = a () => (double[n, 2] yes) <double[2] w = {1, 2}> { yes = Mul(x, w) },
            else_branch = b () => (double[n, 2] no) <double[2] w = {3, 4}> { no = Mul(x, w) }
        >
    }""")
    before = model.SerializeToString(deterministic=True)
    built = gradient(model)
    assert model.SerializeToString(deterministic=True) == before
    x, cotangent = np.array([[5.0, 6.0]]), np.array([[1.0, 10.0]])
    for first in (True, False):
        found = run_on_runtime(built, {"x": x, "first": np.array(first), "y_grad": cotangent})
        gradients = sorted(value.tolist() for name, value in found.items() if name.startswith("w"))
        assert gradients == [[0.0, 0.0], [5.0, 60.0]]


def test_what_numbers_are_compared_with_is_no_weight():
    model = model_from("""g (double[n, 2] x, double[2] w) => (double[n, 2] y) <double[2] bounds = {0.5, 1.5}> {
        z = Mul(x, w)
        above = Greater(x, bounds)
        y = Where(above, z, x)
    }""")
    with pytest.raises(OnwardError, match="no trainable"):
        gradient(model)


def test_a_model_that_ends_in_argmax():
    """The error says which value has a gradient."""
    model = model_from("""g (double[n, 3] x, double[3, 4] w) => (int64[n] y) {
        scores = MatMul(x, w)
        best = ArgMax<axis = 1, keepdims = 0>(scores)
        y = Identity(best)
    }""")
    with pytest.raises(NotDifferentiableError, match=r"No output has; name the value .* in `of`: 'scores'"):
        gradient(model, wrt=["w"])
