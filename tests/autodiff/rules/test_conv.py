"""Gradients of convolutions."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onward import gradient
from onward.testing import check_vjp, run_on_runtime


def arrays(x, w, bias=None, seed=0):
    random = np.random.default_rng(seed)
    shapes = [x, w] if bias is None else [x, w, [bias]]
    return [random.normal(size=shape) for shape in shapes]


# name: shape of x, shape of w, size of the bias or None, attributes
CONV = {
    "1d": ([2, 2, 6], [3, 2, 3], 3, {}),
    "1d, more places than slices are taken for": ([1, 1, 13], [2, 1, 11], 2, {"pads": [2, 1]}),
    "2d, few windows": ([1, 2, 3, 4], [6, 2, 2, 2], None, {"kernel_shape": [2, 2]}),
    "2d, strides and asymmetric pads": ([2, 1, 5, 4], [2, 1, 3, 2], 2, {"strides": [2, 3], "pads": [1, 0, 0, 2]}),
    "2d, dilations": ([1, 2, 6, 5], [2, 2, 2, 2], 2, {"dilations": [3, 2], "strides": [2, 1]}),
    "2d, data that no window reads": ([1, 1, 6, 7], [2, 1, 2, 1], None, {"strides": [3, 4]}),
    "2d, more channels than outputs": ([1, 3, 4, 4], [2, 3, 3, 2], None, {"pads": [1, 0, 0, 1], "dilations": [1, 2]}),
    "3d": ([1, 2, 3, 3, 4], [2, 2, 2, 1, 2], 2, {"strides": [1, 2, 1], "pads": [0, 0, 1, 1, 0, 0]}),
    "1x1": ([2, 3, 2, 3], [2, 3, 1, 1], 2, {}),
    "1x1, few windows": ([2, 3, 1, 2], [4, 3, 1, 1], None, {}),
    "1x1, stride": ([2, 2, 3, 4], [2, 2, 1, 1], None, {"strides": [2, 2]}),
    "groups": ([2, 4, 4, 3], [6, 2, 2, 2], 6, {"group": 2, "pads": [1, 1, 0, 0]}),
    "groups, 1x1": ([2, 4, 2, 2], [2, 2, 1, 1], None, {"group": 2}),
    "groups, many places": ([1, 4, 9, 4], [2, 2, 5, 2], None, {"group": 2, "pads": [1, 1, 0, 0]}),
    "groups, strides, dilations": ([1, 4, 7], [2, 2, 2], 2, {"group": 2, "strides": [3], "dilations": [2]}),
    "depthwise": ([2, 3, 4, 4], [3, 1, 3, 3], 3, {"group": 3, "pads": [1, 1, 1, 1]}),
    "depthwise, wide pads": ([1, 2, 3, 3], [2, 1, 2, 2], None, {"group": 2, "pads": [2, 1, 2, 1]}),
    "depthwise, stride": ([2, 2, 4, 5], [2, 1, 3, 3], 2, {"group": 2, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "depthwise, dilations": ([2, 2, 5, 4], [2, 1, 2, 3], None, {"group": 2, "dilations": [2, 1], "strides": [1, 2]}),
    "depthwise, stride above the filter": ([2, 2, 7, 6], [2, 1, 2, 3], None, {"group": 2, "strides": [3, 2]}),
    "depthwise, a filter for each line": ([2, 2, 4, 4], [2, 1, 2, 2], None, {"group": 2, "strides": [2, 2]}),
    "depthwise, wide": ([1, 2, 2, 33], [2, 1, 3, 2], None, {"group": 2, "pads": [1, 0, 1, 1]}),
    "depthwise, two filters a channel": ([1, 2, 5], [4, 1, 3], 4, {"group": 2, "dilations": [2], "pads": [2, 2]}),
    "VALID": ([1, 1, 5, 4], [2, 1, 2, 3], None, {"auto_pad": "VALID", "strides": [2, 1]}),
    "SAME_UPPER": ([1, 2, 5, 4], [2, 2, 2, 4], None, {"auto_pad": "SAME_UPPER"}),
    "SAME_UPPER, strides": ([1, 1, 5, 6], [2, 1, 4, 3], 2, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "SAME_LOWER, strides": ([1, 1, 5, 6], [2, 1, 4, 3], 2, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    "SAME_LOWER, kernel below stride": ([1, 1, 6, 5], [2, 1, 1, 2], 2, {"auto_pad": "SAME_LOWER", "strides": [3, 3]}),
    "SAME_UPPER, groups": ([1, 4, 6], [2, 2, 4], None, {"auto_pad": "SAME_UPPER", "strides": [3], "group": 2}),
}


@pytest.mark.parametrize("case", CONV)
def test_conv(case):
    x, w, bias, attributes = CONV[case]
    check_vjp("Conv", arrays(x, w, bias), **attributes)


# Not auto_pad with output_padding: onnx infers another output shape for it than onnxruntime computes.
TRANSPOSED = {
    "1d": ([2, 3, 4], [3, 2, 3], 2, {}),
    "2d, strides and asymmetric pads": ([1, 2, 3, 2], [2, 1, 3, 2], 1, {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
    "2d, dilations": ([1, 2, 3, 2], [2, 2, 2, 3], 2, {"dilations": [3, 2], "strides": [2, 1]}),
    "3d": ([1, 2, 2, 2, 2], [2, 1, 2, 1, 3], None, {"strides": [2, 1, 1], "pads": [0, 0, 1, 1, 0, 1]}),
    "many places": ([1, 1, 3], [1, 2, 10], 2, {"strides": [2], "pads": [3, 1]}),
    "1x1": ([2, 3, 2, 2], [3, 2, 1, 1], 2, {}),
    "1x1, stride": ([2, 2, 2, 2], [2, 3, 1, 1], None, {"strides": [2, 3]}),
    "groups": ([2, 4, 3], [4, 3, 2], 6, {"group": 2, "strides": [2]}),
    "depthwise": ([1, 3, 3, 3], [3, 1, 2, 2], None, {"group": 3, "strides": [2, 2], "pads": [0, 1, 1, 0]}),
    "output_padding": ([1, 2, 3, 2], [2, 1, 3, 2], 1, {"strides": [3, 2], "output_padding": [2, 1]}),
    "output_padding and pads": ([1, 1, 3], [1, 2, 4], 2, {"strides": [3], "output_padding": [2], "pads": [1, 1]}),
    "output_padding, groups": ([1, 2, 3], [2, 1, 2], 2, {"strides": [3], "output_padding": [2], "group": 2}),
    "VALID": ([1, 1, 3], [1, 2, 3], None, {"auto_pad": "VALID", "strides": [2]}),
    "SAME_UPPER": ([1, 2, 3, 3], [2, 1, 4, 3], 1, {"auto_pad": "SAME_UPPER", "strides": [1, 2]}),
    "SAME_LOWER": ([1, 2, 3, 3], [2, 1, 4, 3], 1, {"auto_pad": "SAME_LOWER", "strides": [1, 2]}),
    "output_shape, upper": ([1, 1, 3], [1, 2, 4], 2, {"output_shape": [5], "strides": [2], "auto_pad": "SAME_UPPER"}),
    "output_shape, lower": (
        [1, 2, 3],
        [2, 1, 4],
        2,
        {"output_shape": [5], "strides": [2], "auto_pad": "SAME_LOWER", "group": 2},
    ),
    "output_shape beyond": ([1, 1, 3], [1, 2, 4], 2, {"output_shape": [9], "strides": [2]}),
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_conv_transpose(case):
    x, w, bias, attributes = TRANSPOSED[case]
    check_vjp("ConvTranspose", arrays(x, w, bias), **attributes)


def one_node(op_type, shapes, opset=18, dtype=TensorProto.FLOAT, **attributes):
    names = ["x", "w", "b"][: len(shapes)]
    inputs = [helper.make_tensor_value_info(*row) for row in zip(names, [dtype] * 3, shapes, strict=False)]
    output = helper.make_tensor_value_info("y", dtype, [None] * len(shapes[0]))
    graph = helper.make_graph([helper.make_node(op_type, names, ["y"], **attributes)], "conv", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


TORCH = {
    "Conv": (torch.nn.functional.conv2d, ["N", 4, 9, 8], [6, 2, 3, 3], 6, {}),
    "ConvTranspose": (
        torch.nn.functional.conv_transpose2d,
        ["N", 4, 4, 5],
        [4, 3, 3, 3],
        6,
        {"output_padding": [1, 0]},
    ),
}


@pytest.mark.parametrize("opset", [7, 11, 22])
@pytest.mark.parametrize("op_type", TORCH)
def test_parity_with_torch_dynamic_batch(op_type, opset):
    function, x, w, bias, extra = TORCH[op_type]
    model = one_node(
        op_type, [x, w, [bias]], opset, strides=[2, 2], pads=[1, 2, 1, 2], dilations=[2, 1], group=2, **extra
    )
    feeds = {name: a.astype(np.float32) for name, a in zip("xwb", arrays([3, *x[1:]], w, bias), strict=True)}
    tensors = [torch.tensor(a, requires_grad=True) for a in feeds.values()]
    y = function(*tensors, stride=2, padding=(1, 2), dilation=(2, 1), groups=2, **extra)
    dy = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    y.backward(torch.tensor(dy))
    got = run_on_runtime(gradient(model, wrt=["x", "w", "b"]), {**feeds, "y_grad": dy})
    for name, tensor in zip("xwb", tensors, strict=True):
        np.testing.assert_allclose(got[f"{name}_grad"], tensor.grad, rtol=1e-4, atol=1e-4)


def test_known_sizes_need_no_computed_shapes():
    """With a dynamic batch only, nothing about shapes is left to run time."""
    model = one_node("Conv", [["N", 2, 8, 8], [4, 2, 3, 3], [4]], strides=[2, 2], pads=[1, 1, 1, 1])
    graph = gradient(model, wrt=["x", "w", "b"]).graph
    assert not {"Shape", "Gather", "Range"} & {node.op_type for node in graph.node}


@pytest.mark.parametrize(("op_type", "group"), [("Conv", 1), ("Conv", 2), ("ConvTranspose", 1), ("ConvTranspose", 2)])
@pytest.mark.parametrize("sizes", [[5, 6], [None, None]], ids=["static", "unknown"])
def test_an_empty_batch(op_type, group, sizes):
    """Zeros; onnxruntime never returns from a convolution over no channels, which samples are in the gradient of w."""
    w = [2, 2 // group, 3, 4] if op_type == "Conv" else [2, 1, 3, 4]
    differentiated = gradient(one_node(op_type, [["N", 2, *sizes], w], group=group, pads=[1, 0, 1, 2]), wrt=["x", "w"])
    channels = 2 if op_type == "Conv" else group
    y = [0, channels, 5, 5] if op_type == "Conv" else [0, channels, 5, 7]
    feeds = {"x": np.ones([0, 2, 5, 6], np.float32), "w": np.ones(w, np.float32), "y_grad": np.ones(y, np.float32)}
    got = run_on_runtime(differentiated, feeds)
    np.testing.assert_array_equal(got["w_grad"], np.zeros(w))
    assert got["x_grad"].shape == (0, 2, 5, 6)


def test_float16():
    x, w, bias = [2, 2, 5, 5], [3, 2, 3, 3], 3
    model = one_node("Conv", [x, w, [bias]], dtype=TensorProto.FLOAT16, strides=[2, 2])
    feeds = {name: a.astype(np.float16) for name, a in zip("xwb", arrays(x, w, bias), strict=True)}
    differentiated = gradient(model, wrt=["x", "w", "b"])
    onnx.checker.check_model(differentiated, full_check=True)
    dy = np.ones([2, 3, 2, 2], np.float16)
    got = run_on_runtime(differentiated, {**feeds, "y_grad": dy})
    assert {got[f"{name}_grad"].dtype for name in "xwb"} == {np.dtype(np.float16)}
    np.testing.assert_array_equal(got["b_grad"], [8, 8, 8])
