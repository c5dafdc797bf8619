"""Operators that move elements to another shape or place without changing them."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import extent, joined
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at, integers
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


@vjp("Tile")
def tile(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """The sum of the copies: dy as `[repeats, size]` for each axis, summed over the repeats."""
    x, repeats = node.inputs[0], integers(node, 1, "repeats")
    if not isinstance(repeats, ir.Value):
        tiled = {axis: count for axis, count in enumerate(repeats or ()) if count != 1}
        if not tiled:
            return [dy]
        parts = []
        for axis in range(rank(x)):
            parts += [tiled[axis]] if axis in tiled else []
            parts.append(extent(op, x, axis))
        copies = [axis + index for index, axis in enumerate(tiled)]
        return [op.ReduceSum(op.reshape(dy, joined(op, parts), exact=True), copies, keepdims=0)]
    pairs = op.Concat(op.Unsqueeze(repeats, [1]), op.Unsqueeze(op.shape(x), [1]), axis=1)
    parted = op.reshape(dy, op.Reshape(pairs, [-1]), exact=True)
    return [op.ReduceSum(parted, list(range(0, 2 * rank(x), 2)), keepdims=0)]


@vjp("Concat")
def concat(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    if len(node.inputs) == 1:
        return [dy]
    axis = attribute(node, "axis", 1) % rank(node.outputs[0])
    sizes = joined(op, [extent(op, x, axis) for x in node.inputs])
    return list(op.Split(dy, sizes, axis=axis, outputs=len(node.inputs)))


@vjp("Split")
def split(op: Builder, node: ir.Node, *dys: ir.Value | None) -> Row:
    """Outputs that nobody uses have a cotangent of zeros."""
    parts = [op.zeros_like(y) if dy is None else dy for y, dy in zip(node.outputs, dys, strict=True)]
    return [parts[0] if len(parts) == 1 else op.Concat(*parts, axis=attribute(node, "axis", 0))]


@vjp("SpaceToDepth")
def space_to_depth(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [op.DepthToSpace(dy, blocksize=attribute(node, "blocksize", 1))]


@vjp("DepthToSpace")
def depth_to_space(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """SpaceToDepth undoes the mode DCR. The mode CRD takes `[N, C, b, b, H, W]` to `[N, C, H, b, W, b]`."""
    x, block = node.inputs[0], attribute(node, "blocksize", 1)
    if attribute(node, "mode", "DCR") == "DCR":
        return [op.SpaceToDepth(dy, blocksize=block)]
    height, width = extent(op, x, 2), extent(op, x, 3)
    blocks = op.reshape(dy, _copying_two(op, [height, block, width, block]))
    return [op.reshape_like(op.Transpose(blocks, perm=[0, 1, 3, 5, 2, 4]), x)]


def _copying_two(op: Builder, rest: list[int | ir.Value]) -> ir.Value:
    """A shape that keeps the first two axes of what it is given to; 0 means that in Reshape."""
    shape = joined(op, [0, 0, *rest])
    return shape if isinstance(shape, ir.Value) else op.constant(shape, ir.DataType.INT64)


@vjp("Trilu")
def trilu(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [op.Trilu(dy, input_at(node, 1), upper=attribute(node, "upper", 1))]


@vjp("ReverseSequence")
def reverse_sequence(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Reversing twice changes nothing."""
    batch_axis, time_axis = attribute(node, "batch_axis", 1), attribute(node, "time_axis", 0)
    return [op.ReverseSequence(dy, node.inputs[1], batch_axis=batch_axis, time_axis=time_axis)]
