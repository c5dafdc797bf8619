"""The copy of a caller's model that blocks work on."""

from __future__ import annotations

import copy
import os
from collections import Counter
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.graph import contrib, ml
from onward.graph.prepare import prepare
from onward.graph.proto import from_proto, to_proto


def working_copy(model: onnx.ModelProto, path: str | os.PathLike[str] | None) -> onnx.ModelProto:
    """A copy to which blocks can add nodes, inputs and initializers; `path` says where its external data lies."""
    own = copy.deepcopy(model)
    if own.ir_version < 4:
        # Such files must list every initializer as an input too, so that blocks could not add any.
        weights = {tensor.name for tensor in own.graph.initializer}
        inputs = [value for value in own.graph.input if value.name not in weights]
        del own.graph.input[:]
        own.graph.input.extend(inputs)
        own.ir_version = 4
    contrib.adopt_proto(own)
    imported = [entry for entry in own.opset_import if entry.domain == ml.ML.name]
    if imported:
        # What a classic model learned is in attributes, and onnx infers no types of what it computes: blocks get the
        # model in which both are as in any other, and may still add operators of that domain.
        own = to_proto(prepare(to_ir(own, path), keep=custom_operators()))
        if all(entry.domain != ml.ML.name for entry in own.opset_import):
            own.opset_import.extend(imported)
    _forget_shared_names(own.graph)
    return own


def _forget_shared_names(graph: onnx.GraphProto) -> None:
    """As `onward.graph.prepare.forget_annotations` does, which sees these values when they are outputs no more."""
    weights = {tensor.name for tensor in graph.initializer}
    inferred = {name for node in graph.node if node.domain in ("", "ai.onnx") for name in node.output}
    border = [value for value in graph.input if value.name not in weights] + list(graph.output)
    uses = Counter(dim.dim_param for value in border for dim in value.type.tensor_type.shape.dim)
    for value in (value for value in graph.output if value.name in inferred):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param and uses[dim.dim_param] > 1:
                dim.Clear()


def to_ir(proto: onnx.ModelProto, path: str | os.PathLike[str] | None) -> ir.Model:
    """The model as the rest of onward takes it, external data found beside `path`."""
    model = from_proto(proto)
    if path is not None:
        ir.external_data.set_base_dir(model.graph, Path(path).resolve().parent)
    return model
