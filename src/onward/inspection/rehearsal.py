"""Build the gradient without finishing it: which nodes cannot be differentiated, and what the backward pass costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onward.autodiff.expansion import Missing, expand_missing_rules
from onward.autodiff.gradient import ends_of, seed_of
from onward.autodiff.sweep import Failure, backpropagate
from onward.graph.builder import Builder
from onward.graph.cleanup import remove_unused
from onward.graph.finish import publish
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values
from onward.graph.upgrade import in_lowest_opset


@dataclass(frozen=True)
class Rehearsal:
    """The forward and backward graph, and what stood in the way.

    Attributes:
        forward: the nodes that the model had before the sweep.
        refused: nodes on the way without rule or definition, and why.
        failures: nodes whose rule raised.
    """

    model: ir.Model
    forward: frozenset[ir.Node]
    refused: list[Missing]
    failures: list[Failure]

    @property
    def opset(self) -> int:
        """The opset that the gradient needs."""
        return self.model.opset_imports[""]


def rehearse(model: ir.Model, names: Sequence[str], outputs: Sequence[str]) -> Rehearsal:
    """Differentiate a prepared model as `onward.gradient` does, listing what fails instead of raising."""
    return in_lowest_opset(model, lambda copy: _rehearse(copy, names, outputs))


def _rehearse(forward: ir.Model, names: Sequence[str], outputs: Sequence[str]) -> Rehearsal:
    refused: list[Missing] = []
    failures: list[Failure] = []
    model = expand_missing_rules(forward, names, outputs, refused)
    graph = model.graph
    nodes = frozenset(graph)
    op = Builder(graph, model.opset_imports[""])
    border = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    seeds = {end: seed_of(op, end, border) for end in ends_of(graph, outputs)}
    values = {value.name: value for value in all_values(graph)}
    cotangents = backpropagate(op, graph, seeds, [values[name] for name in names], failures)
    for name, cotangent in zip(names, cotangents, strict=True):
        if cotangent is not None:
            publish(cotangent, op.unique_name(f"{name}_grad"), graph)
    remove_unused(model)
    raised = [failure for failure in failures if failure[1] is not None]
    if not refused and not raised:
        infer_shapes(model)
    return Rehearsal(model, nodes, refused, raised)
