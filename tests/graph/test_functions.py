"""The standard's function bodies: expanding an operator by its own keeps values, types and names."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onward.graph.functions import body_since, expand
from onward.graph.inference import infer_shapes
from onward.graph.opsets import accepted_by_runtime, all_schemas, schema
from onward.graph.prepare import prepare
from onward.graph.shapes import dims
from onward.testing import run_on_reference, run_on_runtime
from tests.conformance.cases import Case, by_operator

NEWEST, _ = accepted_by_runtime()
FUNCTIONS = sorted(
    {
        spec.name
        for spec in onnx.defs.get_all_schemas_with_history()
        if spec.domain == ""
        and spec.since_version <= NEWEST
        and (spec.function_opset_versions or spec.context_dependent_function_opset_versions)
    }
)


def _body_since(op_type: str, opset: int) -> int | None:
    return body_since(ir.node(op_type, []), opset)


def _opsets(case: Case) -> list[int]:
    """The first and the last opset in which the case means the same, and the one where axes became inputs."""
    first = next(imported.version for imported in case.model.opset_import if imported.domain == "")
    later = [spec.since_version for spec in all_schemas(case.operator) if spec.since_version > first]
    last = min([*later, NEWEST + 1]) - 1
    return sorted({first, last} | ({18} if first < 18 < last else set()))


def _run(model: onnx.ModelProto, case: Case) -> list[np.ndarray]:
    try:
        return list(run_on_runtime(model, case.inputs).values())
    except Exception:  # onnxruntime has no kernel for some types
        return list(run_on_reference(model, case.inputs).values())


@pytest.mark.parametrize("op_type", FUNCTIONS)
def test_expansion_keeps_values(op_type: str) -> None:
    tried = 0
    for case in by_operator()[op_type]:
        if "_expanded" in case.name:
            continue
        for opset in _opsets(case):
            since = _body_since(op_type, opset)
            if since is None or since > opset:
                continue
            tried += 1
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            model.opset_import[0].version = opset
            model.ir_version = 10
            expanded = expand(prepare(model), {op_type})
            assert all(node.op_type != op_type for node in expanded.graph.all_nodes())
            infer_shapes(expanded)
            proto = ir.serde.serialize_model(expanded)
            onnx.checker.check_model(proto, full_check=True)
            if op_type == "Bernoulli":
                continue  # other random numbers
            for got, wanted in zip(_run(proto, case), case.outputs.values(), strict=True):
                _assert_same(got, wanted, f"{case.name} in opset {opset}")
    assert tried


def _assert_same(got, wanted, message: str) -> None:  # type: ignore[no-untyped-def]
    if isinstance(wanted, list):
        for one, other in zip(got, wanted, strict=True):
            _assert_same(one, other, message)
        return
    got, wanted = np.asarray(got), np.asarray(wanted)
    if wanted.dtype.kind == "f":
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3, atol=1e-5, err_msg=message)
    assert got.shape == wanted.shape, message
    assert got.dtype == wanted.dtype, message


def test_names_stay_unique_and_dimensions_symbolic() -> None:
    """Two nodes of one operator, names that a body uses itself, and one of the nodes in a branch."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("X", "Y"))
    branch = helper.make_graph([helper.make_node("Mish", ["X"], ["Softplus_X"])], "b", [], [_unknown("Softplus_X")])
    graph = helper.make_graph(
        [
            helper.make_node("Mish", ["X"], ["Mish_n0_TanhSoftplusX"]),
            helper.make_node("Mish", ["Mish_n0_TanhSoftplusX"], ["b"]),
            helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=_identity("X")),
            helper.make_node("Add", ["b", "d"], ["Y"]),
        ],
        "g",
        [x, helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [y],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    expanded = expand(prepare(model), {"Mish"})
    infer_shapes(expanded)
    onnx.checker.check_model(ir.serde.serialize_model(expanded), full_check=True)
    values = [output for node in expanded.graph.all_nodes() for output in node.outputs]
    assert len({value.name for value in values}) == len(values)
    assert all(dims(value) == ("n", 3) for node in expanded.graph if node.op_type != "If" for value in node.outputs)
    feeds = {"X": np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32), "c": np.array(True)}
    got, wanted = (run_on_runtime(m, feeds)["Y"] for m in (ir.serde.serialize_model(expanded), model))
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


def _unknown(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _identity(name: str) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Identity", [name], ["e"])], "i", [], [_unknown("e")])


def test_large_weights_and_constants_survive() -> None:
    weight = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("LayerNormalization", ["x", "w"], ["y"], axis=0)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [40, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [40, 40])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    expanded = expand(prepare(model), {"LayerNormalization"})
    assert [value.name for value in expanded.graph.inputs] == ["x"]
    np.testing.assert_array_equal(expanded.graph.initializers["w"].const_value.numpy(), weight)
    assert all(node.op_type != "Constant" for node in expanded.graph), "constants must be readable by rules"


def test_where_the_definition_is_newer_than_the_operator() -> None:
    assert _body_since("Relu", 14) == 18
    assert _body_since("Celu", 12) == 12
    assert _body_since("Conv", 22) is None
    assert body_since(ir.node("Celu", [], domain="com.microsoft"), 12) is None
    assert body_since(ir.node("NoSuchOperator", []), 12) is None
    assert schema("Relu", 14).since_version == 14
