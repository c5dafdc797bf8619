"""Sizes with names."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.graph.propagation import result_shape
from onward.graph.sizes import product, quotient


@pytest.mark.parametrize(
    ("sizes", "divisors", "expected"),
    [
        ([2, 3], [], 6),
        (["batch", 6, 6], [], "batch*36"),
        (["batch*36"], ["batch"], 36),
        (["batch*36", 2], [9], "batch*8"),
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
    assert result_shape(node) is None
