"""Reverse mode on a page: find the nodes between targets and outputs, then walk them backwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from onward.autodiff.preference import preferred
from onward.autodiff.registry import Cotangents, is_nondifferentiable, rule_for
from onward.errors import OnwardError, UnknownShapeError
from onward.graph.blame import blaming_node
from onward.graph.builder import Builder
from onward.graph.nodes import describe, is_integer_arithmetic, used_values
from onward.graph.opsets import NeedsOpsetError
from onward.graph.promise import promise
from onward.graph.shapes import FLOATING, dims


def differentiable_path(
    graph: ir.Graph, targets: Iterable[ir.Value], outputs: Iterable[ir.Value]
) -> tuple[list[ir.Node], set[ir.Value]]:
    """The nodes that carry a derivative from `targets` to `outputs`, in order, and the values it flows through."""
    varying = set(targets)
    forward: list[ir.Node] = []
    for node in graph:
        if not is_nondifferentiable(node) and any(value in varying for value in used_values(node)):
            forward.append(node)
            if _carries_integers(node, varying):
                varying.update(node.outputs)
            varying.update(output for output in node.outputs if may_vary(output))
    useful = set(outputs)
    path: list[ir.Node] = []
    for node in reversed(forward):
        if any(output in useful and output in varying for output in node.outputs):
            path.append(node)
            useful.update(value for value in used_values(node) if value in varying)
    return path[::-1], varying & useful


def may_vary(value: ir.Value) -> bool:
    """Whether a derivative may flow through a value: floats, sequences of them, and what nothing is known of."""
    return value.dtype is None or value.dtype in FLOATING


# Quantised numbers are integers that stand for floats: derivatives go through them, as cotangents in floating point.
_QUANTIZING = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


def _carries_integers(node: ir.Node, varying: Collection[ir.Value]) -> bool:
    """Whether the integers that a node makes stand for floats: it quantises, or works on numbers that are quantised."""
    return (
        node.op_type in _QUANTIZING
        or is_integer_arithmetic(node)
        or any(value in varying and not may_vary(value) for value in used_values(node))
    )


Failure = tuple[ir.Node, Exception | None]


def backpropagate(
    op: Builder,
    graph: ir.Graph,
    seeds: Mapping[ir.Value, ir.Value],
    targets: Sequence[ir.Value],
    failures: list[Failure] | None = None,
) -> list[ir.Value | None]:
    """Emit the backward pass and return the cotangent of each target, None where it does not influence the outputs.

    With `failures`, a rule that is missing (None) or raises is listed there, and the pass goes on with zeros instead:
    that is how `onward.check` finds all of them at once.
    """
    path, carrying = differentiable_path(graph, targets, seeds)
    op.carrying = carrying
    contributions: dict[ir.Value, list[ir.Value]] = defaultdict(list)
    for output, seed in seeds.items():
        contributions[output].append(seed)

    def cotangent(value: ir.Value) -> ir.Value | None:
        terms = contributions.get(value)
        if not terms:
            return None
        if len(terms) > 1:
            terms[:] = [_stamp(op.add(*terms), value)]
        return terms[0]

    with op:
        for node in reversed(path):
            with op.scope(f"grad/{node.name or node.outputs[0].name}"):
                cotangents = [cotangent(output) for output in node.outputs]
                if all(dy is None for dy in cotangents):
                    continue
                try:
                    found = _apply_rule(op, node, cotangents, carrying)
                except NeedsOpsetError:
                    raise
                except Exception as error:
                    if failures is None:
                        with blaming_node("the rule of", node):
                            raise
                    failures.append((node, None if rule_for(node) is None else error))
                    found = [(x, op.zeros_like(x)) for x in used_values(node) if x in carrying and x.dtype in FLOATING]
                for x, dx in found:
                    contributions[x].append(dx)
        with op.scope("grad"):
            return [cotangent(target) for target in targets]


def _apply_rule(
    op: Builder, node: ir.Node, cotangents: Sequence[ir.Value | None], carrying: Collection[ir.Value]
) -> list[tuple[ir.Value, ir.Value]]:
    rule = rule_for(node)
    assert rule is not None, f"{node.op_type} on the path without a rule"
    try:
        pairs = _paired(node, preferred(rule)(op, node, *cotangents))
    except (MemoryError, OverflowError) as error:
        sizes = [list(dims(x) or ()) for x in node.inputs if x is not None]
        raise OnwardError(
            f"the gradient of {describe(node)} needs tables that do not fit into memory; its inputs have the shapes "
            f"{', '.join(map(str, sizes))}. Leave the parameters before it out of `wrt`."
        ) from error
    return [(x, _checked(node, x, dx)) for x, dx in pairs if dx is not None and x in carrying]


def _paired(node: ir.Node, result: Cotangents) -> Iterable[tuple[ir.Value, ir.Value | None]]:
    if isinstance(result, Mapping):
        return result.items()
    cotangents = [result] if isinstance(result, ir.Value) or result is None else list(result)
    if len(cotangents) > len(node.inputs):
        raise OnwardError(
            f"the rule of {describe(node)} returned {len(cotangents)} cotangents for {len(node.inputs)} inputs"
        )
    return [(x, dx) for x, dx in zip(node.inputs, cotangents, strict=False) if x is not None]


def _checked(node: ir.Node, x: ir.Value, dx: ir.Value) -> ir.Value:
    if x.dtype is None and dx.dtype is not None:
        producer = x.producer()
        origin = "" if producer is None else f", an output of {describe(producer)},"
        raise UnknownShapeError(
            f"the type of {x.name!r}{origin} is unknown, so nothing can tell whether it has a gradient. Add a "
            "value_info with its type and shape to the model; inference does not know custom operators."
        )
    if dx.dtype != x.dtype and not (dx.dtype in FLOATING and not may_vary(x)):
        raise OnwardError(
            f"the rule of {describe(node)} made a cotangent of type {dx.dtype} for {x.name!r} of type {x.dtype}; "
            "a cotangent has the type of its primal"
        )
    promise(dx, x, f"the rule of {describe(node)}")
    return _stamp(dx, x)


def _stamp(cotangent: ir.Value, primal: ir.Value) -> ir.Value:
    """A cotangent has the shape of its primal; writing it down keeps symbols that inference loses."""
    sizes, known = dims(primal), dims(cotangent)
    if sizes is not None and (known is None or (None in known and len(known) == len(sizes))):
        known = known or (None,) * len(sizes)
        cotangent.shape = ir.Shape([s if size is None else size for s, size in zip(sizes, known, strict=True)])
    return cotangent
