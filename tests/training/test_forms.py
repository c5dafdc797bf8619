"""Training graphs in other forms compute what those of the rules do: results, gradients and running statistics."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onward.testing import check_training, run_on_runtime
from onward.testing.training import subject_of
from onward.training import split as splitting
from tests.training.cases import CASES as MODELS

RNG = np.random.default_rng(0)


def parameter(name, *shape, low=-1.0):
    return numpy_helper.from_array(RNG.uniform(low, 1, shape).astype(np.float32), name)


def model(text, *parameters):
    """A graph from x to loss over a batch of any size."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]> {text}""")
    proto.graph.initializer.extend(parameters)
    onnx.checker.check_model(proto, full_check=True)
    return proto


def depthwise(attributes, height=5, width=6, bias=True):
    text = f"""net (float[N,3,{height},{width}] x) => (float loss) {{
        y = Conv<group=3, {attributes}>(x, w{", b" if bias else ""})
        z = Tanh(y)
        s = Mul(z, z)
        loss = ReduceSum<keepdims=0>(s)
    }}"""
    return model(text, parameter("w", 3, 1, 3, 2), *([parameter("b", 3)] if bias else [])), (2, 3, height, width)


def normalized():
    text = """net (float[N,2,4,5] x) => (float loss) {
        c = Conv<pads=[1,1,1,1]>(x, w)
        n, running_mean, running_var = BatchNormalization<training_mode=1, momentum=0.8>(c, scale, bias, mean, var)
        y = Clip(n, low, high)
        d = Conv(y, v)
        s = Mul(d, d)
        loss = ReduceSum<keepdims=0>(s)
    }"""
    low, high = (numpy_helper.from_array(np.float32(value), name) for value, name in ((0, "low"), (0.5, "high")))
    weights = [parameter("w", 3, 2, 3, 3), parameter("v", 2, 3, 1, 1), low, high]
    statistics = [parameter(name, 3, low=0.5) for name in ("scale", "bias", "mean", "var")]
    return model(text, *weights, *statistics), (3, 2, 4, 5)


def bottleneck(end="loss = ReduceSum<keepdims=0>(s)"):
    text = f"""net (float[N,2,4,5] x) => (float loss, float[N,4,4,5] d) {{
        i = Conv(x, u)
        a = Conv(i, w1)
        n, running_mean, running_var = BatchNormalization<training_mode=1, momentum=0.7>(a, scale, bias, mean, var)
        b = Clip(n, low, high)
        d = Conv<group=4, pads=[1,1,1,1]>(b, w2, b2)
        r = LeakyRelu<alpha=0.2>(d)
        e = Conv(r, w3, b3)
        f = Add(i, e)
        g = Conv(f, w4)
        h = Sub(g, f)
        k = Conv<group=3, pads=[1,1,1,1], strides=[2,2]>(h, w5)
        t = Tanh(k)
        m = GlobalAveragePool(t)
        s = Mul(m, m)
        {end}
    }}"""
    low, high = (numpy_helper.from_array(np.float32(value), name) for value, name in ((0, "low"), (0.5, "high")))
    shapes = {"u": (3, 2, 1, 1), "w1": (4, 3, 1, 1), "w2": (4, 1, 3, 3), "w3": (3, 4, 1, 1), "w4": (3, 3, 1, 1)}
    shapes |= {"w5": (3, 1, 3, 3), "b2": (4,), "b3": (3,)}
    weights = [parameter(name, *shape) for name, shape in shapes.items()]
    statistics = [parameter(name, 4, low=0.5) for name in ("scale", "bias", "mean", "var")]
    return model(text, *weights, low, high, *statistics), (3, 2, 4, 5)


def pooled(kernel, height, width, activation="Relu", pads=(0, 0, 0, 0)):
    rows, columns = kernel
    text = f"""net (float[N,2,{height},{width}] x) => (float loss) {{
        c = Conv(x, w)
        a = {activation}(c)
        p = MaxPool<kernel_shape=[{rows},{columns}], strides=[{rows},{columns}], pads=[{str(pads)[1:-1]}]>(a)
        t = Tanh(p)
        s = Mul(t, t)
        loss = ReduceSum<keepdims=0>(s)
    }}"""
    return model(text, parameter("w", 4, 2, 1, 1)), (2, 2, height, width)


CASES = {
    "depthwise": (depthwise("pads=[1,0,1,1]"), {"MatMul"}, {"Conv"}),
    "depthwise, stride": (depthwise("pads=[1,1,1,0], strides=[2,1]", bias=False), {"MatMul"}, {"Conv"}),
    "depthwise, dilations": (depthwise("dilations=[2,3], strides=[1,2]"), {"MatMul"}, {"Conv"}),
    "depthwise, same": (depthwise('auto_pad="SAME_LOWER"'), {"MatMul"}, {"Conv"}),
    "depthwise, large": (depthwise("pads=[1,1,1,1]", height=12, width=12), {"Conv"}, {"Tile"}),
    "normalisation, Clip": (normalized(), {"Gemm"}, {"ReduceMean", "Where"}),
    "channels first": (bottleneck(), {"MatMul"}, {"Conv"}),
    "maxima": (pooled((2, 3), 4, 6), {"HardSigmoid"}, {"ScatterElements"}),
    "maxima, no Relu": (pooled((3, 1), 6, 5, "Identity"), {"MatMul"}, {"ScatterElements"}),
    "maxima, a rest": (pooled((2, 2), 5, 5), {"MaxUnpool", "Slice"}, {"ScatterElements"}),
    "maxima, a rest, larger": (pooled((2, 3), 5, 4), {"ScatterElements"}, {"Tile"}),
    "maxima, padding": (pooled((3, 3), 6, 9, pads=[1, 1, 1, 1]), {"ScatterElements"}, {"Tile"}),
    "maxima, padding at the end": (pooled((5, 5), 10, 10, pads=[0, 0, 1, 1]), {"ScatterElements"}, {"Tile"}),
}


def split(proto):
    trainable = [tensor.name for tensor in proto.graph.initializer if tensor.name not in ("mean", "var", "low", "high")]
    return splitting.split(proto, trainable=trainable, frozen=["mean", "var"]).training


@pytest.mark.parametrize(("case", "new", "gone"), CASES.values(), ids=CASES)
def test_forms(case, new, gone, monkeypatch):
    proto, shape = case
    lowered = split(proto)
    monkeypatch.setattr(splitting, "choose_forms", lambda *_: None)
    monkeypatch.setattr(splitting, "lower", lambda *_: None)
    monkeypatch.setattr(splitting, "faster_rules", contextlib.nullcontext)
    plain = split(proto)
    operators = {node.op_type for node in lowered.graph.node if not node.name.startswith("accumulate")}
    assert new <= operators
    assert not gone & operators
    # Many windows have several largest elements: the first gets the gradient.
    # A generator of its own: which tests run before this one in a process is not fixed.
    x = np.random.default_rng(0).integers(-2, 3, shape).astype(np.float32)
    feeds = {"x": x, "lazy_reset_grad": np.array([True])}
    for tensor in proto.graph.initializer:
        array = numpy_helper.to_array(tensor)
        feeds |= {tensor.name: array, f"{tensor.name}_grad.accumulation.buffer": np.zeros_like(array)}
    wanted = {value.name for value in plain.graph.input}
    feeds = {name: array for name, array in feeds.items() if name in wanted}
    expected, got = run_on_runtime(plain, feeds), run_on_runtime(lowered, feeds)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def test_images_may_be_counted_and_asked_for_their_type():
    end = "total = ReduceSum<keepdims=0>(s) count = Size(a) number = CastLike(count, r) loss = Div(total, number)"
    assert "Conv" not in {node.op_type for node in split(bottleneck(end)[0]).graph.node}


def biased(value, *, trained):
    text = """net (float[N,3,5,5] x) => (float loss) {
        t = CastLike(zero, x)
        b = Expand(t, three)
        c = Conv<pads=[1,1,1,1]>(x, w, b)
        s = Mul(c, c)
        loss = ReduceSum<keepdims=0>(s)
    }"""
    numbers = [numpy_helper.from_array(np.float32(value), "zero"), numpy_helper.from_array(np.array([3]), "three")]
    proto = model(text, parameter("w", 3, 3, 3, 3), *numbers)
    trainable = ["w", "zero"] if trained else ["w"]
    graph = splitting.split(proto, trainable=trainable).training.graph
    return [len([name for name in node.input if name]) for node in graph.node if node.output[0] == "c"]


def test_a_bias_of_zeros_is_left_out_unless_it_is_trained():
    assert biased(0.0, trained=False) == [2]
    assert biased(0.5, trained=False) == [3]
    assert biased(0.0, trained=True) == [3]


LAYERS = {name: case for name, case in MODELS.items() if name.startswith("dense, ")}
# Where all that is computed from the features takes them turned round, the sizes gain by it, and they are float32.
TURNED = {
    f"dense, {name}"
    for name in (
        "Relu", "bounds", "Gelu by Erf", "Swish", "square", "number first", "counted", "one row", "no bias",
        "scaled, of columns", "deep and shared", "products with itself", "the second operand",
    )
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_dense_layers_have_their_features_first(name):
    """That they compute the same, tests/training/test_paths.py shows of each of these models."""
    case = LAYERS[name]
    subject = subject_of(case.model(), case.feeds(), case.wrt, None, (), "static")
    trained = [parameter for parameter in subject.parameters.values() if parameter != subject.parameters["x"]]
    graph = splitting.split(subject.model, trainable=trained).training.graph
    first = {node.input[0] for node in graph.node if node.op_type == "Gemm"}
    assert (subject.parameters["w"] in first) == (name in TURNED)
    assert not any(node.op_type == "Transpose" for node in graph.node if name in TURNED)


def test_frozen_weights_stay_where_onnxruntime_packs_them():
    case = LAYERS["dense, deep and shared"]
    graph = splitting.split(summed(case), trainable=["u", "e", "v"]).training.graph
    (frozen,) = [list(node.input[:2]) for node in graph.node if "w" in node.input]
    assert frozen == ["x", "w"]


def summed(case):
    """The model of a case with the sum of its results as the loss."""
    proto = case.model()
    proto.graph.node.append(onnx.helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return proto


@pytest.mark.parametrize("name", ["dense, Relu", "dense, deep and shared", "maxima, tiles", "means, tiles, 0"])
def test_batches_of_nothing(name):
    """Not in the table: onnxruntime 1.20 does not run sums of nothing."""
    case = dataclasses.replace(MODELS[name], inputs={"x": (0, *MODELS[name].inputs["x"][1:])})
    check_training(case.model(), case.feeds(), wrt=case.wrt, layouts=case.layouts)
