"""Normalisations, compared with differences; statistics of half-precision models are taken in float."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onward
from onward.graph.prepare import prepare
from onward.graph.shapes import static_shape
from onward.testing import check_gradient, check_vjp, run_on_reference, run_on_runtime

RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape)


def positive(*shape):
    return RANDOM.uniform(0.5, 2.0, size=shape)


def batch_inputs(*shape):
    channels = shape[1]
    return [normal(*shape) + 0.5, normal(channels), normal(channels), normal(channels), positive(channels)]


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 4), (2, 3, 2, 2), (2, 2, 2, 1, 2)])
@pytest.mark.parametrize("opset", [9, 12, 14, 15, 22])
def test_batch_normalization_with_given_statistics(shape, opset):
    # The reference evaluator mistakes opsets 9 to 13 for training mode.
    run = run_on_runtime if opset < 14 else None
    check_vjp("BatchNormalization", batch_inputs(*shape), opset=opset, epsilon=1e-3, run=run)


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("opset", [14, 15, 22])
@pytest.mark.parametrize(("of", "momentum"), [([0], 0.7), ([0, 1, 2], 0.7), ([0, 1], 0.0)])
def test_batch_normalization_with_statistics_of_the_batch(shape, opset, of, momentum):
    settings = {"training_mode": 1, "momentum": momentum, "epsilon": 1e-2}
    check_vjp("BatchNormalization", batch_inputs(*shape), opset=opset, outputs=3, of=of, **settings)


@pytest.mark.parametrize("of", [[1], [2], [1, 2]])
def test_batch_normalization_of_running_statistics(of):
    check_vjp("BatchNormalization", batch_inputs(3, 2, 4), opset=15, outputs=3, of=of, wrt=[0, 3, 4], training_mode=1)


@pytest.mark.parametrize(
    ("shape", "axis", "scale_shape"),
    [
        ((3, 4), -1, (4,)),
        ((2, 3, 4), -1, (4,)),
        ((2, 3, 4), 1, (3, 4)),
        ((2, 3, 4), -2, (4,)),  # the scale may broadcast
        ((2, 3, 4), 2, (1, 1, 4)),
        ((2, 3, 4), 0, (2, 3, 4)),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(shape, axis, scale_shape, bias):
    inputs = [normal(*shape), normal(*scale_shape)] + ([normal(*scale_shape)] if bias else [])
    # Mean and InvStdDev are float32 in a float64 model too, which limits what comes of them.
    check_vjp("LayerNormalization", inputs, opset=17, axis=axis, epsilon=1e-2, tolerance=1e-5)


def test_layer_normalization_of_all_outputs():
    inputs = [normal(2, 3, 4), normal(4), normal(4)]
    # In float32, because the reference evaluator returns statistics in the type of x, whatever their declared type.
    check_vjp(
        "LayerNormalization",
        inputs,
        opset=17,
        outputs=3,
        epsilon=1e-2,
        dtype=np.float32,
        tolerance=1e-2,
        second_order=False,
    )


@pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 2, 3), (1, 4, 2, 1, 2)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_normalization(shape, groups):
    feeds = {"x": normal(*shape), "scale": normal(shape[1]), "bias": normal(shape[1])}
    # onnx infers nothing of this operator, so check_vjp, which asks it for the type of the output, cannot be used.
    model = single_node("GroupNormalization", feeds, opset=21, num_groups=groups, epsilon=1e-2)
    # The body that the standard gives takes the statistics in float, in a float64 model too.
    check_gradient(model, feeds, wrt=list(feeds), tolerance=2e-3, step=1e-2)
    exact = gradients_of(model, feeds, list(feeds))
    for dims in ("static", "symbolic", "unknown"):
        feeds32 = {name: array.astype(np.float32) for name, array in feeds.items()}
        model32 = single_node("GroupNormalization", feeds32, opset=21, dims=dims, num_groups=groups, epsilon=1e-2)
        got = gradients_of(model32, feeds32, list(feeds))
        for name in feeds:
            np.testing.assert_allclose(got[f"{name}_grad"], exact[f"{name}_grad"], atol=1e-4)


def test_group_normalization_keeps_the_shape():
    """onnx infers nothing of it, and what follows would have no rank."""
    feeds = {"x": normal(2, 4, 3), "scale": normal(4), "bias": normal(4)}
    model = single_node("GroupNormalization", feeds, opset=21, num_groups=2)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    prepared = prepare(model)
    assert static_shape(prepared.graph.outputs[0]) == (2, 4, 3)


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 2, 2), (1, 2, 2, 1, 3)])
@pytest.mark.parametrize("opset", [12, 18, 22])
def test_instance_normalization(shape, opset):
    inputs = [normal(*shape), normal(shape[1]), normal(shape[1])]
    check_vjp("InstanceNormalization", inputs, opset=opset, epsilon=1e-2)


@pytest.mark.parametrize(
    ("axis", "scale_shape"), [(-1, (4,)), (2, (4,)), (1, (3, 4)), (-2, (4,)), (-1, (1,)), (0, (2, 3, 4))]
)
def test_rms_normalization(axis, scale_shape):
    check_vjp("RMSNormalization", [normal(2, 3, 4), normal(*scale_shape)], opset=23, axis=axis, epsilon=1e-2)


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("opset", [12, 22])
def test_lp_normalization(axis, p, opset):
    # The reference evaluator forgets the absolute values of p = 1.
    check_vjp("LpNormalization", [normal(2, 3, 4)], opset=opset, axis=axis, p=p, run=run_on_runtime if p == 1 else None)


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_zeros_has_no_slope(p):
    x = normal(2, 3).astype(np.float32)
    x[1] = 0
    gradients = gradients_of(single_node("LpNormalization", {"x": x}, p=p), {"x": x}, ["x"])
    assert np.all(gradients["x_grad"][1] == 0)
    assert np.all(gradients["x_grad"][0] != 0)


@pytest.mark.parametrize("opset", [12, 13, 18])
@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [-1, 0]])
def test_mean_variance_normalization(opset, axes):
    # onnx accepts float models only: the body that the standard gives holds float constants.
    check_vjp(
        "MeanVarianceNormalization", [normal(2, 3, 2, 2)], opset=opset, axes=axes, dtype=np.float32, tolerance=5e-3
    )


def single_node(op_type, feeds, *, opset=18, outputs=("y",), dims="static", **attributes):
    node = helper.make_node(op_type, list(feeds), list(outputs), name="forward", **attributes)
    infos = []
    for name, array in feeds.items():
        shape = (
            array.shape
            if dims == "static"
            else [f"{name}{i}" if dims == "symbolic" else None for i in range(array.ndim)]
        )
        infos.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape))
    first = next(iter(feeds.values()))
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(first.dtype), [None] * first.ndim)
    graph = helper.make_graph([node], "g", infos, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def gradients_of(model, feeds, wrt, run=run_on_runtime):
    differentiated = onward.gradient(model, wrt=wrt)
    onnx.checker.check_model(differentiated, full_check=True)
    forward = run(model, feeds)["y"]
    cotangent = np.random.default_rng(1).normal(size=forward.shape).astype(forward.dtype)
    return run(differentiated, {**feeds, "y_grad": cotangent})


@pytest.mark.parametrize(
    ("op_type", "shapes", "opset", "attributes"),
    [
        ("LayerNormalization", [(2, 3, 8), (8,), (8,)], 17, {}),
        ("RMSNormalization", [(2, 3, 8), (8,)], 23, {}),
        # InstanceNormalization is not here: onnxruntime has a float kernel only.
        ("GroupNormalization", [(2, 4, 8), (4,), (4,)], 21, {"num_groups": 2}),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_precisions(op_type, shapes, opset, attributes, dtype):
    random = np.random.default_rng(0)
    names = ["x", "scale", "bias"][: len(shapes)]
    arrays = {name: random.normal(size=shape) for name, shape in zip(names, shapes, strict=True)}
    float32 = {name: array.astype(np.float32) for name, array in arrays.items()}
    other = {name: array.astype(dtype) for name, array in arrays.items()}
    wanted = gradients_of(single_node(op_type, float32, opset=opset, **attributes), float32, names)
    got = gradients_of(single_node(op_type, other, opset=opset, **attributes), other, names)
    for name in names:
        result = got[f"{name}_grad"]
        assert result.dtype == dtype
        np.testing.assert_allclose(result, wanted[f"{name}_grad"], atol=2e-2 if dtype == np.float16 else 1e-4)


@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_of_mixed_types(training):
    """Since opset 15 a float16 x may have float parameters and statistics."""
    shapes = {"x": (4, 3, 5), "scale": (3,), "bias": (3,), "mean": (3,), "var": (3,)}
    random = np.random.default_rng(0)
    feeds = {name: (random.normal(size=shape) ** 2 + 0.5).astype(np.float32) for name, shape in shapes.items()}
    mixed = {**feeds, "x": feeds["x"].astype(np.float16)}
    outputs = ("y", "running_mean", "running_var") if training else ("y",)
    wrt = ["x", "scale", "bias"]
    built = [
        single_node("BatchNormalization", f, opset=15, outputs=outputs, training_mode=training) for f in (feeds, mixed)
    ]
    wanted = gradients_of(built[0], feeds, wrt)
    # onnxruntime's CPU provider has no kernel for mixed types.
    got = gradients_of(built[1], mixed, wrt, run=run_on_reference)
    assert [got[f"{name}_grad"].dtype for name in wrt] == [np.float16, np.float32, np.float32]
    for name in wrt:
        np.testing.assert_allclose(got[f"{name}_grad"], wanted[f"{name}_grad"], rtol=1e-2, atol=5e-3)


def test_spatial_batch_normalization_is_required():
    feeds = {name: np.ones((2, 3) if name == "x" else 3, np.float32) for name in ("x", "s", "b", "m", "v")}
    with pytest.raises(onward.errors.OnwardError, match="spatial=0"):
        onward.gradient(single_node("BatchNormalization", feeds, opset=7, spatial=0), wrt=["x"])


def test_layer_normalization_inside_a_model():
    """The statistics are outputs of the forward node, which the model itself may use as well."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["n", "mean"], epsilon=1e-2),
        helper.make_node("Mul", ["n", "mean"], ["p"]),
        helper.make_node("ReduceSum", ["p"], ["y"], keepdims=0),
    ]
    infos = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
        helper.make_tensor_value_info("scale", TensorProto.FLOAT, [4]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(3, 4)).astype(np.float32), "scale": random.normal(size=4).astype(np.float32)}
    # float32 differences with a step of 0.01 are good to three digits.
    check_gradient(model, feeds, wrt=["x", "scale"], tolerance=1e-2, step=1e-2, second_order=False, run=run_on_runtime)
