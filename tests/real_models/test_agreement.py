"""The check of real models agrees where a gradient is right, and sees one wrong tensor among many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward.autodiff import registry
from onward.testing.agreement import TOLERANCE
from tests.real_models.agreement import check
from tests.real_models.manifest import MODELS

LAYERS = 8


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A deep network of convolutions with biases, the last of them followed by Tanh."""
    rng, nodes, tensors, x = np.random.default_rng(0), [], [], "x"
    for layer in range(LAYERS):
        weight, bias = rng.normal(size=(4, 4, 3)) / 3, rng.normal(size=4) / 3
        tensors += [(f"w{layer}", weight), (f"b{layer}", bias)]
        last = layer == LAYERS - 1
        nodes.append(onnx.helper.make_node("Conv", [x, f"w{layer}", f"b{layer}"], [f"c{layer}"], pads=[1, 1]))
        x = "y" if last else f"h{layer}"
        nodes.append(onnx.helper.make_node("Tanh" if last else "Sigmoid", [f"c{layer}"], [x]))
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [value("x", onnx.TensorProto.FLOAT, ["n", 4, "t"])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 4, "t"])],
        [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in tensors],
    )
    path = tmp_path / "network.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).normal(size=(2, 4, 6)).astype(np.float32)}


def test_a_right_gradient_agrees(network: Path):
    report = check(network, feeds())
    assert report.tensors == report.moving == 2 * LAYERS
    assert report.finite
    assert report.outputs_differ < 1e-6
    assert report.gradient_differs < 1e-4
    assert not report.training


def test_one_wrong_tensor_is_seen(network: Path, monkeypatch: pytest.MonkeyPatch):
    right = registry._rules["", "Conv"]

    def wrong(op: Any, node: ir.Node, dy: ir.Value) -> Any:
        dx, dw, db = right(op, node, dy)
        return (dx, dw, db * 0.8) if node.inputs[2].name == "b3" else (dx, dw, db)

    monkeypatch.setitem(registry._rules, ("", "Conv"), wrong)
    assert check(network, feeds()).gradient_differs > 2 * TOLERANCE


def test_the_manifest_names_each_file_once():
    assert len({model.sha256 for model in MODELS}) == len(MODELS) >= 25
    assert all(model.package.count("==") == 1 for model in MODELS)
