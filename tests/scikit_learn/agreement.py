"""Compare what onward makes of a classic model with what onnxruntime makes of the file, and with differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper

import onward
from onward.graph.parameters import parameters
from onward.graph.prepare import prepare
from onward.graph.proto import from_proto, to_proto
from onward.testing import run_on_runtime
from tests.real_models.float64 import evaluator

Array = np.ndarray
Feeds = dict[str, Array]


def standard(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as the rest of onward sees it."""
    return to_proto(prepare(model))


def check_same_results(model: onnx.ModelProto, feeds: Feeds, tolerance: float = 2e-5) -> onnx.ModelProto:
    """onnxruntime makes the same of the rewritten model, which is returned, as of the file: labels and maps too."""
    rewritten = standard(model)
    wanted, got = run_on_runtime(model, feeds), run_on_runtime(rewritten, feeds)
    assert list(got) == list(wanted)
    for name, expected in wanted.items():
        _assert_same(got[name], expected, tolerance, name)
    return rewritten


def _assert_same(got: Any, expected: Any, tolerance: float, name: str) -> None:
    if isinstance(expected, list):  # of dictionaries, from ZipMap
        assert [list(row) for row in got] == [list(row) for row in expected], name
        got, expected = (np.array([list(row.values()) for row in rows], np.float32) for rows in (got, expected))
    assert got.dtype == expected.dtype, name
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    else:
        np.testing.assert_array_equal(got, expected, err_msg=name)


def float_values(model: onnx.ModelProto) -> list[str]:
    """The outputs of floating point, and what becomes an output as dictionaries."""
    floating = (TensorProto.FLOAT, TensorProto.DOUBLE)
    outputs = [value.name for value in model.graph.output if value.type.tensor_type.elem_type in floating]
    return outputs + [node.input[0] for node in model.graph.node if node.op_type == "ZipMap"]


def parameter_names(rewritten: onnx.ModelProto) -> list[str]:
    """The trainable parameters of a model that is prepared."""
    return [parameter.name for parameter in parameters(from_proto(rewritten)) if parameter.trainable]


def check_gradient(
    model: onnx.ModelProto, rewritten: onnx.ModelProto, of: str, wrt: Sequence[str], feeds: Feeds, step: float = 1e-6
) -> None:
    """The gradient of `of` agrees with differences in float64 along random directions, and so it does in float32.

    Its nodes are standard ones, but for those that make and take labels. Differences are those of `rewritten`.
    """
    gradient = onward.gradient(model, wrt=list(wrt), of=of)
    left = {f"{node.domain}.{node.op_type}" for node in gradient.graph.node if node.domain}
    assert left <= {"ai.onnx.ml.ZipMap", "ai.onnx.ml.LabelEncoder"}, f"not standard: {left}"
    weights = {tensor.name: tensor for tensor in rewritten.graph.initializer}
    start = {name: feeds[name] if name in feeds else numpy_helper.to_array(weights[name]) for name in wrt}
    point = {name: x.astype(np.float64) for name, x in start.items()}

    forward = _with_inputs(rewritten, [of], wrt)
    run = evaluator(forward)
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}

    def value(moved: Feeds) -> Array:
        return run.run([of], {**wide, **moved})[0]

    seed = np.random.default_rng(0).normal(size=value(point).shape)
    one = seed.size == 1 and f"{of}_grad" not in {given.name for given in gradient.graph.input}
    seeds = {} if one else {f"{of}_grad": seed}
    backward = evaluator(_with_inputs(gradient, [f"{name}_grad" for name in wrt], wrt))
    exact = dict(zip(wrt, backward.run(None, {**wide, **point, **seeds}), strict=True))
    random = np.random.default_rng(1)
    for _ in range(2):
        direction = {name: random.normal(size=x.shape) for name, x in point.items()}
        ends = [value({name: x + s * step * direction[name] for name, x in point.items()}) for s in (1, -1)]
        wanted = np.sum((ends[0] - ends[1]) * (1 if one else seed)) / (2 * step)
        got = sum(np.sum(exact[name] * direction[name]) for name in wrt)
        scale = sum(np.linalg.norm(exact[name]) for name in wrt)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * max(scale, 1), err_msg=f"of {of!r}")
    narrow = run_on_runtime(gradient, {**feeds, **{name: x.astype(np.float32) for name, x in seeds.items()}})
    for name, expected in exact.items():
        scale = max(float(np.abs(expected).max(initial=0)), 1e-3)
        np.testing.assert_allclose(narrow[f"{name}_grad"], expected, rtol=2e-3, atol=2e-3 * scale, err_msg=name)


def _with_inputs(model: onnx.ModelProto, outputs: Sequence[str], names: Sequence[str]) -> onnx.ModelProto:
    """`model` with these outputs only, and the named initializers as inputs."""
    copy = ir.serde.deserialize_model(_without_maps(model))
    graph = copy.graph
    values = {value.name: value for node in graph for value in node.outputs}
    graph.outputs.clear()
    graph.outputs.extend(values[name] for name in outputs)
    for name in names:
        if name in graph.initializers:
            value = graph.initializers.pop(name)
            if not value.is_graph_input():
                graph.inputs.append(value)
    ir.passes.common.RemoveUnusedNodesPass()(copy)
    return ir.serde.serialize_model(copy)


def _without_maps(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    kept = [value for value in copy.graph.output if not value.type.HasField("sequence_type")]
    del copy.graph.output[:]
    copy.graph.output.extend(kept)
    nodes = [node for node in copy.graph.node if node.op_type != "ZipMap"]
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy
