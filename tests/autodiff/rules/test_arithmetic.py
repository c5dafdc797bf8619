"""Functions of several tensors that broadcast."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.testing import check_gradient, check_vjp, run_on_runtime

RANDOM = np.random.default_rng(0)

# Equal, one side longer, both sides stretched, an axis of 1 on both sides, scalars.
PAIRS = [
    ((2, 3), (2, 3)),
    ((2, 3), (3,)),
    ((3,), (2, 3)),
    ((2, 1), (1, 3)),
    ((2, 1, 3), (4, 1)),
    ((2, 1), (1, 1)),
    ((), (2, 2)),
    ((2,), ()),
    ((), ()),
]


def normal(shape):
    return np.asarray(RANDOM.normal(size=shape))


def away_from_zero(shape):
    return np.asarray(RANDOM.uniform(0.5, 2.0, size=shape) * RANDOM.choice([-1, 1], size=shape))


def positive(shape):
    return np.asarray(RANDOM.uniform(0.5, 2.0, size=shape))


@pytest.mark.parametrize(("a", "b"), PAIRS)
@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_four_operations(op_type, a, b):
    check_vjp(op_type, [normal(a), away_from_zero(b)], opset=13)


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("opset", [12, 18, 22])
def test_opsets(op_type, opset):
    check_vjp(op_type, [normal((2, 1)), away_from_zero((1, 3))], opset=opset)


@pytest.mark.parametrize(
    ("op_type", "scale"), [("Add", 2.0), ("Sub", 0.0), ("Mul", "2x"), ("Div", 0.0), ("Max", 1.0), ("Min", 1.0)]
)
def test_same_value_twice(op_type, scale):
    x = np.array([1.0, -2.0, 3.0], np.float32)
    model = small_model([helper.make_node(op_type, ["x", "x"], ["y"])], {"x": x})
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": np.ones_like(x)})["x_grad"]
    np.testing.assert_allclose(got, 2 * x if scale == "2x" else np.full_like(x, scale), atol=1e-6)


def small_model(nodes, feeds, *, opset=13, constants=None, shape=None):
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    first = next(iter(feeds.values()))
    output = helper.make_tensor_value_info(
        "y", helper.np_dtype_to_tensor_dtype(first.dtype), first.shape if shape is None else shape
    )
    stored = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", infos, [output], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_pow_of_two_tensors(a, b):
    check_vjp("Pow", [positive(a), normal(b)], opset=13)


@pytest.mark.parametrize("exponent", [-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_pow_of_constant(exponent, opset, shape):
    check_vjp("Pow", [positive((2, 3)), np.full(shape, exponent)], opset=opset, constants=[1])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_pow_of_integer(exponent, stored, dtype):
    a = away_from_zero((2, 3))
    a[0, 0] = 0
    check_vjp("Pow", [a, np.array([exponent], dtype)], opset=13, constants=[1] if stored else [])


@pytest.mark.parametrize("exponents", [[0.0, 1.0, 2.0, 3.0], [2.0], [0.0]])
@pytest.mark.parametrize("stored", [True, False])
def test_pow_of_base_zero_as_in_torch(exponents, stored):
    a, b = np.zeros(4, np.float32), np.array(exponents, np.float32)
    node = helper.make_node("Pow", ["a", "b"], ["y"])
    model = small_model([node], {"a": a} if stored else {"a": a, "b": b}, constants={"b": b} if stored else None)
    got = run_on_runtime(onward.gradient(model, wrt=["a", "b"]), {"a": a, "b": b, "y_grad": np.ones(4, np.float32)})
    ta, tb = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    torch.pow(ta, tb).sum().backward()
    np.testing.assert_allclose(got["a_grad"], ta.grad)
    np.testing.assert_allclose(got["b_grad"], tb.grad)


def test_old_models_keep_their_opset():
    """Terms that nobody uses (the slope in the exponent) must not force a newer opset."""
    x = np.ones((2, 3), np.float32)
    node = helper.make_node("Pow", ["x", "two"], ["y"])
    model = small_model([node], {"x": x}, opset=9, constants={"two": np.array(2, np.float32)})
    assert onward.gradient(model, wrt=["x"]).opset_import[0].version == 9


@pytest.mark.parametrize("op_type", ["Sum", "Max", "Min"])
@pytest.mark.parametrize(
    "shapes", [[(2, 3)], [(2, 3), (2, 3)], [(2, 3), (3,), (2, 1)], [(), (2, 2)], [(1, 3), (2, 1), (1, 1), (2, 3)]]
)
@pytest.mark.parametrize("opset", [12, 13])
def test_many_inputs(op_type, shapes, opset):
    check_vjp(op_type, [normal(shape) for shape in shapes], opset=opset)


@pytest.mark.parametrize("shapes", [[(2, 3)], [(2, 3), (3,), (2, 1)], [(), (2, 2)], [(1, 3), (2, 1), (1, 1)]])
@pytest.mark.parametrize("opset", [12, 13])
def test_mean(shapes, opset):
    # The reference evaluator cannot broadcast the first input, and onnxruntime has a float kernel only; in float32
    # differences of a linear function are good to three digits.
    inputs = [normal(shape) for shape in shapes]
    check_vjp("Mean", inputs, opset=opset, dtype=np.float32, tolerance=1e-3, run=run_on_runtime)


@pytest.mark.parametrize("op_type", ["Max", "Min"])
def test_ties_are_split_evenly(op_type):
    a, b, c = (np.array(row, np.float32) for row in ([1, 2, 3, 0], [1, 2, 0, 3], [1, 5, 0, 3]))
    feeds = {"a": a, "b": b, "c": c}
    model = small_model([helper.make_node(op_type, list(feeds), ["y"])], feeds)
    got = run_on_runtime(onward.gradient(model, wrt=list(feeds)), {**feeds, "y_grad": np.ones(4, np.float32)})
    stacked = np.stack([a, b, c])
    hit = stacked == (stacked.max(0) if op_type == "Max" else stacked.min(0))
    np.testing.assert_allclose([got[f"{name}_grad"] for name in feeds], hit / hit.sum(0))


@pytest.mark.parametrize(
    ("condition", "a", "b"),
    [((2, 3), (2, 3), (2, 3)), ((2, 1), (3,), (2, 3)), ((2, 3), (1,), ()), ((3,), (2, 1), (1, 1)), ((), (2,), (2,))],
)
@pytest.mark.parametrize("opset", [12, 16])
def test_where(condition, a, b, opset):
    check_vjp("Where", [RANDOM.integers(0, 2, size=condition).astype(bool), normal(a), normal(b)], opset=opset)


# Values away from the bounds, on both sides of each.
CLIPPED = np.array([[-2.0, -1.2, -0.3], [0.4, 1.3, 2.1]])
LOW, HIGH = np.array(-0.7), np.array(0.9)


@pytest.mark.parametrize(("low", "high"), [(LOW, HIGH), (LOW, None), (None, HIGH), (None, None)])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("opset", [11, 12, 18])
def test_clip(low, high, stored, opset):
    constants = [i for i, bound in ((1, low), (2, high)) if bound is not None and stored]
    # onnxruntime has a double kernel since opset 12 only, the reference evaluator is enough before.
    check_vjp("Clip", [CLIPPED, low, high], opset=opset, constants=constants)


def test_clip_of_crossed_bounds():
    """The standard lets the upper bound win, so that y is that bound everywhere."""
    check_vjp("Clip", [CLIPPED, np.array(0.6), np.array(-0.6)], opset=13)


@pytest.mark.parametrize("bounds", [{"min": -0.7, "max": 0.9}, {"min": -0.7}, {"max": 0.9}, {}])
@pytest.mark.parametrize("opset", [7, 10])
def test_clip_with_attributes(bounds, opset):
    """Bounds were attributes up to opset 10, in which onnxruntime has a float kernel only."""
    x = CLIPPED.astype(np.float32)
    model = small_model([helper.make_node("Clip", ["x"], ["y"], **bounds)], {"x": x}, opset=opset)
    check_gradient(model, {"x": x}, wrt=["x"], tolerance=1e-3, step=1e-2, run=run_on_runtime)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.5, 0.5, [0, 1, 1, 1, 0]),
        (0.0, 0.5, [0, 0, 0, 0, 0]),
        (0.0, 1.0, [0, 0, 0, 1, 0]),
        (0.0, None, [0, 0, 0, 1, 1]),
    ],
    ids=["clamp", "ReLU6", "ReLU6 inside", "relu"],
)
def test_clip_on_its_bounds_as_in_torch(low, high, expected):
    x = np.array([-1, -0.5, 0, 0.5, 1], np.float32)
    bounds = {"low": low} if high is None else {"low": low, "high": high}
    constants = {name: np.array(bound, np.float32) for name, bound in bounds.items()}
    model = small_model([helper.make_node("Clip", ["x", *bounds], ["y"])], {"x": x}, constants=constants)
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": np.ones_like(x)})["x_grad"]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("shape", "slope"),
    [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 3, 2, 2), (3, 1, 1)), ((2, 3, 2), (1,)), ((2, 3), ()), ((2, 3), (2, 1))],
)
@pytest.mark.parametrize("opset", [12, 16])
def test_prelu(shape, slope, opset):
    check_vjp("PRelu", [away_from_zero(shape), normal(slope)], opset=opset)


def test_prelu_slope_of_length_channels():
    """onnxruntime and old exporters take `[C]` of `[N, C]`; for more axes the standard wants `[C, 1, 1]`."""
    x = away_from_zero((4, 3))
    check_vjp("PRelu", [x, normal((3,))], opset=13, constants=[1])


@pytest.mark.parametrize(("a", "b"), [((2, 3), (2, 3)), ((2, 3), (3,)), ((1, 3), (2, 1))])
def test_mod(a, b):
    # Away from multiples of b, where it jumps.
    divisor = positive(b)
    quotient = RANDOM.integers(-3, 3, size=np.broadcast_shapes(a, b)) + RANDOM.uniform(0.2, 0.8)
    dividend = quotient * divisor if a == np.broadcast_shapes(a, b) else np.array([[0.3, -0.2, 0.45]])
    check_vjp("Mod", [dividend, divisor], opset=13, fmod=1)


def test_half_and_double_models_on_onnxruntime():
    """A network of several rules in every precision that onnxruntime runs."""
    random = np.random.default_rng(3)
    arrays = {"x": random.normal(size=(4, 6)), "w": random.normal(size=(6, 5)) / 2, "b": random.normal(size=5)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Mul", ["r", "r"], ["s"]),
        helper.make_node("Sigmoid", ["h"], ["g"]),
        helper.make_node("Add", ["s", "g"], ["t"]),
        helper.make_node("LogSoftmax", ["t"], ["l"], axis=-1),
        helper.make_node("Max", ["l", "g"], ["m"]),
        helper.make_node("ReduceMean", ["m"], ["y"], keepdims=0),
    ]
    results = {}
    for dtype in (np.float16, np.float32, np.float64):
        feeds = {name: array.astype(dtype) for name, array in arrays.items()}
        model = onward.gradient(small_model(nodes, feeds, shape=()), wrt=list(feeds), of="y")
        assert TensorProto.FLOAT not in {t.data_type for t in model.graph.initializer} or dtype == np.float32
        results[dtype] = run_on_runtime(model, feeds)
    for name in arrays:
        exact = results[np.float64][f"{name}_grad"]
        assert exact.dtype == np.float64
        np.testing.assert_allclose(results[np.float32][f"{name}_grad"], exact, atol=1e-6)
        np.testing.assert_allclose(results[np.float16][f"{name}_grad"], exact, atol=5e-3)
