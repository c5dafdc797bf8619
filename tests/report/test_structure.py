"""Layers and movements: what belongs together, and how far it came."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.report.content import Layer, Movement, Structure, Weight
from onward.report.layers import layers_section, operators
from onward.report.parameters import parameters_section
from onward.trainer.movement import SAMPLE, Start
from onward.trainer.structure import structure_of
from tests.report.reading import Reader
from tests.trainer.toys import classifier, labelled


def parsed(markup: str | None):
    assert markup is not None
    reader = Reader()
    reader.feed(markup)
    assert not reader.wrong
    return reader.root


def test_layers_of_a_small_model() -> None:
    trainer = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy", frozen=["w1"])
    structure = trainer._model.structure()
    assert structure.inputs == ["x [N, 4]"]
    assert structure.outputs == ["scores [N, 3]"]
    assert [layer.operators for layer in structure.layers] == [
        ["MatMul", "Add"],
        ["BatchNormalization", "Dropout", "Relu"],
        ["MatMul", "Add"],
    ]
    kinds = {weight.name: weight.kind for layer in structure.layers for weight in layer.weights}
    assert kinds == {
        "w1": "frozen", "b1": "trained", "gain": "trained", "shift": "trained", "mean": "statistic",
        "variance": "statistic", "w2": "trained", "b2": "trained",
    }  # fmt: skip
    assert structure.layers[0].shape == ["N", 16]


def chain(count: int, name: str) -> onnx.ModelProto:
    """A long model, whose weights are transposed on their way."""
    nodes, weights, x = [], [], "x"
    for i in range(count):
        weight = name.format(i)
        nodes.append(helper.make_node("Transpose", [weight], [f"t{i}"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [x, f"t{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"y{i}"]))
        weights.append(numpy_helper.from_array(np.eye(2, dtype=np.float32) * 0.9, weight))
        x = f"y{i}"
    io = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 2]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "long", io[:1], io[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("name", ["encoder.{}.weight", "weight_{}"])
def test_a_model_of_two_thousand_nodes(name: str) -> None:
    kinds = {name.format(i): "trained" if i else "frozen" for i in range(670)}
    structure = structure_of(chain(670, name), ["x"], ["y669"], kinds)
    assert structure.nodes == 2010
    assert len(structure.layers) == 670
    assert [weight.kind for layer in structure.layers[:2] for weight in layer.weights] == ["frozen", "trained"]
    page = parsed(layers_section(structure))
    assert 2 <= len(page.all("summary")) <= 40
    assert sum(len(body.all("tr")) for body in page.all("tbody")) == 670


def test_groups_follow_names() -> None:
    layers = [
        Layer(f"encoder.layer.{block}.dense{i}", ["MatMul"], [Weight(f"w{block}.{i}", "trained", (2, 3))])
        for block in range(12)
        for i in range(6)
    ]
    page = parsed(layers_section(Structure(["x"], layers, ["y"], 72)))
    assert [summary.all("strong")[0].text for summary in page.all("summary")] == [
        f"encoder.layer.{block}" for block in range(12)
    ]
    assert "6 layers trained 36" in page.all("summary")[0].text


def test_a_parameter_of_two_layers_counts_once() -> None:
    shared = Weight("table", "trained", (10, 10))
    layers = [Layer("a", ["Gather"], [shared]), Layer("b", ["MatMul"], [shared])]
    page = parsed(layers_section(Structure(["x"], layers, ["y"], 2)))
    assert "trained 100" in page.all("ul")[0].text


def test_operators() -> None:
    assert operators(["MatMul", "Add", "Relu", "Relu"]) == "MatMul → Add → 2 × Relu"
    many = operators(["MatMul", *["Add", "Mul", "Sub", "Div", "Exp"] * 10])
    assert many.startswith("MatMul, and 50 more (10 × ")


def test_movements() -> None:
    random = np.random.default_rng(0)
    small, large, zero = random.normal(size=(3, 4)), random.normal(size=(400, 500)), np.zeros(5)
    start = Start({"trained": {"small": small, "large": large, "zero": zero}, "statistic": {"still": small}})
    now = {"small": small * 1.5, "large": large + 0.1, "zero": zero + 1, "still": small}
    found = {movement.name: movement for movement in start.movements(now.__getitem__)}
    assert found["small"].relative == pytest.approx(0.5)
    assert found["small"].elements == 12
    expected = np.linalg.norm(now["large"] - large) / np.linalg.norm(large)
    assert found["large"].relative == pytest.approx(expected, rel=0.02)  # of a sample
    assert found["large"].elements == SAMPLE
    assert math.isinf(found["zero"].relative)
    assert found["still"].relative == 0
    assert found["still"].kind == "statistic"


def test_movements_of_a_training() -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.5, frozen=["w1", "b1"])
    before = trainer.snapshot()
    trainer.fit(*labelled(40), epochs=2, batch_size=8)
    found = {movement.name: movement for movement in trainer._model.movements()}
    assert set(found) == {"w2", "b2"}
    for name, movement in found.items():
        change = np.linalg.norm(trainer.snapshot()[name] - before[name]) / np.linalg.norm(before[name])
        assert movement.relative == pytest.approx(change, rel=1e-5)


def test_table_of_movements() -> None:
    moved = [Movement(f"p{i}", "trained", (2,), i / 100, 0.1, 2) for i in range(30)]
    moved += [Movement("bad", "trained", (2,), math.nan, math.nan, 2), Movement("0", "trained", (), math.inf, 0.1, 1)]
    page = parsed(parameters_section(moved))
    first, every = ([row.children[0].text for row in body.all("tr")] for body in page.all("tbody"))
    assert first[:3] == ["bad", "0", "p29"]
    assert len(first) == 20
    assert len(every) == 32
    assert "1 of 32 trained tensors have not moved" in page.text
    assert parameters_section([]) is None
