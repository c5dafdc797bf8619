"""Gradients of random pooling nodes are those of what onnxruntime computes for them, oddities included.

Its kernels run windows that the standard does not describe: larger than the image, wholly in the padding, shifted by
padding that is negative. All of that has a derivative, which differences of the kernel's own results give.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onward import gradient
from onward.errors import NotDifferentiableError
from onward.graph import opsets
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.graph.upgrade import upgrade
from onward.testing import run_on_runtime
from onward.testing.training import LAYOUTS, check_training

OPSETS = (7, 8, 9, 10, 11, 12, 13, 16, 18, 19, 21, 22)
STEP = 1e-2  # less than half of what elements are apart, so that none takes the place of another as the largest
TOLERANCE = 2e-3  # float32: rounding over the step


@dataclass
class Pool:
    """One node, and what is known of the sizes of its input."""

    op_type: str
    opset: int
    attributes: dict[str, Any]
    x: np.ndarray
    sizes: list[int | str | None]
    indices: bool = False  # an output too

    def model(self, sizes: list[Any] | None = None) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(self.x.dtype)
        x = helper.make_tensor_value_info("x", kind, self.sizes if sizes is None else sizes)
        outputs = {"y": kind} | ({"indices": TensorProto.INT64} if self.indices else {})
        node = helper.make_node(self.op_type, ["x"], list(outputs), **self.attributes)
        ends = [helper.make_tensor_value_info(name, kind, [None] * self.x.ndim) for name, kind in outputs.items()]
        graph = helper.make_graph([node], "pool", [x], ends)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)


# Draws ----------------------------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator], Pool]


def _chance(rng: np.random.Generator, share: float = 0.5) -> bool:
    return bool(rng.random() < share)


def _integers(rng: np.random.Generator, count: int, low: int, high: int) -> list[int]:
    return rng.integers(low, high, size=count).tolist()


def _apart(rng: np.random.Generator, shape: list[int], dtype: type) -> np.ndarray:
    """Numbers of both signs at least 0.05 apart, and 0.5 from zero, where norms have a kink."""
    magnitudes = 0.5 + 0.05 * rng.permutation(int(np.prod(shape)))
    return (magnitudes * rng.choice([-1, 1], size=magnitudes.shape)).reshape(shape).astype(dtype)


def _input(rng: np.random.Generator, n: int, dtype: type = np.float32) -> tuple[np.ndarray, list[int | str | None]]:
    x = _apart(rng, [*_integers(rng, 2, 1, 3), *_integers(rng, n, 1, 8 - n)], dtype)
    known: list[int | str | None] = list(x.shape)
    names = [f"d{axis}" for axis in range(x.ndim)]
    mixed = [pair[rng.integers(2)] for pair in zip(known, names, strict=True)]
    forms = (known, [*names[:1], *known[1:]], names, [None] * x.ndim, mixed)
    return x, list(forms[rng.integers(len(forms))])


def _window(rng: np.random.Generator, n: int, kernel: list[int], *, dilates: bool, rounds: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel_shape": kernel}
    if _chance(rng, 0.8):
        found["strides"] = _integers(rng, n, 1, 5)
    if dilates and _chance(rng, 0.4):
        found["dilations"] = _integers(rng, n, 1, 4)
    if rounds and _chance(rng, 0.4):
        found["ceil_mode"] = 1
    if _chance(rng, 0.4):
        found["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    elif _chance(rng, 0.6):
        found["pads"] = [int(rng.integers(0, kernel[axis % n])) for axis in range(2 * n)]
    return found


def max_pool(rng: np.random.Generator) -> Pool:
    n, opset = int(rng.integers(1, 4)), int(rng.choice(OPSETS))
    kernel = _integers(rng, n, 1, 5)
    attributes = _window(rng, n, kernel, dilates=opset >= 10, rounds=opset >= 10)
    if opset >= 8 and _chance(rng, 0.3):
        attributes["storage_order"] = 1
    dtype = np.float64 if opset >= 8 and _chance(rng, 0.3) else np.float32
    return Pool("MaxPool", opset, attributes, *_input(rng, n, dtype), indices=opset >= 8 and _chance(rng, 0.3))


def average_pool(rng: np.random.Generator) -> Pool:
    n, opset = int(rng.integers(1, 4)), int(rng.choice(OPSETS))
    kernel = _integers(rng, n, 1, 5)
    attributes = _window(rng, n, kernel, dilates=opset >= 19, rounds=opset >= 10)
    if _chance(rng, 0.4):
        attributes["count_include_pad"] = 1
    if attributes.get("auto_pad", "NOTSET").startswith("SAME") and max(attributes.get("strides", [1])) > min(kernel):
        attributes.pop("dilations", None)  # refused: test_negative_padding_of_dilated_means
    return Pool("AveragePool", opset, attributes, *_input(rng, n))


def lp_pool(rng: np.random.Generator) -> Pool:
    n, opset = int(rng.integers(1, 4)), int(rng.choice(OPSETS))
    kernel = _integers(rng, n, 1, 5)
    attributes = _window(rng, n, kernel, dilates=opset >= 18, rounds=opset >= 18)
    if _chance(rng, 0.8):
        attributes["p"] = int(rng.integers(1, 5))
    return Pool("LpPool", opset, attributes, *_input(rng, n))


def global_pool(rng: np.random.Generator) -> Pool:
    op_type, opset = str(rng.choice(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])), int(rng.choice(OPSETS))
    attributes = {"p": int(rng.integers(1, 5))} if op_type == "GlobalLpPool" and _chance(rng, 0.8) else {}
    return Pool(op_type, opset, attributes, *_input(rng, int(rng.integers(1, 4))))


DRAWS: tuple[Draw, ...] = (max_pool, average_pool, lp_pool, global_pool)


# Comparison -----------------------------------------------------------------------------------------------------------


def _differences(pool: Pool, dy: np.ndarray) -> np.ndarray:
    """Central differences of <y, dy>, all in one run: the batch holds a copy of x for every element that moves."""
    x = pool.x
    steps = STEP * np.eye(x.size, dtype=x.dtype).reshape(x.size, *x.shape)
    sides = []
    for copies in (x + steps, x - steps):
        y = run_on_runtime(pool.model([None] * x.ndim), {"x": copies.reshape(-1, *x.shape[1:])})["y"]
        sides.append((y.reshape(x.size, *dy.shape).astype(np.float64) * dy).reshape(x.size, -1).sum(axis=1))
    return ((sides[0] - sides[1]) / (2 * STEP)).reshape(x.shape)


def _forward(pool: Pool) -> np.ndarray | None:
    """What onnxruntime computes, None where it refuses."""
    try:
        return run_on_runtime(pool.model(), {"x": pool.x})["y"]
    except Exception:
        return None


def compare(pool: Pool, layout: str) -> bool:
    """Whether onnxruntime runs a node, whose gradients are then found to be right, in training graphs too."""
    y = _forward(pool)
    if y is None:
        return False
    differentiated = gradient(pool.model(), wrt=["x"], of=["y"])
    dy = np.random.default_rng(0).normal(size=y.shape).astype(y.dtype)
    if "y_grad" not in [value.name for value in differentiated.graph.input]:
        dy = np.ones_like(y)  # of one element
    results = run_on_runtime(differentiated, {"x": pool.x, "y_grad": dy})
    np.testing.assert_array_equal(results["y"], y)
    np.testing.assert_allclose(results["x_grad"], _differences(pool, dy), rtol=TOLERANCE, atol=TOLERANCE)
    check_training(pool.model(), {"x": pool.x}, wrt=["x"], of=["y"], layouts=[layout])
    return True


def sweep(draw: Draw, count: int, seed: int) -> int:
    """How many of so many drawn nodes onnxruntime runs."""
    rng, run = np.random.default_rng(seed), 0
    for _ in range(count):
        pool, layout = draw(rng), LAYOUTS[rng.integers(len(LAYOUTS))]
        try:
            run += compare(pool, layout)
        except Exception as error:
            raise AssertionError(f"{pool}, {layout}: {error}") from error
    return run


def moved(draw: Draw, count: int, seed: int) -> int:
    """How many of so many drawn nodes onnxruntime runs, with the same values after they were moved to newer opsets."""
    rng, run = np.random.default_rng(seed), 0
    for _ in range(count):
        pool, newer = draw(rng), int(rng.choice(OPSETS))
        y = _forward(pool)
        if y is None or newer <= pool.opset or _forward(replace(pool, opset=newer)) is None:
            continue  # onnxruntime has no kernel for some of the newest
        upgraded = finish(upgrade(prepare(pool.model()), newer))
        got = run_on_runtime(upgraded, {"x": pool.x})["y"]
        np.testing.assert_allclose(got, y, rtol=1e-5, atol=1e-6, err_msg=f"{pool} in opset {newer}")
        run += 1
    return run


@pytest.mark.parametrize("draw", DRAWS)
def test_moving_to_newer_opsets_keeps_values(draw: Draw) -> None:
    assert moved(draw, count=200, seed=0) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS)
def test_moving_much_random_pooling_keeps_values(draw: Draw) -> None:
    assert moved(draw, count=1000, seed=1) >= 300


@pytest.mark.parametrize("draw", DRAWS)
def test_random_pooling(draw: Draw) -> None:
    assert sweep(draw, count=12, seed=0) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("draw", DRAWS)
def test_much_random_pooling(draw: Draw, seed: int) -> None:
    assert sweep(draw, count=400, seed=seed) >= 300


# What the sweep found, smallest -------------------------------------------------------------------------------------


def numbers(*shape: int) -> np.ndarray:
    return _apart(np.random.default_rng(0), list(shape), np.float32)


FOUND = {
    "a window larger than the image": ("AveragePool", 18, [1, 1, 2], {"kernel_shape": [3], "strides": [2]}),
    "the same, over the whole kernel": (
        *("AveragePool", 18, [1, 1, 2]),
        {"kernel_shape": [3], "strides": [2], "count_include_pad": 1},
    ),
    "the same, over what is there": (
        *("AveragePool", 19, [1, 1, 2]),
        {"kernel_shape": [3], "strides": [2], "count_include_pad": 1},
    ),
    "no window": ("AveragePool", 18, [2, 2, 2], {"kernel_shape": [3]}),
    "no norm": ("LpPool", 18, [2, 2, 2], {"kernel_shape": [3]}),
    "no maximum": ("MaxPool", 18, [2, 2, 2], {"kernel_shape": [3]}),
    "padding without dilation": (
        *("AveragePool", 19, [1, 1, 5]),
        {"kernel_shape": [3], "dilations": [2], "auto_pad": "SAME_LOWER"},
    ),
    "negative padding before": (
        "LpPool",
        18,
        [1, 1, 4],
        {"kernel_shape": [1], "strides": [4], "auto_pad": "SAME_LOWER"},
    ),
    "negative padding": ("LpPool", 18, [1, 1, 9], {"kernel_shape": [2], "strides": [5], "auto_pad": "SAME_UPPER"}),
    "windows around the image": ("MaxPool", 18, [2, 2, 1], {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}),
    "negative padding, rounded up": (
        *("MaxPool", 11, [2, 2, 2]),
        {"kernel_shape": [1], "strides": [4], "dilations": [3], "ceil_mode": 1, "auto_pad": "SAME_UPPER"},
    ),
    "a mean with negative padding, rounded up": (
        *("AveragePool", 19, [1, 1, 2]),
        {"kernel_shape": [1], "strides": [4], "ceil_mode": 1, "auto_pad": "SAME_LOWER"},
    ),
    "means over the padding, rounded up": (
        *("AveragePool", 13, [2, 1, 1, 2]),
        {"kernel_shape": [4, 2], "strides": [4, 3], "ceil_mode": 1, "pads": [1, 1, 0, 1], "count_include_pad": 1},
    ),
    "no window by rounding up": (
        "LpPool",
        19,
        [1, 1, 1, 2],
        {"kernel_shape": [1, 1], "strides": [2, 2], "ceil_mode": 1},
    ),
}


@pytest.mark.parametrize("sizes", ["known", "batch", "named"])
@pytest.mark.parametrize("case", FOUND)
def test_odd_windows(case: str, sizes: str) -> None:
    op_type, opset, shape, attributes = FOUND[case]
    names = [f"d{axis}" for axis in range(len(shape))]
    known = {"known": shape, "batch": [*names[:1], *shape[1:]], "named": names}[sizes]
    for layout in LAYOUTS:
        assert compare(Pool(op_type, opset, attributes, numbers(*shape), known), layout)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_negative_padding_of_dilated_means(auto_pad: str) -> None:
    """onnxruntime leaves out the last elements of the image, which the standard does not say."""
    node = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=[2], dilations=[3], strides=[5], auto_pad=auto_pad, name="mean"
    )
    infos = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, size]) for name, size in (("x", 5), ("y", 1))
    ]
    graph = helper.make_graph([node], "graph", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    with pytest.raises(NotDifferentiableError, match=r"mean.*auto_pad SAME.*Write its pads down"):
        gradient(model, wrt=["x"])


def test_misjudged_sizes_in_a_body() -> None:
    """onnxruntime learns the sizes of the image only when it runs, in branches too."""
    text = """<ir_version: 8, opset_import: ["" : 19]> g (float[1, 1, 2] x, bool taken) => (float[a, b, c] y) {
        y = If (taken) <
            then_branch = t () => (float[d, e, f] pooled) {
                pooled = AveragePool <kernel_shape = [1], strides = [4], ceil_mode = 1, auto_pad = "SAME_LOWER"> (x)
            },
            else_branch = e () => (float[h, i, j] same) { same = Identity (x) }
        >
    }"""
    model, x = onnx.parser.parse_model(text), numbers(1, 1, 2)
    attributes = {"kernel_shape": [1], "strides": [4], "ceil_mode": 1, "auto_pad": "SAME_LOWER"}
    # The model itself does not run: onnxruntime has too much memory for the result of the branch.
    y = _forward(Pool("AveragePool", 19, attributes, x, [1, 1, 2]))
    assert y is not None
    dy = np.full_like(y, 3)
    feeds = {"x": x, "taken": np.array(True), "y_grad": dy}
    results = run_on_runtime(gradient(model, wrt=["x"], of=["y"]), feeds)
    np.testing.assert_array_equal(results["y"], y)
    np.testing.assert_array_equal(results["x_grad"], np.where(x == y, np.float32(3), 0))


@pytest.mark.parametrize(("size", "behind"), [("4", False), ("5", True), ("N", True)])
def test_means_behind_the_image_are_refused_on_old_onnxruntimes(
    size: str, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release 1.20 has a window more there, and its mean is over what the standard does not say."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1, 1, {size}] x) => (float[1, 1, M] y) {{
            y = AveragePool <kernel_shape=[2], strides=[3], pads=[0, 1], ceil_mode=1> (x)
        }}
    """)
    monkeypatch.setattr(opsets, "runtime_release", lambda: 31)
    gradient(model, wrt=["x"])
    monkeypatch.setattr(opsets, "runtime_release", lambda: 20)
    with pytest.raises(NotDifferentiableError, match=r"before 1\.21") if behind else contextlib.nullcontext():
        gradient(model, wrt=["x"])
