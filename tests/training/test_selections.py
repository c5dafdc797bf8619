"""Elements that are taken before axes are moved are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onward.graph.builder import Builder
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime
from onward.training.forms import choose_forms

X = np.random.default_rng(0).normal(size=(4, 2, 3, 5)).astype(np.float32)


def rewritten(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = prepare(model)
    choose_forms(graph, Builder(graph.graph, graph.opset_imports[""]), ["x"])
    result = finish(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


# What is done to x of [4, N, 3, 5] before one element along `axis` is taken; whether that can be taken from x itself.
VIEWS = [
    ("t = Transpose<perm = [2, 0, 1, 3]>(x)", 0, True),
    ("t = Transpose<perm = [0, 1, 3, 2]>(x)", 2, True),
    # As torch's attention does it.
    ("u = Unsqueeze(x, zero) s = Transpose<perm = [3, 1, 2, 0, 4]>(u) t = Squeeze(s, minus_two)", 0, True),
    ("u = Transpose<perm = [2, 0, 1, 3]>(x) t = Unsqueeze(u, one)", 0, True),
    ("u = Transpose<perm = [1, 0, 2, 3]>(x) t = Transpose<perm = [1, 0, 2, 3]>(u)", 2, True),
    ("t = Transpose<perm = [2, 1, 0, 3]>(x)", 0, False),  # the others are in another order too
    ("t = Unsqueeze(x, zero)", 3, False),  # nothing is moved
    ("u = Transpose<perm = [2, 0, 1, 3]>(x) t = Unsqueeze(u, zero)", 0, False),  # the axis is new
]


@pytest.mark.parametrize(("body", "axis", "can"), VIEWS, ids=str)
def test_selections_come_first(body: str, axis: int, can: bool) -> None:
    constants = "int64[1] zero = {0}, int64[1] one = {1}, int64[1] minus_two = {-2}, int64 index = {0}"
    text = f"g (float[4, N, 3, 5] x) => (float y) <{constants}> {{ {body} y = Gather<axis = {axis}>(t, index) }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    model.graph.output[0].type.tensor_type.ClearField("shape")
    result = rewritten(model)
    assert ("Transpose" not in [node.op_type for node in result.graph.node]) is (can or "Transpose" not in body)
    np.testing.assert_array_equal(run_on_runtime(result, {"x": X})["y"], run_on_runtime(model, {"x": X})["y"])
