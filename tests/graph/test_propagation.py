"""Shapes of emitted values against onnx's shape inference."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from onward.graph.builder import Builder
from onward.graph.shapes import dims

CASES = [
    (lambda op, x, y: op.Add(x, y), ("N", 3, 4)),
    (lambda op, x, y: op.Mul(x, 2.0), ("N", 3, 1)),
    (lambda op, x, y: op.Sum(x, y, y), ("N", 3, 4)),
    (lambda op, x, y: op.Where(op.Greater(x, 0.0), y, x), ("N", 3, 4)),
    (lambda op, x, y: op.Transpose(x, perm=[2, 0, 1]), (1, "N", 3)),
    (lambda op, x, y: op.Transpose(x), (1, 3, "N")),
    (lambda op, x, y: op.Size(x), ()),
    (lambda op, x, y: op.Squeeze(x, [-1]), ("N", 3)),
    (lambda op, x, y: op.Unsqueeze(x, [0, -1]), (1, "N", 3, 1, 1)),
    (lambda op, x, y: op.Reshape(op.ReduceSum(y, [0]), [2, -1]), (2, 2)),
    (lambda op, x, y: op.Reshape(x, [0, 1, 3]), ("N", 1, 3)),
    (lambda op, x, y: op.ReduceSum(x, [1], keepdims=0), ("N", 1)),
    (lambda op, x, y: op.ReduceMean(x, [0, -1], keepdims=1), (1, 3, 1)),
    (lambda op, x, y: op.ReduceSum(x, keepdims=0), ()),
    (lambda op, x, y: op.ReduceMax(x), (1, 1, 1)),
    (lambda op, x, y: op.Gather(x, [[0, 2]], axis=1), ("N", 1, 2, 1)),
    (lambda op, x, y: op.Shape(x), (3,)),
    (lambda op, x, y: op.ReduceProd(op.Gather(op.Shape(x), [0, 2], axis=0), keepdims=0), ()),
]


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(("emit", "expected"), CASES, ids=lambda value: str(value) if isinstance(value, tuple) else "")
def test_agrees_with_inference(emit, expected, opset):
    x, y = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        for name, shape in (("x", ["N", 3, 1]), ("y", ["N", 1, 4]))
    )
    graph = ir.Graph([x, y], [], nodes=[], name="g", opset_imports={"": opset})
    result = emit(Builder(graph, opset), x, y)
    assert dims(result) == expected
    result.shape = None
    graph.outputs.append(result)
    proto = ir.to_proto(ir.Model(graph, ir_version=8))
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph.output[0].type.tensor_type.shape
    assert tuple(dim.dim_param or dim.dim_value for dim in inferred.dim) == expected


@pytest.mark.parametrize(
    "emit", [lambda op, x: op.ReduceSum(x, op.Shape(x)), lambda op, x: op.Add(x, op.Reshape(x, op.Shape(x)))]
)
def test_what_does_not_follow_is_left_open(emit):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 3]))
    graph = ir.Graph([x], [], nodes=[], name="g", opset_imports={"": 18})
    assert dims(emit(Builder(graph, 18), x)) is None


def test_sizes_are_computed_with_names():
    x, y = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        for name, shape in (("x", ["N", 2, 3]), ("y", [3, 4]))
    )
    graph = ir.Graph([x, y], [], nodes=[], name="g", opset_imports={"": 18})
    op = Builder(graph, 18)
    rows = op.Reshape(x, [-1, 3])
    assert dims(rows) == ("N*2", 3)
    assert dims(op.Gemm(rows, y)) == ("N*2", 4)
    assert dims(op.MatMul(x, y)) == ("N", 2, 4)
    assert dims(op.Reshape(rows, [-1, 6])) == ("N", 6)
    assert dims(op.Reshape(rows, [-1, 4])) == (None, 4)


def test_names_that_differ_are_left_open():
    x, y = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
        for name, shape in (("x", ["N", 3]), ("y", ["M", 1]))
    )
    graph = ir.Graph([x, y], [], nodes=[], name="g", opset_imports={"": 18})
    assert dims(Builder(graph, 18).Add(x, y)) == (None, 3)


def test_a_reshape_says_what_its_result_is_like():
    """Of something that nothing is known of, a result of a loop for instance."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    op = Builder(ir.Graph([x], [], nodes=[], name="g", opset_imports={"": 18}), 18)
    assert dims(op.Reshape(x, [-1, 4])) == (None, 4)
    assert dims(op.Reshape(x, [0, 5, 2])) == (None, 5, 2)
    assert dims(op.Reshape(x, op.Shape(x))) is None
