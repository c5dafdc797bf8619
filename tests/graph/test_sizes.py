"""Sizes with names."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onward.graph.finish import finish
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values
from onward.graph.prepare import prepare
from onward.graph.propagation import name_sizes, result_shape
from onward.graph.shapes import dims, is_placeholder
from onward.graph.size_values import SizeValues
from onward.graph.sizes import product, quotient


@pytest.mark.parametrize(
    ("sizes", "divisors", "expected"),
    [
        ([2, 3], [], 6),
        (["batch", 6, 6], [], "batch*36"),
        (["batch*36"], ["batch"], 36),
        (["batch*36", 2], [9], "batch*8"),
        ([-1, "batch"], [], None),
        (["batch*4"], [4], "batch"),
        (["b", "a", 2], [], "a*b*2"),
        (["a*b*2"], ["b"], "a*2"),
        (["batch", 3], [2], None),  # whole for some batches only
        (["batch"], ["other"], None),
        ([None, 3], [], None),
        ([4], [None], None),
        (["s0 + 1", 2], [], "(s0 + 1)*2"),
        (["s0 + 1", 2], [2], "s0 + 1"),
        (["2*s0 + 4"], [2], None),  # not taken apart
        (["batch", 0], [], 0),
        (["batch"], [0], None),
    ],
)
def test_quotient(sizes, divisors, expected):
    assert quotient(sizes, divisors) == expected


def test_product():
    assert product(["batch", 2, "batch", 5]) == "batch*batch*10"


def test_results_have_names_where_inference_has_none():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    named (float[batch, 6, 4] x, float[4, 3] w) => (float[batch, 6, 3] z) <int64[2] rows = {-1, 4}> {
        r = Reshape(x, rows)
        p = MatMul(r, w)
        n = Relu(p)
        s = Shape(x)
        k = Constant<value = int64[3] {-1, 6, 3}>()
        z = Reshape(n, k)
    }""")
    result = finish(prepare(model))
    values = [*result.graph.value_info, *result.graph.output]
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    assert [shapes[name] for name in "rpnz"] == [["batch*6", 4], ["batch*6", 3], ["batch*6", 3], ["batch", 6, 3]]


def test_operators_of_other_domains_are_not_taken_for_those_of_the_standard():
    node = ir.node("Relu", [ir.Value(name="x", shape=ir.Shape(["N"]))], domain="elsewhere")
    assert result_shape(node, SizeValues()) is None


FOLLOWED = {
    # What is computed for the target of a Reshape of x [batch, 6, 4], and the shape that it has.
    "r = Shape(x)": ["batch", 6, 4],
    "s = Shape(x) r = Concat<axis=0>(s, one)": ["batch", 6, 4, 1],
    "s = Shape<start=1>(x) r = Concat<axis=0>(rest, s)": ["batch", 6, 4],
    "s = Shape<start=-2, end=-1>(x) r = Concat<axis=0>(s, rest)": [6, "batch*4"],
    "s = Shape(x) n = Gather(s, zero) r = Concat<axis=0>(n, rest)": ["batch", 24],
    "s = Shape(x) n = Gather(s, place) v = Unsqueeze(n, zero) r = Concat<axis=0>(rest, v)": ["batch*6", 4],
    "s = Shape(x) n = Slice(s, zero, two) r = Concat<axis=0>(n, rest, two)": ["batch", 6, 2, 2],
    "s = Shape(x) n = Slice(s, rest, largest) r = Concat<axis=0>(rest, n)": ["batch*6", 4],
    "s = Shape(x) n = Gather(s, zero) m = Mul(n, two) r = Concat<axis=0>(m, rest)": ["batch*2", 12],
    "s = Shape(x) n = Size(x) m = Reshape(n, rest) d = Div(m, two) r = Concat<axis=0>(d, two)": ["batch*12", 2],
    "s = Shape(x) p = ReduceProd<keepdims=1>(s) r = Concat<axis=0>(p, one)": ["batch*24", 1],
    "s = Shape(x) n = Gather(s, zero) a = Add(two, one) r = Concat<axis=0>(n, a, rest)": ["batch", 3, 8],
    "s = Shape(x) n = Gather(s, zero) c = Cast<to=6>(n) d = Cast<to=7>(c) r = Concat<axis=0>(d, rest)": ["batch", 24],
    # A half of `batch` need not be whole, and what is negative or 0 is no factor.
    "s = Shape(x) n = Gather(s, zero) d = Div(n, two) r = Concat<axis=0>(d, rest)": [None, None],
    "s = Shape(x) n = Gather(s, zero) d = Mul(n, rest) m = Mul(d, rest) r = Concat<axis=0>(m, rest)": [None, None],
    # Whether there is something is no size.
    "s = Shape(x) n = Gather(s, zero) t = Cast<to=9>(n) i = Cast<to=7>(t) r = Concat<axis=0>(i, rest)": [None, None],
    # A count may be anything, and so may numbers that are fed.
    "r = Concat<axis=0>(fed, rest)": [None, None],
}


@pytest.mark.parametrize("text", FOLLOWED)
def test_sizes_are_followed_through_arithmetic(text):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 6, 4] x, int64[1] fed) => (float z)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] rest = {{-1}}, int64 place = {{2}},
    int64[1] largest = {{9223372036854775807}}> {{ {text} y = Reshape(x, r) z = ReduceSum<keepdims=0>(y) }}""")
    graph = prepare(model).graph
    name_sizes(graph)
    (result,) = [value for value in all_values(graph) if value.name == "y"]
    found = [None if is_placeholder(size) else size for size in dims(result)]
    assert found == FOLLOWED[text]


def test_products_of_sizes_that_were_only_numbered_mean_nothing_after_another_inference():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 6, 4] x, bool[6] chosen) => (float z)
    { c = Compress<axis=1>(x, chosen) y = Flatten<axis=2>(c) z = ReduceSum<keepdims=0>(y) }""")
    prepared = prepare(model)
    (y,) = [value for value in all_values(prepared.graph) if value.name == "y"]
    name_sizes(prepared.graph)
    assert is_placeholder(dims(y)[0])
    infer_shapes(prepared)  # which counts anew
    assert "*" not in str(dims(y)[0])
