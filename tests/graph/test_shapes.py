"""Inference of shapes where onnx's own has gaps."""

from __future__ import annotations

import onnx
import pytest

from onward.graph.prepare import prepare
from onward.graph.shapes import dims

# A mask from the distance of two positions, as exporters write it, then a Reshape to a computed shape.
MASKED = """<ir_version: 8, opset_import: ["" : 18]> g (float[n, 3, 5] x) => (float[a, b] y)
<int64[3] r = {0, 1, 2}, int64[5] c = {0, 1, 2, 3, 4}, int64[1] one = {1}, int64[1] zero = {0}, int64[1] rest = {-1}> {
    rows = Unsqueeze(r, one)
    columns = Unsqueeze(c, zero)
    distance = Sub(rows, columns)
    mask = CastLike(distance, x)
    masked = Add(x, mask)
    batch = Shape<start: int = 0, end: int = 1>(masked)
    shape = Concat<axis: int = 0>(batch, rest)
    z = Reshape(masked, shape)
    y = Tanh(z)
}"""


def test_differences_of_ranges_do_not_stop_inference() -> None:
    """onnx's data propagation refuses [3, 1] - [1, 5]; it must still be used for the Reshape that follows."""
    model = onnx.parser.parse_model(MASKED)
    with pytest.raises(onnx.shape_inference.InferenceError, match="Invalid rank for Sub"):
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    values = {output.name: output for node in prepare(model).graph for output in node.outputs}
    assert dims(values["masked"]) == ("n", 3, 5)
    assert (dims(values["z"]) or ())[0] == "n"


def test_ranges_of_vectors_do_not_stop_inference() -> None:
    """onnx wants scalars; onnxruntime also takes vectors of one element, which the function body of AffineGrid has."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (float[n, 3] x) => (float[n, m] y)
    <int64[1] zero = {0}, int64[1] three = {3}, int64[1] one = {1}> {
        numbers = Range(zero, three, one)
        offsets = CastLike(numbers, x)
        y = Add(x, offsets)
    }""")
    with pytest.raises(onnx.shape_inference.InferenceError, match="should be scalars"):
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    values = {output.name: output for node in prepare(model).graph for output in node.outputs}
    assert dims(values["y"]) == ("n", 3)
    assert [node.op_type for node in prepare(model).graph].count("Squeeze") == 0


def test_bodies_know_the_axes_that_are_constants_of_the_main_graph() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]> g (float[2, 3] x, bool c) => (float y)
    <int64[1] axis = {-1}> {
        y = If(c) <then_branch = t () => (float a) { b = Unsqueeze(x, axis)  a = ReduceSum<keepdims = 0>(b) },
            else_branch = e () => (float d) { f = Squeeze(x)  d = ReduceSum<keepdims = 0>(f) }>
    }""")
    values = {output.name: output for node in prepare(model).graph.all_nodes() for output in node.outputs}
    assert dims(values["b"]) == (2, 3, 1)
