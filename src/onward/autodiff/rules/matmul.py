"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import Dim, dims, rank

Row = list[ir.Value | None]


@vjp("MatMul")
def matmul(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = a b, so da = dy b^T and db = a^T dy, summed over the batch axes that were broadcast."""
    a, b = node.inputs
    # A vector on the left is a row, one on the right a column; the result drops that axis again.
    if rank(a) == 1 and rank(b) == 1:
        return [dy * b, dy * a]
    if rank(a) == 1:
        row, dy_row = op.Unsqueeze(a, [0]), op.Unsqueeze(dy, [rank(b) - 2])
        da = op.MatMul(dy_row, _transposed(op, b, rank(b)))
        outer = op.MatMul(op.Transpose(row, perm=[1, 0]), dy_row)
        return [op.reshape_like(op.ReduceSum(da, list(range(rank(b) - 1)), keepdims=0), a), outer]
    if rank(b) == 1:
        column, dy_column = op.Unsqueeze(b, [1]), op.Unsqueeze(dy, [rank(a) - 1])
        da = op.MatMul(dy_column, op.Transpose(column, perm=[1, 0]))
        db = op.MatMul(_transposed(op, a, rank(a)), dy_column)
        leading = list(range(rank(a) - 2))
        summed = op.ReduceSum(db, leading, keepdims=0) if leading else db
        return [da, op.Squeeze(summed, [1])]
    if rank(a) == 2 and rank(b) == 2:
        return [op.Gemm(dy, b, transB=1), op.Gemm(a, dy, transA=1)]
    if rank(b) == 2:
        # All batches share b: their rows are the rows of one matrix.
        rows, dy_rows = _as_matrix(op, a, a), _as_matrix(op, dy, node.outputs[0])
        return [op.reshape_like(op.Gemm(dy_rows, b, transB=1), a), op.Gemm(rows, dy_rows, transA=1)]
    da = op.MatMul(dy, _transposed(op, b, rank(b)))
    db = op.MatMul(_transposed(op, a, rank(a)), dy)
    batch = dims(node.outputs[0])
    return [op.sum_to(dx, x, None if batch is None else batch[:-2] + _matrix_dims(x)) for x, dx in ((a, da), (b, db))]


def _transposed(op: Builder, x: ir.Value, ndim: int) -> ir.Value:
    """x with its last two axes swapped."""
    return op.Transpose(x, perm=[*range(ndim - 2), ndim - 1, ndim - 2])


def _as_matrix(op: Builder, x: ir.Value, like: ir.Value) -> ir.Value:
    """x, which has the shape of `like`, as `[everything else, last axis]`."""
    last = (dims(like) or (None,))[-1]
    if isinstance(last, int) and last > 0:
        return op.reshape(x, [-1, last])
    return op.Flatten(x, axis=rank(like) - 1)


def _matrix_dims(x: ir.Value) -> tuple[Dim, ...]:
    return (dims(x) or ())[-2:]


@vjp("Gemm")
def gemm(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """y = alpha A' B' + beta C, where ' transposes if the attribute says so."""
    a, b, c = node.inputs[0], node.inputs[1], input_at(node, 2)
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    trans_a, trans_b = attribute(node, "transA", 0), attribute(node, "transB", 0)
    if trans_a:
        da = op.Gemm(b, dy, alpha=alpha, transA=trans_b, transB=1)
    else:
        da = op.Gemm(dy, b, alpha=alpha, transB=1 - trans_b)
    if trans_b:
        db = op.Gemm(dy, a, alpha=alpha, transA=1, transB=trans_a)
    else:
        db = op.Gemm(a, dy, alpha=alpha, transA=1 - trans_a)
    if c is None:
        return [da, db]
    dc = op.sum_to(dy, c, dims(node.outputs[0]))
    return [da, db, dc if beta == 1 else dc * beta]
