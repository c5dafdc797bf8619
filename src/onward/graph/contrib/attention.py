"""Attention over heads, with projections, masks and past keys and values as the operators have them.

Letters of shapes: B batch, S queries, L new keys, P past keys, T = P + L all keys, N heads, H elements of a head.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import with_bias
from onward.graph.contrib.domain import rewrites
from onward.graph.contrib.rotary import numbers
from onward.graph.nodes import attribute, input_at, is_used
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import dims, rank, same_dims

_MASKED = -10000.0  # what the operators add to a score by default to mask it


@rewrites(
    "Attention",
    reads="mask_filter_value num_heads qkv_hidden_sizes rotary_embedding_dim scale unidirectional",
    only={"do_rotary": 0, "past_present_share_buffer": 0},
    without={6: "past_sequence_length"},
)
def attention(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Self-attention with the projection x w + b to queries, keys and values.

    past and present are [2, B, N, P, H] and [2, B, N, T, H]: keys, then values.
    """
    x, weight, bias, mask, past, score_bias = (input_at(node, index) for index in range(6))
    q, k, v = _projections(op, node, with_bias(op, op.MatMul(x, weight), bias))
    if past is not None:
        k, v = (op.Concat(op.Gather(past, index, axis=0), new, axis=2) for index, new in enumerate((k, v)))
    biases = _biases(op, node, q, k, mask, score_bias, None if past is None else op.dim(past, 3))
    y, _ = attend(op, q, k, v, _scale(op, node, q), biases)
    if len(node.outputs) < 2 or not is_used(node.outputs[1]):
        return [merge_heads(op, y)]
    return [merge_heads(op, y), op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)]


def _projections(op: Builder, node: ir.Node, projected: ir.Value) -> list[ir.Value]:
    """Queries, keys and values [B, N, S, H] in one tensor [B, S, 3 N H]; values may have heads of another size."""
    heads = attribute(node, "num_heads", 0)
    sizes: list[int] = list(attribute(node, "qkv_hidden_sizes", ()))
    if len(set(sizes)) > 1:
        parts = op.Split(projected, sizes, axis=-1, outputs=3)
        return [split_heads(op, part, heads) for part in parts]
    stacked = op.Transpose(op.Reshape(projected, [0, 0, 3, heads, -1]), perm=[2, 0, 3, 1, 4])
    return [op.Squeeze(part, [0]) for part in op.Split(stacked, [1, 1, 1], axis=0, outputs=3)]


@rewrites(
    "MultiHeadAttention",
    reads="mask_filter_value num_heads scale unidirectional",
    without={8: "past_sequence_length", 9: "cache_indirection"},
)
def multi_head_attention(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Attention of queries that are projected already; a bias of the projections may be left to add."""
    mask, score_bias, past_key, past_value = (input_at(node, index) for index in range(4, 8))
    q, k, v = _queries_keys_values(op, node)
    if past_key is not None and past_value is not None:
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    biases = _biases(op, node, q, k, mask, score_bias, None if past_key is None else op.dim(past_key, 2))
    y, scores = attend(op, q, k, v, _scale(op, node, q), biases)
    return [merge_heads(op, y), k, v, scores]


def _biases(
    op: Builder,
    node: ir.Node,
    q: ir.Value,
    k: ir.Value,
    mask: ir.Value | None,
    given: ir.Value | None,
    past: ir.Value | None,
) -> list[ir.Value]:
    """What is added to the scores of all queries and keys; `past` is how many keys come before the first query."""
    biases = [given] if given is not None else []
    if mask is not None:
        biases.append(_mask(op, node, mask, q, k))
    if attribute(node, "unidirectional", 0):
        biases.append(causal_bias(op, q, k, past))
    return biases


def _queries_keys_values(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Each as [B, N, S or L, H], from one of the forms: apart, keys and values packed, or all three packed."""
    query, key, value, bias = (input_at(node, index) for index in range(4))
    heads = attribute(node, "num_heads", 0)
    assert query is not None
    if rank(query) == 5:  # [B, S, N, 3, H]
        if bias is not None:
            query = query + op.Transpose(op.Reshape(bias, [3, heads, -1]), perm=[1, 0, 2])
        return [op.Transpose(op.Gather(query, index, axis=3), perm=[0, 2, 1, 3]) for index in range(3)]
    width = op.dim(query, 2)
    biases: list[ir.Value | None] = [None, None, None]
    if bias is not None:
        double = op.Mul(width, 2)
        ends: list[tuple[object, object]] = [([0], width), (width, double), (double, [2**31 - 1])]
        biases = [op.Slice(bias, start, end, [0]) for start, end in ends]
    q = split_heads(op, with_bias(op, query, biases[0]), heads)
    if key is None:
        raise RefusedError("it has no key, and its query is not packed")
    if rank(key) == 5:  # [B, L, N, 2, H]
        parts = [op.Gather(key, index, axis=3) for index in range(2)]
        pairs = zip(parts, biases[1:], strict=True)
        added = [part if b is None else op.Add(part, op.Reshape(b, [heads, -1])) for part, b in pairs]
        return [q, *(op.Transpose(part, perm=[0, 2, 1, 3]) for part in added)]
    if value is None:
        raise RefusedError("it has a key and no value")
    if rank(key) == 4:  # keys and values of another sequence, computed before: no bias is left to add
        return [q, key, value]
    return [q, *(split_heads(op, with_bias(op, x, b), heads) for x, b in ((key, biases[1]), (value, biases[2])))]


def split_heads(op: Builder, x: ir.Value, heads: int) -> ir.Value:
    """[B, S, N H] as [B, N, S, H]."""
    return op.Transpose(op.Reshape(x, [0, 0, heads, -1]), perm=[0, 2, 1, 3])


def merge_heads(op: Builder, x: ir.Value) -> ir.Value:
    """[B, N, S, H] as [B, S, N H]."""
    return op.Reshape(op.Transpose(x, perm=[0, 2, 1, 3]), [0, 0, -1])


def _scale(op: Builder, node: ir.Node, q: ir.Value) -> ir.Value | float:
    return default_scale(op, q, attribute(node, "scale", 0.0))


def default_scale(op: Builder, q: ir.Value, given: float) -> ir.Value | float:
    """The scale of scores: 1 / sqrt(H) unless it is given."""
    if given:
        return given
    known = dims(q)
    size = None if known is None else known[-1]
    if isinstance(size, int):
        return 1 / math.sqrt(size)
    return op.Reciprocal(op.Sqrt(op.cast(op.dim(q, -1), q.dtype)))  # type: ignore[arg-type]


def attend(
    op: Builder,
    q: ir.Value,
    k: ir.Value,
    v: ir.Value,
    scale: ir.Value | float,
    biases: list[ir.Value],
    softcap: float = 0.0,
    sink: ir.Value | None = None,
    groups: tuple[int, int] | None = None,
) -> tuple[ir.Value, ir.Value]:
    """softmax(scale q k' + biases) v, and the scores before the softmax.

    A sink is one more score that takes part in the softmax and has no value. `groups` tells how many heads q and k
    have, where k has fewer, each for a group of neighbouring heads of q.
    """

    def as_rows(x: ir.Value) -> ir.Value:
        """The queries of a group as rows of one matrix; a zero keeps an axis as it is."""
        return x if groups is None else op.Reshape(x, [0, groups[1], -1, 0])

    def as_heads(x: ir.Value) -> ir.Value:
        return x if groups is None else op.Reshape(x, [0, groups[0], -1, 0])

    scores = as_heads(op.MatMul(as_rows(op.Mul(q, scale)), op.Transpose(k, perm=[0, 1, 3, 2])))
    if softcap:
        scores = op.Tanh(scores * (1 / softcap)) * softcap
    for bias in biases:
        scores = op.Add(scores, bias)
    weights = op.Softmax(scores, axis=-1) if sink is None else _softmax_with_sink(op, scores, sink)
    return as_heads(op.MatMul(as_rows(weights), v)), scores


def _softmax_with_sink(op: Builder, scores: ir.Value, sink: ir.Value) -> ir.Value:
    shape = op.Concat(op.Slice(op.shape(scores), [0], [3], [0]), [1], axis=0)
    weights = op.Softmax(op.Concat(scores, op.Expand(sink, shape), axis=3), axis=-1)
    return op.Slice(weights, [0], [-1], [3])


# Masks, as numbers to add to the scores -------------------------------------------------------------------------


def lowest(dtype: ir.DataType | None) -> float:
    """The lowest number of a type; onnxruntime masks the future with it."""
    assert dtype is not None
    if dtype == ir.DataType.BFLOAT16:
        return -3.3895313892515355e38
    return float(np.finfo(dtype.numpy()).min)


def causal_bias(op: Builder, q: ir.Value, k: ir.Value, past: ir.Value | None) -> ir.Value:
    """[S, T]: query s sees no key after P + s; `past` is P, an int64 vector of one element."""
    last = with_bias(op, numbers(op, op.dim(q, 2)), past)
    future = op.Greater(numbers(op, op.dim(k, 2)), op.Unsqueeze(last, [1]))
    return masked(op, future, lowest(q.dtype), q.dtype)


def masked(op: Builder, where: ir.Value, value: float, dtype: ir.DataType | None) -> ir.Value:
    """`value` where a mask is true, else 0."""
    zero = np.array(0.0)
    return op.Where(where, op.constant(value, dtype), op.constant(zero, dtype))


def _mask(op: Builder, node: ir.Node, mask: ir.Value, q: ir.Value, k: ir.Value) -> ir.Value:
    """The bias of a mask: raw ones [B, T], [B, S, T] and [B, 1, M, M] are 0 where keys are masked; others are lengths.

    Lengths are [B], with padding on the right; or [2 B], ends and then starts, with padding on the left; or they are
    followed by 2 B + 2 positions of the sequences in a packed tensor, which say nothing more.
    """
    value = attribute(node, "mask_filter_value", _MASKED)
    number = rank(mask)
    if number == 1:
        where = _outside(op, mask, q, k)
    elif number == 2:
        where = op.Unsqueeze(op.Less(mask, 1), [1, 2])
    elif number == 3:
        where = op.Unsqueeze(op.Less(mask, 1), [1])
    else:
        queries, keys = op.dim(q, 2), op.dim(k, 2)
        rows = op.Slice(mask, op.Sub(keys, queries), keys, [2])
        where = op.Less(op.Slice(rows, [0], keys, [3]), 1)
    return masked(op, where, value, q.dtype)


def _outside(op: Builder, mask: ir.Value, q: ir.Value, k: ir.Value) -> ir.Value:
    """[B, 1, 1, T]: the keys before the start or not before the end of a sequence."""
    batch, size = op.dim(q, 0), op.dim(mask, 0)
    keys, bounds = numbers(op, op.dim(k, 2)), op.cast(mask, ir.DataType.INT64)
    sizes = [(dims(value) or [None])[0] for value in (mask, q)]
    if same_dims(sizes[:1], sizes[1:]):
        return op.Unsqueeze(op.Not(op.Less(keys, op.Unsqueeze(bounds, [1]))), [1, 2])
    where = op.Not(op.Less(keys, op.Unsqueeze(op.Slice(bounds, [0], batch, [0]), [1])))
    # Where there are no starts, the ends are taken for them, times zero.
    double = op.Mul(batch, 2)
    both = op.Slice(op.Concat(bounds, bounds, axis=0), batch, double, [0])
    starts = op.Mul(both, op.cast(op.Equal(size, double), ir.DataType.INT64))
    return op.Unsqueeze(op.Or(where, op.Less(keys, op.Unsqueeze(starts, [1]))), [1, 2])
