"""Parameters and buffers under their own names, with what torch knows of them on record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.provenance.record import KIND, REQUIRES_GRAD
from onward.training.modes import UNBIASED, trains_batch_statistics

if TYPE_CHECKING:
    from torch import Tensor, nn


def name_parameters(model: ir.Model, module: nn.Module, buffers: dict[int, Tensor]) -> None:
    """Record what each initializer is; those of tied parameters get the first name, as in `named_parameters()`.

    Buffers get the values that they had before: to export a module in training mode is to run it, which changes them.
    """
    import torch
    from onnx_ir.tensor_adapters import TorchTensor

    initializers = model.graph.initializers
    for kind, every, unique in (
        ("PARAMETER", module.named_parameters(remove_duplicate=False), module.named_parameters()),
        ("BUFFER", module.named_buffers(remove_duplicate=False), module.named_buffers()),
    ):
        first = {id(tensor): name for name, tensor in unique}
        for alias, tensor in every:
            value, name = initializers.get(alias), first[id(tensor)]
            if value is None:
                continue  # nothing uses it, or under another name
            if alias != name:
                if name in initializers:
                    raise OnwardError(f"torch's exporter made copies of one tensor, {alias!r} and {name!r}")
                value.name = name
            if tuple(value.const_value.shape if value.const_value is not None else ()) != tuple(tensor.shape):
                raise OnwardError(f"torch's exporter wrote {name!r} in another shape than {list(tensor.shape)}")
            value.metadata_props[KIND] = kind
            if kind == "BUFFER":
                value.const_value = TorchTensor(buffers[id(tensor)].cpu(), name=name)
            if kind == "PARAMETER" and not tensor.requires_grad:
                value.metadata_props[REQUIRES_GRAD] = "False"
    if not isinstance(module, torch.jit.ScriptModule):  # which may be frozen: then its weights are constants
        _record_constants(model)
    opset = model.opset_imports[""]
    for node in model.graph.all_nodes():
        if trains_batch_statistics(node, opset):
            node.metadata_props[UNBIASED] = "True"


def _record_constants(model: ir.Model) -> None:
    """Say of Constant nodes that they are no weights: numbers in the code, and scales of norms that have none."""
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and node.domain == "" and "value" in node.attributes:
            value, tensor = node.outputs[0], node.attributes["value"].as_tensor()
            # In files, the record belongs to the type.
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            value.metadata_props[KIND] = "CONSTANT_TENSOR"
