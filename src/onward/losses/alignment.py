"""Connectionist temporal classification: labels in order, at times that nobody knows."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.recurrence import Values, recur
from onward.graph.shapes import dims
from onward.losses.base import check_reduction, targets
from onward.losses.target import checked_labels
from onward.losses.terms import Terms, mean_of

# The logarithm of probability 0: finite, so that differences and slopes are never nan, and so low that a sum with the
# logarithm of any probability that a float can hold stays far below that of a path which is possible.
_IMPOSSIBLE = -1e30


def _fresh(shape: Sequence[int | str | None]) -> ir.Value:
    return ir.Value(name=None, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape(shape))


def _batch(predictions: Sequence[ir.Value], batch_first: bool) -> list[int | str | None]:
    """The batch axis of scores `[T, N, C]` or `[N, T, C]`; there is none in `[T, C]`."""
    known = dims(predictions[0])
    if known is None:
        return [None]
    return [] if len(known) == 2 else [known[0 if batch_first else 1]]


def label_rows(predictions: Sequence[ir.Value], *, batch_first: bool = False, concatenated: bool = False) -> ir.Value:
    """The labels of each sample, int64 `[N, S]`, or those of all samples one after the other."""
    return _fresh([None] if concatenated else [*_batch(predictions, batch_first), None])


def lengths(predictions: Sequence[ir.Value], *, batch_first: bool = False) -> ir.Value:
    """A length for each sample, int64 `[N]`."""
    return _fresh(_batch(predictions, batch_first))


def one_per_sequence(predictions: Sequence[ir.Value], *, batch_first: bool = False) -> ir.Value:
    """A number for each sample, `[N]` in the type of the prediction."""
    return ir.Value(name=None, type=predictions[0].type, shape=ir.Shape(_batch(predictions, batch_first)))


def _over_lengths(op: Builder, rows: ir.Value, *, target_lengths: ir.Value, **others: object) -> Terms:
    """The mean is that of the losses divided by their target lengths."""
    return Terms(rows / _divisors(op, target_lengths, rows))


def _divisors(op: Builder, target_lengths: ir.Value, rows: ir.Value) -> ir.Value:
    assert rows.dtype is not None
    return op.cast(op.Where(op.Less(target_lengths, 1), 1, target_lengths), rows.dtype)


@mean_of(_over_lengths, one_per_sequence)
@targets(labels=label_rows, input_lengths=lengths, target_lengths=lengths)
def ctc(
    op: Builder,
    prediction: ir.Value,
    labels: ir.Value,
    input_lengths: ir.Value,
    target_lengths: ir.Value,
    *,
    blank: int = 0,
    logits: bool = False,
    batch_first: bool = False,
    concatenated: bool = False,
    zero_infinity: bool = False,
    reduction: str = "mean",
) -> ir.Value:
    """-log of the probability of all ways to stretch the labels over time, with blanks between (Graves et al. 2006).

    The prediction is log(probability) `[T, N, C]`, or `[N, T, C]` with `batch_first`, or `[T, C]` for one sample;
    `logits=True` normalises it first. Labels are `[N, S]`, and what is beyond `target_lengths` does not count;
    `concatenated=True` takes them without gaps, as `[sum(target_lengths)]`. As in torch, the mean is that of the losses
    divided by their target lengths (at least 1). A sample with fewer steps than its labels need costs inf, or 0 with
    `zero_infinity`; its slope is 0 either way, where torch's is nan without `zero_infinity`.

    The slope is that of the formula. torch's has exp(x) added, as if the prediction came out of a LogSoftmax, behind
    which both are the same.
    """
    check_reduction(reduction)
    if not isinstance(blank, int) or blank < 0:
        raise OnwardError(f"ctc needs the index of the blank class, not blank={blank!r}")
    known = dims(prediction)
    if known is None or len(known) not in (2, 3):
        found = "an unknown shape" if known is None else f"shape {list(known)}"
        raise OnwardError(f"ctc takes predictions [T, N, C], [N, T, C] with batch_first, or [T, C], but got {found}")
    if isinstance(known[-1], int) and blank >= known[-1]:
        raise OnwardError(f"blank={blank} is not one of the {known[-1]} classes of the prediction {list(known)}")
    alone = len(known) == 2
    if alone:
        prediction = op.Unsqueeze(prediction, [1])
        labels = labels if concatenated else op.Unsqueeze(labels, [0])
        input_lengths, target_lengths = op.reshape(input_lengths, [1]), op.reshape(target_lengths, [1])
    elif batch_first:
        prediction = op.Transpose(prediction, perm=[1, 0, 2])
    # Sums of logarithms over many steps need more digits than 16 bits have.
    dtype = prediction.dtype
    assert dtype is not None
    narrow = dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
    log_prob = op.cast(prediction, ir.DataType.FLOAT) if narrow else prediction
    if logits:
        log_prob = op.LogSoftmax(log_prob, axis=2)

    input_lengths, target_lengths = (op.cast(x, ir.DataType.INT64) for x in (input_lengths, target_lengths))
    labels = op.cast(labels, ir.DataType.INT64)
    if concatenated:
        labels = _padded(op, labels, target_lengths)
    ends = op.Unsqueeze(target_lengths, [1])
    number = op.Unsqueeze(op.Range(0, op.Squeeze(op.dim(labels, 1), [0]), 1), [0])
    # What pads the labels may be anything, but an index must be one.
    labels = checked_labels(op, op.Where(op.Less(number, ends), labels, blank), log_prob, 2, name="labels")
    rows = -_log_likelihood(op, log_prob, labels, input_lengths, ends, blank)

    possible = op.Less(rows, -_IMPOSSIBLE / 2)
    rows = op.Where(possible, rows, 0.0 if zero_infinity else float("inf"))
    if reduction == "mean":
        loss = op.ReduceMean(rows / _divisors(op, target_lengths, rows), keepdims=0)
    elif reduction == "sum":
        loss = op.ReduceSum(rows, keepdims=0)
    else:
        loss = op.Squeeze(rows, [0]) if alone else rows
    return op.cast(loss, dtype)


def _padded(op: Builder, labels: ir.Value, counts: ir.Value) -> ir.Value:
    """Labels that follow each other without gaps as rows `[N, S]`; the gaps hold any of them."""
    first = op.Unsqueeze(op.CumSum(counts, 0, exclusive=1), [1])
    number = op.Unsqueeze(op.Range(0, op.ReduceMax(counts, keepdims=0), 1), [0])
    # One more at the end, because there may be none, and a gap after the last label.
    places = op.Min(first + number, op.Shape(labels))
    return op.Gather(op.Concat(labels, [0], axis=0), places, axis=0)


def _log_likelihood(
    op: Builder, log_prob: ir.Value, labels: ir.Value, input_lengths: ir.Value, target_lengths: ir.Value, blank: int
) -> ir.Value:
    """log p(labels) `[N]` by the forward algorithm over the states blank, label, blank, label, ..., blank.

    alpha[t, l] = x[t, state l] + log(exp alpha[t - 1, l] + exp alpha[t - 1, l - 1] + exp alpha[t - 1, l - 2]), the
    last only for a label that differs from the one before: between equal labels there must be a blank.
    """
    # At least one label, so that there are three states: what moves them by two must not cut off more than there is.
    found = op.dim(labels, 1)
    count = op.Where(op.Less(found, 1), 1, found)
    labels = op.Pad(labels, op.Concat([0, 0, 0], count - found + 1, axis=0), op.constant(blank, ir.DataType.INT64))
    number = op.Unsqueeze(op.Range(0, op.Squeeze(count * 2 + 1, [0]), 1), [0])
    states = op.Gather(labels, op.Squeeze(op.Where(op.Equal(op.Mod(number, 2), 1), number / 2, count), [0]), axis=1)
    # A blank equals the blank before, so there is no way around the label between them.
    skips = op.Not(op.Equal(states, op.Pad(states, [0, 2, 0, -2], op.constant(-1, ir.DataType.INT64))))

    time, batch = (dims(log_prob) or (None, None))[:2]
    shape = op.Concat(op.dim(log_prob, 0), op.Shape(states), axis=0)
    emitted = op.GatherElements(log_prob, op.Expand(states, shape), axis=2)
    emitted = op.Clip(emitted, _IMPOSSIBLE)  # the logarithm of 0 may be given as -inf
    first = op.Where(op.Equal(op.Expand(number, op.Shape(states)), 0), op.constant(0, log_prob.dtype), _IMPOSSIBLE)
    steps = op.reshape(op.Range(0, op.Squeeze(op.dim(log_prob, 0), [0]), 1), [-1, 1, 1])
    running = op.Less(steps, op.Unsqueeze(input_lengths, [0, 2]))
    # Symbols say that nothing broadcasts, which makes a shorter loop.
    names = [batch or op.unique_name("samples"), op.unique_name("states")]
    skips.shape, first.shape = ir.Shape(names), ir.Shape(names)
    emitted.shape, running.shape = ir.Shape([time, *names]), ir.Shape([time, names[0], 1])

    def step(op: Builder, before: Values, slices: Values) -> tuple[Values, Values]:
        (alpha,), (x, goes_on) = before, slices
        moved = [op.Pad(alpha, [0, 0, by, 0, 0, -by], op.constant(_IMPOSSIBLE, alpha.dtype)) for by in (1, 2)]
        for way in moved:
            way.shape = alpha.shape
        ways = op.Concat(alpha, moved[0], op.Where(skips, moved[1], _IMPOSSIBLE), axis=0)
        after = op.Where(goes_on, op.ReduceLogSumExp(ways, [0], keepdims=1) + x, alpha)
        return [after], []

    # Before the first step there is the first blank only, from where that blank and the first label can be reached.
    (last,), _ = recur(op, step, [op.Unsqueeze(first, [0])], [emitted, running], time, names, False)
    last.shape = ir.Shape([1, *names])
    behind = target_lengths * 2 - number
    ends = op.Or(op.Equal(behind, 0), op.Equal(behind, 1))
    return op.ReduceLogSumExp(op.Where(ends, op.Squeeze(last, [0]), _IMPOSSIBLE), [1], keepdims=0)
