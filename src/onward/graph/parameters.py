"""Tell the trainable parameters of a model from the other constants that exporters put into files.

An initializer is trainable by default unless one of these holds (the first that does is the reason given):

1. it is not floating point;
2. torch's exporter recorded that it is a buffer or a lifted constant, not a parameter (what torch recorded as a
   parameter is one, whatever follows);
3. it is only used where operators take settings: running statistics of BatchNormalization, the exponent of Pow, the
   bounds of Clip, the scales of Resize, the value of Pad, the ratio of Dropout, quantisation scales and the like;
4. it was a Constant node with a single element, or has rank 0: a scalar that an exporter baked in;
5. all its values are 0, 1, an infinity or the huge negative number that stands for one: a mask;
6. onward itself made it while building a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.shapes import is_floating

_WAS_CONSTANT_NODE = "onward.was_constant_node"
_TORCH_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"

# Inputs that are settings of an operator rather than weights: operator -> input indices.
_SETTINGS: dict[str, frozenset[int]] = {
    "BatchNormalization": frozenset({3, 4}),
    "Pow": frozenset({1}),
    "Clip": frozenset({1, 2}),
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
    "Pad": frozenset({2}),
    "Dropout": frozenset({1}),
    "OneHot": frozenset({2}),
    "Range": frozenset({0, 1, 2}),
    "QuantizeLinear": frozenset({1}),
    "DequantizeLinear": frozenset({1}),
}

_HUGE = 1e4  # masks use -inf, the lowest float, -1e9 or, in float16, -10000


@dataclass(frozen=True)
class Parameter:
    """One initializer of a model, and whether training changes it by default."""

    value: ir.Value
    trainable: bool
    reason: str

    @property
    def name(self) -> str:
        assert self.value.name is not None
        return self.value.name


def parameters(model: ir.Model) -> list[Parameter]:
    """Every initializer of a prepared model."""
    return [_judge(value) for value in model.graph.initializers.values()]


def mark_constant_nodes(model: ir.Model) -> None:
    """Remember which values are outputs of Constant nodes, before those become initializers."""
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and node.domain == "":
            node.outputs[0].meta[_WAS_CONSTANT_NODE] = True


def _judge(value: ir.Value) -> Parameter:
    reason = _reason_against(value)
    return Parameter(value, reason is None, reason or "floating-point weight")


def _reason_against(value: ir.Value) -> str | None:
    if not is_floating(value):
        return "not floating point"
    kind = value.metadata_props.get(_TORCH_KIND)
    if kind == "PARAMETER":
        return None
    if kind is not None:
        return f"torch exported it as {kind.lower()}"
    if value.uses() and all(index in _SETTINGS.get(node.op_type, ()) for node, index in value.uses()):
        return "a setting or running statistic of an operator"
    tensor = value.const_value
    assert tensor is not None
    if tensor.shape.rank() == 0 or (value.meta.get(_WAS_CONSTANT_NODE) and tensor.size == 1):
        return "a scalar constant"
    if value.name is not None and value.name.startswith("const/"):
        return "a constant made by onward"
    return "a mask" if _is_mask(tensor) else None


def _is_mask(tensor: ir.TensorProtocol) -> bool:
    if tensor.shape.rank() < 2:
        return False  # a fresh bias is all zeros, a fresh norm weight all ones
    array = np.asarray(tensor.numpy()).astype(np.float32, copy=False)
    if not array.size or (array.flat[0] not in (0, 1) and abs(array.flat[0]) < _HUGE):
        return False
    return bool(np.all((array == 0) | (array == 1) | (array <= -_HUGE) | np.isposinf(array)))
