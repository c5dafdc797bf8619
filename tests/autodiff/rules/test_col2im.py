"""Col2Im."""

import numpy as np
import pytest
import torch
from onnx import helper

import onward
from onward.testing import check_vjp, run_on_runtime


def array(*shape):
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize("constants", [(1, 2), (2,), ()], ids=["constant", "computed image", "computed"])
@pytest.mark.parametrize(
    ("shape", "image", "block", "attributes"),
    [
        ((2, 2 * 4, 4), (4, 4), (2, 2), {"strides": [2, 2]}),
        ((1, 3 * 4, 12), (5, 4), (2, 2), {}),
        ((1, 1 * 4, 6), (4, 4), (2, 2), {"pads": [0, 1, 0, 0], "dilations": [2, 2], "strides": [1, 1]}),
        ((1, 1 * 2, 3), (2, 7), (2, 1), {"strides": [1, 3]}),
        ((1, 1 * 4, 2 * 2 * 1), (3, 2, 2), (2, 1, 2), {}),
    ],
)
def test_col2im(shape, image, block, attributes, constants):
    check_vjp("Col2Im", [array(*shape), np.array(image), np.array(block)], constants=constants, **attributes)


def test_col2im_as_torch():
    feeds = {"x": array(2, 2 * 6, 12).astype(np.float32), "image": np.array([5, 6]), "block": np.array([2, 3])}
    dy = array(2, 2, 5, 6).astype(np.float32)
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node("Col2Im", list(feeds), ["y"], strides=[2, 1], pads=[1, 0, 0, 0])],
        "fold",
        inputs,
        [helper.make_tensor_value_info("y", 1, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    tensor = torch.tensor(feeds["x"], requires_grad=True)
    # torch pads both sides alike: one row more before, cut off again.
    padded = torch.nn.functional.fold(tensor, (6, 6), (2, 3), stride=(2, 1))
    padded[:, :, 1:].backward(torch.tensor(dy))
    got = run_on_runtime(onward.gradient(model, wrt=["x"]), {**feeds, "y_grad": dy})["x_grad"]
    np.testing.assert_allclose(got, tensor.grad, rtol=1e-5, atol=1e-6)
