"""Gradients of Resize and Upsample.

onnxruntime's own forward is the oracle, in float32, the only floating type it resizes: the reference evaluator takes
fractional output sizes for align_corners and deviates for nearest. Resizing is linear, so that differences are exact
up to rounding, and second derivatives vanish; the rules of what is emitted are tested elsewhere.
"""

import functools

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onward import gradient
from onward.testing import check_vjp, run_on_runtime

OPTIONS = {"dtype": np.float32, "run": run_on_runtime, "tolerance": 1e-3, "wrt": [0], "second_order": False}
check = functools.partial(check_vjp, "Resize", **{"opset": 19, **OPTIONS})


def data(*shape):
    return np.random.default_rng(0).normal(size=shape)


def scales(*factors):
    return np.array(factors, np.float32)


MODES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
# How the second spatial axis of [1, 2, 3, 5] changes: by scales or to sizes.
CHANGES = {
    "twice": {"scales": [1, 1, 2, 2]},
    "thrice": {"scales": [1, 1, 1.4, 3]},
    "larger": {"scales": [1, 1, 1.4, 1.7]},
    "smaller": {"scales": [1, 1, 0.7, 0.6]},
    "to sizes": {"sizes": [1, 2, 4, 3]},
    "to sizes, twice": {"sizes": [1, 2, 6, 10]},
    "to one": {"sizes": [1, 2, 3, 1]},
}


def operands(x, change, roi=None):
    """The inputs of Resize, and which of them to store in the model."""
    if "scales" in change:
        return [x, roi, scales(*change["scales"])], [2]
    return [x, roi, None, np.array(change["sizes"])], [3]


NEAREST = [(nearest, change) for nearest in ["round_prefer_ceil", "floor", "ceil"] for change in ["smaller", "thrice"]]


@pytest.mark.parametrize(("nearest", "change"), [*NEAREST, *(("round_prefer_floor", change) for change in CHANGES)])
@pytest.mark.parametrize("coordinates", MODES)
def test_nearest(nearest, coordinates, change):
    if (nearest, coordinates) == ("floor", "half_pixel_symmetric") and change == "smaller":
        pytest.skip("5 to 3 has the coordinate 2 up to rounding, where onnxruntime comes out below")
    inputs, constants = operands(data(1, 2, 3, 5), CHANGES[change])
    check(inputs, constants=constants, nearest_mode=nearest, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("coordinates", MODES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_smooth(mode, coordinates, change):
    inputs, constants = operands(data(1, 2, 3, 5), CHANGES[change])
    check(inputs, constants=constants, mode=mode, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("exclude_outside", [0, 1])
@pytest.mark.parametrize("change", ["larger", "smaller", "to sizes"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(mode, change, exclude_outside):
    inputs, constants = operands(data(1, 2, 3, 5), CHANGES[change])
    check(inputs, constants=constants, mode=mode, antialias=1, exclude_outside=exclude_outside)


@pytest.mark.parametrize("change", ["larger", "smaller"])
def test_cubic_options(change):
    inputs, constants = operands(data(1, 1, 4, 5), CHANGES[change])
    check(inputs, constants=constants, mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)


@pytest.mark.parametrize("constant_roi", [True, False])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop(mode, constant_roi):
    """Outputs outside the input are a constant."""
    roi = np.array([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2], np.float32)
    inputs, constants = operands(data(1, 1, 4, 5), {"sizes": [1, 1, 3, 6]}, roi)
    constants = [*constants, 1] if constant_roi else constants
    check(inputs, constants=constants, mode=mode, coordinate_transformation_mode="tf_crop_and_resize")


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("shape", [[5], [3, 4], [2, 2, 5], [1, 2, 3, 2, 4]])
def test_ranks(mode, shape):
    # onnxruntime resizes linearly 2, 4 and 5 axes, and with 5 all three spatial ones; three are all spatial to it.
    if mode == "linear" and len(shape) == 1:
        pytest.skip("no linear Resize of one axis in onnxruntime")
    factors = [1.0] * len(shape)
    factors[-3:] = [1.5, 2.0, 0.6][-len(shape) :]
    check([data(*shape), None, scales(*factors)], constants=[2], mode=mode)


def test_nearest_of_batch_and_channels():
    check([data(2, 2, 3), None, scales(2, 1.5, 1)], constants=[2])


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_axes_and_aspect_ratio(mode, policy):
    # Not negative axes: onnxruntime takes them for others where the aspect ratio is kept.
    inputs = [data(1, 2, 5, 7), None, None, np.array([4, 10])]
    check(inputs, constants=[3], mode=mode, axes=[2, 3], keep_aspect_ratio_policy=policy)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("shape", [[1, 2, 5, 7], ["N", 2, "H", "W"]])
def test_sizes_at_run_time(shape, policy):
    """As when they are constant, which the test above compares with differences."""
    x = data(1, 2, 5, 7).astype(np.float32)
    sizes = np.array([4, 10])
    attributes = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "linear"}
    constant, fed = (resize_model(shape, sizes=sizes, stored=stored, **attributes) for stored in (True, False))
    dy = data(*run_on_runtime(constant, {"x": x})["y"].shape).astype(np.float32)
    wanted = run_on_runtime(gradient(constant, wrt=["x"]), {"x": x, "y_grad": dy})
    got = run_on_runtime(gradient(fed, wrt=["x"]), {"x": x, "sizes": sizes, "y_grad": dy})
    np.testing.assert_allclose(got["x_grad"], wanted["x_grad"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", MODES)
def test_scales_at_run_time(mode, coordinates):
    check([data(1, 2, 3, 4), None, scales(1, 1, 1.5, 0.7)], mode=mode, coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("opset", [11, 12])
def test_opset_11(opset, coordinates):
    """Empty scales beside sizes, and a mode that opset 13 dropped."""
    inputs = [data(1, 1, 3, 4), scales(), scales(), np.array([1, 1, 5, 3])]
    check(inputs, constants=[1, 2, 3], opset=opset, mode="nearest", coordinate_transformation_mode=coordinates)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [[1, 1, 2, 2], [1, 1, 1.5, 2.3], [1, 1, 0.6, 0.5]])
def test_opset_10(mode, factors):
    check([data(1, 2, 4, 5), scales(*factors)], constants=[1], opset=10, mode=mode)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("factors", [[1, 1, 2, 2], [1, 1, 1.5, 2.3]])
def test_upsample(mode, factors):
    check_vjp("Upsample", [data(1, 2, 4, 3), scales(*factors)], constants=[1], opset=9, mode=mode, **OPTIONS)
    check_vjp("Upsample", [data(1, 2, 4, 3)], opset=7, scales=[float(f) for f in factors], mode=mode, **OPTIONS)


def resize_model(shape, factors=None, sizes=None, stored=True, opset=18, **attributes):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    name, array = ("scales", scales(*factors)) if sizes is None else ("sizes", sizes)
    tensor = numpy_helper.from_array(array, name)
    if not stored:
        inputs.append(helper.make_tensor_value_info(name, tensor.data_type, array.shape))
    names = ["x", "", "scales"] if sizes is None else ["x", "", "", "sizes"]
    node = helper.make_node("Resize", names, ["y"], **attributes)
    graph = helper.make_graph([node], "resize", inputs, [y], [tensor] if stored else [])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


TORCH = {
    "nearest": ({"mode": "nearest"}, {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    "bilinear": ({"mode": "bilinear"}, {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
    "bilinear, corners": (
        {"mode": "bilinear", "align_corners": True},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    "bicubic": ({"mode": "bicubic"}, {"mode": "cubic", "coordinate_transformation_mode": "pytorch_half_pixel"}),
}


@pytest.mark.parametrize("case", TORCH)
@pytest.mark.parametrize("shape", [["N", 2, 5, 4], ["N", 2, "H", "W"]])
def test_parity_with_torch(case, shape):
    of_torch, of_onnx = TORCH[case]
    x = torch.tensor(data(2, 2, 5, 4), dtype=torch.float32, requires_grad=True)
    y = torch.nn.functional.interpolate(x, scale_factor=(2.0, 3.0), **of_torch)
    dy = np.random.default_rng(1).normal(size=y.shape).astype(np.float32)
    y.backward(torch.tensor(dy))
    model = gradient(resize_model(shape, [1, 1, 2, 3], **of_onnx), wrt=["x"])
    got = run_on_runtime(model, {"x": x.detach().numpy(), "y_grad": dy})
    np.testing.assert_allclose(got["x_grad"], x.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [[1, 2, 3, 4], ["N", "C", "H", "W"]])
def test_whole_nearest_factors_are_one_pass(shape):
    """No matrices, and nothing about shapes is left to run time."""
    graph = gradient(resize_model(shape, [1, 1, 2, 2]), wrt=["x"]).graph
    assert {node.op_type for node in graph.node} == {"Resize", "AveragePool", "Mul"}
