"""Moving a model to a newer opset keeps its values, and no change of an operator is overlooked."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import OpsetError
from onward.graph import opsets
from onward.graph.adapters import ADAPTERS
from onward.graph.opsets import _ACCEPTED
from onward.graph.prepare import prepare
from onward.graph.upgrade import OLDEST, upgrade
from onward.testing import run_on_runtime

NEWEST = max(opset for opset, _ in _ACCEPTED.values())  # of any onnxruntime: accepting more means reading more


@dataclass
class Case:
    """A node of the opset before `since`, to be moved across it."""

    op_type: str
    since: int
    inputs: list[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: list[int] = field(default_factory=lambda: [TensorProto.FLOAT])
    constants: Collection[int] = ()
    symbolic: bool = False
    newest: int = NEWEST  # that onnxruntime has a kernel for

    def __str__(self) -> str:
        settings = ",".join(f"{k}={v}" for k, v in self.attributes.items() if not isinstance(v, onnx.GraphProto))
        return f"{self.op_type}-{self.since}-{settings}{'-symbolic' if self.symbolic else ''}"

    def model(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.inputs)]
        results = [f"y{i}" for i in range(len(self.outputs))]
        node = helper.make_node(self.op_type, names, results, name="n", **self.attributes)
        feeds = {f"x{i}": x for i, x in enumerate(self.inputs) if x is not None and i not in self.constants}
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(
                    name,
                    helper.np_dtype_to_tensor_dtype(x.dtype),
                    [f"{name}_{axis}" for axis in range(x.ndim)] if self.symbolic else x.shape,
                )
                for name, x in feeds.items()
            ],
            [
                helper.make_tensor_value_info(name, dtype, None)
                for name, dtype in zip(results, self.outputs, strict=True)
            ],
            [numpy_helper.from_array(self.inputs[i], f"x{i}") for i in self.constants],
        )
        imports = [helper.make_opsetid("", max(self.since - 1, OLDEST))]
        return helper.make_model(graph, opset_imports=imports, ir_version=8), feeds


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = _random(2, 3, 4)
IMAGE = _random(2, 4, 5, 5)
STATISTICS = [_random(4, seed=seed) ** 2 + 0.5 for seed in range(1, 5)]
ELEMENTWISE = [_random(4, 5, 5, seed=seed) ** 2 + 0.5 for seed in range(1, 5)]
FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def _running_sum() -> onnx.GraphProto:
    """A Scan body: the state is the sum so far, the output twice the element plus the sum."""
    vector = [helper.make_tensor_value_info(name, FLOAT, [3]) for name in ("s", "e", "s2", "o")]
    nodes = [helper.make_node("Add", ["s", "e"], ["s2"]), helper.make_node("Sum", ["e", "e", "s2"], ["o"])]
    return helper.make_graph(nodes, "body", vector[:2], vector[2:])


def _cases() -> Iterator[Case]:
    for name in (key[0] for key in ADAPTERS if key[0].startswith("Reduce")):
        since, x = 13 if name == "ReduceSum" else 18, np.abs(X) + 0.1
        yield Case(name, since, [x], {"axes": [-1, 1], "keepdims": 0})
        yield Case(name, since, [x])
    yield Case("Squeeze", 13, [X[:, :1]], {"axes": [-2]})
    yield Case("Squeeze", 13, [X[:, :1]])
    yield Case("Unsqueeze", 13, [X], {"axes": [0, -1]})
    for since in (13, 18):
        yield Case("Split", since, [X], {"axis": -1}, [FLOAT] * 2)
    yield Case("Split", 13, [X], {"axis": 2, "split": [1, 3]}, [FLOAT] * 2)
    yield Case("Split", 18, [X, np.array([1, 3])], {"axis": 2}, [FLOAT] * 2, constants=[1])
    yield Case("Slice", 10, [X], {"starts": [1, -3], "ends": [3, 1000], "axes": [1, 2]})
    yield Case("Slice", 10, [X], {"starts": [0, 1], "ends": [1, -1]})
    yield Case("TopK", 10, [X], {"k": 2}, [FLOAT, INT64])
    yield Case("Clip", 11, [X], {"min": -0.5, "max": 0.25})
    yield Case("Clip", 11, [X], {"max": 0.25})
    yield Case("Clip", 11, [X])
    yield Case("Pad", 11, [X], {"pads": [0, 1, 2, 0, 0, 1], "value": 1.5})
    yield Case("Pad", 11, [X], {"pads": [0, 1, 2, 0, 0, 1], "mode": "reflect"})
    yield Case("Upsample", 9, [IMAGE], {"scales": [1.0, 1.0, 2.0, 1.5], "mode": "nearest"})
    for scales in ([1, 1, 2, 2.5], [1, 1, 1.5, 1]):
        for mode in ("nearest", "linear"):
            yield Case("Upsample", 10, [IMAGE, np.array(scales, np.float32)], {"mode": mode}, constants=[1])
    for scales in ([1, 1, 2, 2.5], [1, 1, 0.6, 0.4], [1, 1, 0.6, 2.3]):
        for mode in ("nearest", "linear"):
            inputs = [IMAGE, np.array(scales, np.float32)]
            yield Case("Resize", 11, inputs, {"mode": mode}, constants=[1])
            yield Case("Resize", 11, inputs, {"mode": mode})
    empty = np.zeros(0, np.float32)
    sizes = np.array([2, 4, 7, 3])
    yield Case("Resize", 13, [IMAGE, empty, empty, sizes], {"mode": "linear"}, constants=[1, 2, 3])
    yield Case("Resize", 13, [IMAGE, empty, np.array([1, 1, 2, 3], np.float32)], {"mode": "cubic"}, constants=[1, 2])
    crop = np.array([0, 0, 0.2, 0.3, 1, 1, 0.8, 0.9], np.float32)
    cropping = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    yield Case("Resize", 13, [IMAGE, crop, empty, sizes], cropping, constants=[1, 2, 3])
    indices = np.array([[[0, 2, 1, 0]]])
    yield Case("Scatter", 11, [X, indices, _random(1, 1, 4, seed=1)], {"axis": 1})
    rois = np.array([[0, 0, 3, 3], [1, 0.5, 4, 2.5]], np.float32)
    roi_attributes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    yield Case("RoiAlign", 16, [IMAGE, rois, np.array([0, 1])], roi_attributes, newest=21)
    grid = np.random.default_rng(1).uniform(-1.1, 1.1, (2, 3, 3, 2)).astype(np.float32)
    for mode in ("bilinear", "bicubic", "nearest"):
        yield Case("GridSample", 20, [IMAGE, grid], {"mode": mode})
    yield Case("GridSample", 20, [IMAGE, grid])
    yield Case("DFT", 20, [_random(2, 4, 5, 1)])
    yield Case("DFT", 20, [_random(2, 4, 5, 2), np.array(3)], {"axis": -2, "inverse": 1}, constants=[1])
    for name in ("Softmax", "LogSoftmax", "Hardmax"):
        for symbolic in (False, True):
            for attributes in ({}, {"axis": 0}, {"axis": 2}, {"axis": -2}, {"axis": -1}):
                yield Case(name, 13, [X], attributes, symbolic=symbolic)
        yield Case(name, 13, [IMAGE[:, :, :1, :1]])
    yield Case("Dropout", 12, [X], {"ratio": 0.3})
    yield Case("Dropout", 12, [X], {}, [FLOAT, BOOL])
    yield Case("Dropout", 12, [X], {}, [FLOAT, BOOL], symbolic=True)
    yield Case("Dropout", 10, [X], {"ratio": 0.3}, [FLOAT, FLOAT])
    yield Case("BatchNormalization", 9, [IMAGE, *STATISTICS], {"epsilon": 0.1})
    yield Case("BatchNormalization", 9, [IMAGE, *ELEMENTWISE], {"epsilon": 0.1, "spatial": 0})
    yield Case("BatchNormalization", 9, [IMAGE, *ELEMENTWISE], {"spatial": 0}, symbolic=True)
    yield Case("BatchNormalization", 14, [IMAGE, *STATISTICS], {"epsilon": 0.1})
    yield Case("BatchNormalization", 14, [IMAGE, *STATISTICS], {"momentum": 0.7}, [FLOAT] * 5)
    yield Case("BatchNormalization", 14, [IMAGE, *STATISTICS], {}, [FLOAT] * 5, symbolic=True)
    scale, bias = _random(2, seed=1), _random(2, seed=2)
    yield Case("GroupNormalization", 21, [IMAGE, scale, bias], {"num_groups": 2, "epsilon": 0.1})
    yield Case("GroupNormalization", 21, [IMAGE, scale, bias], {"num_groups": 2}, constants=[1, 2], symbolic=True)
    window = {"kernel_shape": [4, 3], "strides": [4, 2], "count_include_pad": 1}
    for symbolic in (False, True):
        yield Case("AveragePool", 19, [IMAGE[:, :, :3]], window, symbolic=symbolic)
        yield Case("AveragePool", 19, [IMAGE[:, :, :1, :1]], {**window, "pads": [1, 0, 1, 1]}, symbolic=symbolic)
        yield Case("AveragePool", 19, [IMAGE[:, :, :1, :1]], {**window, "auto_pad": "VALID"}, symbolic=symbolic)
    for directions in ({}, {"directions": [1]}):
        yield Case(
            "Scan",
            9,
            [None, _random(2, 3), _random(2, 5, 3, seed=1)],
            {"body": _running_sum(), "num_scan_inputs": 1, **directions},
            [FLOAT, FLOAT],
        )


CASES = list(_cases())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_stay(case: Case) -> None:
    model, feeds = case.model()
    wanted = run_on_runtime(model, feeds)
    for version in sorted({case.since, case.newest}):
        upgraded = upgrade(prepare(model), version)
        proto = ir.serde.serialize_model(upgraded)
        assert proto.opset_import[0].version == version
        got = run_on_runtime(proto, feeds)
        for name, array in wanted.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6, err_msg=f"{name} in opset {version}")
            assert got[name].dtype == array.dtype


def _reworded() -> Iterator[tuple[str, tuple[int, ...], list[np.ndarray | None], dict[str, Any]]]:
    """(operator, opsets, inputs, attributes) of nodes that a reader of two versions of the standard might doubt."""
    square, kernel = _random(1, 1, 5, 5), _random(1, 1, 3, 3, seed=1)
    windows: list[dict[str, Any]] = [
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1, "pads": [1, 1, 1, 1]},
        {"kernel_shape": [2, 2], "strides": [3, 3], "ceil_mode": 1, "pads": [0, 0, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"},
    ]
    for window in windows:
        yield "AveragePool", (10, 11, 19, 22), [square], window
        yield "AveragePool", (10, 11, 19, 22), [square], {**window, "count_include_pad": 1}
        yield "MaxPool", (10, 11, 12, 22), [square], window
        if "ceil_mode" not in window:
            yield "LpPool", (7, 11, 18, 22), [square], window
    for attributes in ({"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}, {"output_shape": [10, 10]}):
        yield "ConvTranspose", (7, 11, 22), [square, kernel], {"strides": [2, 2], **attributes}
    yield "OneHot", (9, 11), [np.array([-1, 0, 5]), np.array(3), np.array([0, 1], np.float32)], {}
    yield "Clip", (11, 12, 13), [square, np.array(0.5, np.float32), np.array(-0.5, np.float32)], {}
    scales = np.array([1, 1, 1.3, 0.7], np.float32)
    for coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn"):
        for mode in ("nearest", "linear", "cubic"):
            settings = {"mode": mode, "coordinate_transformation_mode": coordinates}
            yield "Resize", (13, 18, 19), [square, None, scales], settings


@pytest.mark.parametrize(("op_type", "opsets", "inputs", "attributes"), list(_reworded()))
def test_reworded_changes_keep_values(
    op_type: str, opsets: tuple[int, ...], inputs: list[np.ndarray | None], attributes: dict[str, Any]
) -> None:
    results = []
    for opset in opsets:
        model, feeds = Case(op_type, opset + 1, inputs, attributes).model()
        results.append(run_on_runtime(model, feeds)["y0"])
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-5, atol=1e-6)


def test_every_adapter_has_a_case() -> None:
    tested = {(case.op_type, case.since) for case in CASES}
    assert set(ADAPTERS) <= tested


def test_nodes_in_subgraphs_are_upgraded_too() -> None:
    branches = []
    for axis in (1, 2):
        node = helper.make_node("Softmax", ["x"], ["z"], axis=axis)
        branches.append(helper.make_graph([node], "branch", [], [helper.make_tensor_value_info("z", FLOAT, None)]))
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        "g",
        [helper.make_tensor_value_info("c", BOOL, []), helper.make_tensor_value_info("x", FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    upgraded = ir.serde.serialize_model(upgrade(prepare(model), 18))
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": X}
        np.testing.assert_allclose(run_on_runtime(upgraded, feeds)["y"], run_on_runtime(model, feeds)["y"], rtol=1e-6)


def test_the_given_model_is_left_alone() -> None:
    model = prepare(Case("Softmax", 13, [X]).model()[0])
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    upgrade(model, 18)
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before


def test_refusals() -> None:
    with pytest.raises(OpsetError, match="accepts opset 26 at most"):
        upgrade(prepare(Case("Softmax", 13, [X]).model()[0]), 27)
    body = _running_sum()
    lengths = Case(
        "Scan", 9, [np.array([3, 5]), _random(2, 3), _random(2, 5, 3)], {"body": body, "num_scan_inputs": 1}, [1, 1]
    )
    with pytest.raises(OpsetError, match="Scan node 'n' of opset 8 has sequence_lens"):
        upgrade(prepare(lengths.model()[0]), 9)
    old = onnx.parser.parse_model(
        '<ir_version: 3, opset_import: ["" : 6]> g (float[2] x) => (float[2] y) { y = Tanh(x) }'
    )
    with pytest.raises(OpsetError, match="opset 7 is the oldest"):
        upgrade(prepare(old), 13)


def test_gradient_upgrades_a_model_whose_rule_needs_it() -> None:
    """Which axes of the bias were broadcast is known at run time only, and summing those is possible since opset 13;
    until then Softmax flattens its input."""
    nodes = [helper.make_node("Add", ["x", "bias"], ["s"]), helper.make_node("Softmax", ["s"], ["p"], axis=1)]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", FLOAT, [2, 3, 4]),
            helper.make_tensor_value_info("bias", FLOAT, ["a", "b"]),
        ],
        [helper.make_tensor_value_info("p", FLOAT, [2, 3, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    differentiated = onward.gradient(model, wrt=["bias"])
    assert differentiated.opset_import[0].version == 13
    dy, bias = _random(2, 3, 4, seed=3), _random(3, 1, seed=4)
    got = run_on_runtime(differentiated, {"x": X, "bias": bias, "p_grad": dy})
    p = np.exp(X + bias) / np.exp(X + bias).sum((1, 2), keepdims=True)
    np.testing.assert_allclose(got["p"], p, rtol=1e-5)
    dx = p * (dy - (p * dy).sum((1, 2), keepdims=True))
    np.testing.assert_allclose(got["bias_grad"], dx.sum((0, 2))[:, None], rtol=1e-4, atol=1e-6)


# Completeness ---------------------------------------------------------------------------------------------------

COMPATIBLE = Path(__file__).with_name("compatible_changes.txt")


# Integer types that the standard took back; onnxruntime 1.31 has no kernels for them in the older opsets either.
TYPES_LOST = {("Erf", 13)}


def _changes() -> dict[tuple[str, int], tuple[onnx.defs.OpSchema, onnx.defs.OpSchema]]:
    """Every new version of an operator after the oldest opset: (operator, opset) -> old and new schema."""
    history = defaultdict(list)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name].append(schema)
    changes = {}
    for name, versions in history.items():
        versions.sort(key=lambda schema: schema.since_version)
        for old, new in itertools.pairwise(versions):
            if OLDEST < new.since_version <= NEWEST:
                changes[name, new.since_version] = (old, new)
    return changes


def _reviewed() -> set[tuple[str, int]]:
    found = set()
    for line in COMPATIBLE.read_text().splitlines():
        if line and not line.startswith("#"):
            name, versions = line.split(":")
            found.update((name, int(version)) for version in versions.split())
    return found


def _breaks_syntax(old: onnx.defs.OpSchema, new: onnx.defs.OpSchema) -> bool:
    """Whether a node that is valid by `old` may be invalid, or have other defaults, by `new`."""
    if (new.name, new.since_version) in TYPES_LOST:
        return False
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    added = new.inputs[len(old.inputs) :]
    lost = any(
        name not in new.attributes or new.attributes[name].default_value != given.default_value
        for name, given in old.attributes.items()
    )
    required = any(given.required and name not in old.attributes for name, given in new.attributes.items())
    return (
        new.deprecated
        or len(new.inputs) < len(old.inputs)
        or len(new.outputs) < len(old.outputs)
        or any(parameter.option != optional for parameter in added)
        or lost
        or required
        or any(set(a.types) - set(b.types) for a, b in zip(old.inputs, new.inputs, strict=False))
        or any(set(a.types) - set(b.types) for a, b in zip(old.outputs, new.outputs, strict=False))
    )


def test_every_change_of_an_operator_is_known() -> None:
    """A newer onnx release with a new version of any operator fails here until somebody has read what it changes."""
    unknown = sorted(set(_changes()) - set(ADAPTERS) - _reviewed())
    assert not unknown, (
        f"read what changed in {unknown}; write an adapter in onward/graph/adapters.py, or add the opset to "
        f"{COMPATIBLE.name} when nodes keep their meaning"
    )


def test_what_is_called_compatible_is() -> None:
    assert not _reviewed() & set(ADAPTERS)
    broken = [key for key, (old, new) in sorted(_changes().items()) if key in _reviewed() and _breaks_syntax(old, new)]
    assert not broken


def test_means_that_older_onnxruntimes_divide_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until 1.28 theirs, of windows rounded up before opset 19, were divided by the whole kernel."""
    window = {"kernel_shape": [4, 3], "strides": [4, 2], "count_include_pad": 1, "ceil_mode": 1}
    prepared = prepare(Case("AveragePool", 19, [IMAGE], window).model()[0])
    assert upgrade(prepared, 19).opset_imports[""] == 19
    monkeypatch.setattr(opsets, "runtime_release", lambda: 28)
    with pytest.raises(
        OpsetError, match=r"AveragePool node .* rounds the number of its windows up .* onnxruntime 1.29"
    ):
        upgrade(prepared, 19)
