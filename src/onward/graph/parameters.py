"""Tell the trainable parameters of a model from the other constants that exporters put into files.

An initializer is trainable by default unless one of these holds (the first that does is the reason given):

1. it is not floating point (shapes, axes, quantised weights ...);
2. torch's exporter recorded that it is a buffer or a lifted constant, not a parameter, or `onward.torch.export` that
   it does not require a gradient (what torch recorded as a parameter is one, whatever follows);
3. that exporter computed it from several values of which none is called a weight or a bias: a table, as those of
   rotary embeddings (one computed from a single value is a transposed or reshaped weight);
4. it is only used, as it is or behind a Concat and the like, where operators take settings: running statistics of
   BatchNormalization, the exponent of Pow, the bounds of Clip, the scales of Resize, the value of Pad, the ratio of
   Dropout, quantisation scales, both sides of a comparison and the like;
5. it was a Constant node, or computed by the exporter, and has a single element, or it has rank 0: a scalar;
6. it is a scale of ones or a bias of zeros that an exporter wrote for a norm which has none;
7. all its values are 0, 1, an infinity or the huge negative number that stands for one, and no product uses it: a
   mask (layers may start at zero or at the identity, and norms have ones or zeros for each channel, `[C, 1, 1]`);
8. onward itself made it while building a graph;
9. an operator that was rewritten took it for a table or a setting: RotaryEmbedding its cosines and sines, Scaler (of
   scikit-learn's files) its offset and scale;
10. the model says which parameters are trained alone: low-rank pairs, beside weights that stay as they are.

What the newer exporter computed from a weight or a bias is one, whatever 5 to 8 say, and so are the weights, biases and
peepholes of RNN, GRU and LSTM, whatever 3 to 8 say: exporters join them from
torch's own, and a bias of rank 2 may start at zero. So are the coefficients, intercepts and support vectors that
LinearRegressor and its like hold as attributes, under the name ``<node>.<attribute>``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.document import parse
from onward.graph.nodes import describe
from onward.graph.opsets import all_schemas
from onward.graph.provenance.record import FOLDED_FROM, KIND, REQUIRES_GRAD, folded_from
from onward.graph.shapes import is_floating

_WAS_CONSTANT_NODE = "onward.was_constant_node"
_TABLE = "onward.table"
_WEIGHT = "onward.weight"
_TRAINED_ALONE = "onward.trained_alone"  # in the metadata of a model
_HELD = "it belongs to the model that low-rank pairs were added to"

# Inputs that are settings of an operator rather than weights: operator -> what the input with an index is.
_SETTINGS: dict[str, dict[int, str]] = {
    "BatchNormalization": {3: "running mean", 4: "running variance"},
    "Pow": {1: "exponent"},
    "Clip": {1: "lower bound", 2: "upper bound"},
    "Resize": {1: "region", 2: "scales"},
    "Upsample": {1: "scales"},
    "Pad": {2: "value"},
    "Dropout": {1: "ratio"},
    "OneHot": {2: "values"},
    "Range": {0: "start", 1: "limit", 2: "step"},
    "QuantizeLinear": {1: "scale"},
    "DequantizeLinear": {1: "scale"},
    **{name: {0: "side", 1: "side"} for name in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")},
    # onnxruntime's own, which stay as they are where no derivative passes them.
    "DynamicQuantizeMatMul": {2: "scale"},
    "GatherBlockQuantized": {2: "scale"},
    "MatMulBnb4": {2: "scale"},
    "MatMulIntegerToFloat": {2: "scale", 3: "scale"},
}

# Inputs that are nothing but weights.
_WEIGHTS: dict[str, frozenset[int]] = {
    "RNN": frozenset({1, 2, 3}),
    "GRU": frozenset({1, 2, 3}),
    "LSTM": frozenset({1, 2, 3, 7}),
}

# Operators that put numbers elsewhere without computing with them.
_MOVING = frozenset("Cast Concat Flatten Gather Identity Reshape Slice Squeeze Transpose Unsqueeze".split())

# The scale and the bias of norms.
_NORMS = frozenset(
    "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization RMSNormalization".split()
)

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"})

_HUGE = 1e4  # masks use -inf, the lowest float, -1e9 or, in float16, -10000


@dataclass(frozen=True)
class Parameter:
    """One initializer of a model, and whether training changes it by default.

    Attributes:
        held: whether it would be trained, were it not for others that are trained alone.
    """

    value: ir.Value
    trainable: bool
    reason: str
    held: bool = False

    @property
    def name(self) -> str:
        assert self.value.name is not None
        return self.value.name


def parameters(model: ir.Model) -> list[Parameter]:
    """Every initializer of a prepared model."""
    initializers = model.graph.initializers
    found = [_judge(value) for value in initializers.values()]
    only = [name for name in _trained_alone(model) if name in initializers]
    if not only:
        return found
    return [
        Parameter(each.value, False, _HELD, held=True) if each.trainable and each.name not in only else each
        for each in found
    ]


def train_alone(model: ir.Model, names: Sequence[str]) -> None:
    """Let these initializers be all that is trained by default, also across files."""
    model.metadata_props[_TRAINED_ALONE] = json.dumps({"parameters": list(names)})


def _trained_alone(model: ir.Model) -> list[str]:
    text = model.metadata_props.get(_TRAINED_ALONE)
    return [] if text is None else parse(text, f"the metadata {_TRAINED_ALONE!r} of the model").texts("parameters")


def mark_constant_nodes(model: ir.Model) -> None:
    """Remember, also across files, which values are outputs of Constant nodes, before those become initializers."""
    for node in model.graph.all_nodes():
        if node.op_type == "Constant" and node.domain == "":
            node.outputs[0].metadata_props[_WAS_CONSTANT_NODE] = "true"
            attribute = node.attributes.get("value")
            if attribute is not None and attribute.as_tensor().dtype != ir.DataType.STRING:
                # Lifting gives the tensor a name, and onnx_ir would write that into the caller's proto.
                tensor = attribute.as_tensor()
                own = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
                node.attributes["value"] = ir.AttrTensor("value", own)


def was_constant_node(value: ir.Value) -> bool:
    """Whether an initializer was the output of a Constant node in the file."""
    return _WAS_CONSTANT_NODE in value.metadata_props


def forget_constant_nodes(model: ir.Model) -> None:
    """Take the marks of `mark_constant_nodes` from a model that is finished."""
    for value in model.graph.initializers.values():
        value.metadata_props.pop(_WAS_CONSTANT_NODE, None)


def mark_table(value: ir.Value, reason: str) -> None:
    """Remember, also across files, that an operator took a value for a table, not a weight, before it is rewritten."""
    value.metadata_props[_TABLE] = reason


def mark_weight(value: ir.Value) -> None:
    """Remember, also across files, that an operator took a value for a weight, before it is rewritten."""
    value.metadata_props[_WEIGHT] = "true"


def is_baked_scalar(value: ir.Value) -> bool:
    """Whether a value was a Constant node with a single element, or is one that the newer exporter computed."""
    if value.const_value is None or value.const_value.size != 1:
        return False
    return _is_made_by_exporter(value)


def weights_elsewhere(graph: ir.Graph) -> str:
    """A half sentence on nodes whose numbers are attributes, as those of ai.onnx.ml are; empty if there are none."""
    kinds = (ir.AttributeType.FLOATS, ir.AttributeType.TENSOR)
    nodes = {
        node: [name for name, attr in node.attributes.items() if attr.type in kinds]
        for node in graph.all_nodes()
        if node.domain not in ("", "com.microsoft")
    }
    found = [f"{describe(node)} ({', '.join(names)})" for node, names in nodes.items() if names]
    if not found:
        return ""
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return f"the weights of {', '.join(found[:3])}{more} are attributes, which cannot be trained; "


def _judge(value: ir.Value) -> Parameter:
    reason = _reason_against(value)
    return Parameter(value, reason is None, reason or "floating-point weight")


def _reason_against(value: ir.Value) -> str | None:
    if not is_floating(value):
        return _not_floating(value)
    if value.metadata_props.get(REQUIRES_GRAD) == "False":
        return "it does not require a gradient in torch"
    kind = value.metadata_props.get(KIND)
    if kind == "PARAMETER" or _WEIGHT in value.metadata_props:
        return None
    if kind is not None:
        return f"torch exported it as {kind.lower()}"
    if any(index in _WEIGHTS.get(node.op_type, ()) for node, index in value.uses()):
        return None
    if _is_table(folded_from(value)):
        return "a table that the exporter computed"
    if _TABLE in value.metadata_props:
        return value.metadata_props[_TABLE]
    setting = _setting(value)
    if setting is not None:
        return setting
    if _is_computed_from_a_weight(value):
        return None
    tensor = value.const_value
    shape = value.shape if tensor is None else tensor.shape
    if (shape is not None and len(shape) == 0) or is_baked_scalar(value):
        return "a scalar constant"
    if value.name is not None and value.name.startswith("const/"):
        return "a constant made by onward"
    if _is_neutral(value):
        return "a scale or a bias that the exporter wrote for a norm without one"
    return "a mask" if tensor is not None and _is_mask(tensor) and not _is_weight(value, tensor) else None


def _setting(value: ir.Value) -> str | None:
    """Which setting of which operator a value is and nothing else, as it is or put together with others."""
    found: list[str | None] = []
    for node, index in value.uses():
        known = _SETTINGS.get(node.op_type, {}).get(index)
        if known is not None:
            found.append(f"{known} of {node.op_type}")
        elif node.op_type in _MOVING and node.domain == "" and not node.outputs[0].is_graph_output():
            found.append(_setting(node.outputs[0]))
        else:
            found.append(None)
    return found[0] if all(found) and found and not value.is_graph_output() else None


def _not_floating(value: ir.Value) -> str:
    kind = "unknown type" if value.dtype is None else value.dtype.name.lower()
    uses = value.uses()
    if any(node.op_type == "DequantizeLinear" and index == 0 for node, index in uses):
        return f"quantised ({kind})"
    if not uses:
        return f"not floating point ({kind})"
    node, index = next(iter(uses))
    specs = all_schemas(node.op_type, node.domain)
    inputs = max(specs, key=lambda spec: spec.since_version).inputs if specs else []
    what = inputs[min(index, len(inputs) - 1)].name if inputs else f"input {index}"
    return f"not floating point ({kind}, {what} of {node.op_type})"


def _is_computed_from_a_weight(value: ir.Value) -> bool:
    return any(name.endswith(("weight", "bias")) for name in folded_from(value) or ())


def _is_neutral(value: ir.Value) -> bool:
    """Whether a value that an exporter made changes nothing where norms take a scale or a bias, its only use."""
    if not _is_made_by_exporter(value) or value.const_value is None:
        return False
    places = {index if node.op_type in _NORMS and node.domain == "" else None for node, index in value.uses()}
    neutral = {1: 1.0, 2: 0.0}
    (place,) = places if len(places) == 1 else (None,)
    return place in neutral and bool(np.all(value.const_value.numpy() == neutral[place]))


def _is_table(origins: list[str] | None) -> bool:
    if origins is None:
        return False
    return len(origins) != 1 and not any(name.endswith(("weight", "bias")) for name in origins)


def _is_weight(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Whether it is used as one, or looks like what a new norm has for each channel."""
    if _is_factor(value) or any(node.op_type in _NORMS for node, _ in value.uses()):
        return True
    shape = tensor.shape.numpy()
    # A mask would have its numbers along the last axis.
    of_channels = shape[-1] == 1 and tensor.size == max(shape) > 1
    return of_channels and not _is_made_by_exporter(value) and len(np.unique(tensor.numpy())) == 1


def _is_made_by_exporter(value: ir.Value) -> bool:
    return was_constant_node(value) or FOLDED_FROM in value.metadata_props


def _is_factor(value: ir.Value) -> bool:
    """Whether a matrix product or convolution uses the value, as it is or transposed."""
    return any(
        node.op_type in _PRODUCTS or (node.op_type == "Transpose" and _is_factor(node.outputs[0]))
        for node, _ in value.uses()
    )


def _is_mask(tensor: ir.TensorProtocol) -> bool:
    if tensor.shape.rank() < 2:
        return False  # a fresh bias is all zeros, a fresh norm weight all ones
    array = np.asarray(tensor.numpy()).astype(np.float32, copy=False)
    if not array.size or (array.flat[0] not in (0, 1) and abs(array.flat[0]) < _HUGE):
        return False
    return bool(np.all((array == 0) | (array == 1) | (array <= -_HUGE) | np.isposinf(array)))
