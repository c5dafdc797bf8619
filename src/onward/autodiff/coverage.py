"""Which operators can be differentiated, and how."""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import onnx
import onnx_ir as ir

from onward.autodiff import rules as _rules  # noqa: F401  registers every rule
from onward.autodiff.registry import (
    is_nondifferentiable,
    nondifferentiable_operators,
    operators_with_rules,
    rule_for,
)
from onward.graph import contrib, ml  # noqa: F401  they register what is rewritten
from onward.graph.functions import body_since
from onward.graph.nodes import is_integer_arithmetic
from onward.graph.opsets import accepted_by_runtime, all_schemas
from onward.graph.rewriting import DOMAINS

# rule: there is a gradient rule. function: expanded by the function body of the standard, which is differentiated.
# constant: no derivative flows through it, because it is declared so or because no output is floating point.
# integer: arithmetic on quantised integers, refused with the advice to use the QDQ form.
# missing: a derivative exists in principle, and nobody has written it yet.
Way = Literal["rule", "function", "constant", "integer", "missing"]
# Of an operator in a model, more precisely. custom rule: registered from outside of onward. straight-through: its rule
# takes rounding for the identity.
NodeWay = Literal["rule", "custom rule", "straight-through", "function", "constant", "integer", "missing"]

_FLOATING = frozenset(f"tensor({name})" for name in ("float", "double", "float16", "bfloat16"))


def coverage(opset: int | None = None) -> dict[str, Way]:
    """How each operator of ai.onnx up to `opset` (default: the newest that onnxruntime accepts) is differentiated."""
    newest = accepted_by_runtime()[0] if opset is None else opset
    versions: dict[str, list[onnx.defs.OpSchema]] = defaultdict(list)
    for spec in onnx.defs.get_all_schemas_with_history():
        if spec.domain == "" and spec.since_version <= newest:
            versions[spec.name].append(spec)
    return {name: _way(max(specs, key=lambda spec: spec.since_version)) for name, specs in sorted(versions.items())}


def rewriting_coverage(name: str) -> dict[str, tuple[Literal["rewritten", "refused"], str]]:
    """What happens to the operators of another domain, and what a model may not use of them, or what to do instead."""
    domain = DOMAINS[name]
    found: dict[str, tuple[Literal["rewritten", "refused"], str]] = {}
    for op_type, rewriter in domain.rewriters.items():
        found[op_type] = ("rewritten", rewriter.limits())
    for op_type, remedy in domain.refused.items():
        found[op_type] = ("refused", remedy)
    return dict(sorted(found.items()))


def way_of(domain: str, op_type: str, opset: int) -> NodeWay:
    """How an operator of any domain is differentiated in a model of this opset of the default domain."""
    node = ir.node(op_type, [], domain=domain)
    rule = rule_for(node)
    if rule is not None:
        if rule.__module__.partition(".")[0] != __name__.partition(".")[0]:
            return "custom rule"
        return "straight-through" if (domain, op_type) == ("", "QuantizeLinear") else "rule"
    if is_integer_arithmetic(node):
        return "integer"
    if is_nondifferentiable(node):
        return "constant"
    known = [spec for spec in all_schemas(op_type, domain) if domain or spec.since_version <= opset]
    return _way(max(known, key=lambda spec: spec.since_version)) if known else "missing"


def _way(spec: onnx.defs.OpSchema) -> Way:
    key = (spec.domain, spec.name)
    if key in operators_with_rules():
        return "rule"
    if is_integer_arithmetic(ir.node(spec.name, [])):
        return "integer"
    if key in nondifferentiable_operators() or not any(_may_be_floating(output.types) for output in spec.outputs):
        return "constant"
    node = ir.node(spec.name, [], domain=spec.domain)
    return "missing" if body_since(node, spec.since_version) is None else "function"


def _may_be_floating(types: set[str]) -> bool:
    """Tensors, and sequences and optionals of them."""
    return any(kind in given for given in types for kind in _FLOATING)
