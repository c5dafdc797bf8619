"""How gradient rules are declared and found.

A rule is a function ``(op, node, *dy)``: the builder, the forward node, and one cotangent for each of its outputs
(None for an output that does not reach the loss). It returns one cotangent for each input (None where there is no
derivative), or a dictionary from values to cotangents for nodes whose subgraphs capture outer values. Rules never ask
which of them are needed: what nobody uses is removed afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.shapes import dims

Cotangents = ir.Value | None | Sequence[ir.Value | None] | Mapping[ir.Value, ir.Value | None]
Rule = Callable[..., Cotangents]
OperatorKey = tuple[str, str]

_rules: dict[OperatorKey, Rule] = {}
_nondifferentiable: set[OperatorKey] = set()


def vjp(*op_types: str, domain: str = "", override: bool = False) -> Callable[[Rule], Rule]:
    """Declare the rule of operators: each cotangent it returns has the exact shape of its input."""
    keys = keys_of("vjp", op_types, domain)

    def register(rule: Rule) -> Rule:
        _check_signature(rule, keys[0])
        _check_free(keys, override)
        _nondifferentiable.difference_update(keys)
        _rules.update(dict.fromkeys(keys, rule))
        return rule

    return register


def keys_of(declaration: str, op_types: Sequence[str], domain: str) -> list[OperatorKey]:
    """Operators as the registry knows them; an error where they are no names."""
    if not op_types or not all(isinstance(op_type, str) for op_type in op_types):
        raise OnwardError(
            f'{declaration} takes the names of operators: {declaration}("Foo"), or {declaration}("Foo", '
            f'domain="my.domain"), not {declaration}({", ".join(map(repr, op_types))})'
        )
    if not isinstance(domain, str):
        raise OnwardError(f"the domain of an operator is a string, not {domain!r}")
    return [("" if domain == "ai.onnx" else domain, op_type) for op_type in op_types]


def _check_signature(rule: Rule, key: OperatorKey) -> None:
    if callable(rule):
        parameters = inspect.signature(rule).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        others = [p for p in parameters if p.kind == p.KEYWORD_ONLY and p.default is p.empty]
        enough = len(positional) >= 3 or any(p.kind == p.VAR_POSITIONAL for p in parameters)
        if enough and not others:
            return
    found = f"{_name(rule)}{inspect.signature(rule)}" if callable(rule) else repr(rule)
    raise OnwardError(
        f"the rule of {operator_name(key)} must be a function (op, node, *dy): the builder, the forward node, and a "
        f"cotangent for each of its outputs; {found} is not"
    )


def _check_free(keys: Sequence[OperatorKey], override: bool) -> None:
    for key in () if override else keys:
        if key in _rules:
            rule = _rules[key]
            raise OnwardError(
                f"{operator_name(key)} has a gradient rule already, {rule.__module__}.{_name(rule)}; "
                "override=True replaces it"
            )
        if key in _nondifferentiable:
            raise OnwardError(f"{operator_name(key)} is declared to have no derivative; override=True replaces that")


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", repr(rule))


def operator_name(key: OperatorKey) -> str:
    """How errors call an operator."""
    domain, op_type = key
    return f"{domain}.{op_type}" if domain else op_type


def elementwise(*op_types: str, domain: str = "", override: bool = False) -> Callable[[Rule], Rule]:
    """Declare the rule of operators whose inputs broadcast; what it returns is summed back to each input's shape."""

    def register(rule: Rule) -> Rule:
        @functools.wraps(rule)
        def summed(op: Builder, node: ir.Node, dy: ir.Value) -> list[ir.Value | None]:
            cotangents = rule(op, node, dy)
            pairs = zip(node.inputs, cotangents, strict=True)  # type: ignore[arg-type]
            wide = dims(node.outputs[0])
            return [None if x is None or dx is None else op.sum_to(dx, x, wide) for x, dx in pairs]

        return vjp(*op_types, domain=domain, override=override)(summed)

    return register


def pointwise(rules: Mapping[str, Callable[[Builder, ir.Value, ir.Value, ir.Value], ir.Value]]) -> None:
    """Declare operators of one input by their derivative: dx from dy, x and y = f(x)."""
    for op_type, derivative in rules.items():

        def rule(op: Builder, node: ir.Node, dy: ir.Value, derivative=derivative) -> ir.Value:  # type: ignore[no-untyped-def]
            x = node.inputs[0]
            assert x is not None
            return derivative(op, dy, x, node.outputs[0])

        vjp(op_type)(rule)


def nondifferentiable(*op_types: str, domain: str = "", override: bool = False) -> None:
    """Declare operators through which no derivative flows (integer results, or constant almost everywhere).

    Args:
        op_types: the names of the operators.
        domain: their domain; that of the standard by default.
        override: replace a gradient rule that they have.
    """
    keys = keys_of("nondifferentiable", op_types, domain)
    _check_free([key for key in keys if key not in _nondifferentiable], override)
    for key in keys:
        _rules.pop(key, None)
    _nondifferentiable.update(keys)


@contextlib.contextmanager
def temporary_rules() -> Iterator[None]:
    """Rules and declarations that are made inside end with it: for tests."""
    rules, constants = dict(_rules), set(_nondifferentiable)
    try:
        yield
    finally:
        _rules.clear()
        _rules.update(rules)
        _nondifferentiable.clear()
        _nondifferentiable.update(constants)


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


def custom_operators() -> frozenset[OperatorKey]:
    """What is declared for other domains than the standard's: operators, and functions that models bring along."""
    return frozenset(key for key in (*_rules, *_nondifferentiable) if key[0])
