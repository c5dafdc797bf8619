"""Linear models."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.ml.content import class_labels, labelled, numbers, rows, scores, table, weight
from onward.graph.ml.domain import rewrites
from onward.graph.ml.score import both_classes, transform_of, transformed
from onward.graph.nodes import attribute
from onward.graph.rewriting.registry import RefusedError


@rewrites("LinearRegressor", reads="coefficients intercepts post_transform targets")
def linear_regressor(op: Builder, node: ir.Node) -> ir.Value:
    """y = x w' + b, with w [targets, F]; intercepts of another number than targets do not count."""
    targets = attribute(node, "targets", 1)
    intercepts = numbers(node, "intercepts")
    y = _linear(op, node, targets, with_intercepts=intercepts.size == targets)
    return transformed(op, y, targets, transform_of(node))


@rewrites(
    "LinearClassifier",
    reads="classlabels_ints classlabels_strings coefficients intercepts multi_class post_transform",
    needs="no intercepts; PROBIT of a single score for two classes",
)
def linear_classifier(op: Builder, node: ir.Node) -> list[ir.Value]:
    """Scores x w' + b, with w [scores, F], and the label of the largest.

    A single score is that of the second of two classes, which has the label if it is above 0.
    """
    width, labels, transform = numbers(node, "intercepts").size, class_labels(node), transform_of(node)
    if not width:
        raise RefusedError("it has no intercepts, which tell how many classes it has")
    if len(labels) != max(width, 2):
        raise RefusedError(f"it has {len(labels)} labels and {width} scores")
    raw = _linear(op, node, width, with_intercepts=True)
    if width == 1:
        second = op.cast(op.Greater(op.Squeeze(raw, [1]), 0), ir.DataType.INT64)
        return [labelled(op, node, labels, second), both_classes(op, raw, transform)]
    label = labelled(op, node, labels, op.ArgMax(raw, axis=1, keepdims=0))
    return [label, transformed(op, raw, width, transform)]


def _linear(op: Builder, node: ir.Node, width: int, *, with_intercepts: bool) -> ir.Value:
    """x w' + b as [N, width]."""
    coefficients = table(numbers(node, "coefficients"), width, "coefficients")
    x = rows(op, node, coefficients.shape[1])
    intercepts = weight(op, node, "intercepts", numbers(node, "intercepts")) if with_intercepts else None
    return scores(op, node, op.Gemm(x, weight(op, node, "coefficients", coefficients), intercepts, transB=1))
