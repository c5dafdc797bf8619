"""The graph of evaluation: forward without chance, over a state that the caller feeds."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.graph.finish import finish, to_input
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.modes import keep_empty_training_mode, switch_to_evaluation


def evaluation_graph(model: ir.Model, signature: Signature) -> onnx.ModelProto:
    """Finish a forward model, in place: its parameters and running statistics, by the signature, become inputs."""
    switch_to_evaluation(model)
    for name in signature.input_names(Role.PARAMETER, Role.BUFFER):
        to_input(model.graph.initializers[name])
    model.metadata_props[METADATA_KEY] = signature.to_json()
    proto = finish(model)
    keep_empty_training_mode(proto)
    return proto
