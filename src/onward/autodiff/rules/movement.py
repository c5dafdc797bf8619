"""Operators that move elements to another shape or place without changing them."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import dims, rank

Row = list[ir.Value | None]


@vjp("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [op.reshape_like(dy, node.inputs[0])]


@vjp("Transpose")
def transpose(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Without `perm` the axes are reversed, which is its own inverse."""
    perm = attribute(node, "perm", ())
    if not perm:
        return [op.Transpose(dy)]
    return [op.Transpose(dy, perm=[perm.index(axis) for axis in range(len(perm))])]


@vjp("Expand")
def expand(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [op.sum_to(dy, node.inputs[0], dims(node.outputs[0]))]


@vjp("Concat")
def concat(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    axis = attribute(node, "axis", 1) % rank(node.outputs[0])
    if len(node.inputs) == 1:
        return [dy]
    sizes = [(dims(x) or ())[axis] for x in node.inputs]
    if all(isinstance(size, int) for size in sizes):
        return list(op.Split(dy, sizes, axis=axis, outputs=len(sizes)))
    return list(op.Split(dy, op.Concat(*(op.dim(x, axis) for x in node.inputs), axis=0), axis=axis, outputs=len(sizes)))


@vjp("Split")
def split(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Row:
    """Outputs that nobody uses have a cotangent of zeros."""
    parts = [op.zeros_like(y) if dy is None else dy for y, dy in zip(node.outputs, dys, strict=True)]
    return [op.Concat(*parts, axis=attribute(node, "axis", 0))]
