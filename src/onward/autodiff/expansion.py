"""Make sure that every node on the path has a rule, expanding those whose operator is defined by others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onward.autodiff import rules as _rules  # noqa: F401  registers every rule
from onward.autodiff.registry import rule_for
from onward.autodiff.sweep import differentiable_path
from onward.errors import MissingRuleError
from onward.graph.folding import fold_shape_arithmetic
from onward.graph.functions import body_since, expand
from onward.graph.nodes import all_values, captured_values, subgraphs
from onward.graph.opsets import NeedsOpsetError
from onward.graph.shapes import infer_shapes, is_floating


def expand_missing_rules(model: ir.Model, targets: Sequence[str], outputs: Sequence[str]) -> ir.Model:
    """A copy of `model` in which every node between targets and outputs has a rule."""
    opset = model.opset_imports[""]
    current = model.clone()
    while True:
        missing = _nodes_without_rule(current, targets, outputs)
        if not missing:
            return current
        bodies = [(node, body_since(node, opset)) for node in missing]
        hopeless = [node for node, since in bodies if since is None]
        if hopeless:
            raise MissingRuleError(_message(hopeless, opset))
        for node, since in bodies:
            if since is not None and since > opset:
                raise NeedsOpsetError(node.op_type, since)
        current = expand(current, {node.op_type for node in missing})
        infer_shapes(current)
        # Function bodies compute with shapes, as exporters do.
        while fold_shape_arithmetic(current):
            infer_shapes(current)


def _nodes_without_rule(model: ir.Model, targets: Sequence[str], outputs: Sequence[str]) -> list[ir.Node]:
    values = {value.name: value for value in all_values(model.graph)}
    return list(_without_rule(model.graph, [values[name] for name in targets], [values[name] for name in outputs]))


def _without_rule(graph: ir.Graph, targets: Sequence[ir.Value], outputs: Sequence[ir.Value]) -> Iterator[ir.Node]:
    path, carrying = differentiable_path(graph, targets, outputs)
    for node in path:
        if rule_for(node) is None:
            yield node
        for body in subgraphs(node):
            inputs = [value for value in body.inputs if is_floating(value)]
            captured = [value for value in captured_values(node) if value in carrying]
            yield from _without_rule(body, [*inputs, *captured], body.outputs)


def _message(nodes: list[ir.Node], opset: int) -> str:
    by_operator: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        by_operator[operator].append(node.name or node.outputs[0].name or "?")
    lines = []
    for operator, names in sorted(by_operator.items()):
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"  {operator}: {shown}")
    return (
        f"no gradient rule for these operators (opset {opset}) on the way to the output:\n" + "\n".join(lines) + "\n"
        "Add a rule with @onward.autodiff.registry.vjp (see CONTRIBUTING.md), leave the parameters before these nodes "
        "out of `wrt`, or replace the operators before exporting."
    )
