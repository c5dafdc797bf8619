"""ReverseSequence is not asked for sequences of length 0: onnxruntime 1.24 returns for them what was in memory."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onward.graph.prepare import prepare
from onward.graph.proto import to_proto
from onward.testing import run_on_runtime

TURN = "ReverseSequence<time_axis = 1, batch_axis = 0>(x, lengths)"


def model_from(inputs: str, body: str, settings: str = "", opset: int = 10) -> onnx.ModelProto:
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    return parser.parse_model(f"{head} g ({inputs}) => (float[A, B] y) <{settings}> {{ {body} }}")


def lengths_asked_for(prepared: ir.Model, feeds: dict[str, np.ndarray]) -> tuple[list[int], np.ndarray]:
    """The lengths that ReverseSequence is given, and what it makes of them."""
    (node,) = (node for node in prepared.graph if node.op_type == "ReverseSequence")
    assert node.inputs[1] is not None
    prepared.graph.outputs.append(node.inputs[1])
    results = run_on_runtime(to_proto(prepared), feeds)
    return results[node.inputs[1].name or ""].tolist(), results["y"]


X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


@pytest.mark.parametrize("sizes", ["2, 3", "N, T"])
def test_an_element_by_itself_is_turned_round_in_place_of_none(sizes: str) -> None:
    prepared = prepare(model_from(f"float[{sizes}] x, int64[N] lengths", f"y = {TURN}"))
    asked, y = lengths_asked_for(prepared, {"x": X, "lengths": np.array([0, 2])})
    assert asked == [1, 2]
    np.testing.assert_array_equal(y, [[1, 2, 3], [5, 4, 6]])


def test_a_sequence_that_has_no_element_stays_empty() -> None:
    prepared = prepare(model_from("float[N, T] x, int64[N] lengths", f"y = {TURN}"))
    asked, y = lengths_asked_for(prepared, {"x": X[:, :0], "lengths": np.array([0, 0])})
    assert asked == [0, 0]
    assert y.shape == (2, 0)


@pytest.mark.parametrize(("known", "added"), [("0, 2", 2), ("1, 2", 0)])
def test_lengths_that_are_known_to_be_positive_stay(known: str, added: int) -> None:
    prepared = prepare(model_from("float[2, 3] x", f"y = {TURN}", f"int64[2] lengths = {{{known}}}"))
    assert len(prepared.graph) == 1 + added


@pytest.mark.parametrize("sizes", ["2, 3", "N, T"])
def test_preparing_again_adds_nothing(sizes: str) -> None:
    once = prepare(model_from(f"float[{sizes}] x, int64[N] lengths", f"y = {TURN}"))
    assert len(prepare(once).graph) == len(once.graph)


def test_bodies_of_loops() -> None:
    body = f"y = Loop<body = b (int64 i, bool on, float[2, 3] x) => (bool on, float[2, 3] z) {{ z = {TURN} }}>(n, , x0)"
    model = model_from("float[2, 3] x0, int64[2] lengths", body, "int64 n = {1}", opset=16)
    prepared = prepare(model)
    (node,) = (node for node in prepared.graph.all_nodes() if node.op_type == "ReverseSequence")
    assert node.inputs[1] is not None
    assert node.inputs[1].name != "lengths"
    y = run_on_runtime(to_proto(prepared), {"x0": X, "lengths": np.array([0, 2])})["y"]
    np.testing.assert_array_equal(y, [[1, 2, 3], [5, 4, 6]])
