"""Operators that write updates into a tensor by index.

With the reduction `none` the standard forbids indices that repeat. Where they do anyway, the update that onnxruntime
keeps (the last, while it runs the node in one thread) gets the cotangent and the overwritten ones get 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.indexing import is_distinct, put_nd
from onward.autodiff.rules.placement import put
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.shapes import Dim, dims, rank

Row = list[ir.Value | None]


@vjp("ScatterElements", "Scatter")
def scatter_elements(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    data, indices, updates = node.inputs
    axis = attribute(node, "axis", 0)

    def gather(x: ir.Value) -> ir.Value:
        return op.GatherElements(x, indices, axis=axis)

    def scatter(x: ir.Value, values: ir.Value, reduction: str) -> ir.Value:
        if reduction == "add":
            return put(op, x, indices, values, axis)
        return op.ScatterElements(x, indices, values, axis=axis, reduction=None if reduction == "none" else reduction)

    if attribute(node, "reduction", "none") != "none":
        return _reduced(op, node, dy, gather, scatter)
    d_updates = gather(dy)
    if not _distinct_elements(indices, axis, dims(data)):
        order = op.Reshape(op.Range(0, op.size(indices), 1), op.shape(indices))
        kept = gather(scatter(op.full(op.shape(data), 0, ir.DataType.INT64), order, "none"))
        d_updates = op.Where(op.Equal(kept, order), d_updates, 0)
    return [scatter(dy, op.zeros_like(updates), "none"), None, d_updates]


def _distinct_elements(indices: ir.Value, axis: int, sizes: tuple[Dim, ...] | None) -> bool:
    known = constant_of(indices)
    if known is None:
        return False
    # An index tuple of each element: its own position, but along the axis what `indices` says.
    tuples = np.moveaxis(np.indices(known.shape), 0, -1).copy()
    tuples[..., axis] = known
    return is_distinct(tuples.reshape(-1, known.ndim), sizes or (None,) * known.ndim)


@vjp("ScatterND")
def scatter_nd(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    data, indices, updates = node.inputs

    def gather(x: ir.Value) -> ir.Value:
        return op.GatherND(x, indices)

    def scatter(x: ir.Value, values: ir.Value, reduction: str) -> ir.Value:
        if reduction == "add":
            return put_nd(op, x, indices, values)
        return op.ScatterND(x, indices, values, reduction=None if reduction == "none" else reduction)

    if attribute(node, "reduction", "none") != "none":
        return _reduced(op, node, dy, gather, scatter)
    d_updates = gather(dy)
    known = constant_of(indices)
    if known is None or not is_distinct(known.reshape(-1, known.shape[-1]), dims(data) or (None,) * known.shape[-1]):
        head = op.Slice(op.shape(data), [0], op.dim(indices, -1))
        tuples = op.Slice(op.shape(indices), [0], [-1])
        order = op.Reshape(op.Range(0, op.ReduceProd(tuples, keepdims=0), 1), tuples)
        kept = op.Equal(gather(scatter(op.full(head, 0, ir.DataType.INT64), order, "none")), order)
        inner = list(range(rank(indices) - 1, rank(updates)))
        d_updates = op.Where(op.Unsqueeze(kept, inner) if inner else kept, d_updates, 0)
    return [scatter(dy, op.zeros_like(updates), "none"), None, d_updates]


def _reduced(
    op: Builder,
    node: ir.Node,
    dy: ir.Value,
    gather: Callable[[ir.Value], ir.Value],
    scatter: Callable[[ir.Value, ir.Value, str], ir.Value],
) -> Row:
    data, _, updates = node.inputs
    reduction, y = attribute(node, "reduction", "none"), node.outputs[0]
    if reduction == "add":
        return [dy, None, gather(dy)]
    if reduction == "mul":
        # The product of the other factors, also where some are 0: then only a zero that is alone has a slope.
        data_is_zero, update_is_zero = op.Equal(data, 0), op.Equal(updates, 0)
        factor, factors = op.Where(data_is_zero, 1, data), op.Where(update_is_zero, 1, updates)
        data_zeros, update_zeros = op.cast(data_is_zero, data.dtype), op.cast(update_is_zero, data.dtype)
        zeros = scatter(data_zeros, update_zeros, "add")
        product = dy * scatter(factor, factors, "mul")
        d_data = op.Where(op.Greater(zeros, data_zeros), 0, product / factor)
        d_updates = op.Where(op.Greater(gather(zeros), update_zeros), 0, gather(product) / factors)
        return [d_data, None, d_updates]
    # max and min: elements that tie share the cotangent evenly, as in torch's scatter_reduce.
    data_hit, update_hit = op.cast(op.Equal(data, y), y.dtype), op.cast(op.Equal(updates, gather(y)), y.dtype)
    share = dy / scatter(data_hit, update_hit, "add")
    return [data_hit * share, None, update_hit * gather(share)]


@vjp("TensorScatter")
def tensor_scatter(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Slices of a cache are replaced, from a place of its own for each sample of the batch on."""
    cache, update = node.inputs[:2]
    write = input_at(node, 2)
    ndim = rank(cache)
    axis = attribute(node, "axis", -2) % ndim
    along = [-1 if other == axis else 1 for other in range(ndim)]
    places = op.Reshape(op.Range(0, op.size(update, [axis]), 1), along)
    if write is not None:
        places = places + op.Reshape(write, [-1] + [1] * (ndim - 1))
    if attribute(node, "mode", "linear") == "circular":
        places = op.Mod(places, op.dim(cache, axis))
    places = op.Expand(places, op.shape(update))
    d_cache = op.ScatterElements(dy, places, op.zeros_like(update), axis=axis)
    return [d_cache, op.GatherElements(dy, places, axis=axis)]
