"""Operators that read images between pixels: GridSample, AffineGrid, RoiAlign, MaxRoiPool, DeformConv."""

import itertools

import numpy as np
import pytest
import torch
from onnx import helper

import onward
from onward.testing import check_vjp, run_on_reference, run_on_runtime

MODES = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}
PADDINGS = ["zeros", "border", "reflection"]


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def model_of(op_type, feeds, opset, symbolic=False, **attributes):
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(x.dtype),
            [f"{name}{axis}" for axis in range(x.ndim)] if symbolic else x.shape,
        )
        for name, x in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", inputs[0].type.tensor_type.elem_type, None)
    node = helper.make_node(op_type, list(feeds), ["y"], **attributes)
    graph = helper.make_graph([node], "sampling", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


# onnxruntime has no cubic interpolation of volumes.
GRIDS = [
    (shape, mode, padding, aligned)
    for shape, mode, padding, aligned in itertools.product([(2, 3, 5, 4), (2, 2, 3, 4, 3)], MODES, PADDINGS, [0, 1])
    if not (mode == "cubic" and len(shape) == 5)
]


@pytest.mark.parametrize(("shape", "mode", "padding", "aligned"), GRIDS)
def test_grid_sample_as_torch(shape, mode, padding, aligned):
    """The reference evaluator rounds positions to float32, too coarse for differences; torch is the judge."""
    random = np.random.default_rng(0)
    out = (3, 2, 3)[: len(shape) - 2]
    feeds = {
        "x": random.normal(size=shape).astype(np.float32),
        "grid": random.uniform(-2.3, 2.3, size=(shape[0], *out, len(shape) - 2)).astype(np.float32),
    }
    dy = random.normal(size=(*shape[:2], *out)).astype(np.float32)
    tensors = [torch.tensor(x, requires_grad=True) for x in feeds.values()]
    y = torch.nn.functional.grid_sample(
        *tensors, mode="nearest" if mode == "nearest" else MODES[mode if len(shape) == 4 else "linear"],
        padding_mode=padding, align_corners=bool(aligned),
    )  # fmt: skip
    y.backward(torch.tensor(dy))
    ways = [(20, mode, True), (16, MODES[mode], False)] if len(shape) == 4 else [(22, mode, bool(aligned))]
    for opset, name, symbolic in ways:
        model = model_of("GridSample", feeds, opset, symbolic, mode=name, padding_mode=padding, align_corners=aligned)
        got = run_on_runtime(onward.gradient(model, wrt=list(feeds)), {**feeds, "y_grad": dy})
        for name, tensor in zip(feeds, tensors, strict=True):
            np.testing.assert_allclose(got[f"{name}_grad"], tensor.grad, rtol=1e-4, atol=1e-5, err_msg=f"{opset}")


@pytest.mark.parametrize(("mode", "padding"), [("linear", "zeros"), ("cubic", "border"), ("cubic", "reflection")])
def test_grid_sample_twice(mode, padding):
    """In float64 on onnxruntime, second derivatives too."""
    grid = np.random.default_rng(1).uniform(-1.4, 1.4, size=(1, 2, 2, 2))
    check_vjp(
        "GridSample", [array(1, 2, 4, 3), grid], opset=20, mode=mode, padding_mode=padding, run=run_on_runtime,
        on_runtime=False,
    )  # fmt: skip


def test_grid_sample_of_one_pixel():
    """Reflections about the centre of the only pixel there is."""
    grid = np.array([[[[0.3, -0.4], [1.6, 2.0]]]])
    check_vjp(
        "GridSample", [array(1, 1, 1, 3), grid], opset=20, padding_mode="reflection", align_corners=1,
        run=run_on_runtime, second_order=False,
    )  # fmt: skip


def test_grid_sample_in_float16():
    """Positions are computed in float32: 16 bits have three digits."""
    random = np.random.default_rng(0)
    feeds = {
        "x": random.normal(size=(1, 2, 40, 40)).astype(np.float16),
        "grid": random.uniform(-1, 1, size=(1, 3, 3, 2)).astype(np.float16),
    }
    dy = random.normal(size=(1, 2, 3, 3)).astype(np.float16)
    got = run_on_reference(onward.gradient(model_of("GridSample", feeds, 20), wrt=list(feeds)), {**feeds, "y_grad": dy})
    tensors = [torch.tensor(x.astype(np.float32), requires_grad=True) for x in feeds.values()]
    torch.nn.functional.grid_sample(*tensors, align_corners=False).backward(torch.tensor(dy.astype(np.float32)))
    for name, tensor in zip(feeds, tensors, strict=True):
        assert got[f"{name}_grad"].dtype == np.float16
        np.testing.assert_allclose(got[f"{name}_grad"], tensor.grad, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 1, 2, 3, 4)])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_affine_grid(size, aligned, constants):
    n = len(size) - 2
    check_vjp(
        "AffineGrid",
        [array(2, n, n + 1), np.array(size)],
        opset=20,
        constants=constants,
        align_corners=aligned,
        run=run_on_runtime,  # the reference evaluator rounds to float32
    )


def test_affine_grid_as_torch():
    feeds = {"theta": array(2, 2, 3).astype(np.float32), "size": np.array([2, 1, 4, 3])}
    dy = array(2, 4, 3, 2, seed=1).astype(np.float32)
    theta = torch.tensor(feeds["theta"], requires_grad=True)
    torch.nn.functional.affine_grid(theta, [2, 1, 4, 3], align_corners=False).backward(torch.tensor(dy))
    got = run_on_runtime(onward.gradient(model_of("AffineGrid", feeds, 20), wrt=["theta"]), {**feeds, "y_grad": dy})
    np.testing.assert_allclose(got["theta_grad"], theta.grad, rtol=1e-5, atol=1e-5)


# x1, y1, x2, y2: inside, across a border, and far outside.
ROIS = np.array([[1.1, 1.3, 9.3, 8.2], [0.2, 2.4, 4.1, 13.4], [-7.3, -6.1, 3.2, 5.7], [5.3, 5.9, 17.2, 16.4]])
ALIGNED = ["half_pixel", "output_half_pixel"]


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("coordinates", ALIGNED)
def test_roi_align(mode, ratio, coordinates):
    """In float64 on onnxruntime: the reference evaluator agrees, also on what `max` is, but takes seconds a case."""
    check_vjp(
        "RoiAlign", [array(2, 2, 5, 6), ROIS, np.array([0, 1, 1, 0])], opset=16, mode=mode, sampling_ratio=ratio,
        coordinate_transformation_mode=coordinates, output_height=2, output_width=3, spatial_scale=0.5,
        run=run_on_runtime,
        # The largest neighbour of all samples is piecewise; only the mean has a second derivative to compare.
        second_order=mode == "avg" and ratio == 2,
    )  # fmt: skip


@pytest.mark.parametrize(("opset", "half_pixel"), [(10, False), (13, False), (16, True), (22, True)])
def test_roi_align_by_default(opset, half_pixel):
    """From opset 16 on pixels are shifted by half; onnxruntime has no kernel of opset 22, the reference has."""
    feeds = {
        "x": array(2, 2, 5, 6).astype(np.float32),
        "rois": ROIS.astype(np.float32),
        "batch": np.array([0, 1, 1, 0]),
    }
    attributes = {"output_height": 2, "output_width": 2, "spatial_scale": 0.5}
    dy = array(4, 2, 2, 2, seed=1).astype(np.float32)
    explicit = ALIGNED[0] if half_pixel else ALIGNED[1]
    wanted = model_of("RoiAlign", feeds, 16, coordinate_transformation_mode=explicit, **attributes)
    given = model_of("RoiAlign", feeds, opset, **attributes)
    run = run_on_reference if opset == 22 else run_on_runtime
    got = run(onward.gradient(given, wrt=["x", "rois"]), {**feeds, "y_grad": dy})
    expected = run_on_runtime(onward.gradient(wanted, wrt=["x", "rois"]), {**feeds, "y_grad": dy})
    for name in ("x_grad", "rois_grad"):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5)


def test_roi_align_without_regions():
    """A detector that finds nothing."""
    feeds = {
        "x": array(1, 2, 4, 4).astype(np.float32),
        "rois": np.zeros((0, 4), np.float32),
        "b": np.zeros(0, np.int64),
    }
    model = model_of("RoiAlign", feeds, 16, symbolic=True, sampling_ratio=2, output_height=2, output_width=2)
    dy = np.zeros((0, 2, 2, 2), np.float32)
    got = run_on_runtime(onward.gradient(model, wrt=["x", "rois"]), {**feeds, "y_grad": dy})
    assert not got["x_grad"].any()
    assert got["rois_grad"].shape == (0, 4)


def test_max_roi_pool():
    """On onnxruntime in float32: the reference evaluator has no MaxRoiPool. The last region has no pixel."""
    rois = np.array([[0, 1, 1, 9.3, 8.2], [1, 0, 2, 4, 9], [1, -7, -6, 3, 5.5], [0, 5, 5, 8, 11], [0, 30, 30, 32, 32]])
    # Values far apart, so that no step of a difference changes which is the largest.
    x = np.random.default_rng(0).permutation(120).reshape(2, 2, 5, 6) / 10
    check_vjp(
        "MaxRoiPool", [x, rois], opset=13, wrt=[0], dtype=np.float32, run=run_on_runtime, second_order=False,
        tolerance=1e-2, pooled_shape=[3, 2], spatial_scale=0.5,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("group", "offset_group", "masked"), [(1, 1, False), (2, 1, True), (1, 2, True), (2, 4, False)]
)
@pytest.mark.parametrize("second_order", [False, True])
def test_deform_conv(group, offset_group, masked, second_order):
    """In float64 on onnxruntime; the reference evaluator rounds to float32."""
    batch, image, places, outputs = (1, (3, 3), (2, 2), 2) if second_order else (2, (4, 5), (3, 4), 4)
    kernel = (2, 2)
    inputs = [
        array(batch, 4, *image),
        array(outputs, 4 // group, *kernel, seed=1),
        array(batch, offset_group * 8, *places, seed=2),
        array(outputs, seed=3),
        array(batch, offset_group * 4, *places, seed=4) if masked else None,
    ]
    check_vjp(
        "DeformConv", inputs if masked else inputs[:4], opset=19, group=group, offset_group=offset_group,
        run=run_on_runtime, second_order=second_order, on_runtime=not second_order,
        **({} if second_order else {"pads": [1, 0, 0, 0], "kernel_shape": list(kernel)}),
        **({} if second_order else {"strides": [1, 1], "dilations": [2, 1]} if masked else {"dilations": [2, 1]}),
    )  # fmt: skip


def test_deform_conv_of_a_sequence_of_opsets():
    feeds = {
        "x": array(1, 2, 3, 3).astype(np.float32),
        "w": array(2, 2, 2, 2, seed=1).astype(np.float32),
        "offset": array(1, 8, 2, 2, seed=2).astype(np.float32),
    }
    dy = array(1, 2, 2, 2, seed=3).astype(np.float32)
    results = [
        run_on_runtime(onward.gradient(model_of("DeformConv", feeds, opset), wrt=list(feeds)), {**feeds, "y_grad": dy})
        for opset in (19, 22)
    ]
    for name in feeds:
        np.testing.assert_allclose(results[0][f"{name}_grad"], results[1][f"{name}_grad"], rtol=1e-5, atol=1e-6)


def test_only_what_the_gradient_needs_is_computed():
    """The forward kernel stays; the gradient of the image looks at no pixel."""
    feeds = {"x": array(1, 2, 4, 4).astype(np.float32), "grid": array(1, 3, 3, 2).astype(np.float32)}
    nodes = onward.gradient(model_of("GridSample", feeds, 20), wrt=["x"]).graph.node
    assert [node.op_type for node in nodes if "x" in node.input] == ["GridSample"]
