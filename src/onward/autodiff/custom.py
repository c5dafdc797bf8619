"""`onward.vjp` and `onward.nondifferentiable`: gradient rules from outside, for operators and functions of any domain.

The rules of onward itself are declared in the registry; here, what a rule gets and returns is checked first.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping

import onnx_ir as ir

from onward.autodiff import registry
from onward.autodiff import rules as _rules  # noqa: F401  rules can only be replaced when they are there
from onward.autodiff.registry import Cotangents, Rule, nondifferentiable
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.nodes import describe, used_values
from onward.graph.tracing import traced

__all__ = ["nondifferentiable", "vjp"]


def vjp(*op_types: str, domain: str = "", broadcast: bool = False, override: bool = False) -> Callable[[Rule], Rule]:
    """Declare the gradient rule of operators, or of functions that a model brings along.

    A rule is a function ``(op, node, *dy)``: the builder, the forward node, and the cotangent of each of its outputs
    (None for an output that does not reach the loss). It returns the cotangent of each input, of exactly the type and
    shape of that input, and None where there is no derivative::

        @onward.vjp("Cube", domain="acme")
        def cube(op, node, dy):
            x = node.inputs[0]
            return dy * x * x * 3

    Args:
        op_types: the names of the operators.
        domain: their domain; that of the standard by default.
        broadcast: the inputs broadcast against each other; the rule returns cotangents of the shape of the output, and
            they are summed to the shape of each input.
        override: replace the rule that an operator has.
    """
    declare = registry.elementwise if broadcast else registry.vjp

    def register(rule: Rule) -> Rule:
        declare(*op_types, domain=domain, override=override)(_checked(rule) if callable(rule) else rule)
        return rule

    # What is wrong with the names is said here, before there is a rule.
    registry.keys_of("vjp", op_types, domain)
    return register


def _checked(rule: Rule) -> Rule:
    """The same rule, with errors that say what is wrong with what it returns."""
    signature = inspect.signature(rule)

    @functools.wraps(rule)
    def checked(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Cotangents:
        try:
            signature.bind(op, node, *dys)
        except TypeError as error:
            raise OnwardError(
                f"{describe(node)} has {len(dys)} outputs, so its rule is called with as many cotangents after `op` "
                f"and `node`, but {rule.__name__}{signature} cannot be: {error}"
            ) from None
        with traced(f"the rule of {describe(node)}"):
            result = rule(op, node, *dys)
        if isinstance(result, Mapping):
            used = set(used_values(node))
            unknown = [key for key in result if key not in used]
            if unknown:
                raise OnwardError(f"the rule of {describe(node)} returned a cotangent for {unknown[0]}, no input of it")
            return result
        cotangents = [result] if isinstance(result, ir.Value) or result is None else result
        if not isinstance(cotangents, (list, tuple)) or not all(isinstance(dx, ir.Value | None) for dx in cotangents):
            raise OnwardError(
                f"the rule of {describe(node)} returned {result!r}; a rule returns values of the graph: one for each "
                "input, None where there is no derivative, numbers as op.constant(...)"
            )
        foreign = [dx.name for dx in cotangents if dx is not None and dx.graph is None]
        if foreign:
            raise OnwardError(
                f"the rule of {describe(node)} returned the value {foreign[0]!r}, which is in no graph; a rule returns "
                "what operators of `op` make"
            )
        if len(cotangents) != len(node.inputs):
            names = ", ".join(repr(x.name) if x is not None else "left out" for x in node.inputs)
            raise OnwardError(
                f"the rule of {describe(node)} returned {len(cotangents)} cotangents for {len(node.inputs)} inputs "
                f"({names}); return one for each, None where there is no derivative"
            )
        return cotangents

    return checked
