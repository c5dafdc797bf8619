"""What `onward.gradient` refuses, and the words it does so with: what, where, why, and what to do."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import (
    InvalidModelError,
    MissingRuleError,
    NotDifferentiableError,
    OnwardError,
    OpsetError,
    UnknownNameError,
)
from onward.graph.opsets import accepted_by_runtime
from onward.testing import run_on_runtime


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    header = "" if text.startswith("<") else '<ir_version: 8, opset_import: ["" : 17]>'
    parsed = onnx.parser.parse_model(header + text)
    parsed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return parsed


def small() -> onnx.ModelProto:
    return model(
        "small (float[N, 2] x, int64[N] ids) => (float[N, 2] y, int64[N] same) { y = Mul(x, w) same = Identity(ids) }",
        w=np.ones(2, np.float32),
        steps=np.arange(3),
    )


def literally(*parts: str) -> str:
    """A pattern that finds these texts in this order."""
    return "(?s)" + ".*".join(map(re.escape, parts))


def test_every_error_is_an_onward_error_and_a_runtime_error() -> None:
    for kind in (InvalidModelError, MissingRuleError, NotDifferentiableError, OpsetError, UnknownNameError):
        assert issubclass(kind, OnwardError)
    assert issubclass(OnwardError, RuntimeError)


# Missing rules ------------------------------------------------------------------------------------------------------


def test_missing_rules_are_listed_all_at_once_with_their_nodes() -> None:
    forward = model(
        """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        missing (float[2] x) => (float[2] y) {
            a = acme.Warp(x)
            b = acme.Warp(a)
            c = acme.Bend(b)
            y = Exp(c)
        }"""
    )
    for node, name in zip(forward.graph.node, ("warp_1", "", "bend", ""), strict=True):
        node.name = name
    with pytest.raises(MissingRuleError) as raised:
        onward.gradient(forward, wrt=["x"])
    assert str(raised.value) == (
        "no gradient rule for these operators (opset 17) on the way to the output:\n"
        "  acme.Bend: bend\n"
        "  acme.Warp: warp_1, b\n"
        "Add a rule with @onward.vjp (see docs/custom-operators.md), leave the parameters before these nodes out of "
        "`wrt`, or replace the operators before exporting."
    )


def test_many_nodes_without_rule_are_abridged() -> None:
    nodes = [helper.make_node("Warp", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}", domain="acme") for i in range(8)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("v0", "v8")]
    graph = helper.make_graph(nodes, "many", info[:1], info[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    forward = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(MissingRuleError, match=literally("  acme.Warp: n0, n1, n2, n3, n4 and 3 more\n")):
        onward.gradient(forward, wrt=["v0"])


def test_operators_off_the_path_need_no_rule() -> None:
    """Only what lies between the targets and the output is differentiated."""
    forward = model(
        """<ir_version: 8, opset_import: ["" : 17, "acme" : 1]>
        beside (float[2] x) => (float[2] y, float[2] z) {
            a = acme.Warp(x)
            y = Mul(a, w)
            z = acme.Bend(y)
        }""",
        w=np.ones(2, np.float32),
    )
    forward.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [2]))
    result = onward.gradient(forward, wrt=["w"])
    assert [value.name for value in result.graph.output] == ["y", "z", "w_grad"]


def test_sequences_are_not_silently_zero() -> None:
    """A derivative flows through a sequence too, here one that is put together again."""
    forward = model(
        """sequence (float[4] x) => (float[4] y) {
            parts = SplitToSequence(x)
            y = ConcatFromSequence<axis = 0>(parts)
        }"""
    )
    x, dy = np.arange(4, dtype=np.float32), np.arange(5, 9, dtype=np.float32)
    got = run_on_runtime(onward.gradient(forward, wrt=["x"]), {"x": x, "y_grad": dy})
    np.testing.assert_array_equal(got["x_grad"], dy)


# Names --------------------------------------------------------------------------------------------------------------


def test_unknown_name_in_wrt() -> None:
    with pytest.raises(UnknownNameError) as raised:
        onward.gradient(small(), wrt=["w", "weight", "bias"])
    assert str(raised.value) == "`wrt` names 'weight', 'bias', which the model does not have; it has 'x', 'w'"


def test_unknown_name_in_of() -> None:
    with pytest.raises(UnknownNameError) as raised:
        onward.gradient(small(), of="loss")
    assert str(raised.value) == "`of` names 'loss', which the model does not have; it has 'y', 'same'"


def test_a_value_inside_of_a_branch_is_no_end() -> None:
    forward = model("""choice (float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = then () => (float[2] a) { h = Exp(x) a = Neg(h) },
            else_branch = otherwise () => (float[2] b) { b = Identity(x) }
        >
    }""")
    with pytest.raises(UnknownNameError, match=literally("`of` names 'h'", "it has 'y'")):
        onward.gradient(forward, wrt=["x"], of="h")


def test_a_computed_value_of_a_branch_has_no_gradient() -> None:
    forward = model(
        """branch (bool flag, float[2] x) => (float[2] y) {
            y = If (flag) <
                then_branch = yes () => (float[2] a) { h = Exp(x) a = Neg(h) },
                else_branch = no () => (float[2] b) { b = Neg(x) }
            >
        }"""
    )
    with pytest.raises(UnknownNameError, match=literally("`wrt` names 'h'", "it has 'x'")):
        onward.gradient(forward, wrt=["h"])


def test_many_known_names_are_abridged() -> None:
    forward = small()
    forward.graph.initializer.extend(numpy_helper.from_array(np.ones(2, np.float32), f"w{i}") for i in range(30))
    with pytest.raises(UnknownNameError, match=literally("'weight'", "'w17' and 12 more")):
        onward.gradient(forward, wrt=["weight"])


@pytest.mark.parametrize(("argument", "names"), [("wrt", ["w", "x", "w"]), ("of", ["y", "y"])])
def test_repeated_names(argument: str, names: list[str]) -> None:
    with pytest.raises(OnwardError, match=literally(f"`{argument}` names '{names[0]}' more than once")):
        onward.gradient(small(), **{argument: names})


def test_empty_of() -> None:
    with pytest.raises(OnwardError, match=literally("`of` is empty", "the model has 'y', 'same'")):
        onward.gradient(small(), of=[])


def test_nothing_to_differentiate() -> None:
    forward = model("bare (float[2] x) => (float[2] y) { y = Exp(x) }")
    with pytest.raises(OnwardError, match=literally("no trainable floating-point parameter", "in `wrt`")):
        onward.gradient(forward)


# Types --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ids", "steps"])
def test_integer_target(name: str) -> None:
    with pytest.raises(NotDifferentiableError) as raised:
        onward.gradient(small(), wrt=[name])
    assert str(raised.value) == (
        f"{name!r} in `wrt` has type INT64; only float, double, float16 and bfloat16 tensors have a gradient. "
        "Leave it out of `wrt`."
    )


def test_integer_output() -> None:
    with pytest.raises(NotDifferentiableError) as raised:
        onward.gradient(small(), of="same")
    assert str(raised.value) == (
        "output 'same' has type INT64; only float, double, float16 and bfloat16 tensors have a gradient. Name "
        "another output in `of`: 'y'."
    )


def test_sequence_output() -> None:
    forward = model("listed (float[4] x) => (seq(float[2]) y) { y = SplitToSequence(x) }")
    with pytest.raises(NotDifferentiableError, match=literally("output 'y' has type Sequence(")):
        onward.gradient(forward, wrt=["x"])


@pytest.mark.parametrize("parameters", ["input", "INPUTS", None, True])
def test_unknown_place_for_parameters(parameters: object) -> None:
    with pytest.raises(OnwardError) as raised:
        onward.gradient(small(), parameters=parameters)  # type: ignore[arg-type]
    assert str(raised.value) == f"parameters={parameters!r} is not known; use 'initializers' or 'inputs'"


# Models -------------------------------------------------------------------------------------------------------------


def test_model_that_contradicts_itself() -> None:
    forward = model("wrong (float[2, 3] x) => (float[2, 2] y) { y = MatMul(x, w) }", w=np.ones((4, 2), np.float32))
    with pytest.raises(InvalidModelError, match=literally("not valid ONNX; type and shape inference says:", "MatMul")):
        onward.gradient(forward)


def test_model_that_the_checker_refuses() -> None:
    forward = small()
    forward.graph.node[0].op_type = "Multiply"
    with pytest.raises(InvalidModelError, match=literally("not valid ONNX; the checker says:", "Multiply")):
        onward.gradient(forward)


def test_model_with_a_value_from_nowhere() -> None:
    forward = small()
    forward.graph.node[0].input[1] = "nowhere"
    with pytest.raises(InvalidModelError, match=literally("not valid ONNX", "nowhere")):
        onward.gradient(forward)


def test_nodes_in_a_circle() -> None:
    forward = model("circle (float[2] x) => (float[2] y) { a = Add(x, b) b = Exp(a) y = Neg(b) }")
    with pytest.raises(InvalidModelError, match="not valid ONNX"):
        onward.gradient(forward, wrt=["x"])


def test_empty_proto() -> None:
    with pytest.raises(InvalidModelError, match=literally("the ModelProto has no graph")):
        onward.gradient(onnx.ModelProto())


def test_model_without_outputs() -> None:
    forward = small()
    del forward.graph.output[:]
    with pytest.raises(OnwardError, match=literally("the model has no outputs")):
        onward.gradient(forward, wrt=["x"])


@pytest.mark.parametrize("what", [None, 3, b"model", small().graph])
def test_what_is_not_a_model(what: object) -> None:
    with pytest.raises(InvalidModelError) as raised:
        onward.gradient(what)  # type: ignore[arg-type]
    assert str(raised.value) == (
        "a model is an onnx.ModelProto, an onnx_ir.Model or the path of an .onnx file, not " + type(what).__name__
    )


@pytest.mark.parametrize("kind", [str, Path])
def test_no_file(tmp_path: Path, kind: type) -> None:
    path = tmp_path / "missing.onnx"
    with pytest.raises(InvalidModelError) as raised:
        onward.gradient(kind(path))
    assert str(raised.value) == f"there is no model file at {str(path)!r}"


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=literally("there is no model file at")):
        onward.gradient(tmp_path)


@pytest.mark.parametrize("content", [b"this is not protobuf", b"\x00" * 100])
def test_file_of_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=literally(repr(str(path)), "not a readable ONNX model")):
        onward.gradient(path)


def test_empty_file(tmp_path: Path) -> None:
    """No bytes at all are a valid message of protobuf, without any field."""
    path = tmp_path / "empty.onnx"
    path.touch()
    with pytest.raises(InvalidModelError, match=literally(repr(str(path)), "not a readable ONNX model", "no graph")):
        onward.gradient(path)


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    whole = small().SerializeToString()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidModelError, match=literally(repr(str(path)), "not a readable ONNX model")):
        onward.gradient(path)


@pytest.mark.parametrize("by", ["path", "proto", "ir"])
def test_external_data_that_is_not_there(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(small(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.chdir(tmp_path.parent)
    loaded = {"path": path, "proto": onnx.load(path, load_external_data=False), "ir": ir.load(path)}[by]
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(InvalidModelError, match=literally("initializer 'w' is stored in", "weights.bin", "not a file")):
        onward.gradient(loaded)


def test_opset_too_new_for_the_installed_runtime() -> None:
    newest, _ = accepted_by_runtime()
    assert newest < onnx.defs.onnx_opset_version(), "onnx has no opset that the installed onnxruntime lacks"
    forward = small()
    forward.opset_import[0].version = newest + 1
    with pytest.raises(OpsetError) as raised:
        onward.gradient(forward)
    assert str(raised.value) == (
        f"the model uses opset {newest + 1} of the default domain, but the installed onnxruntime accepts opset "
        f"{newest} at most, so no graph made from it could run. Export the model again with opset_version={newest} or "
        f"lower, convert it with onnx.version_converter.convert_version(model, {newest}), or install a newer "
        "onnxruntime."
    )
