"""Discrete Fourier transforms."""

import numpy as np
import pytest
import torch
from onnx import helper

import onward
from onward.testing import check_vjp, run_on_runtime


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def length(value):
    return np.array(value)


# onnxruntime computes DFT in float32 and float64 alike.
@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("size", "axis"), [(None, 1), (7, 1), (3, -2), (4, -3)])
def test_dft_opset_17(inverse, parts, size, axis):
    """In opset 17 the axis is an attribute; signals are padded or cut to a given length."""
    inputs = [array(2, 5, 4, parts)] + ([] if size is None else [length(size)])
    check_vjp("DFT", inputs, opset=17, constants=[1] if size else [], axis=axis, inverse=inverse)


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize(("size", "axis"), [(None, None), (6, None), (None, 1), (3, -3)])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
def test_dft_opset_20(inverse, size, axis, constant):
    inputs = [array(2, 5, 4, 2), None if size is None else length(size), None if axis is None else length(axis)]
    while inputs[-1] is None:
        inputs.pop()  # the reference evaluator takes no absent axis
    check_vjp("DFT", inputs, opset=20, constants=[1, 2] if constant else [], inverse=inverse)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("size", [None, 4, 5, 8, 9])
def test_one_sided_dft(opset, size):
    check_vjp("DFT", [array(2, 6, 1), None if size is None else length(size)], opset=opset, constants=[1], onesided=1)


# onnxruntime 1.31 has no transform from half a spectrum to a real signal.
@pytest.mark.parametrize("bins", [4, 5])
@pytest.mark.parametrize("size", [None, 5, 6, 8, 11])
@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
def test_inverse_of_a_one_sided_dft(bins, size, constant):
    inputs = [array(2, bins, 2), None if size is None else length(size)]
    check_vjp("DFT", inputs, opset=20, constants=[1] if constant else [], onesided=1, inverse=1, on_runtime=False)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [True, False])
def test_stft(onesided, windowed):
    signal, window = array(2, 11, 1), array(4, seed=1) if windowed else None
    size = None if windowed else length(4)
    check_vjp("STFT", [signal, length(3), window, size], opset=17, constants=[1, 3], onesided=onesided)


def test_stft_of_computed_steps():
    check_vjp("STFT", [array(1, 9, 1), length(2), array(4, seed=1), length(4)], opset=17)


def test_stft_of_a_complex_signal():
    check_vjp("STFT", [array(1, 8, 2), length(2), None, length(4)], opset=17, constants=[1, 3], onesided=0)


def gradient_of(op_type, feeds, wrt, dy, **attributes):
    """On onnxruntime, at opset 17."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    graph = helper.make_graph([helper.make_node(op_type, list(feeds), ["y"], **attributes)], "f", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return run_on_runtime(onward.gradient(model, wrt=wrt), {**feeds, "y_grad": dy})


def test_rfft_as_torch():
    x = array(2, 6, 1).astype(np.float32)
    dy = array(2, 4, 2, seed=1).astype(np.float32)
    got = gradient_of("DFT", {"x": x}, ["x"], dy, onesided=1, axis=1)
    tensor = torch.tensor(x, requires_grad=True)
    torch.view_as_real(torch.fft.rfft(tensor[..., 0], dim=1)).backward(torch.tensor(dy))
    np.testing.assert_allclose(got["x_grad"], tensor.grad, rtol=1e-4, atol=1e-5)


def test_stft_as_torch():
    x, window = array(2, 16, 1).astype(np.float32), array(6, seed=1).astype(np.float32)
    dy = array(2, 3, 4, 2, seed=2).astype(np.float32)
    got = gradient_of("STFT", {"x": x, "step": length(5), "window": window}, ["x", "window"], dy, onesided=1)
    tensor, weights = torch.tensor(x, requires_grad=True), torch.tensor(window, requires_grad=True)
    y = torch.stft(
        tensor[..., 0], 6, 5, window=weights, center=False, onesided=True, return_complex=True, pad_mode="constant"
    )
    torch.view_as_real(y.transpose(1, 2)).backward(torch.tensor(dy))
    np.testing.assert_allclose(got["x_grad"], tensor.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["window_grad"], weights.grad, rtol=1e-4, atol=1e-5)
