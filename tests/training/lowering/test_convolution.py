"""Gradients of convolutions in other forms are those of the rules: exactly, for data whose sums float32 can count."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onward import gradient
from onward.testing import run_on_runtime
from onward.training.lowering import faster_rules
from tests.autodiff.rules.test_conv import CONV, TRANSPOSED

# What is known of the sizes of x; those of weights always are, in the graphs that train.
KNOWN = ["all", "but the batch", "but the image", "nothing"]


def integers(shape, seed):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def model_of(op_type, x, w, bias=None, known="all", **attributes):
    dims = {
        "all": list(x),
        "but the batch": ["N", *x[1:]],
        "but the image": ["N", x[1], *(f"D{axis}" for axis in range(2, len(x)))],
        "nothing": [None] * len(x),
    }
    shapes = {"x": dims[known], "w": w, **({} if bias is None else {"b": [bias]})}
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(x))
    node = helper.make_node(op_type, list(shapes), ["y"], "layer", **attributes)
    graph = helper.make_graph([node], "convolution", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def both_gradients(model):
    """The gradient by the rules, and the one by other forms."""
    names = [value.name for value in model.graph.input]
    plain = gradient(model, wrt=names)
    with faster_rules():
        return plain, gradient(model, wrt=names)


def check(op_type, x, w, bias=None, known="all", **attributes):
    """The two gradients agree; how the faster one was computed."""
    model = model_of(op_type, x, w, bias, known, **attributes)
    plain, faster = both_gradients(model)
    onnx.checker.check_model(faster, full_check=True)
    feeds = {"x": integers(x, 0), "w": integers(w, 1), "b": integers([bias or 1], 2)}
    names = {value.name for value in model.graph.input}
    feeds = {name: array for name, array in feeds.items() if name in names}
    y = run_on_runtime(model, feeds)["y"]
    feeds["y_grad"] = np.ones_like(y) if y.size == 1 else integers(y.shape, 3)
    expected, got = run_on_runtime(plain, feeds), run_on_runtime(faster, feeds)
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name, strict=True)
    return [node.op_type for node in faster.graph.node][1:]


@pytest.mark.parametrize("known", KNOWN[1:3])
@pytest.mark.parametrize("case", CONV)
def test_conv(case, known):
    x, w, bias, attributes = CONV[case]
    check("Conv", x, w, bias, known, **attributes)


@pytest.mark.parametrize("known", KNOWN[1:3])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_conv_transpose(case, known):
    x, w, bias, attributes = TRANSPOSED[case]
    check("ConvTranspose", x, w, bias, known, **attributes)


def draw(rng, transposed, known):
    """A convolution of any kind, over images on which it has a result."""
    n, group, depthwise = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3])), rng.random() < 0.3
    inner, outer = (1, 1) if depthwise else map(int, rng.integers(1, 4, 2))
    # An empty batch has gradients of zeros. Where images are of any size, onnxruntime refuses to reshape nothing; and
    # of several products over nothing it clears the first one only, which is why a filter a channel is left out.
    fewest = 0 if known in ("all", "but the batch") and (group == 1 or inner * outer > 1) else 1
    kernel = rng.integers(1, (12, 5, 4)[n - 1], n)
    strides, dilations = rng.integers(1, 4, n), rng.integers(1, 3, n)
    extents = (kernel - 1) * dilations + 1
    pads = np.minimum(rng.integers(0, 3, 2 * n), np.tile(extents, 2) - 1)
    attributes = {"strides": strides, "dilations": dilations, "group": group, "pads": pads}
    if transposed:
        attributes["output_padding"] = rng.integers(0, strides)
        # So many that something is left when the padding is cut off.
        cut = pads[:n] + pads[n:]
        sizes = np.where(extents > cut, 1, cut // strides + 2) + rng.integers(0, 4, n)
    else:
        sizes = np.maximum(extents - pads[:n] - pads[n:], 1) + rng.integers(0, 5, n)
        if rng.random() < 0.2:
            del attributes["pads"]
            attributes |= {"auto_pad": str(rng.choice(["SAME_UPPER", "SAME_LOWER"])), "dilations": [1] * n}
    x = [int(rng.integers(fewest, 4)), group * inner, *sizes.tolist()]
    w = [group * inner, outer, *kernel.tolist()] if transposed else [group * outer, inner, *kernel.tolist()]
    listed = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in attributes.items()}
    return x, w, group * outer, listed


def check_drawn(seed):
    known, transposed = KNOWN[seed % len(KNOWN)], seed % 3 == 0
    x, w, bias, attributes = draw(np.random.default_rng(seed), transposed, known)
    check("ConvTranspose" if transposed else "Conv", x, w, bias, known, **attributes)


@pytest.mark.parametrize("seed", range(48))
def test_any(seed):
    check_drawn(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(48, 1500))
def test_any_more(seed):
    check_drawn(seed)


# Shape of x, shape of w, attributes, and by which operators the gradients of x and w are computed. Of two rows that
# differ by one, the second lies just outside of what is faster in another form.
STRIDES = {"group": 2, "strides": [2, 2]}
FORMS = {
    "1x1: the weight, inputs and outputs exchanged": ([2, 3, 4, 4], [2, 3, 1, 1], {}, "Transpose Conv", "MatMul"),
    "1x1, stride": ([2, 3, 4, 4], [2, 3, 1, 1], {"strides": [2, 2]}, "ConvTranspose", "Conv MatMul"),
    "1x1, as many outputs as pixels": ([2, 3, 2, 2], [4, 3, 1, 1], {}, "Transpose Conv", "Gemm"),
    "as many channels as outputs": ([1, 3, 4, 4], [3, 3, 2, 2], {}, "Transpose Slice Conv", "Conv MatMul"),
    "fewer channels than outputs": ([1, 3, 5, 5], [4, 3, 2, 2], {}, "ConvTranspose", "Conv MatMul"),
    "as many channels as pixels": ([1, 9, 4, 4], [3, 9, 2, 2], {}, "Transpose Slice Conv", "Conv MatMul"),
    "more channels than pixels": ([1, 10, 4, 4], [3, 10, 2, 2], {}, "ConvTranspose", "Conv MatMul"),
    "padding beyond the kernel": ([1, 3, 4, 4], [2, 3, 2, 2], {"pads": [2, 1, 1, 1]}, "ConvTranspose", "Conv MatMul"),
    "9 places": ([1, 2, 12], [3, 2, 9], {}, "ConvTranspose", "Conv MatMul"),
    "10 places": ([1, 2, 13], [3, 2, 10], {}, "ConvTranspose", "Conv"),
    "groups": ([1, 4, 4, 4], [4, 2, 2, 2], {"group": 2}, "ConvTranspose", "Conv MatMul"),
    "groups, 1x1": ([1, 4, 4, 4], [4, 2, 1, 1], {"group": 2}, "Transpose Conv", "MatMul"),
    "a filter a channel": ([1, 2, 3, 32], [2, 1, 2, 2], {"group": 2}, "MatMul", "MatMul"),
    "a filter a channel, 33 columns": ([1, 2, 3, 33], [2, 1, 2, 2], {"group": 2}, "Slice Conv", "MatMul"),
    "a filter a channel, stride": ([1, 2, 3, 96], [2, 1, 2, 2], STRIDES, "MatMul", "MatMul"),
    "a filter a channel, 97 columns": ([1, 2, 3, 97], [2, 1, 2, 2], STRIDES, "ConvTranspose", "Conv MatMul"),
    "a filter a channel, 7 rows": ([1, 2, 7, 8], [2, 1, 7, 2], {"group": 2}, "MatMul", "MatMul"),
    "a filter a channel, 8 rows": ([1, 2, 8, 8], [2, 1, 8, 2], {"group": 2}, "Slice Conv", "Conv"),
    "a filter a channel, one axis": ([1, 2, 8], [2, 1, 3], {"group": 2}, "Slice Conv", "Conv MatMul"),
}  # fmt: skip
COMPUTING = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@pytest.mark.parametrize(("x", "w", "attributes", "of_data", "of_weight"), FORMS.values(), ids=FORMS)
def test_forms(x, w, attributes, of_data, of_weight):
    check("Conv", x, w, None, "but the batch", **attributes)
    model = model_of("Conv", x, w, None, "but the batch", **attributes)
    for name, wanted in (("x", of_data), ("w", of_weight)):
        with faster_rules():
            operators = {node.op_type for node in gradient(model, wrt=[name]).graph.node[1:]}
        assert {operator for operator in operators if operator in COMPUTING} == set(wanted.split()) & set(COMPUTING)
        assert set(wanted.split()) <= operators


FACTORS = {
    "of channels": ("[3, 1, 1]", "float[N, 3, 4, 4]", True),
    "of channels, with a batch of one": ("[1, 3, 1, 1]", "float[N, 3, 4, 4]", True),
    "of rows": ("[3, 4, 1]", "float[N, 3, 4, 4]", False),
    "of everything": ("[1]", "float[N, 3, 4, 4]", False),
}


@pytest.mark.parametrize("consumers", [1, 2])
@pytest.mark.parametrize(("shape", "image", "taken"), FACTORS.values(), ids=FACTORS)
def test_factors_of_channels(shape, image, taken, consumers):
    """A factor after the convolution is one of the weight; not where another way leads on from the convolution."""
    second = "e = Mul(y, y) s = Add(z, e)" if consumers == 2 else "s = Identity(z)"
    text = f"""net (float[N, 2, 4, 4] x, float[3, 2, 2, 2] w, float[3] b, float{shape} f) => ({image} s)
    {{ y = Conv<pads = [1, 1, 0, 0]>(x, w, b) z = Mul(y, f) {second} }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    plain, faster = both_gradients(model)
    sizes = {"x": [2, 2, 4, 4], "w": [3, 2, 2, 2], "b": [3], "f": eval(shape)}
    feeds = {name: integers(size, seed) for seed, (name, size) in enumerate(sizes.items())}
    feeds["s_grad"] = integers([2, 3, 4, 4], 9)
    expected, got = run_on_runtime(plain, feeds), run_on_runtime(faster, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
    scaled = [node for node in faster.graph.node if node.op_type == "Mul" and "w" in node.input]
    assert bool(scaled) is (taken and consumers == 1)


def test_factors_stay_where_weights_are_larger_than_images():
    text = """net (float[N, 2, 3, 3] x, float[3, 2, 3, 3] w, float[3, 1, 1] f) => (float[N, 3, 1, 1] z)
    { y = Conv(x, w) z = Mul(y, f) }"""
    _, faster = both_gradients(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'))
    assert not [node for node in faster.graph.node if node.op_type == "Mul" and "w" in node.input]


@pytest.mark.parametrize("attributes", [{}, STRIDES])
def test_an_empty_batch_after_another(attributes):
    """Products over nothing are zeros, not what was in memory."""
    model = model_of("Conv", [2, 2, 4, 8], [2, 1, 2, 2], None, "but the batch", **{"group": 2, **attributes})
    _, faster = both_gradients(model)
    for batch in (3, 0):
        feeds = {"x": np.ones([batch, 2, 4, 8], np.float32), "w": np.ones([2, 1, 2, 2], np.float32)}
        y = run_on_runtime(model, feeds)["y"]
        got = run_on_runtime(faster, {**feeds, "y_grad": np.ones_like(y)})["w_grad"]
        assert got.any() == (batch > 0)


def test_inside_loops():
    """Bodies are differentiated by the same rules."""
    text = """net (float[2, 3, 4, 4] x, float[3, 3, 1, 1] w) => (float[2, 3, 4, 4] y)
    <int64 steps = {2}, bool yes = {1}> {
        y = Loop(steps, yes, x) <body = body (int64 i, bool going, float[2, 3, 4, 4] state)
            => (bool on, float[2, 3, 4, 4] next) { on = Identity(going) next = Conv(state, w) }>
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    plain, faster = both_gradients(model)
    assert "ConvTranspose" in plain.SerializeToString().decode("latin-1")
    assert "ConvTranspose" not in faster.SerializeToString().decode("latin-1")
