"""Losses of class labels: scores `[N, C, d1, ...]`, labels `[N, d1, ...]`, weights `[C]`."""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.shapes import static_size

Row = list[ir.Value | None]


class _Labels(NamedTuple):
    """What the labels of a node say of each of its rows; a value that all rows share is a scalar."""

    chosen: ir.Value  # [N, 1, d1, ...], the class, 0 for a row that is ignored
    ignored: ir.Value | None  # [N, 1, d1, ...]
    weight: ir.Value | None  # [N, 1, d1, ...]
    dloss: ir.Value  # [N, 1, d1, ...] or a scalar, the cotangent of the row's loss before it is weighted


@vjp("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy_loss(
    op: Builder, node: ir.Node, dloss: ir.Value | None, dlog_prob: ir.Value | None = None
) -> Row:
    """loss = -w[label] log softmax(x)[label], so dx = (softmax(x) - onehot(label)) w[label] dloss."""
    log_prob = op.forward_output(node, 1)
    probability = op.Exp(log_prob)
    dx = dweights = None
    if dloss is not None:
        labels = _labels(op, node, dloss)
        # p - 1 in the place of the label, p elsewhere; a one-hot matrix would be as large as all scores.
        difference = op.GatherElements(probability, labels.chosen, axis=1) - 1
        probability_less_onehot = op.ScatterElements(probability, labels.chosen, difference, axis=1)
        dx = probability_less_onehot * _row_cotangent(op, labels)
        dweights = _weights_cotangent(op, node, labels, log_prob)
    if dlog_prob is not None:
        term = dlog_prob - probability * op.ReduceSum(dlog_prob, [1], keepdims=1)
        dx = term if dx is None else dx + term
    return [dx, None, dweights][: len(node.inputs)]


@vjp("NegativeLogLikelihoodLoss")
def negative_log_likelihood_loss(op: Builder, node: ir.Node, dloss: ir.Value) -> Row:
    """loss = -w[label] x[label], so dx = -onehot(label) w[label] dloss."""
    x, labels = node.inputs[0], _labels(op, node, dloss)
    update = op.expand_like(-_row_cotangent(op, labels), labels.chosen)
    dx = op.ScatterElements(op.zeros_like(x), labels.chosen, update, axis=1)
    return [dx, None, _weights_cotangent(op, node, labels, x)][: len(node.inputs)]


def _labels(op: Builder, node: ir.Node, dloss: ir.Value) -> _Labels:
    target, weights = node.inputs[1], input_at(node, 2)
    reduction, ignore_index = attribute(node, "reduction", "mean"), attribute(node, "ignore_index", None)
    index, ignored = op.Unsqueeze(target, [1]), None
    if ignore_index is not None:
        # It may lie outside of the classes.
        ignored = op.Equal(index, ignore_index)
        index = op.Where(ignored, 0, index)
    weight = None if weights is None else op.Gather(weights, index, axis=0)
    if reduction == "none":
        dloss = op.Unsqueeze(dloss, [1])
    elif reduction == "mean":
        dloss = dloss / _total_weight(op, target, ignored, weight, dloss)
    return _Labels(index, ignored, weight, dloss)


def _total_weight(
    op: Builder, target: ir.Value, ignored: ir.Value | None, weight: ir.Value | None, like: ir.Value
) -> ir.Value | float:
    """What the mean divides by: the sum of the weights of the rows that are not ignored."""
    if ignored is None and weight is None:
        rows = static_size(target)
        return op.cast(op.Size(target), like.dtype) if rows is None else float(rows)
    if ignored is None:
        return op.ReduceSum(weight, keepdims=0)
    counted = op.cast(op.Not(ignored), like.dtype) if weight is None else op.Where(ignored, 0, weight)
    return op.ReduceSum(counted, keepdims=0)


def _row_cotangent(op: Builder, labels: _Labels) -> ir.Value:
    """The cotangent of -log_prob[label] of each row."""
    cotangent = labels.dloss if labels.weight is None else labels.dloss * labels.weight
    return cotangent if labels.ignored is None else op.Where(labels.ignored, 0, cotangent)


def _weights_cotangent(op: Builder, node: ir.Node, labels: _Labels, log_prob: ir.Value) -> ir.Value | None:
    """dw[c] sums -log_prob[label] - (the loss, where a mean is divided by w) over the rows of class c."""
    weights = input_at(node, 2)
    if weights is None:
        return None
    row_loss = -op.GatherElements(log_prob, labels.chosen, axis=1)
    if attribute(node, "reduction", "mean") == "mean":
        row_loss = row_loss - node.outputs[0]
    dweight = row_loss * labels.dloss
    if labels.ignored is not None:
        dweight = op.Where(labels.ignored, 0, dweight)
    classes = op.Range(0, op.reshape(op.dim(weights, 0), []), 1)
    onehot = op.cast(op.Equal(op.cast(op.Reshape(labels.chosen, [-1, 1]), ir.DataType.INT64), classes), weights.dtype)
    return op.Reshape(op.MatMul(op.Reshape(dweight, [1, -1]), onehot), [-1])
