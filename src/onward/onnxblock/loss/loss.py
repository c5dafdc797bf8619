"""The losses of `onward.losses` as blocks; see there for the formulas.

A target whose name is not in the model yet becomes a new graph input.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from onward import losses
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.losses.base import REDUCTIONS, Weights
from onward.onnxblock import model_accessor
from onward.onnxblock.block import Block
from onward.onnxblock.tracing import trace_loss


class FunctionLoss(Block):
    """Any loss in the builder notation, ``(op, prediction, *targets)``, with its options."""

    def __init__(self, function: str | losses.Loss, **options: Any) -> None:
        super().__init__()
        function = losses.get(function)
        reduction = options.get("reduction", "mean")
        if reduction not in (*REDUCTIONS, "batchmean"):
            raise OnwardError(f"Reduction {reduction} not supported. Use one of {', '.join(REDUCTIONS)}.")
        self._reduction = reduction
        self._function = functools.partial(function, **options) if options else function

    @property
    def predictions(self) -> int:
        """How many values the loss takes besides its targets; one where the function does not say."""
        return losses.prediction_count(self._function) or 1

    def build(self, *loss_input_names: str, **target_names: str) -> str:
        """The loss of these values: the predictions, then names for the targets, in order or by parameter."""
        declared = losses.declared_signature(self._function)
        count = len(loss_input_names) if declared is None else len(declared.predictions)
        named = {} if declared is None else dict(zip(declared.targets, loss_input_names[count:], strict=False))
        return self._emit(self._function, loss_input_names[:count], **named, **target_names)

    def _emit(self, function: losses.Loss, predictions: Sequence[str], **target_names: str) -> str:
        return trace_loss(model_accessor.current(), function, predictions, target_names)


class _Elementwise(FunctionLoss):
    """A loss whose target looks like its prediction."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:  # type: ignore[override]
        return self._emit(self._function, [loss_input_name], target=target_name)


class MSELoss(_Elementwise):
    """The mean (sum, or none) of squared differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(losses.mse, reduction=reduction)


class L1Loss(_Elementwise):
    """The mean (sum, or none) of absolute differences."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(losses.l1, reduction=reduction)


class SmoothL1Loss(_Elementwise):
    """Quadratic below `beta`, absolute above."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(losses.smooth_l1, reduction=reduction, beta=beta)


class HuberLoss(_Elementwise):
    """Quadratic below `delta`, linear above."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(losses.huber, reduction=reduction, delta=delta)


class PoissonNLLLoss(_Elementwise):
    """Counts, and the (logarithm of the) rate of their Poisson distribution."""

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(losses.poisson_nll, log_input=log_input, full=full, eps=eps, reduction=reduction)


class BCELoss(_Elementwise):
    """Binary cross entropy of probabilities."""

    def __init__(self, weight: Weights | None = None, reduction: str = "mean") -> None:
        super().__init__(losses.bce, weight=weight, reduction=reduction)


class BCEWithLogitsLoss(_Elementwise):
    """Binary cross entropy of logits, finite for all of them."""

    def __init__(
        self, weight: Weights | None = None, reduction: str = "mean", pos_weight: Weights | None = None
    ) -> None:
        super().__init__(losses.bce_with_logits, weight=weight, reduction=reduction, pos_weight=pos_weight)


class BinaryFocalLoss(_Elementwise):
    """Focal loss of logits of two classes."""

    def __init__(self, alpha: float | None = 0.25, gamma: float = 2.0, reduction: str = "mean") -> None:
        super().__init__(losses.binary_focal, alpha=alpha, gamma=gamma, reduction=reduction)


class KLDivLoss(_Elementwise):
    """Kullback-Leibler divergence of logarithms of probabilities from probabilities."""

    def __init__(self, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(losses.kl_div, reduction=reduction, log_target=log_target)


class HingeLoss(_Elementwise):
    """max(0, margin - t x) for targets -1 and 1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(losses.hinge, margin=margin, reduction=reduction)


class HingeEmbeddingLoss(_Elementwise):
    """A distance for target 1, what it lacks to the margin for target -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(losses.hinge_embedding, margin=margin, reduction=reduction)


class SoftMarginLoss(_Elementwise):
    """log(1 + exp(-t x)) for targets -1 and 1."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__(losses.soft_margin, reduction=reduction)


class SoftCrossEntropyLoss(_Elementwise):
    """Cross entropy with probabilities of the classes as target; classes are on axis 1."""

    def __init__(self, weight: Weights | None = None, reduction: str = "mean", label_smoothing: float = 0.0) -> None:
        super().__init__(losses.soft_cross_entropy, weight=weight, reduction=reduction, label_smoothing=label_smoothing)


class _Classification(FunctionLoss):
    """A loss of class scores and labels.

    The classes are on axis 1 of the scores, as in torch and in the ONNX standard: `[N, C]` with labels `[N]`,
    `[N, C, H, W]` with labels `[N, H, W]`. Scores of rank 3 are those of a sequence, `[N, S, C]` with labels `[N, S]`:
    there the classes are on the last axis, which is where the original looks for them too. `class_axis` (1 or -1)
    says otherwise.
    """

    def __init__(self, function: losses.Loss, class_axis: int | None = None, **options: Any) -> None:
        super().__init__(function, **options)
        if class_axis not in (None, 1, -1):
            raise OnwardError(f"class_axis must be 1, -1 or None, not {class_axis!r}")
        self._class_axis = class_axis

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:  # type: ignore[override]
        shape = model_accessor.current().prepared_value(scores_input_name).shape
        rank = None if shape is None else len(shape)
        axis = self._class_axis or (-1 if rank == 3 else 1)
        last = axis == -1 and rank is not None and rank > 2
        function = _over_last_axis(self._function, self._reduction) if last else self._function
        return self._emit(function, [scores_input_name], labels=labels_name)


def _over_last_axis(loss: losses.Loss, reduction: str) -> losses.Loss:
    """A loss of rows `[N, C]` for scores `[d1, d2, ..., C]` and labels `[d1, d2, ...]`."""

    @losses.targets(labels=_indices_of_last_axis)
    def over_last_axis(op: Builder, prediction: ir.Value, labels: ir.Value) -> ir.Value:
        assert prediction.shape is not None
        classes, axis = prediction.shape[-1], len(prediction.shape) - 1
        # Reshaping costs nothing, while moving the classes to axis 1 would copy all scores.
        shape = [-1, classes] if isinstance(classes, int) else op.Concat([-1], op.dim(prediction, axis), axis=0)
        rows, flat = op.reshape(prediction, shape), op.reshape(labels, [-1])
        rows.shape, flat.shape = ir.Shape([None, classes]), ir.Shape([None])
        result = loss(op, prediction=rows, labels=flat)
        return op.reshape_like(result, labels) if reduction == "none" else result

    return over_last_axis


def _indices_of_last_axis(predictions: Sequence[ir.Value]) -> ir.Value:
    shape = predictions[0].shape
    assert shape is not None
    return ir.Value(name=None, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(shape[:-1]))


class CrossEntropyLoss(_Classification):
    """Cross entropy of scores (logits) `[N, C]`, `[N, S, C]` or `[N, C, d1, d2, ...]` with one label for each row.

    `weight` is one number a class; labels equal to `ignore_index` do not count. For scores of rank 3, `class_axis=1`
    says that they are `[N, C, d1]`.
    """

    def __init__(
        self,
        weight: Weights | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        *,
        class_axis: int | None = None,
    ) -> None:
        options = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
        super().__init__(losses.cross_entropy, class_axis, weight=weight, reduction=reduction, **options)


class NLLLoss(_Classification):
    """Negative log likelihood of logarithms of probabilities; axes as in CrossEntropyLoss."""

    def __init__(
        self,
        weight: Weights | None = None,
        reduction: str = "mean",
        ignore_index: int | None = None,
        *,
        class_axis: int | None = None,
    ) -> None:
        super().__init__(losses.nll, class_axis, weight=weight, reduction=reduction, ignore_index=ignore_index)


class FocalLoss(_Classification):
    """Focal loss of scores (logits); axes as in CrossEntropyLoss."""

    def __init__(
        self,
        alpha: Weights | None = None,
        gamma: float = 2.0,
        reduction: str = "mean",
        ignore_index: int | None = None,
        *,
        class_axis: int | None = None,
    ) -> None:
        options = {"alpha": alpha, "gamma": gamma, "ignore_index": ignore_index}
        super().__init__(losses.focal, class_axis, reduction=reduction, **options)


class MultiMarginLoss(_Classification):
    """The hinge loss of several classes; axes as in CrossEntropyLoss."""

    def __init__(
        self,
        p: int = 1,
        margin: float = 1.0,
        weight: Weights | None = None,
        reduction: str = "mean",
        *,
        class_axis: int | None = None,
    ) -> None:
        super().__init__(losses.multi_margin, class_axis, p=p, margin=margin, weight=weight, reduction=reduction)


class GaussianNLLLoss(FunctionLoss):
    """Numbers, and mean and variance of their normal distribution."""

    def __init__(self, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(losses.gaussian_nll, full=full, eps=eps, reduction=reduction)

    def build(  # type: ignore[override]
        self, loss_input_name: str, variance_name: str, target_name: str = "target"
    ) -> str:
        return self._emit(self._function, [loss_input_name, variance_name], target=target_name)


class CosineEmbeddingLoss(FunctionLoss):
    """The angle between two vectors, which should be small for target 1 and not for target -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(losses.cosine_embedding, margin=margin, reduction=reduction)

    def build(  # type: ignore[override]
        self, first_name: str, second_name: str, target_name: str = "target"
    ) -> str:
        return self._emit(self._function, [first_name, second_name], target=target_name)


class TripletMarginLoss(FunctionLoss):
    """An anchor should be nearer to the positive than to the negative; no target."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, reduction: str = "mean"
    ) -> None:
        super().__init__(losses.triplet, margin=margin, p=p, eps=eps, swap=swap, reduction=reduction)

    def build(self, anchor_name: str, positive_name: str, negative_name: str) -> str:  # type: ignore[override]
        return self._emit(self._function, [anchor_name, positive_name, negative_name])


class CTCLoss(FunctionLoss):
    """Labels in order, at unknown times: log(probability) `[T, N, C]`, labels `[N, S]` and the lengths of both.

    The defaults are torch's. `logits` normalises the prediction first, `batch_first` takes it as `[N, T, C]`, and
    `concatenated` takes the labels of all samples one after the other.
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        logits: bool = False,
        batch_first: bool = False,
        concatenated: bool = False,
    ) -> None:
        layout = {"logits": logits, "batch_first": batch_first, "concatenated": concatenated}
        super().__init__(losses.ctc, blank=blank, reduction=reduction, zero_infinity=zero_infinity, **layout)

    def build(  # type: ignore[override]
        self,
        loss_input_name: str,
        labels_name: str = "labels",
        input_lengths_name: str = "input_lengths",
        target_lengths_name: str = "target_lengths",
    ) -> str:
        names = {"input_lengths": input_lengths_name, "target_lengths": target_lengths_name}
        return self._emit(self._function, [loss_input_name], labels=labels_name, **names)
