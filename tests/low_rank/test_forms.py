"""Every form of layer: equal to the base at first, to its merged model after training, and to base and adapter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from onward.testing.rules import run_on_reference
from tests.low_rank.cases import CASES, Case

SETTINGS = {"rank": 2, "alpha": 3.0}
# Sums in another order: the branch is added to the product, in the merged model to the weight.
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


def run(model, feeds, adapter: Path | None = None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # onnxruntime warns of inputs with default values, which adapters are about
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options)
    settings = onnxruntime.RunOptions()
    if adapter is not None:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(str(adapter))
        settings.add_active_adapter(loaded)
    return session.run(None, feeds, settings)


def trained(adapted: onward.Lora, seed: int = 5) -> dict[str, np.ndarray]:
    """Pairs that are no longer what they were."""
    random = np.random.default_rng(seed)
    return {name: random.normal(size=array.shape).astype(array.dtype) for name, array in adapted.weights().items()}


def with_values(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(numpy_helper.from_array(values[tensor.name], tensor.name))
    return copy


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_every_form(case: Case, tmp_path: Path) -> None:
    model, feeds = case.model(), case.feeds()
    before = model.SerializeToString()
    adapted = onward.lora(model, case.pattern, **SETTINGS)
    assert tuple(pair.weight for pair in adapted.pairs) == case.pairs
    base = run(model, feeds)
    for result, expected in zip(run(adapted.model, feeds), base, strict=True):
        np.testing.assert_array_equal(result, expected)

    values = trained(adapted)
    expected = run(with_values(adapted.model, values), feeds)[0]
    assert np.abs(expected - base[0]).max() > 0.1  # the pairs do something
    merged = adapted.merge(values)
    onnx.checker.check_model(merged)
    np.testing.assert_allclose(run(merged, feeds)[0], expected, **TOLERANCE)
    added = {tensor.name for tensor in merged.graph.initializer} - {tensor.name for tensor in model.graph.initializer}
    assert added == set(case.merged)
    assert [node.op_type for node in merged.graph.node] == [node.op_type for node in model.graph.node]

    adapted.save_base(tmp_path / "base.onnx")
    adapted.save_adapter(values, tmp_path / "a.onnx_adapter")
    path = str(tmp_path / "base.onnx")
    np.testing.assert_array_equal(run(path, feeds)[0], base[0])
    np.testing.assert_allclose(run(path, feeds, tmp_path / "a.onnx_adapter")[0], expected, **TOLERANCE)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_gradients_against_differences(case: Case) -> None:
    if case is CASES["in a Constant node"]:
        pytest.skip("its constant is of float32")
    adapted = onward.lora(case.model(np.float64), case.pattern, **SETTINGS)
    values, feeds = trained(adapted), case.feeds(np.float64)
    model = with_values(adapted.model, values)
    gradient = onward.gradient(model)
    y = run_on_reference(model, feeds)["y"]
    dy = np.random.default_rng(6).normal(size=y.shape)
    results = run_on_reference(gradient, {**feeds, "y_grad": dy})
    assert {name for name in results if name.endswith("_grad")} == {f"{name}_grad" for name in adapted.parameters}
    random = np.random.default_rng(7)
    for name, value in values.items():
        direction, step = random.normal(size=value.shape), 1e-6

        def at(distance: float, name=name, value=value, direction=direction) -> float:
            moved = with_values(adapted.model, {**values, name: value + distance * direction})
            return float(np.sum(run_on_reference(moved, feeds)["y"] * dy))

        difference = (at(step) - at(-step)) / (2 * step)
        np.testing.assert_allclose(np.sum(results[f"{name}_grad"] * direction), difference, rtol=1e-6, atol=1e-7)
