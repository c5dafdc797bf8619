"""How gradient rules are declared and found.

A rule is a function ``(op, node, *dy)``: the builder, the forward node, and one cotangent for each of its outputs
(None for an output that does not reach the loss). It returns one cotangent for each input (None where there is no
derivative), or a dictionary from values to cotangents for nodes whose subgraphs capture outer values. Rules never ask
which of them are needed: what nobody uses is removed afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.shapes import dims

Cotangents = ir.Value | None | Sequence[ir.Value | None] | Mapping[ir.Value, ir.Value | None]
Rule = Callable[..., Cotangents]
OperatorKey = tuple[str, str]

_rules: dict[OperatorKey, Rule] = {}
_nondifferentiable: set[OperatorKey] = set()


def vjp(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Declare the rule of operators: each cotangent it returns has the exact shape of its input."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            _rules[domain, op_type] = rule
        return rule

    return register


def elementwise(*op_types: str) -> Callable[[Rule], Rule]:
    """Declare the rule of operators whose inputs broadcast; what it returns is summed back to each input's shape."""

    def register(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def summed(op: Builder, node: ir.Node, dy: ir.Value) -> list[ir.Value | None]:
            cotangents = rule(op, node, dy)
            pairs = zip(node.inputs, cotangents, strict=True)  # type: ignore[arg-type]
            wide = dims(node.outputs[0])
            return [None if x is None or dx is None else op.sum_to(dx, x, wide) for x, dx in pairs]

        return vjp(*op_types)(summed)

    return register


def pointwise(rules: Mapping[str, Callable[[Builder, ir.Value, ir.Value, ir.Value], ir.Value]]) -> None:
    """Declare operators of one input by their derivative: dx from dy, x and y = f(x)."""
    for op_type, derivative in rules.items():

        def rule(op: Builder, node: ir.Node, dy: ir.Value, derivative=derivative) -> ir.Value:  # type: ignore[no-untyped-def]
            x = node.inputs[0]
            assert x is not None
            return derivative(op, dy, x, node.outputs[0])

        vjp(op_type)(rule)


def nondifferentiable(*op_types: str, domain: str = "") -> None:
    """Declare operators through which no derivative flows (integer results, or constant almost everywhere)."""
    _nondifferentiable.update((domain, op_type) for op_type in op_types)


def rule_for(node: ir.Node) -> Rule | None:
    """The rule of a node's operator, None where it has none."""
    return _rules.get((node.domain, node.op_type))


def is_nondifferentiable(node: ir.Node) -> bool:
    """Whether a node's operator is declared to stop derivatives."""
    return (node.domain, node.op_type) in _nondifferentiable


def operators_with_rules() -> frozenset[OperatorKey]:
    """Every (domain, operator) that has a rule."""
    return frozenset(_rules)


def nondifferentiable_operators() -> frozenset[OperatorKey]:
    """Every (domain, operator) that is declared to stop derivatives."""
    return frozenset(_nondifferentiable)
