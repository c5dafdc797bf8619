"""The determinant."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import extent, identity
from onward.graph.builder import Builder
from onward.graph.shapes import rank


@vjp("Det")
def det(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """dx = dy times the cofactors of x, singular or not.

    ONNX has no inverse, so each cofactor [i, j] is a determinant itself: of x with row i replaced by the unit row j.
    That is n^2 determinants, affordable for the small matrices that models take determinants of.
    """
    x = node.inputs[0]
    unit = identity(op, extent(op, x, -1), x.dtype)
    kept = op.Unsqueeze(1 - unit, [1, 3])  # [i, 1, row, 1]
    row = op.Unsqueeze(unit, [1, 3]) * op.Unsqueeze(unit, [0, 2])  # [i, j, row, column]
    n = rank(x)
    replaced = op.Unsqueeze(x, [n - 2, n - 1]) * kept + row
    cofactors = op.Det(replaced)
    return cofactors * op.Unsqueeze(dy, [n - 2, n - 1])
