"""Quantised models: straight-through estimators, scales that are learned, and integer arithmetic, which is refused."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import MissingRuleError
from onward.testing import check_vjp, run_on_reference, run_on_runtime

SCALE = np.array(0.1, np.float32)


def array(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def model_of(nodes, feeds, weights=None, opset=21, dims=None, output=TensorProto.FLOAT):
    """A model with the output y; `feeds` are its inputs."""
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(x.dtype),
            x.shape if dims is None else [dims and f"{name}{i}" for i in range(x.ndim)],
        )
        for name, x in feeds.items()
    ]
    initializers = [numpy_helper.from_array(x, name) for name, x in (weights or {}).items()]
    y = helper.make_tensor_value_info("y", output, None)
    graph = helper.make_graph(nodes, "quantised", inputs, [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def pair(**attributes):
    """Quantise and dequantise x with the scale s and the zero point z."""
    return [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]


def gradients(model, feeds, dy, wrt, run=run_on_runtime):
    return run(onward.gradient(model, wrt=wrt), {**feeds, "y_grad": dy})


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 25])
@pytest.mark.parametrize("dims", [None, "symbolic"])
@pytest.mark.parametrize(
    ("zero", "limits"), [(np.uint8(100), (0, 255)), (np.int8(5), (-128, 127))]
)  # torch rounds negative zero points up
def test_one_scale_as_torch(opset, dims, zero, limits):
    """Some elements saturate at either end; none lies on the ends, where conventions differ."""
    feeds = {"x": array(4, 6, scale=12), "s": SCALE}
    dy = array(4, 6, seed=1)
    got = gradients(model_of(pair(), feeds, {"z": zero}, opset, dims), feeds, dy, ["x", "s"])
    x, s = torch.tensor(feeds["x"], requires_grad=True), torch.tensor(SCALE.reshape(1), requires_grad=True)
    point = torch.tensor([float(zero)])
    y = torch._fake_quantize_learnable_per_tensor_affine(x, s, point, *limits, grad_factor=1.0)
    y.backward(torch.tensor(dy))
    assert (x.grad == 0).any(), "nothing saturates"
    assert (x.grad != 0).any()
    np.testing.assert_allclose(got["y"], y.detach(), atol=1e-5)
    np.testing.assert_allclose(got["x_grad"], x.grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["s_grad"], s.grad[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [None, "symbolic"])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_a_scale_for_each_place_of_an_axis_as_torch(axis, dims):
    feeds = {"x": array(3, 3, 3, scale=9), "s": np.array([0.05, 0.1, 0.2], np.float32)}
    zero, dy = np.array([3, -7, 0], np.int8), array(3, 3, 3, seed=1)
    attributes = {} if axis is None else {"axis": axis}
    model = model_of(pair(**attributes), feeds, {"z": zero}, 13, dims)
    got = gradients(model, feeds, dy, ["x", "s"])
    x, s = torch.tensor(feeds["x"], requires_grad=True), torch.tensor(feeds["s"], requires_grad=True)
    y = torch._fake_quantize_learnable_per_channel_affine(
        x, s, torch.tensor(zero.astype(np.float32)), 1 if axis is None else axis % 3, -128, 127, 1.0
    )
    y.backward(torch.tensor(dy))
    np.testing.assert_allclose(got["x_grad"], x.grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["s_grad"], s.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dims", [None, "symbolic"])
@pytest.mark.parametrize(("axis", "length"), [(0, 6), (1, 6), (1, 5)])
def test_a_scale_for_each_block(axis, length, dims):
    """As with that scale repeated for every element: blocks of 3, the last of which may be shorter."""
    shape = (length, 2) if axis == 0 else (2, length)
    feeds = {"x": array(*shape, scale=9), "s": array(2, 2, seed=2) ** 2 + np.float32(0.05)}
    zero, dy = np.array([[1, 2], [3, 4]], np.int8), array(*shape, seed=1)
    # onnxruntime wants whole blocks; the reference evaluator does not.
    run = run_on_runtime if length == 6 else run_on_reference
    model = model_of(pair(axis=axis, block_size=3), feeds, {"z": zero}, 21, dims)
    got = gradients(model, feeds, dy, ["x", "s"], run)
    x, s = torch.tensor(feeds["x"], requires_grad=True), torch.tensor(feeds["s"], requires_grad=True)
    scale, point = (torch.repeat_interleave(v, 3, axis).narrow(axis, 0, length) for v in (s, torch.tensor(zero)))
    units = x / scale
    whole = units + (torch.round(units) - units).detach() + point
    y = (torch.clip(whole, -128, 127) - point) * scale
    y.backward(torch.tensor(dy))
    np.testing.assert_allclose(got["x_grad"], x.grad, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got["s_grad"], s.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "largest"), [(TensorProto.FLOAT8E4M3FN, 448), (TensorProto.INT4, 7), (TensorProto.UINT16, 65535)]
)
def test_other_types(dtype, largest):
    """What is larger than the type holds gets nothing, the rest the cotangent as it is."""
    feeds = {"x": np.array([1.5, largest * 0.5, largest * 1.5, 0.25], np.float32), "s": np.array(1, np.float32)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=dtype),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
    ]
    got = gradients(model_of(nodes, feeds, None, 21), feeds, array(4, seed=1), ["x"], run_on_reference)
    np.testing.assert_allclose(got["x_grad"], array(4, seed=1) * [1, 1, 0, 1], rtol=1e-6)


def test_float16():
    feeds = {"x": array(3, 4, scale=9).astype(np.float16), "s": np.array(0.1, np.float16)}
    dy = array(3, 4, seed=1).astype(np.float16)
    model = model_of(pair(), feeds, {"z": np.uint8(128)}, 19, output=TensorProto.FLOAT16)
    got = gradients(model, feeds, dy, ["x", "s"], run_on_reference)
    wide = {name: np.asarray(value.astype(np.float32)) for name, value in feeds.items()}
    wanted = gradients(model_of(pair(), wide, {"z": np.uint8(128)}, 19), wide, dy.astype(np.float32), ["x", "s"])
    assert got["x_grad"].dtype == got["s_grad"].dtype == np.float16
    np.testing.assert_allclose(got["x_grad"], wanted["x_grad"], rtol=1e-2)
    np.testing.assert_allclose(got["s_grad"], wanted["s_grad"], rtol=1e-1)


@pytest.mark.parametrize("zero", [None, np.int8(3)])
def test_scale_of_integers(zero):
    """Linear in the scale, so that differences are exact."""
    q = np.random.default_rng(0).integers(-100, 100, (3, 4)).astype(np.int8)
    inputs = [q, np.array(0.1), zero][: 2 if zero is None else 3]
    check_vjp(
        "DequantizeLinear", inputs, opset=13, dtype=np.float32, tolerance=1e-2, second_order=False,
        run=run_on_runtime,
    )  # fmt: skip


@pytest.mark.parametrize("opset", [13, 21])
def test_frozen_integer_weight(opset):
    """x W with W stored as integers: gradients reach x, and the scale where it is asked for; W is not a parameter."""
    feeds = {"x": array(2, 4)}
    weights = {
        "w": np.random.default_rng(0).integers(-100, 100, (4, 3)).astype(np.int8),
        "s": np.array([0.1, 0.2, 0.3], np.float32),
        "z": np.array([1, 2, 3], np.int8),
        "b": array(3, seed=2),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"], axis=1),
        helper.make_node("MatMul", ["x", "v"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["y"]),
    ]
    model, dy = model_of(nodes, feeds, weights, opset), array(2, 3, seed=1)
    got = gradients(model, feeds, dy, ["x", "s"])
    steps = weights["w"].astype(np.float32) - weights["z"]
    np.testing.assert_allclose(got["x_grad"], dy @ (steps * weights["s"]).T, rtol=1e-5)
    np.testing.assert_allclose(got["s_grad"], np.sum(feeds["x"].T @ dy * steps, axis=0), rtol=1e-5)
    names = [output.name for output in onward.gradient(model).graph.output]
    assert names == ["y", "b_grad"], "scales are settings, and integers no parameters"


@pytest.mark.parametrize(
    "moves",
    [
        [helper.make_node("Transpose", ["q"], ["m"], perm=[1, 0])],
        [helper.make_node("Flatten", ["q"], ["n"], axis=0), helper.make_node("Identity", ["n"], ["m"])],
        [helper.make_node("Concat", ["q", "q"], ["m"], axis=0)],
    ],
)
def test_integers_that_are_only_moved(moves):
    feeds = {"x": array(2, 3)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        *moves,
        helper.make_node("DequantizeLinear", ["m", "s"], ["d"]),
        helper.make_node("Mul", ["d", "d"], ["d2"]),
        helper.make_node("ReduceSum", ["d2"], ["y"], keepdims=0),
    ]
    model = model_of(nodes, feeds, {"s": np.float32(0.01)}, 13)
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), feeds)["x_grad"]
    copies = 2 if moves[0].op_type == "Concat" else 1
    # Negative numbers saturate: there is no zero point.
    whole = np.round(feeds["x"] / 0.01) * 0.01
    np.testing.assert_allclose(got, np.where(feeds["x"] > 0, 2 * copies * whole, 0), rtol=1e-4, atol=1e-5)


def test_dynamic_quantisation():
    """Its function body gives the scale a derivative, and its QuantizeLinear lets x through."""
    feeds = {"x": array(3, 4)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    dy = array(3, 4, seed=1)
    got = gradients(model_of(nodes, feeds, None, 13), feeds, dy, ["x"])["x_grad"]
    # Straight through, but for the largest and the smallest element, by which the scale moves.
    x = feeds["x"]
    others = (x != x.max()) & (x != x.min())
    np.testing.assert_allclose(got[others], dy[others], rtol=1e-5)
    assert not np.allclose(got[~others], dy[~others])


def quantised(*nodes):
    return [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]), *nodes]


INTEGER = {
    "QLinearMatMul": quantised(
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["r"], name="product"),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ),
    "MatMulInteger": quantised(
        helper.make_node("MatMulInteger", ["q", "w"], ["r"], name="product"),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ),
    "MatMulInteger of dynamic": [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        helper.make_node("MatMulInteger", ["q", "w", "xz"], ["r"], name="product"),
        helper.make_node("Cast", ["r"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["c", "xs"], ["y"]),
    ],
    "Max of": quantised(
        helper.make_node("Max", ["q", "w"], ["r"], name="product"),
        helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ),
}


@pytest.mark.parametrize("operator", INTEGER)
def test_integer_arithmetic_is_refused(operator):
    feeds = {"x": array(4, 4)}
    weights = {"s": SCALE, "z": np.uint8(3), "w": np.zeros((4, 4), np.uint8)}
    model = model_of(INTEGER[operator], feeds, weights, 13)
    with pytest.raises(MissingRuleError) as error:
        onward.gradient(model, wrt=["x"])
    message = str(error.value)
    assert f"  {operator.split()[0]}: product" in message
    assert "integers" in message
    assert "QDQ" in message


@pytest.mark.parametrize("operator", ["ConvInteger", "QLinearConv"])
def test_integer_convolution_is_refused(operator):
    feeds = {"x": array(1, 1, 4, 4)}
    weights = {"s": SCALE, "z": np.uint8(3), "w": np.zeros((1, 1, 2, 2), np.uint8)}
    inputs = ["q", "w"] if operator == "ConvInteger" else ["q", "s", "z", "w", "s", "z", "s", "z"]
    cast = operator == "ConvInteger"
    after = (
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT)
        if cast
        else helper.make_node("DequantizeLinear", ["r", "s", "z"], ["y"])
    )
    nodes = quantised(helper.make_node(operator, inputs, ["r"], name="layer"), after)
    with pytest.raises(MissingRuleError, match=rf"{operator}: layer[\s\S]*QDQ"):
        onward.gradient(model_of(nodes, feeds, weights, 13), wrt=["x"])


def test_integer_arithmetic_after_which_no_parameter_comes_is_no_blocker():
    """What is before it does not matter to parameters after it."""
    feeds = {"x": array(4, 4)}
    weights = {"s": SCALE, "z": np.uint8(3), "w": np.zeros((4, 4), np.uint8), "b": array(4)}
    nodes = [*INTEGER["MatMulInteger"][:-1], helper.make_node("Cast", ["r"], ["c"], to=TensorProto.FLOAT)]
    nodes.append(helper.make_node("Add", ["c", "b"], ["y"]))
    dy = array(4, 4, seed=1)
    got = gradients(model_of(nodes, feeds, weights, 13), feeds, dy, ["b"])["b_grad"]
    np.testing.assert_allclose(got, dy.sum(axis=0), rtol=1e-5)
