"""Rotary position embeddings."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.contrib.activation import halves
from onward.graph.contrib.domain import rewrites
from onward.graph.nodes import attribute
from onward.graph.parameters import mark_table
from onward.graph.shapes import dims, rank

_END = 2**31 - 1


@rewrites("RotaryEmbedding", reads="interleaved is_packed_batching num_heads rotary_embedding_dim scale")
def rotary_embedding(op: Builder, node: ir.Node) -> ir.Value:
    """Rotate pairs of elements of each head by the angle of their position.

    x is [B, S, N H] or [B, N, S, H]; onnxruntime reads the attribute `scale` and does not use it.
    """
    x, positions, *tables = node.inputs
    assert x is not None
    assert positions is not None
    whole = rank(x) == 4
    if rank(positions) == 1:
        # One number, where all sequences begin.
        length = op.dim(x, 2 if whole else 1)
        positions = positions + numbers(op, length)
    cos, sin = (at_positions(op, table, positions) for table in tables)
    interleaved = bool(attribute(node, "interleaved", 0))
    if whole:
        cos, sin = (op.Unsqueeze(table, [rank(positions) - 1]) for table in (cos, sin))
        return rotated(op, x, cos, sin, interleaved)
    if attribute(node, "rotary_embedding_dim", 0):
        heads = op.Reshape(x, [0, 0, attribute(node, "num_heads", 0), -1])
    else:
        size = op.Mul(op.dim(cos, -1), 2)
        heads = op.Reshape(x, op.Concat(op.constant([0, 0, -1]), size, axis=0))
    cos, sin = (op.Unsqueeze(table, [-2]) for table in (cos, sin))
    return op.reshape_like(rotated(op, heads, cos, sin, interleaved), x)


def at_positions(op: Builder, table: ir.Value | None, positions: ir.Value) -> ir.Value:
    """The cosines or sines of the angles of positions; their table is not a parameter of the model."""
    assert table is not None
    mark_table(table, "angles of a rotary embedding")
    return op.Gather(table, positions, axis=0)


def numbers(op: Builder, count: ir.Value) -> ir.Value:
    """0, 1, ... below `count`, an int64 vector of one element."""
    return op.Range(op.constant(0), op.Squeeze(count, [0]), op.constant(1))


def rotated(op: Builder, x: ir.Value, cos: ir.Value, sin: ir.Value, interleaved: bool) -> ir.Value:
    """(a cos - b sin, b cos + a sin) for pairs (a, b) of the first elements of the last axis, the others as they are.

    A pair is two neighbours where they are interleaved, and else an element of the first and one of the second half.
    """
    rest = []
    size, half = ((dims(value) or [None])[-1] for value in (x, cos))
    if not isinstance(size, int) or not isinstance(half, int) or size != 2 * half:
        width = [2 * half] if isinstance(half, int) else op.Mul(op.dim(cos, -1), 2)
        rest = [op.Slice(x, width, [_END], [-1])]
        x = op.Slice(x, [0], width, [-1])
    if interleaved:
        a, b = (op.Slice(x, [start], [_END], [-1], [2]) for start in (0, 1))
        pairs = [op.Unsqueeze(part, [-1]) for part in (a * cos - b * sin, b * cos + a * sin)]
        parts = [op.reshape_like(op.Concat(*pairs, axis=-1), x)]
    else:
        a, b = halves(op, x)
        parts = [a * cos - b * sin, b * cos + a * sin]
    return op.Concat(*parts, *rest, axis=-1) if len(parts) + len(rest) > 1 else parts[0]
