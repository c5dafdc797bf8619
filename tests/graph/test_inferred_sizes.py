"""Inferred sizes are those that onnxruntime makes: for random nodes of every operator whose sizes are arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from onward.graph.inference import infer_shapes
from onward.graph.prepare import load, prepare
from onward.graph.shapes import Dim, dims

from ..conformance.cases import Case, by_operator
from .sized_operators import DRAWS, Sized

OPSETS = (9, 11, 13, 16, 18, 20)


def _run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any] | None:
    """What onnxruntime returns, None where it refuses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # it warns of sizes that differ
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))
    except Exception:
        return None


def _disagreement(model: onnx.ModelProto, feeds: Mapping[str, Any], results: list[Any]) -> str | None:
    """What is wrong with the sizes inferred for `model`: other numbers, or one name for two sizes."""
    prepared = prepare(model)
    named: dict[Dim, int] = {}
    inputs = [(value, feeds[value.name or ""]) for value in prepared.graph.inputs if value.name in feeds]
    for value, array in (*inputs, *zip(prepared.graph.outputs, results, strict=True)):
        known = dims(value) if hasattr(array, "shape") else None
        if known is None:
            continue
        sizes = list(zip(known, array.shape, strict=False))
        numbers = all(size == true for size, true in sizes if isinstance(size, int))
        names = all(named.setdefault(size, true) == true for size, true in sizes if isinstance(size, str))
        if len(known) != len(array.shape) or not numbers or not names:
            return f"{value.name}: inferred {known}, onnxruntime makes {array.shape}"
    return None


def _compare(name: str, count: int, seed: int) -> int:
    rng = np.random.default_rng(seed)
    compared = 0
    for _ in range(count):
        sized = DRAWS[name](rng)
        if sized.opset == Sized.opset:  # no choice of its own
            sized.opset = int(rng.choice(OPSETS))
        for symbolic in (False, True):
            model = sized.model(symbolic=symbolic)
            results = _run(model, sized.feeds())
            if results is not None:
                wrong = _disagreement(model, sized.feeds(), results)
                assert wrong is None, f"{wrong}\n{onnx.printer.to_text(model)}"
                compared += 1
    return compared


@pytest.mark.parametrize("name", DRAWS)
def test_sizes_of_random_nodes(name: str) -> None:
    assert _compare(name, count=25, seed=0) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_sizes_of_many_random_nodes(name: str) -> None:
    assert _compare(name, count=1000, seed=1) >= 200


def _feedable(case: Case) -> bool:
    return all(isinstance(array, np.ndarray) for array in case.inputs.values())


@pytest.mark.slow
@pytest.mark.parametrize("constant", [False, True], ids=["fed", "constant"])
def test_sizes_of_node_cases(constant: bool) -> None:
    """With their small integers and scales as constants, too: inference computes with those."""
    compared = 0
    for case in (case for cases in by_operator().values() for case in cases if _feedable(case)):
        model, feeds = onnx.ModelProto(), dict(case.inputs)
        model.CopyFrom(case.model)
        for value in list(model.graph.input) if constant else []:
            array = feeds[value.name]
            if value.name in case.settings or (array.dtype in (np.int64, np.int32) and array.ndim < 2):
                model.graph.initializer.append(numpy_helper.from_array(feeds.pop(value.name), value.name))
                model.graph.input.remove(value)
        for value in model.graph.output:  # their shapes are in the file
            value.type.tensor_type.ClearField("shape")
        results = _run(model, feeds)
        if results is not None:
            wrong = _disagreement(model, feeds, results)
            assert wrong is None, f"{case.name}: {wrong}"
            compared += 1
    assert compared > 800


RESIZED = """<ir_version: 8, opset_import: ["" : 18]> g (float[1, 1, 6] x) => (float[a, b, c] z)
<float[3] scales = {1, 1, 0.8333333}, float[5] factors = {1, 2, 3, 4, 5}> {
    y = Resize<mode = "nearest">(x, , scales)
    z = BODY
}"""


@pytest.mark.parametrize("body", ["Mul(y, y)", "Mul(y, factors)"])
def test_gradients_of_resized_tensors(body: str) -> None:
    """onnx takes y for 4 elements, and so does onnxruntime when it loads a model: it is told what there are."""
    model = onnx.parser.parse_model(RESIZED.replace("BODY", body))
    gradient = onward.gradient(model, wrt=["x"])
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
    results = _run(gradient, {"x": x, "z_grad": np.ones((1, 1, 5), np.float32)})
    assert results is not None
    wanted = [0, 2, 4, 0, 8, 10] if "factors" not in body else [1, 2, 3, 0, 4, 5]
    np.testing.assert_array_equal(results[1].reshape(-1), wanted)


def _squared(sized: Sized, *, symbolic: bool) -> onnx.ModelProto:
    """The node, followed by a product in which its result meets the cotangent."""
    model = sized.model(symbolic=symbolic)
    model.graph.node.append(onnx.helper.make_node("Mul", ["o0", "o0"], ["z"]))
    model.graph.output[0].name = "z"
    return model


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", ["Resize", "Resize-10", "Upsample", "ConvTranspose"])
def test_gradients_of_random_nodes(name: str, symbolic: bool) -> None:
    """Along a random direction: y is linear in x, so y * y has exact central differences.

    onnxruntime copies a tensor that keeps its sizes, whatever scales, region and mode say.
    """
    rng, compared = np.random.default_rng(2), 0
    for _ in range(12):
        sized = DRAWS[name](rng)
        model, feeds = _squared(sized, symbolic=symbolic), sized.feeds()
        if _run(model, feeds) is None or min(sized.attributes.get("axes", (0,))) < 0:
            continue
        x, way = feeds["i0"], _data_like(rng, feeds["i0"])
        (z,), (high,), (low,) = (_run(model, {"i0": place}) or [] for place in (x, x + way / 64, x - way / 64))
        gradient = onward.gradient(model, wrt=["i0"])
        seed = {"z_grad": np.ones_like(z)} if any(value.name == "z_grad" for value in gradient.graph.input) else {}
        _, dx = _run(gradient, {**feeds, **seed}) or []
        slope = 32 * (high.astype(np.float64) - low).sum()
        np.testing.assert_allclose((dx.astype(np.float64) * way).sum(), slope, rtol=1e-3, atol=1e-3)
        compared += 1
    assert compared >= 4


def _data_like(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    return rng.uniform(-1, 1, size=x.shape).astype(np.float32)


def test_chains_of_sizes_end() -> None:
    """Each corrected size may make the next one wrong."""
    nodes = "\n".join(f'y{i + 1} = Resize<mode = "nearest">(y{i}, , scales)' for i in range(60))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g (float[1, 1, 600] y0) => (float[a, b, c] y60)'
        f"<float[3] scales = {{1, 1, 0.8333333}}> {{ {nodes} }}"
    )
    results = _run(model, {"y0": np.zeros((1, 1, 600), np.float32)})
    assert results is not None
    loaded = load(model)
    infer_shapes(loaded)
    end = (dims(loaded.graph.outputs[0]) or ())[-1]
    assert not isinstance(end, int) or end == results[0].shape[-1]
