"""Support vector machines. Letters of shapes: N rows, F features, V support vectors, C classes, P = C (C - 1) / 2."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.ml.content import class_labels, labelled, numbers, rows, scores, table, weight
from onward.graph.ml.domain import rewrites
from onward.graph.ml.score import both_classes, transform_of, transformed
from onward.graph.nodes import attribute
from onward.graph.rewriting.registry import RefusedError


@rewrites(
    "SVMRegressor",
    reads="coefficients kernel_params kernel_type n_supports one_class post_transform rho support_vectors",
)
def svm_regressor(op: Builder, node: ir.Node) -> ir.Value:
    """y = k(x, v) c + rho, or its sign for one class; onnxruntime's kernel does not apply `post_transform`."""
    count, coefficients = attribute(node, "n_supports", 0), numbers(node, "coefficients")
    rho = weight(op, node, "rho", _at_least(numbers(node, "rho"), 1, "rho"))
    if count > 0:
        features, width = _kernels(op, node, count), count
    else:
        features, width = rows(op, node, coefficients.size), coefficients.size
    c = weight(op, node, "coefficients", _at_least(coefficients, width, "coefficients").reshape(1, -1))
    y = scores(op, node, op.Gemm(features, c, rho, transB=1))
    if attribute(node, "one_class", 0):
        return op.Where(op.Greater(y, 0), np.float32(1), np.float32(-1))
    return y


@rewrites(
    "SVMClassifier",
    reads="""classlabels_ints classlabels_strings coefficients kernel_params kernel_type post_transform prob_a prob_b
        rho support_vectors vectors_per_class""",
    needs="probabilities (`prob_a`, `prob_b`) of support vectors; PROBIT of a single score for two classes",
)
def svm_classifier(op: Builder, node: ir.Node) -> list[ir.Value]:
    """A score for each class, or for each pair of classes, and the label of the best."""
    per_class: tuple[int, ...] = attribute(node, "vectors_per_class", ())
    labels = class_labels(node)
    if sum(per_class) <= 0:
        return _linear_classifier(op, node, labels)
    if numbers(node, "prob_a").size:
        raise RefusedError(
            "its probabilities (prob_a and prob_b) are found by an iteration that stops as soon as it is near enough, "
            "so that they jump"
        )
    if len(per_class) != len(labels) or len(labels) < 2:
        raise RefusedError(f"it has {len(labels)} labels for {len(per_class)} classes")
    raw, pairs = _pairwise_scores(op, node, per_class), list(combinations(range(len(labels)), 2))
    label = labelled(op, node, labels, op.ArgMax(_votes(op, raw, pairs, len(labels)), axis=1, keepdims=0))
    transform = transform_of(node)
    if len(pairs) > 1:
        return [label, transformed(op, raw, len(pairs), transform)]
    return [label, both_classes(op, raw, transform, mirrored=transform == "NONE")]


def _linear_classifier(op: Builder, node: ir.Node, labels: list[str] | list[int]) -> list[ir.Value]:
    """Scores x w' + rho [N, C], with one rho for all classes, and the label of the largest.

    Of two classes, the second has the label wherever a score is above 0, or reaches 0.5 where no coefficient is
    negative.
    """
    coefficients = table(numbers(node, "coefficients"), len(labels), "coefficients")
    x = rows(op, node, coefficients.shape[1])
    rho = _at_least(numbers(node, "rho"), 1, "rho")
    w = weight(op, node, "coefficients", coefficients)
    raw = scores(op, node, op.Gemm(x, w, weight(op, node, "rho", rho), transB=1))
    best = op.ArgMax(raw, axis=1, keepdims=0)
    if len(labels) == 2 and not numbers(node, "prob_a").size:
        largest = op.ReduceMax(raw, [1], keepdims=0)
        positive = op.Not(op.Less(op.ReduceMin(w, keepdims=0), 0))
        reached = op.Not(op.Less(largest, op.Where(positive, 0.5, 0.0)))
        best = op.Where(op.And(reached, op.Greater(largest, 0)), op.constant(1), best)
    return [labelled(op, node, labels, best), transformed(op, raw, len(labels), transform_of(node))]


def _pairwise_scores(op: Builder, node: ir.Node, per_class: tuple[int, ...]) -> ir.Value:
    """k(x, v) a' + rho as [N, P]: those vectors of a pair's classes, with the coefficients that they have against each
    other. Row r of the coefficients [C - 1, V] has those of a class against the r-th of the other classes.
    """
    count, classes = sum(per_class), len(per_class)
    kernels = _kernels(op, node, count)
    given = _at_least(numbers(node, "coefficients"), (classes - 1) * count, "coefficients")
    coefficients = weight(op, node, "coefficients", given.reshape(classes - 1, count))
    owner = np.repeat(np.arange(classes), per_class)
    pairs = list(combinations(range(classes), 2))
    source = np.array([np.where(owner == i, j - 1, np.where(owner == j, i, 0)) for i, j in pairs], np.int64)
    taking_part = np.array([(owner == i) | (owner == j) for i, j in pairs], np.float32)
    a = op.GatherElements(coefficients, source, axis=0) * taking_part
    rho = weight(op, node, "rho", _at_least(numbers(node, "rho"), len(pairs), "rho"))
    return scores(op, node, op.Gemm(kernels, a, rho, transB=1))


def _votes(op: Builder, raw: ir.Value, pairs: list[tuple[int, int]], classes: int) -> ir.Value:
    """[N, C]: how many pairs each class wins; a score above 0 is a vote for the first of a pair."""
    first, second = (np.zeros((len(pairs), classes), np.float32) for _ in range(2))
    for row, (i, j) in enumerate(pairs):
        first[row, i] = second[row, j] = 1
    won = op.cast(op.Greater(raw, 0), ir.DataType.FLOAT)
    return op.MatMul(won, op.constant(first)) + op.MatMul(1 - won, op.constant(second))


def _kernels(op: Builder, node: ir.Node, count: int) -> ir.Value:
    """k(x, v) of each row and each support vector, as [N, V]."""
    vectors = table(numbers(node, "support_vectors"), count, "support_vectors")
    x = rows(op, node, vectors.shape[1])
    v = weight(op, node, "support_vectors", vectors)
    kind = attribute(node, "kernel_type", "LINEAR")
    gamma, constant, degree = _kernel_params(node)
    if kind == "RBF":  # from differences: squares that cancel each other would lose all digits
        apart = op.Unsqueeze(x, [1]) - v
        return op.Exp(op.ReduceSum(apart * apart, [2], keepdims=0) * -gamma)
    if kind == "LINEAR":
        return op.Gemm(x, v, transB=1)
    if kind not in ("POLY", "SIGMOID"):
        raise RefusedError(f"its kernel_type {kind!r} is not known")
    product = op.Gemm(x, v, transB=1, alpha=gamma) + constant
    return op.Tanh(product) if kind == "SIGMOID" else op.Pow(product, op.constant(degree, ir.DataType.FLOAT))


def _kernel_params(node: ir.Node) -> tuple[float, float, float]:
    given = numbers(node, "kernel_params")
    gamma, constant, degree = _at_least(given, 3, "kernel_params").tolist() if given.size else (0.0, 0.0, 0.0)
    return gamma, constant, degree


def _at_least(values: np.ndarray, count: int, name: str) -> np.ndarray:
    """The first numbers of an attribute, which must have as many; more do not count."""
    if values.size < count:
        raise RefusedError(f"its attribute {name} has {values.size} numbers and needs {count}")
    return values[:count]
