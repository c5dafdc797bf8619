"""Lowered graphs compute what the graphs before did."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward.graph.builder import Builder
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.testing import check_training, run_on_runtime
from onward.training.lowering import lower
from onward.training.phases import phases
from onward.training.split import split

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
CLASSES = 1024  # fewer stay as they are
X = np.random.default_rng(0).normal(size=(6, CLASSES)).astype(np.float32) * 20
LABELS = np.array([0, 1023, 2, 2, 1, 3])


def loss_model(outputs, *, weights=False, shape=("N", CLASSES), labels=("N",), **attributes):
    inputs = ["x", "labels", *(["weights"] if weights else [])]
    node = helper.make_node("SoftmaxCrossEntropyLoss", inputs, outputs, "criterion", **attributes)
    # Something that reads the outputs, so that not all of them are outputs of the graph only.
    extra = helper.make_node("Neg", [outputs[-1]], ["negative"])
    graph = helper.make_graph(
        [node, extra],
        "loss",
        [helper.make_tensor_value_info("x", FLOAT, shape), helper.make_tensor_value_info("labels", INT64, labels)],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in (*outputs, "negative")],
        [numpy_helper.from_array(np.linspace(0.5, 2, CLASSES, dtype=np.float32), "weights")] if weights else [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def lowered(model: onnx.ModelProto) -> onnx.ModelProto:
    graph: ir.Model = prepare(model)
    lower(Builder(graph.graph, graph.opset_imports[""]))
    result = finish(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


@pytest.mark.parametrize("outputs", [["loss"], ["loss", "log_prob"]])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("attributes", [{}, {"reduction": "sum"}, {"reduction": "none", "ignore_index": 2}])
def test_softmax_cross_entropy(outputs, weights, attributes):
    model = loss_model(outputs, weights=weights, **attributes)
    result = lowered(model)
    assert "SoftmaxCrossEntropyLoss" not in {node.op_type for node in result.graph.node}
    assert [value.name for value in result.graph.output] == [*outputs, "negative"]
    feeds = {"x": X, "labels": LABELS}
    expected, got = run_on_runtime(model, feeds), run_on_runtime(result, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-6, atol=1e-6)


def test_losses_of_higher_rank_stay():
    model = loss_model(["loss"], shape=("N", CLASSES, 3), labels=("N", 3))
    assert [node.op_type for node in lowered(model).graph.node] == ["SoftmaxCrossEntropyLoss", "Neg"]


def test_losses_of_few_classes_stay():
    model = loss_model(["loss"], shape=("N", 10))
    assert [node.op_type for node in lowered(model).graph.node] == ["SoftmaxCrossEntropyLoss", "Neg"]


def masked_model(operator="Relu", other=0.0, elem_type=FLOAT):
    """What the gradient of Relu looks like: dy where y is not 0."""
    dtype = helper.tensor_dtype_to_np_dtype(elem_type)
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["x"], ["y"], "forward"),
            helper.make_node("Cast", ["y"], ["mask"], "mask", to=TensorProto.BOOL),
            helper.make_node("Where", ["mask", "dy", "other"], ["dx"], "backward"),
        ],
        "masked",
        [helper.make_tensor_value_info(name, elem_type, ["N", CLASSES]) for name in ("x", "dy")],
        [helper.make_tensor_value_info("dx", elem_type, None)],
        [numpy_helper.from_array(np.array(other, dtype), "other")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def test_masks():
    model = masked_model()
    result = lowered(model)
    assert [node.op_type for node in result.graph.node] == ["Relu", "HardSigmoid", "Mul"]
    feeds = {"x": X, "dy": X[::-1].copy()}
    np.testing.assert_array_equal(run_on_runtime(result, feeds)["dx"], run_on_runtime(model, feeds)["dx"])


@pytest.mark.parametrize(
    "model",
    [masked_model(other=1.0), masked_model(elem_type=TensorProto.DOUBLE), masked_model("IsNaN")],
    ids=["one", "double", "guard"],
)
def test_masks_that_stay(model):
    assert [node.op_type for node in lowered(model).graph.node][-1] == "Where"


def test_masks_of_the_users_model_stay():
    """They may keep infinities out."""
    model = prepare(masked_model())
    lower(Builder(model.graph, model.opset_imports[""]), forward=set(model.graph))
    assert [node.op_type for node in model.graph][-1] == "Where"


@pytest.mark.parametrize("high", ["3.0e-4", "0.5", "1.0", "6.0", "7.3", "1.0e6", ""])
def test_masks_of_clips(high):
    """Torch's gradient of ReLU6: 0 at the bounds and outside of them."""
    bound = f"high = Constant<value = float {{{high}}}>()" if high else ""
    model = parsed(f"""masked (float[N] x, float[N] dy, float[N, 1] w) => (float[N] dx, float[N, 1] z)
    <float low = {{0.0}}, float zero = {{0.0}}> {{
        {bound}
        y = Clip(x, low{", high" if high else ""})
        z = Mul(y, w)
        above = Greater(y, zero)
        {"below = Less(y, high) mask = And(above, below)" if high else ""}
        dx = Where({"mask" if high else "above"}, dy, zero)
    }}""")
    result = lowered(model)
    assert "Where" not in operators(result)
    top = np.float32(high or 10)
    x = np.concatenate([X[0], [0, top, -0.0], np.nextafter(top, [np.float32(0), np.float32(np.inf)]), [1e-30]])
    x = x.astype(np.float32)
    dy = np.arange(1, x.size + 1, dtype=np.float32)
    expected = np.where((x > 0) & ((x < top) | (high == "")), dy, 0)
    got = run_on_runtime(result, {"x": x, "dy": dy, "w": np.ones((x.size, 1), np.float32)})["dx"]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("activation", ["Relu(h)", "Clip(h, low, high)"])
@pytest.mark.parametrize(
    ("after", "stays"),
    [
        ("y = Sqrt(r)", True),
        ("y = Log(r)", True),
        ("y = Reciprocal(r)", True),
        ("y = Pow(r, high)", True),
        ("t = Transpose(r) y = Sqrt(t)", True),
        ("t = MatMul(r, v) y = Sqrt(t)", True),
        ("t = MatMul(r, v) y = Div(t, t)", True),
        (
            "y = If(yes)<then_branch = a () => (float[N, 4] b) {b = Sqrt(r)}, "
            "else_branch = c () => (float[N, 4] d) {d = Neg(r)}>",
            True,
        ),
        ("t = MatMul(r, v) e = Add(t, high) s = Sqrt(e) u = Div(t, s) y = Pow(u, two)", False),
        ("t = MatMul(r, v) e = Exp(t) y = Div(t, e)", False),
        (
            "t = MatMul(r, v) a = Clip(t, high) b = Log(a) c = Greater(t, low) d = Where(c, t, two) e = Log(d) "
            "y = Add(b, e)",
            False,
        ),
        ("t = MatMul(r, v) s = ReduceSum<keepdims=0>(t) y = Div(t, s)", False),
    ],
)
def test_masks_before_infinite_slopes_stay(activation, after, stays):
    """A product would make NaN of an infinity that the mask keeps away."""
    model = parsed(f"""steep (float[N, 4] x, bool yes) => (float loss)
    <float[4, 4] v = {{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}}, float[4] w = {{1, 2, 3, 4}},
    float low = {{0.0}}, float high = {{0.5}}, float two = {{2.0}}>
    {{ h = Mul(x, w) r = {activation} {after} loss = ReduceSum<keepdims=0>(y) }}""")
    made = split(model, trainable=["w"]).training
    masks = [node.op_type for node in made.graph.node if node.name.startswith("grad/r/")]
    assert ("Where" in masks, "HardSigmoid" in masks) == (stays, not stays)


@pytest.mark.parametrize(("after", "stays"), [("y = Identity(r)", True), ("y = MatMul(r, v)", False)])
def test_masks_of_what_others_differentiate_stay(after, stays):
    """The cotangent of an output may be infinite where the output is 0."""
    model = parsed(f"""open (float[N, 2] x) => (float[N, 2] y)
    <float[2, 2] v = {{1, 0, 0, 1}}, float[2] w = {{1, 2}}> {{ h = Mul(x, w) r = Relu(h) {after} }}""")
    whole = phases(model, trainable=["w"]).joined()
    assert ("Where" in operators(whole)) == stays
    feeds = {"x": np.array([[1, -1]], np.float32), "w": np.array([1, 2], np.float32)}
    if stays:
        found = run_on_runtime(whole, {**feeds, "y_grad": np.array([[3, np.inf]], np.float32)})["w_grad"]
        np.testing.assert_array_equal(found, [3, 0])


def test_activations_on_their_bounds():
    """Exactly there, training graphs take the slope that `onward.gradient` takes."""
    model = parsed("""clipped (float[N, 5] x) => (float[N, 1] y)
    <float low = {0.0}, float high = {3.0}, float[5] b = {0, 0, 0, 0, 0}, float[5, 1] v = {1, 2, 3, 4, 5}>
    {
        a = Add(x, b)
        c = Clip(a, low, high)
        y = MatMul(c, v)
    }""")
    x = np.array([[-1, 0, 1, 3, 4], [0, 3, 0, 3, 2]], np.float32)
    check_training(model, {"x": x}, wrt=["x", "b", "v"])


def test_an_infinite_maximum_leaves_its_neighbours_alone():
    model = parsed("""pooled (float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) {
        m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)
        y = Tanh(m)
    }""")
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, 0, 0] = np.inf
    check_training(model, {"x": x}, wrt=["x"], layouts=["static"])


def parsed(body: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {body}')


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


ROWS = np.random.default_rng(1).normal(size=(6, 20, 96)).astype(np.float32)
SUMS = [
    ('float[N, 96] x', "int64[1] {0}", "keepdims=0", ROWS[0], True),
    ('float[120, 96] x', "int64[1] {-2}", "keepdims=0", ROWS.reshape(120, 96), True),
    ('float[N, T, 96] x', "int64[2] {0, 1}", "keepdims=0", ROWS, True),
    ('float[N, 20, 96] x', "int64[2] {1, -3}", "keepdims=0", ROWS, True),
    ('float[20, 96] x', "int64[1] {0}", "keepdims=0", ROWS[0], False),  # small
    ('float[N, 6] x', "int64[1] {0}", "keepdims=0", ROWS[0, :, :6], False),  # narrow
    ('float[N, C] x', "int64[1] {0}", "keepdims=0", ROWS[0], False),  # nobody knows
    ('float[N, 96] x', "int64[1] {0}", "keepdims=1", ROWS[0], False),
    ('float[N, T, 96] x', "int64[1] {0}", "keepdims=0", ROWS, False),
    ('float[N, 96] x', "int64[1] {1}", "keepdims=0", ROWS[0], False),
]  # fmt: skip


@pytest.mark.parametrize(("x", "axes", "keepdims", "array", "lower_it"), SUMS, ids=str)
def test_sums_of_rows(x, axes, keepdims, array, lower_it):
    model = parsed(
        f"g ({x}) => (float[M] y) <{axes.replace(' {', ' axes = {')}> {{ y = ReduceSum<{keepdims}>(x, axes) }}"
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    result = lowered(model)
    assert ("MatMul" in operators(result)) is lower_it
    expected, got = (run_on_runtime(m, {"x": array})["y"] for m in (model, result))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


# Pads of a [N, 2, 4], b [N, 1, 4] and c [N, 3, 4] along the second axis, and whether they tile it.
TILES = [
    (("a", (0, 4)), ("b", (2, 3)), ("c", (3, 0)), True),
    (("c", (3, 0)), ("a", (0, 4)), ("b", (2, 3)), True),
    (("a", (0, 4)), ("b", (1, 4)), ("c", (3, 0)), False),  # two overlap, and none is at 2
    (("a", (0, 5)), ("b", (2, 4)), ("c", (3, 1)), False),  # nothing at the end
    (("a", (1, 4)), ("b", (3, 3)), ("c", (4, 0)), False),  # nothing at the beginning
]


@pytest.mark.parametrize("case", TILES, ids=str)
def test_sums_of_tiles(case):
    *parts, lower_it = case
    total = {"a": 2, "b": 1, "c": 3}[parts[0][0]] + sum(parts[0][1])
    pads = ", ".join(f"int64[6] p{n} = {{0, {before}, 0, 0, {after}, 0}}" for n, (before, after) in parts)
    nodes = " ".join(f"{n}_padded = Pad({n}, p{n})" for n, _ in parts)
    inputs = "float[N, 2, 4] a, float[N, 1, 4] b, float[N, 3, 4] c"
    total_sum = f"y = Sum({', '.join(f'{n}_padded' for n, _ in parts)})"
    model = parsed(f"g ({inputs}) => (float[N, {total}, 4] y) <{pads}> {{ {nodes} {total_sum} }}")
    result = lowered(model)
    assert ("Concat" in operators(result)) is lower_it
    random = np.random.default_rng(0)
    feeds = {name: random.normal(size=(2, size, 4)).astype(np.float32) for name, size in (("a", 2), ("b", 1), ("c", 3))}
    np.testing.assert_array_equal(run_on_runtime(result, feeds)["y"], run_on_runtime(model, feeds)["y"])


def test_only_zeros_make_tiles():
    pads = "int64[4] p = {0, 0, 0, 2}, int64[4] q = {0, 2, 0, 0}, float one = {1}"
    body = "x = Pad(a, p, one) z = Pad(b, q) y = Add(x, z)"
    model = parsed(f"g (float[N, 2] a, float[N, 2] b) => (float[N, 4] y) <{pads}> {{ {body} }}")
    assert operators(lowered(model)) == ["Pad", "Pad", "Add"]
    both = parsed(f"g (float[N, 2] a, float[N, 2] b) => (float[N, 4] y) <{pads}> {{ {body.replace(', one', '')} }}")
    assert operators(lowered(both)) == ["Concat"]


# y of g [N, 1024] times the number s, in several forms, and what is left of the multiplication by s.
SCALED = [
    ("d = Mul(g, s) y = Gemm<transB = 1>(d, w)", "float[3, 1024] w", ["Gemm", "Mul"]),  # s (g w)
    ("d = Mul(s, g) y = Gemm<transA = 1, alpha = 0.5>(x, d)", "float[N, 3] x", ["Mul", "Gemm"]),  # (s x) g
    ("d = Mul(g, s) e = Reshape(d, flat) y = MatMul(x, e)", "float[3, N] x", ["Reshape", "Mul", "MatMul"]),
    # Nothing but its shape and its sum is wanted.
    ("d = Mul(g, s) y = ReduceSum<keepdims = 0>(d, zero)", "", ["Shape", "Gather", "Expand", "Mul", "MatMul"]),
    ("d = Mul(g, s) y = Gemm(d, w, b)", "float[1024, 3] w, float[3] b", ["Mul", "Gemm"]),  # there is more in it
    ("d = Mul(g, v) y = MatMul(d, w)", "float[1024, 3] w, float[1024] v", ["Mul", "MatMul"]),
]


@pytest.mark.parametrize(("body", "others", "expected"), SCALED, ids=str)
def test_products_of_scaled_tensors(body, others, expected):
    constants = "int64[2] flat = {-1, 1024}, int64[1] zero = {0}"
    inputs = "float[N, 1024] g, float s" + (f", {others}" if others else "")
    model = parsed(f"graph ({inputs}) => (float y) <{constants}> {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    result = lowered(model)
    assert operators(result) == expected
    random = np.random.default_rng(0)
    shapes = {v.name: [d.dim_value or 6 for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    feeds = {name: np.asarray(random.normal(size=shape), np.float32) for name, shape in shapes.items()}
    names = {value.name for value in result.graph.input}
    got = run_on_runtime(result, {name: array for name, array in feeds.items() if name in names})["y"]
    np.testing.assert_allclose(got, run_on_runtime(model, feeds)["y"], rtol=1e-4, atol=1e-4)


def test_expansions_that_broadcasting_makes_anyway():
    model = parsed("""expanded (float[N, 3, 4] x, float[3, 1] y) => (float[N, 3, 4] z)  {
        shape = Shape(x)
        wide = Expand(y, shape)
        z = Mul(wide, x)
    }""")
    x, y = np.ones((2, 3, 4), np.float32), np.arange(3, dtype=np.float32).reshape(3, 1)
    result = lowered(model)
    assert operators(result) == ["Mul"]
    np.testing.assert_array_equal(run_on_runtime(result, {"x": x, "y": y})["z"], x * y)


def test_expansions_that_make_the_shape_stay():
    model = parsed("""expanded (float[N, 3, 4] x, float[3, 1] y, float[3, 4] w) => (float[N, 3, 4] z)  {
        shape = Shape(x)
        wide = Expand(y, shape)
        z = Mul(wide, w)
    }""")
    assert "Expand" in operators(lowered(model))


@pytest.mark.parametrize(("flags", "a", "b"), [("transA=1", "5, N", "5, 3"), ("transB=1, alpha=2.0", "N, 5", "3, 5")])
def test_products_that_are_transposed(flags, a, b):
    model = parsed(f"""transposed (float[{a}] a, float[{b}] b) => (float[3, N] z)  {{
        product = Gemm<{flags}>(a, b)
        z = Transpose(product)
    }}""")
    result = lowered(model)
    assert operators(result) == ["Gemm"]
    shapes = [[int(size) if size.isdigit() else 4 for size in text.split(", ")] for text in (a, b)]
    feeds = dict(zip("ab", (np.random.default_rng(2).normal(size=s).astype(np.float32) for s in shapes), strict=True))
    expected, got = run_on_runtime(model, feeds)["z"], run_on_runtime(result, feeds)["z"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_products_that_are_used_both_ways_stay():
    model = parsed("""transposed (float[5, N] a, float[5, 3] b) => (float[3, N] z, float[N, 3] product)  {
        product = Gemm<transA=1>(a, b)
        z = Transpose(product)
    }""")
    assert operators(lowered(model)) == ["Gemm", "Transpose"]


@pytest.mark.parametrize("swapped", [False, True])
def test_terms_that_are_scattered(swapped):
    """Indices occur twice: both are added."""
    model = parsed(
        f"""scattered (float[5, 3] x, int64[N, 3] i, float[N, 3] u) => (float[5, 3] z)
    <int64[2] shape = {{5, 3}}> {{
        w = Neg(x)
        zeros = ConstantOfShape(shape)
        term = ScatterElements<axis=0, reduction="add">(zeros, i, u)
        z = Add({"term, w" if swapped else "w, term"})
    }}""",
        opset=18,
    )
    result = lowered(model)
    assert operators(result) == ["Neg", "ScatterElements"]
    random = np.random.default_rng(3)
    feeds = {"x": random.normal(size=(5, 3)), "u": random.normal(size=(4, 3))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    feeds["i"] = np.repeat([[1], [4], [1], [0]], 3, axis=1)
    expected, got = run_on_runtime(model, feeds)["z"], run_on_runtime(result, feeds)["z"]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize("fill", ["1", "0"])
def test_terms_that_are_more_than_scattered_stay(fill):
    """Ones between, or zeros that replace."""
    reduction = "" if fill == "0" else ', reduction="add"'
    model = parsed(
        f"""scattered (float[5, 3] x, int64[N, 3] i, float[N, 3] u) => (float[5, 3] z)
    <int64[2] shape = {{5, 3}}> {{
        filled = ConstantOfShape<value = float[1] {{{fill}}}>(shape)
        term = ScatterElements<axis=0{reduction}>(filled, i, u)
        z = Add(x, term)
    }}""",
        opset=18,
    )
    assert operators(lowered(model))[-1] == "Add"


def test_transpositions_that_leave_all_in_place_stay():
    model = parsed("""transposed (float[5, N] a, float[5, 3] b) => (float[N, 3] z)  {
        product = Gemm<transA=1>(a, b)
        z = Transpose<perm=[0, 1]>(product)
    }""")
    assert operators(lowered(model)) == ["Gemm", "Transpose"]


@pytest.mark.parametrize("domain", ["", "elsewhere"])
def test_only_the_softmax_of_the_standard_is_never_negative(domain):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 4]))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 17, "elsewhere": 1})
    op = Builder(graph, 17)
    with op:
        y = op.custom("elsewhere", "Softmax", x, like=x) if domain else op.Softmax(x)
        graph.outputs.append(op.Where(op.IsNaN(y), 0.0, y))
    lower(op, list(graph))
    assert graph[-1].op_type == ("Where" if domain else "ThresholdedRelu")


@pytest.mark.parametrize("domain", ["", "elsewhere"])
def test_only_a_product_of_the_standard_is_taken_apart(domain):
    kind = ir.TensorType(ir.DataType.FLOAT)
    g, s, w = (
        ir.Value(name=name, type=kind, shape=ir.Shape(shape))
        for name, shape in (("g", ["N", CLASSES]), ("s", []), ("w", [CLASSES, 3]))
    )
    graph = ir.Graph([g, s, w], [], nodes=[], opset_imports={"": 17, "elsewhere": 1})
    op = Builder(graph, 17)
    with op:
        scaled = op.custom("elsewhere", "Mul", g, s, like=g) if domain else op.Mul(g, s)
        graph.outputs.append(op.MatMul(scaled, w))
    lower(op)
    (product,) = [node for node in graph if node.op_type == "MatMul"]
    assert product.inputs[0] is (scaled if domain else g)


def test_the_bias_before_a_pooling_sums_what_is_scattered():
    model = parsed("""net (float[N, 2, 8, 8] x, float[3, 2, 3, 3] w, float[3] b) => (float loss) {
        c = Conv(x, w, b)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
        loss = ReduceMean<keepdims = 0>(p)
    }""")
    graph = split(model, trainable=["w", "b"], frozen=[]).training.graph
    (reshape,) = (node for node in graph.node if node.output[0] in sums_read(graph))
    sizes = {
        value.name: [d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim] for value in graph.value_info
    }
    assert sizes[reshape.output[0]] == ["N", 3, 9]


def sums_read(graph: onnx.GraphProto) -> set[str]:
    """What is summed over more than the samples."""
    known = {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in graph.initializer}
    return {node.input[0] for node in graph.node if node.op_type == "ReduceSum" and len(known[node.input[1]]) > 1}
