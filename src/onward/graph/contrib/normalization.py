"""Normalizations, alone and after a sum."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import with_bias
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute, input_at, is_used
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import rank

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@rewrites("LayerNormalization", reads="axis epsilon stash_type")
def layer_normalization(op: Builder, node: ir.Node) -> list[ir.Value]:
    """The one that onnxruntime had before the standard; its scale may have another type, that of the result."""
    x, scale, bias = (input_at(node, index) for index in range(3))
    assert x is not None
    assert scale is not None
    assert scale.dtype is not None
    if x.dtype != scale.dtype:
        x = op.cast(x, ir.DataType.FLOAT if x.dtype in _HALF else scale.dtype)
    settings = {name: found.value for name, found in node.attributes.items()}
    operands = [None if value is None else op.cast(value, x.dtype or scale.dtype) for value in (scale, bias)]
    y, *saved = _with_saved(op, node, x, *operands, wanted=(1, 2), **settings)
    return [op.cast(y, scale.dtype), *saved]


def _with_saved(op: Builder, node: ir.Node, *operands: ir.Value | None, wanted: tuple[int, int], **settings: float):  # type: ignore[no-untyped-def]
    """LayerNormalization with its saved statistics where the node has them as outputs number `wanted`."""
    saved = any(index < len(node.outputs) and is_used(node.outputs[index]) for index in wanted)
    if saved:
        return op.LayerNormalization(*operands, outputs=3, **settings)
    return (op.LayerNormalization(*operands, **settings),)


@rewrites("SkipLayerNormalization", reads="epsilon")
def skip_layer_normalization(op: Builder, node: ir.Node) -> list[ir.Value | None]:
    """LayerNormalization over the last axis of x + skip + bias; that sum is an output as well."""
    x, skip, scale, shift, bias = (input_at(node, index) for index in range(5))
    total = with_bias(op, op.Add(x, skip), bias)
    epsilon = attribute(node, "epsilon", 1e-12)
    y, *saved = _with_saved(op, node, total, scale, shift, wanted=(1, 2), axis=-1, epsilon=epsilon)
    return [y, *(saved or [None, None]), total]


@rewrites("SimplifiedLayerNormalization", reads="axis epsilon stash_type")
def simplified_layer_normalization(op: Builder, node: ir.Node) -> list[ir.Value]:
    x, scale = node.inputs
    assert x is not None
    assert scale is not None
    axis = attribute(node, "axis", -1)
    axes = list(range(axis, 0)) if axis < 0 else list(range(axis, rank(x)))
    return root_mean_square(op, x, scale, axes, attribute(node, "epsilon", 1e-5))


@rewrites("SkipSimplifiedLayerNormalization", reads="epsilon", needs="output `mean`")
def skip_simplified_layer_normalization(op: Builder, node: ir.Node) -> list[ir.Value | None]:
    x, skip, scale, bias = (input_at(node, index) for index in range(4))
    assert scale is not None
    total = with_bias(op, op.Add(x, skip), bias)
    y, inverse = root_mean_square(op, total, scale, [-1], attribute(node, "epsilon", 1e-12))
    return [y, None, inverse, total]


def root_mean_square(op: Builder, x: ir.Value, scale: ir.Value, axes: list[int], epsilon: float) -> list[ir.Value]:
    """y = x inv scale with inv = 1 / sqrt(mean(x x) + epsilon); in float where x is smaller, with the type of scale."""
    assert scale.dtype is not None
    wide = op.cast(x, ir.DataType.FLOAT) if x.dtype in _HALF else x
    inverse: ir.Value = op.Reciprocal(op.Sqrt(op.ReduceMean(wide * wide, axes, keepdims=1) + epsilon))
    return [op.cast(wide * inverse, scale.dtype) * scale, inverse]


@rewrites("GroupNorm", reads="activation channels_last epsilon groups")
def group_norm(op: Builder, node: ir.Node) -> ir.Value:
    x, scale, shift = node.inputs
    assert x is not None
    return _group_norm(op, node, x, scale, shift)


@rewrites("SkipGroupNorm", reads="activation channels_last epsilon groups")
def skip_group_norm(op: Builder, node: ir.Node) -> list[ir.Value]:
    """GroupNorm of x + skip + bias; skip may be [N, C] or have one element for all positions."""
    x, scale, shift, skip, bias = (input_at(node, index) for index in range(5))
    assert skip is not None
    last = attribute(node, "channels_last", 1)
    if rank(skip) == 2:
        skip = op.Unsqueeze(skip, [1, 2] if last else [2, 3])
    if bias is not None and not last:
        bias = op.Unsqueeze(bias, [1, 2])
    total = with_bias(op, op.Add(x, skip), bias)
    return [_group_norm(op, node, total, scale, shift), total]


def _group_norm(op: Builder, node: ir.Node, x: ir.Value, scale: ir.Value | None, shift: ir.Value | None) -> ir.Value:
    """Each group of channels has mean 0 and variance 1; then y = scale xhat + shift for each channel."""
    last, activation = attribute(node, "channels_last", 1), attribute(node, "activation", 0)
    if activation not in (0, 1):
        raise RefusedError(f"its attribute activation is {activation}; 0 (none) and 1 (SiLU) are supported")
    assert x.dtype is not None
    assert scale is not None
    assert shift is not None
    axes = list(range(rank(x)))
    first = op.Transpose(x, perm=[0, axes[-1], *axes[1:-1]]) if last else x
    grouped = op.Reshape(first, [0, attribute(node, "groups", 1), -1])
    wide = op.cast(grouped, ir.DataType.FLOAT) if x.dtype in _HALF else grouped
    centred = wide - op.ReduceMean(wide, [2], keepdims=1)
    deviation = op.Sqrt(op.ReduceMean(centred * centred, [2], keepdims=1) + attribute(node, "epsilon", 1e-5))
    normal = op.reshape_like(centred / deviation, first)
    around = list(range(1, len(axes) - 1))
    scale, shift = (op.Unsqueeze(op.cast(value, wide.dtype or x.dtype), around) for value in (scale, shift))
    y = op.cast(normal * scale + shift, x.dtype)
    y = op.Transpose(y, perm=[0, *axes[2:], 1]) if last else y
    return y * op.Sigmoid(y) if activation else y


@rewrites("EmbedLayerNormalization", reads="epsilon mask_index_type")
def embed_layer_normalization(op: Builder, node: ir.Node) -> list[ir.Value]:
    """LayerNormalization of the sum of the embeddings of words, positions and segments.

    The second output counts the words that the mask leaves; without a mask it is zero.
    """
    words, segments, word_table, position_table, segment_table, scale, shift, mask, positions = (
        input_at(node, index) for index in range(9)
    )
    assert words is not None
    embedded = op.Gather(word_table, words, axis=0)
    if positions is None:
        length = op.dim(words, 1)
        embedded = embedded + op.Slice(position_table, [0], length, [0])
    else:
        embedded = embedded + op.Gather(position_table, positions, axis=0)
    if segments is not None and segment_table is not None:
        embedded = embedded + op.Gather(segment_table, segments, axis=0)
    y = op.LayerNormalization(embedded, scale, shift, axis=-1, epsilon=attribute(node, "epsilon", 1e-12))
    if mask is None:
        count = op.full(op.dim(words, 0), 0, ir.DataType.INT32)
    else:
        count = op.ReduceSum(op.Cast(op.Equal(mask, 1), to=int(ir.DataType.INT32)), [1], keepdims=0)
    return [y, count, embedded]
