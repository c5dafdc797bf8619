"""Attention whose keys and values have fewer heads than the queries, with a cache of keys and values."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.attention import attend, causal_bias, default_scale, lowest, masked, merge_heads
from onward.graph.contrib.domain import rewrites
from onward.graph.contrib.normalization import root_mean_square
from onward.graph.contrib.rotary import at_positions, numbers, rotated
from onward.graph.nodes import attribute, input_at
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import dims

_INT = ir.DataType.INT64


@rewrites(
    "GroupQueryAttention",
    reads="""causal do_rotary kv_cache_bit_width kv_num_heads local_window_size num_heads qk_norm_epsilon
        rotary_interleaved scale smooth_softmax softcap""",
    only={"k_quant_type": "NONE", "v_quant_type": "NONE", "qk_output": 0, "sliding_window_cache": 0},
    without={12: "k_scale", 13: "v_scale"},
)
def group_query_attention(op: Builder, node: ir.Node) -> list[ir.Value | None]:
    """Causal attention with the keys and values of a cache before the new ones.

    The letters of shapes are those of `attention`; the cache of sequence b holds lengths[b] - S past keys, and the
    new ones are put behind them. A cache may be longer than all that it holds.
    """
    past_key, past_value, lengths, total = (input_at(node, index) for index in range(3, 7))
    assert lengths is not None
    assert total is not None
    q, k, v = _queries_keys_values(op, node)  # [B, S, N, H] each
    past = None if past_key is None or _is_empty(past_key) else _past_lengths(op, q, lengths, total)
    if attribute(node, "do_rotary", 0):
        q, k = _rotated(op, node, q, k, past, total)
    q, k, v = (op.Transpose(x, perm=[0, 2, 1, 3]) for x in (q, k, v))
    if past is None:
        present = [k, v]
    else:
        assert past_key is not None
        assert past_value is not None
        present = _with_cache(op, past, total, [(past_key, k), (past_value, v)])
        end = op.Reshape(op.cast(total, _INT), [1])
        k, v = (op.Slice(x, [0], end, [2]) for x in present)
    biases = _biases(op, node, q, k, past, lengths)
    scale = default_scale(op, q, attribute(node, "scale", 0.0))
    groups = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    softcap, sink = attribute(node, "softcap", 0.0), _sink(op, node, q)
    y, _ = attend(op, q, k, v, scale, biases, softcap, sink, None if groups[0] == groups[1] else groups)
    return [merge_heads(op, y), *present]


def _is_empty(cache: ir.Value) -> bool:
    known = dims(cache)
    return known is not None and len(known) == 4 and known[2] == 0


def _queries_keys_values(op: Builder, node: ir.Node) -> list[ir.Value]:
    query, key, value = (input_at(node, index) for index in range(3))
    heads, groups = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    if key is None or value is None:  # packed
        packed = op.Reshape(query, [0, 0, heads + 2 * groups, -1])
        q, k, v = op.Split(packed, [heads, groups, groups], axis=2, outputs=3)
    else:
        q = op.Reshape(query, [0, 0, heads, -1])
        k, v = (op.Reshape(x, [0, 0, groups, -1]) for x in (key, value))
    scales = [input_at(node, index) for index in (14, 15)]
    if scales[0] is not None and scales[1] is not None:
        epsilon = attribute(node, "qk_norm_epsilon", 1e-6)
        q, k = (
            root_mean_square(op, x, scale, [-1], epsilon)[0]
            for x, scale in zip((q, k), scales, strict=True)
            if scale is not None
        )
    return [q, k, v]


def _past_lengths(op: Builder, q: ir.Value, lengths: ir.Value, total: ir.Value) -> ir.Value:
    """[B, 1]: how many keys of the cache are in use; none while a prompt, as long as all there is, is read."""
    queries = op.dim(q, 1)
    prompt = op.Equal(op.Reshape(op.cast(total, _INT), [1]), queries)
    # `lengths` counts the new keys but one.
    past = op.Sub(op.Add(op.cast(lengths, _INT), 1), queries)
    return op.Reshape(op.Where(prompt, 0, past), [-1, 1])


def _rotated(
    op: Builder, node: ir.Node, q: ir.Value, k: ir.Value, past: ir.Value | None, total: ir.Value
) -> tuple[ir.Value, ir.Value]:
    tables = [input_at(node, index) for index in (7, 8)]
    if None in tables:
        raise RefusedError("it has do_rotary=1 without cos_cache and sin_cache")
    positions = _positions(op, q, past, input_at(node, 9), total)
    cos, sin = (op.Unsqueeze(at_positions(op, table, positions), [-2]) for table in tables)
    interleaved = bool(attribute(node, "rotary_interleaved", 0))
    return rotated(op, q, cos, sin, interleaved), rotated(op, k, cos, sin, interleaved)


def _positions(op: Builder, q: ir.Value, past: ir.Value | None, given: ir.Value | None, total: ir.Value) -> ir.Value:
    """[B, S] or [S]; of positions that are given, only the first one counts while a prompt is read."""
    places = numbers(op, op.dim(q, 1))
    if given is None:
        return places if past is None else op.Add(past, places)
    first = op.Slice(op.Reshape(given, [-1]), [0], [1], [0])
    if past is None:
        return op.Add(first, places)
    prompt = op.Equal(op.Reshape(op.cast(total, _INT), [1]), op.dim(q, 1))
    return op.Where(prompt, op.Add(first, places), given)


def _with_cache(op: Builder, past: ir.Value, total: ir.Value, pairs: list[tuple[ir.Value, ir.Value]]) -> list[ir.Value]:
    """Each cache [B, N, P, H] with the new [B, N, S, H] put behind what is in use, as long as the longer of P and T."""
    cache, new = pairs[0]
    room, added = op.dim(cache, 2), op.dim(new, 2)
    size = op.Max(room, op.Reshape(op.cast(total, _INT), [1]))
    places = numbers(op, size)
    behind = op.Sub(op.Add(places, room), past)  # [B, T]
    source = op.Where(op.Less(places, past), places, op.Min(behind, op.Sub(op.Add(room, added), 1)))
    source = op.Unsqueeze(op.Min(source, op.Sub(op.Add(room, added), 1)), [2])
    joined = [op.Transpose(op.Concat(old, fresh, axis=2), perm=[0, 2, 1, 3]) for old, fresh in pairs]
    return [op.Transpose(op.GatherND(x, source, batch_dims=1), perm=[0, 2, 1, 3]) for x in joined]


def _biases(
    op: Builder, node: ir.Node, q: ir.Value, k: ir.Value, past: ir.Value | None, lengths: ir.Value
) -> list[ir.Value]:
    given, window = input_at(node, 10), attribute(node, "local_window_size", -1)
    biases = [given] if given is not None else []
    keys = numbers(op, op.dim(k, 2))
    if not attribute(node, "causal", 1):
        beyond = op.Greater(keys, op.Unsqueeze(op.cast(lengths, _INT), [1]))
        return [*biases, masked(op, op.Unsqueeze(beyond, [1, 2]), lowest(q.dtype), q.dtype)]
    if past is None and window <= 0:
        return [*biases, causal_bias(op, q, k, None)]
    last = numbers(op, op.dim(q, 2))
    last = op.Unsqueeze(last, [1]) if past is None else op.Unsqueeze(op.Add(past, last), [1, 3])
    hidden = op.Greater(keys, last)
    if window > 0:
        hidden = op.Or(hidden, op.Not(op.Greater(keys, op.Sub(last, window))))
    return [*biases, masked(op, hidden, lowest(q.dtype), q.dtype)]


def _sink(op: Builder, node: ir.Node, q: ir.Value) -> ir.Value | None:
    """[1, N, 1, 1]: one more score for each head."""
    given = input_at(node, 11)
    if given is not None:
        return op.Reshape(given, [1, -1, 1, 1])
    if attribute(node, "smooth_softmax", -1) == 1:
        return op.full([1, attribute(node, "num_heads", 1), 1, 1], 0, q.dtype)  # type: ignore[arg-type]
    return None
