"""Sums."""

from __future__ import annotations

import functools
import math

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, integers
from onward.graph.shapes import dims, same_dims

_FEWEST_COLUMNS = 32
_FEWEST_ELEMENTS = 2**13


def sum_of_rows(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The sum over the first axes as a product with a row of ones: gradients of biases, and of weights over samples.

    onnxruntime adds rows of some hundred columns by one thread, and those of thousands by several that get in each
    other's way: up to ten times slower than it multiplies them.
    """
    x, axes = node.inputs[0], integers(node, 1, "axes")
    if x is None or x.dtype != ir.DataType.FLOAT or not isinstance(axes, tuple) or attribute(node, "keepdims", 1):
        return None
    sizes, count = dims(x), len(axes)
    if sizes is None or not 0 < count < len(sizes) or sorted(axis % len(sizes) for axis in axes) != list(range(count)):
        return None
    rows, kept = sizes[:count], [size for size in sizes[count:] if isinstance(size, int)]
    columns = math.prod(kept)
    if len(kept) < len(sizes) - count or columns < _FEWEST_COLUMNS:
        return None
    known = [size for size in rows if isinstance(size, int)]
    if len(known) == len(rows) and math.prod(known) * columns < _FEWEST_ELEMENTS:
        return None
    matrix = x if len(sizes) == 2 else op.Reshape(x, [-1, columns])
    total = op.MatMul(op.ones(matrix, 0), matrix)
    return [total if len(kept) == 1 else op.Reshape(total, kept)]


def sum_by_pairs(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """a + b + c in the order of Sum, which onnxruntime adds in the same order and twice as slowly."""
    terms = [term for term in node.inputs if term is not None]
    sizes = dims(terms[0]) if len(terms) == len(node.inputs) > 1 else None
    if sizes is None or not all(same_dims(sizes, dims(term)) for term in terms):
        return None  # what Sum knows of broadcasting is not worth knowing twice
    return [functools.reduce(op.Add, terms)]
