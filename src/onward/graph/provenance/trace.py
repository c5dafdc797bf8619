"""The marks of torch's older exporter, which keeps no records: names tell what it did.

A parameter that it merged with an equal one is the output of an Identity with the name of the parameter. What it
computed is called after the operator that uses it: onnx::MatMul_12 is a transposed weight, onnx::Conv_12 one that a
BatchNorm was folded into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onward.graph.provenance.changes import EXPORT, Changes, Use
from onward.graph.shapes import is_floating

_REMEDY = (
    f"Export it for training, by {EXPORT}, or by torch.onnx.export(..., dynamo=False, "
    "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)"
)


def changes_of(model: ir.Model) -> Changes:
    """What the exporter merged, folded and copied."""
    initializers = model.graph.initializers
    shared: dict[ir.Value, dict[str, list[Use]]] = {}
    for node in model.graph:
        merged = node.inputs[0] if _merges(node) else None
        if merged is not None:
            own = _uses(merged)
            uses = shared.setdefault(merged, {merged.name or "": own})
            uses[node.outputs[0].name or ""] = _uses(node.outputs[0])
    renamed = [value for value in initializers.values() if is_floating(value) and _is_renamed(value)]
    return Changes(
        shared=shared,
        untied=_untied(model, renamed),
        folded_norms=list(_folded_norms(model)),
        renamed=[value.name or "" for value in renamed],
        remedy=_REMEDY,
    )


def _merges(node: ir.Node) -> bool:
    """Nodes of the module have paths for names, /layers.0/Identity; those of the exporter have not."""
    value = node.inputs[0] if node.inputs else None
    return (
        node.op_type == "Identity"
        and re.fullmatch(r"Identity_\d+", node.name or "") is not None
        and value is not None
        and value.is_initializer()
        and is_floating(value)
    )


def _uses(value: ir.Value) -> list[Use]:
    return [(node, index) for node, index in value.uses() if not _merges(node)]


def _is_renamed(value: ir.Value) -> bool:
    return (value.name or "").startswith("onnx::")


def _folded_norms(model: ir.Model) -> Iterator[str]:
    for node in model.graph.all_nodes():
        weight = node.inputs[1] if node.op_type in ("Conv", "ConvTranspose") else None
        if weight is not None and weight.is_initializer() and _is_renamed(weight):
            yield (node.name or "?").strip("/").rpartition("/")[0].replace("/", ".")


def _untied(model: ir.Model, renamed: list[ir.Value]) -> dict[str, list[str]]:
    """Weights that are there as they were, and transposed too."""
    named = [
        value
        for value in model.graph.initializers.values()
        if value not in renamed and is_floating(value) and value.const_value is not None and value.uses()
    ]
    found: dict[str, list[str]] = {}
    for value in named:
        for copy in renamed:
            if _is_transposed(value.const_value, copy.const_value):
                found.setdefault(value.name or "", [value.name or ""]).append(copy.name or "")
    return found


def _is_transposed(tensor: ir.TensorProtocol | None, copy: ir.TensorProtocol | None) -> bool:
    if tensor is None or copy is None or len(tensor.shape) != 2 or tuple(tensor.shape) != tuple(copy.shape)[::-1]:
        return False
    array, other = tensor.numpy(), copy.numpy().T
    some = tuple(slice(None, None, 1 + size // 8) for size in array.shape)
    if not np.array_equal(array[some], other[some]):
        return False  # as most are, which need not be read as a whole
    # A fresh weight may be equal to others by its values alone.
    return bool(np.array_equal(array, other)) and not bool((array == array.flat[0]).all())
