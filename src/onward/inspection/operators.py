"""Which operators a model has, how each is differentiated, and which of them stand in the way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from onward.autodiff.coverage import way_of
from onward.autodiff.expansion import ADVICE, Missing, Why
from onward.autodiff.registry import custom_operators
from onward.autodiff.sweep import Failure
from onward.graph.contrib import MICROSOFT
from onward.graph.nodes import describe, subgraphs, used_values
from onward.graph.rewriting import DOMAINS, refusal
from onward.inspection.content import Blocker, How, Operator
from onward.inspection.preparation import blocker_of

_Key = tuple[str, str, str]  # domain, operator, overload

_NO_RULE_IN_DOMAIN = {
    MICROSOFT.name: "A fused operator of onnxruntime: use the model as it was before onnxruntime (or its transformers "
    "tool) optimised it. ",
}


def operators_of(model: ir.Model) -> list[Operator]:
    """Every operator of a model as it is in the file; what functions contain counts as often as they are called.

    Functions for which somebody registered a rule stay whole, and what they contain does not matter.
    """
    counts: Counter[_Key] = Counter()
    _count(model.graph.all_nodes(), model, counts, ())
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 1))
    by_name: dict[str, Operator] = {}
    for (domain, op_type, overload), count in counts.items():
        name = f"{domain}.{op_type}" if domain else op_type
        how: How = way_of(domain, op_type, opset)
        if how == "missing" and (domain, op_type, overload) in model.functions:
            how = "model function"
        elif how == "missing" and _is_rewritten(domain, op_type):
            how = "rewritten"
        before = by_name[name].count if name in by_name else 0
        by_name[name] = Operator(name, before + count, how, blocks=False)
    return [by_name[name] for name in sorted(by_name)]


def _is_rewritten(domain: str, op_type: str) -> bool:
    # onnxruntime has some of its own operators in the default domain, too.
    known = DOMAINS.get(domain or MICROSOFT.name)
    return known is not None and op_type in known.rewriters


def _count(nodes: Iterable[ir.Node], model: ir.Model, counts: Counter[_Key], calls: tuple[_Key, ...]) -> None:
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        key = (domain, node.op_type, node.overload)
        counts[key] += 1
        function = model.functions.get((node.domain, node.op_type, node.overload))
        whole = (node.domain, node.op_type) in custom_operators()
        if function is not None and not whole and key not in calls:  # one that calls itself is not valid
            _count(function.all_nodes(), model, counts, (*calls, key))


def operator_name(node: ir.Node) -> str:
    """How a report calls an operator."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def node_name(node: ir.Node) -> str:
    """How a report calls a node: its own name, or that of its first output."""
    return node.name or (node.outputs[0].name if node.outputs else None) or "?"


REASONS: dict[Why, str] = {
    "rule": "no gradient rule",
    "integer": "computes with integers, which have no derivative",
    "body": "its body uses or returns sequences, or quantised integers",
    "domain": "cannot be rewritten to standard operators",
}


def refusals(model: ir.Model, refused: Sequence[Missing], trainable: Sequence[str]) -> list[Blocker]:
    """One blocker for each operator that has neither rule nor definition."""
    groups: dict[tuple[str, str, str], list[ir.Node]] = defaultdict(list)
    for node, why in refused:
        groups[(operator_name(node), *_reason_and_remedy(node, why))].append(node)
    return [
        Blocker(
            "operator",
            reason,
            remedy,
            operator,
            list(dict.fromkeys(map(node_name, nodes))),
            _upstream(model, nodes, trainable),
        )
        for (operator, reason, remedy), nodes in groups.items()
    ]


def _reason_and_remedy(node: ir.Node, why: Why) -> tuple[str, str]:
    _, advice = ADVICE[why]
    said = refusal(node)
    if said is not None:
        # It names the node, then says why it stays, if there is more to say than what to do.
        reason, _, remedy = said.removeprefix(f"{describe(node)}: ").partition(". ")
        reason, remedy = (reason, remedy) if remedy else (REASONS["domain"], reason)
        return f"{reason[:1].lower()}{reason[1:]}", f"{remedy} {ADVICE['domain'][1]}"
    return REASONS[why], (_NO_RULE_IN_DOMAIN.get(node.domain, "") if why == "rule" else "") + advice


def rule_failures(model: ir.Model, failures: Sequence[Failure], trainable: Sequence[str]) -> list[Blocker]:
    """One blocker for each rule that raised; the same words for several nodes are one blocker."""
    blockers: dict[tuple[str, str], tuple[Blocker, list[ir.Node]]] = {}
    for node, error in failures:
        assert error is not None
        found = blocker_of(error, "rule")
        _, nodes = blockers.setdefault((operator_name(node), found.reason), (found, []))
        nodes.append(node)
    return [
        replace(
            found, operator=operator, nodes=list(map(node_name, nodes)), parameters=_upstream(model, nodes, trainable)
        )
        for (operator, _), (found, nodes) in blockers.items()
    ]


def _upstream(model: ir.Model, nodes: Sequence[ir.Node], names: Sequence[str]) -> list[str]:
    """Which of the named values the nodes depend on."""
    owners = {body: node for node in model.graph.all_nodes() for body in subgraphs(node)}
    seen: set[ir.Value] = set()
    waiting = list(nodes)
    while waiting:
        for value in used_values(waiting.pop()):
            if value not in seen:
                seen.add(value)
                source = value.producer() or owners.get(value.graph)  # type: ignore[arg-type]
                if source is not None:
                    waiting.append(source)
    found = {value.name for value in seen}
    return [name for name in names if name in found]
