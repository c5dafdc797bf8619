"""Rules emit only standard operators that have a gradient themselves, so that a gradient can be differentiated again.

The operators are read from the source, so that branches which no test takes count as well.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import onnx

from onward.autodiff import rules as _rules  # noqa: F401  registers every rule
from onward.autodiff.registry import nondifferentiable_operators, operators_with_rules

SOURCE = Path(__file__).parents[2] / "src" / "onward"
EMITTING = [
    *sorted((SOURCE / "autodiff").rglob("*.py")),
    SOURCE / "graph" / "builder.py",
    SOURCE / "graph" / "recurrence.py",
]

STANDARD = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
# Rules use these on integers only (positions, shapes), where there is nothing to differentiate.
ON_INTEGERS = {("", "Range")}
# Expanded by its function body, a Loop, where it is differentiated.
BY_BODY = {("", "SequenceMap")}
# `dy * x` on values emits operators too.
ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Neg", "Pow"}


def emitted_operators() -> dict[str, set[str]]:
    """Operator -> the files that emit it: every call of `<builder>.<Operator>(...)`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in EMITTING:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = None
            if isinstance(node.func, ast.Attribute):
                owner, name = node.func.value, node.func.attr
                if isinstance(owner, ast.Name) and owner.id in {"ir", "np", "onnx"}:
                    name = None
                if name in {"emit", "node"} and node.args and isinstance(node.args[0], ast.Constant):
                    name = node.args[0].value
            if name and name[:1].isupper():
                found[name].add(str(path.relative_to(SOURCE)))
    for name in ARITHMETIC:
        found[name].add("arithmetic on values")
    return found


def test_the_reader_finds_operators() -> None:
    found = emitted_operators()
    assert {"Where", "ReduceSum", "Gemm", "Reshape", "ConstantOfShape"} <= found.keys()
    assert "autodiff/rules/matmul.py" in found["Gemm"]


def test_emitted_operators_are_standard() -> None:
    other = {name: files for name, files in emitted_operators().items() if name not in STANDARD}
    assert not other


def test_emitted_operators_have_a_gradient() -> None:
    closed = operators_with_rules() | nondifferentiable_operators() | ON_INTEGERS | BY_BODY
    open_ended = {name: files for name, files in emitted_operators().items() if ("", name) not in closed}
    assert not open_ended, "these have no rule and are not declared nondifferentiable"


def test_no_operator_is_declared_both_ways() -> None:
    assert not operators_with_rules() & nondifferentiable_operators()


def test_rules_are_for_operators_that_exist() -> None:
    """A rule under a misspelt name would never be found missing."""
    history = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
    # Operators of onnxruntime, which onnx does not know, are accepted as they are.
    registered = operators_with_rules() | nondifferentiable_operators()
    assert not {key for key in registered if key[0] == ""} - history
