"""Losses that no other front-end has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward import losses
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.losses import Loss


def on_last_axis(loss: Loss) -> Loss:
    """A loss of class scores `[N, ..., C]` with labels `[N, ...]`, as language models have them."""

    def tokens(predictions: Sequence[ir.Value]) -> ir.Value:
        """int64 [N, ...]"""
        shape = predictions[0].shape
        inner = None if shape is None else ir.Shape(list(shape)[:-1])
        return ir.Value(name=None, type=ir.TensorType(ir.DataType.INT64), shape=inner)

    @losses.targets(labels=tokens)
    def last_axis(op: Builder, prediction: ir.Value, labels: ir.Value) -> ir.Value:
        if prediction.shape is None:
            raise OnwardError(f"the rank of {prediction.name!r} is not known, so its last axis is not")
        rank = len(prediction.shape)
        return loss(op, op.Transpose(prediction, perm=[0, rank - 1, *range(1, rank - 1)]), labels)

    return last_axis


@losses.targets(labels=losses.class_indices)
def probability_loss(op: Builder, prediction: ir.Value, labels: ir.Value) -> ir.Value:
    """-log(p[label]), for models that end in probabilities which no softmax makes."""
    assert prediction.dtype is not None
    smallest = float(np.finfo(prediction.dtype.numpy()).tiny)
    return losses.nll(op, op.Log(op.Clip(prediction, smallest)), labels)
