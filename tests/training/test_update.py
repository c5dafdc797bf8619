"""The optimizer model of many parameters, which has loops, does what that of few does, which has nodes for each."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onward import optim
from onward.training import update

SHAPES = {"a.weight": (3, 4), "a.bias": (4,), "scale": (), "b.weight": (2, 2, 2), "b.bias": (5,)}
GROUPS = [optim.no_decay(), optim.Group(["b.weight"], lr_scale=0.1)]
OPTIMIZERS = {
    **{name: optim.get(name) for name in optim.names()},
    "decay": optim.adamw(weight_decay=0.1),
    "groups": optim.adamw(weight_decay=0.1, groups=GROUPS),
    "global norm": optim.sgd(momentum=0.9, clip=0.5),
    "both": optim.lamb(weight_decay=0.1, clip=0.5, groups=GROUPS),
}


def made(optimizer: optim.Optimizer, opset: int = 17, shapes=None, dtype=ir.DataType.FLOAT) -> onnx.ModelProto:
    types = {name: (dtype, shape) for name, shape in (shapes or SHAPES).items()}
    model = update.optimizer_model(optimizer, types, opset)
    onnx.checker.check_model(model, full_check=True)
    return model


def run(model: onnx.ModelProto, dtype=np.float32) -> dict[str, list[np.ndarray]]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    random, feeds = np.random.default_rng(0), {}
    for value in session.get_inputs():
        if value.name == "learning_rate":
            feeds[value.name] = np.array([0.1], np.float32)
        elif value.name == "step":
            feeds[value.name] = np.array([3])
        else:  # slots are averages of squares in some optimizers
            feeds[value.name] = [np.asarray(random.uniform(0.1, 1, shape), dtype) for shape in SHAPES.values()]
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_loops_and_nodes_do_the_same(monkeypatch, optimizer):
    expected = run(made(optimizer))
    monkeypatch.setattr(update, "_WRITTEN_OUT", 0)
    model = made(optimizer)
    assert "Loop" in {node.op_type for node in model.graph.node}
    got = run(model)
    assert list(got) == list(expected)
    for name, arrays in expected.items():
        for array, wanted in zip(got[name], arrays, strict=True):
            assert array.shape == wanted.shape
            np.testing.assert_allclose(array, wanted, rtol=1e-6, atol=1e-7)


def test_double(monkeypatch):
    optimizer = OPTIMIZERS["both"]
    expected = run(made(optimizer, dtype=ir.DataType.DOUBLE), np.float64)
    monkeypatch.setattr(update, "_WRITTEN_OUT", 0)
    got = run(made(optimizer, dtype=ir.DataType.DOUBLE), np.float64)
    for array, wanted in zip(got["updated_params"], expected["updated_params"], strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-12)


def test_many_parameters_make_few_nodes():
    shapes = {f"{index}.{kind}": (2,) for index in range(200) for kind in ("weight", "bias")}
    optimizer = optim.adamw(weight_decay=0.1, clip=1.0, groups=[optim.no_decay()])
    few = made(optimizer, shapes=dict(list(shapes.items())[:4]))
    many = made(optimizer, shapes=shapes)
    assert len(many.graph.node) < 60
    for values in ("input", "output"):
        assert list(getattr(many.graph, values)) == list(getattr(few.graph, values))


def test_what_is_the_same_for_all_is_computed_once():
    shapes = {str(index): (2,) for index in range(200)}
    model = made(optim.adamw(), shapes=shapes)
    (loop,) = [node for node in model.graph.node if node.op_type == "Loop"]
    inside = {node.op_type for node in loop.attribute[0].g.node}
    assert "Pow" not in inside
    assert "Pow" in {node.op_type for node in model.graph.node}


def test_opsets_without_loops_over_sequences():
    shapes = {str(index): (2,) for index in range(101)}
    model = made(optim.sgd(), opset=11, shapes=shapes)
    assert {node.op_type for node in model.graph.node}.isdisjoint({"Loop"})
    assert model.opset_import[0].version == 11
