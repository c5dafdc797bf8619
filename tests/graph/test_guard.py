"""Guards hold wherever they stand, whatever onnxruntime makes of the nodes around them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.guard import guarded, guarded_number

LEVELS = ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"]


def opened(op: Builder, graph: ir.Graph, level: str) -> onnxruntime.InferenceSession:
    model = finish(ir.Model(graph, ir_version=10))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def inputs(**kinds: tuple[ir.DataType, list[int | str | None]]) -> tuple[Builder, ir.Graph]:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="guard")
    for name, (dtype, sizes) in kinds.items():
        graph.inputs.append(ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(sizes)))
    return Builder(graph, 18), graph


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sizes", [[3], ["n"], [None]], ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_between_reshapes(exact, sizes, level):
    op, graph = inputs(x=(ir.DataType.FLOAT, sizes), sizes=(ir.DataType.INT64, [1]))
    x, wanted = graph.inputs
    with op:
        first = guarded(op, op.Reshape(x, [-1]), wanted, "x must fit", exact=exact)
        last = op.Reshape(first, [1, 3])
        publish(last, "y", graph)
    session = opened(op, graph, level)
    given = np.arange(3, dtype=np.float32)
    (y,) = session.run(None, {"x": given, "sizes": np.array([3])})
    np.testing.assert_array_equal(y, [given])
    with pytest.raises(Exception, match="x must fit"):
        session.run(None, {"x": given, "sizes": np.array([4])})


@pytest.mark.parametrize("sizes", [[], [1]], ids=str)
@pytest.mark.parametrize("level", LEVELS)
def test_numbers(sizes, level):
    op, graph = inputs(x=(ir.DataType.FLOAT, sizes))
    (x,) = graph.inputs
    with op:
        publish(op.Reshape(guarded_number(op, x, op.Greater(x, 0), "x must be positive"), [1, 1]), "y", graph)
    session = opened(op, graph, level)
    (y,) = session.run(None, {"x": np.full(sizes, 2, np.float32)})
    np.testing.assert_array_equal(y, [[2]])
    with pytest.raises(Exception, match="x must be positive"):
        session.run(None, {"x": np.zeros(sizes, np.float32)})
