"""Make sure that every node on the path has a rule, expanding those whose operator is defined by others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import onnx_ir as ir

from onward.autodiff import rules as _rules  # noqa: F401  registers every rule
from onward.autodiff.registry import rule_for
from onward.autodiff.sweep import differentiable_path, may_vary
from onward.errors import MissingRuleError
from onward.graph.folding import fold_shape_arithmetic
from onward.graph.functions import body_since, expand
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values, captured_values, is_integer_arithmetic, subgraphs, used_values
from onward.graph.opsets import NeedsOpsetError
from onward.graph.rewriting import refusal
from onward.graph.shapes import is_floating


def expand_missing_rules(
    model: ir.Model, targets: Sequence[str], outputs: Sequence[str], refused: list[Missing] | None = None
) -> ir.Model:
    """A copy of `model` in which every node between targets and outputs has a rule.

    Where some have neither rule nor definition, MissingRuleError lists them; or `refused` does, if it is given.
    """
    opset = model.opset_imports[""]
    current = model.clone()
    while True:
        found = _nodes_without_rule(current, targets, outputs)
        bodies = {node: body_since(node, opset) for node, why in found if why == "rule"}
        hopeless = [(node, why) for node, why in found if bodies.get(node) is None]
        if hopeless and refused is None:
            raise MissingRuleError(_message(hopeless, opset))
        defined = {node.op_type: since for node, since in bodies.items() if since is not None}
        if not defined:
            if refused is not None:
                refused[:] = hopeless
            return current
        for op_type, since in defined.items():
            if since > opset:
                raise NeedsOpsetError(op_type, since)
        current = expand(current, defined)
        infer_shapes(current)
        # Function bodies compute with shapes, as exporters do.
        while fold_shape_arithmetic(current):
            infer_shapes(current)


# Why a node cannot be differentiated as it is: its operator has no rule; it computes with quantised integers; its body
# uses or returns sequences, or quantised integers; it belongs to another domain and has no form of standard operators.
Why = Literal["rule", "integer", "body", "domain"]
Missing = tuple[ir.Node, Why]


def _nodes_without_rule(model: ir.Model, targets: Sequence[str], outputs: Sequence[str]) -> list[Missing]:
    values = {value.name: value for value in all_values(model.graph)}
    return list(_without_rule(model.graph, [values[name] for name in targets], [values[name] for name in outputs]))


def _without_rule(graph: ir.Graph, targets: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Iterator[Missing]:
    path, carrying = differentiable_path(graph, targets, outputs)
    for node in path:
        if _computes_with_integers(node, carrying):
            yield node, "integer"
        elif rule_for(node) is None:
            yield node, "rule" if refusal(node) is None else "domain"
        elif subgraphs(node) and any(v in carrying and not is_floating(v) for v in (*used_values(node), *node.outputs)):
            yield node, "body"
        for body in subgraphs(node):
            inputs = [value for value in body.inputs if is_floating(value)]
            captured = [value for value in captured_values(node) if value in carrying]
            yield from _without_rule(body, [*inputs, *captured], body.outputs)


# Operators that only move numbers, whatever they are, or end what was quantised.
_MOVING = frozenset("Cast Concat DequantizeLinear Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())


def _computes_with_integers(node: ir.Node, carrying: Collection[ir.Value]) -> bool:
    """Whether a node computes with quantised numbers, for which rules are not made."""
    quantised = any(value in carrying and not may_vary(value) for value in used_values(node))
    return is_integer_arithmetic(node) or (quantised and node.op_type not in _MOVING)


ADVICE: dict[Why, tuple[str, str]] = {
    "rule": (
        "no gradient rule for these operators (opset {opset}) on the way to the output:",
        "Add a rule with @onward.vjp (see docs/custom-operators.md), leave the parameters before these nodes out of "
        "`wrt`, or replace the operators before exporting.",
    ),
    "integer": (
        "these operators on the way to the output compute with integers, which have no derivative:",
        "Use the QDQ form of the model, in which floating-point operators stand between DequantizeLinear and "
        "QuantizeLinear, which let gradients pass (onnxruntime.quantization writes it with "
        "quant_format=QuantFormat.QDQ); or train the model before it is quantised; or leave the parameters before "
        "these nodes out of `wrt`.",
    ),
    "body": (
        "the bodies of these nodes on the way to the output use or return sequences, or quantised integers:",
        "Gradients pass through the tensors of a body only, and through lists to which a Loop appends one element in "
        "each iteration and which are stacked or joined after it. Keep what the sequence holds in one tensor.",
    ),
    "domain": (
        "operators of other domains on the way to the output that cannot be rewritten to standard ones:",
        "Or leave the parameters before these nodes out of `wrt`.",
    ),
}


def _message(refused: list[Missing], opset: int) -> str:
    parts = []
    for why, (what, advice) in ADVICE.items():
        nodes = [node for node, given in refused if given == why]
        if nodes:
            listed = _reasons(nodes) if why == "domain" else _listed(nodes)
            parts.append(f"{what.format(opset=opset)}\n{listed}\n{advice}")
    return "\n".join(parts)


def _reasons(nodes: list[ir.Node]) -> str:
    lines = [f"  {refusal(node)}" for node in nodes[:5]]
    return "\n".join([*lines, *([f"  and {len(nodes) - 5} more"] if len(nodes) > 5 else [])])


def _listed(nodes: list[ir.Node]) -> str:
    by_operator: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        by_operator[operator].append(node.name or node.outputs[0].name or "?")
    lines = []
    for operator, names in sorted(by_operator.items()):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"  {operator}: {shown}")
    return "\n".join(lines)
