"""What torch's exporters recorded of the module that they exported, and what they changed.

Both merge equal parameters, the newer one unless it is told not to optimise, the older one unless it exports for
training: of a fresh network, whose biases are zeros and whose norms are ones, one tensor of each size is left. Trained,
that is another model. Their records tell the parameters apart again.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

import onnx_ir as ir

from onward.errors import ExporterWarning
from onward.graph.provenance import program, trace
from onward.graph.provenance.changes import Changes, Use
from onward.graph.provenance.program import torch_name
from onward.graph.provenance.record import FOLDED_FROM, ORIGINAL, in_program
from onward.graph.tensors import own_tensor

__all__ = ["Changes", "changes_of", "is_from_torch", "separate_shared", "warn_of_changes"]


def changes_of(model: ir.Model) -> Changes:
    """What the exporter changed, as far as its records tell; nothing for files of other programs."""
    if not is_from_torch(model):
        return Changes()
    return program.changes_of(model) if program.is_recorded(model) else trace.changes_of(model)


def is_from_torch(model: ir.Model) -> bool:
    """Whether one of torch's exporters wrote the file."""
    return model.producer_name == "pytorch"


def warn_of_changes(changes: Changes, trained: Collection[str] | None) -> None:
    """Say what training would do to another model than the caller had; `trained` names tensors if only some are."""
    relevant = changes if trained is None else changes.among(trained)
    if relevant:
        warnings.warn(relevant.message(), ExporterWarning, stacklevel=3)


def separate_shared(model: ir.Model) -> None:
    """Give each parameter that was merged with others a tensor of its own again, under its own name, in place."""
    for value, parameters in changes_of(model).shared.items():
        folded = torch_name(value) != value.name
        for name, uses in list(parameters.items())[1:]:
            # A weight that is transposed or reshaped does not get the name of what it was.
            own = _give_own(model.graph, value, f"{name}.folded" if folded else name, uses)
            own.metadata_props.update(_record(value, name))


def _give_own(graph: ir.Graph, value: ir.Value, wanted: str, uses: list[Use]) -> ir.Value:
    assert value.const_value is not None
    tensor = own_tensor(value.const_value)
    own = ir.Value(type=value.type, shape=value.shape)
    for node, index in uses:
        node.replace_input_with(index, own)
    # The older exporter has an Identity of that name, which nobody uses now.
    idle = [node for node in graph if node.op_type == "Identity" and node.outputs[0].name == wanted]
    graph.remove([node for node in idle if not node.outputs[0].uses() and not node.outputs[0].is_graph_output()])
    taken = {output.name for node in graph.all_nodes() for output in node.outputs} | set(graph.initializers)
    own.name = wanted
    while own.name in taken:
        own.name = f"{own.name}.copy"
    tensor.name = own.name
    own.const_value = tensor
    graph.register_initializer(own)
    return own


def _record(value: ir.Value, name: str) -> dict[str, str]:
    """What the exporter would have recorded of another parameter that is used in the same way."""
    own = {ORIGINAL: f"p_{in_program(name)}", FOLDED_FROM: repr([name])}
    return {key: own.get(key, value.metadata_props[key]) for key in value.metadata_props}
