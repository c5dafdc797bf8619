"""The CTC loss: equal to torch's in value, in gradient and in training."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper
from torch.nn import functional

import onward
from onward import losses, onnxblock
from onward.api import CheckpointState, Module, Optimizer
from onward.artifacts import LossType, generate_artifacts
from onward.errors import OnwardError
from onward.testing import check_loss, loss_model, run_on_runtime
from tests.onnxblock.models import model, run, weights

from .torch_parity import normal

EVERY = ("static", "symbolic", "unknown")
# Labels, steps and number of labels of three samples each.
BATCHES = {
    "different labels": ([[1, 2], [2, 3], [4, 1]], [6, 6, 6], [2, 2, 2]),
    "repeated labels": ([[1, 1, 1], [2, 2, 3], [3, 2, 2]], [6, 6, 5], [3, 3, 3]),
    "padding that is no label": ([[1, 1, -1], [2, 99, 99], [3, 2, 1]], [6, 3, 6], [2, 1, 3]),
    "samples without labels": ([[1, 3], [-1, -1], [4, 0]], [6, 4, 5], [2, 0, 1]),
    "no labels at all": (np.zeros((3, 0), np.int64), [6, 4, 1], [0, 0, 0]),
    "as many steps as labels": ([[1, 2, 3], [3, 2, 1], [1, 2, 1]], [3, 3, 4], [3, 3, 3]),
}


def integers(batch):
    return [np.asarray(array, np.int64) for array in batch]


def torch_ctc(x, labels, steps, counts, **options):
    """Value and gradient with respect to logits."""
    logits = torch.tensor(x, requires_grad=True)
    loss = functional.ctc_loss(logits.log_softmax(-1), *map(torch.tensor, (labels, steps, counts)), **options)
    return loss.detach().numpy(), torch.autograd.grad(loss.sum(), logits)[0].numpy()


@pytest.mark.parametrize("batch", BATCHES)
def test_rows_equal_torch(batch):
    x, targets = normal(6, 3, 5), integers(BATCHES[batch])
    loss = functools.partial(losses.ctc, logits=True, reduction="none")
    value, slope = torch_ctc(x, *targets, reduction="none")
    assert np.isfinite(value).all()
    check_loss(loss, [x], targets, value, [slope], differences=batch == "repeated labels", on_runtime=EVERY)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("blank", [0, 2, 4])
def test_reductions_and_blanks_equal_torch(reduction, blank):
    """torch's mean divides by the number of labels, by 1 where there are none."""
    x, targets = normal(6, 3, 5), integers(([[1, 3, 3], [3, 1, 0], [3, 3, 3]], [6, 6, 5], [3, 2, 0]))
    options = {"reduction": reduction, "blank": blank}
    targets[0][targets[0] == blank] = 4 if blank != 4 else 2
    loss = functools.partial(losses.ctc, logits=True, **options)
    value, slope = torch_ctc(x, *targets, **options)
    check_loss(loss, [x], targets, value, [slope], differences=False, on_runtime=["symbolic"])


def test_log_probabilities():
    """The slope is that of the formula; torch adds exp(x), which LogSoftmax takes away again."""
    x = torch.tensor(normal(6, 3, 5)).log_softmax(-1).requires_grad_()
    targets = integers(([[1, 1], [2, 3], [4, 0]], [6, 6, 6], [2, 2, 1]))
    value = functional.ctc_loss(x, *map(torch.tensor, targets))
    slope = torch.autograd.grad(value, x)[0].numpy()
    share = np.exp(x.detach().numpy()) / (targets[2][:, None] * 3)
    check_loss(losses.ctc, [x.detach().numpy()], targets, value.item(), [slope - share], second_order=True)


# Too few steps for the labels and the blanks between equal ones; no steps; no steps and no labels, which is certain.
IMPOSSIBLE = integers(([[1, 2, 3], [1, 1, 1], [2, 1, 1], [1, 2, 3], [4, 4, 4]], [2, 4, 0, 6, 0], [3, 3, 1, 3, 0]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_impossible_alignments(zero_infinity, dtype):
    """They cost inf, or nothing, and do not spoil the gradient; torch's is nan for inf."""
    x = normal(6, 5, 5).astype(dtype)
    options = {"reduction": "none", "zero_infinity": zero_infinity}
    value, slope = torch_ctc(x, *IMPOSSIBLE, **options)
    assert list(np.isinf(value)) == [not zero_infinity] * 3 + [False, False]
    made, feeds = loss_model(functools.partial(losses.ctc, logits=True, **options), [x], IMPOSSIBLE, dtype=dtype)
    feeds["loss_grad"] = np.ones(5, dtype)
    got = run_on_runtime(onward.gradient(made, wrt=["prediction"]), feeds)
    np.testing.assert_allclose(got["loss"], value, rtol=1e-5)
    np.testing.assert_allclose(got["prediction_grad"], np.nan_to_num(slope), rtol=1e-4, atol=1e-6)
    assert got["loss"].dtype == dtype


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_of_zero_and_long_sequences(dtype):
    """-inf where a class is impossible, and probabilities far below what a float can hold."""
    x = torch.tensor(normal(300, 2, 7).astype(dtype) * 30).log_softmax(-1).numpy()
    targets = integers((np.random.default_rng(2).integers(1, 7, (2, 40)), [300, 290], [40, 25]))
    x[3, :, 6] = x[10, :, 0] = -np.inf
    value = functional.ctc_loss(torch.tensor(x), *map(torch.tensor, targets), reduction="none").numpy()
    assert (value > 1000).all()
    made, feeds = loss_model(functools.partial(losses.ctc, reduction="none"), [x], targets, dtype=dtype)
    got = run_on_runtime(onward.gradient(made, wrt=["prediction"]), {**feeds, "loss_grad": np.ones(2, dtype)})
    np.testing.assert_allclose(got["loss"], value, rtol=1e-5)
    # In each step that counts, the shares of all classes make one; a float of several thousand has three digits more.
    wanted = -1.0 * (np.arange(300)[:, None] < targets[1])
    np.testing.assert_allclose(got["prediction_grad"].sum(-1), wanted, atol=2e-3 if dtype == np.float32 else 1e-9)


def test_float16_is_computed_in_float():
    x, targets = normal(6, 3, 5), integers(BATCHES["repeated labels"])
    value, slope = torch_ctc(x, *targets)
    made, feeds = loss_model(functools.partial(losses.ctc, logits=True), [x], targets, dtype=np.float16)
    got = run_on_runtime(onward.gradient(made, wrt=["prediction"]), feeds)
    assert got["loss"].dtype == got["prediction_grad"].dtype == np.float16
    np.testing.assert_allclose(got["loss"], value, rtol=5e-3)
    np.testing.assert_allclose(got["prediction_grad"], slope, atol=5e-3)


@pytest.mark.parametrize("batch", BATCHES)
def test_concatenated_labels(batch):
    """As [sum of the lengths], the other form that torch takes."""
    x, (labels, steps, counts) = normal(6, 3, 5), integers(BATCHES[batch])
    joined = np.concatenate([row[:count] for row, count in zip(labels, counts, strict=True)])
    loss = functools.partial(losses.ctc, logits=True, concatenated=True, reduction="none")
    value, slope = torch_ctc(x, joined, steps, counts, reduction="none")
    check_loss(loss, [x], [joined, steps, counts], value, [slope], differences=False, on_runtime=EVERY)


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_one_sample_without_batch_axis(reduction):
    x, targets = normal(6, 5), [np.array([2, 2, 1]), np.array(6), np.array(3)]
    value, slope = torch_ctc(x, *targets, reduction=reduction)
    for concatenated in (False, True):
        loss = functools.partial(losses.ctc, logits=True, reduction=reduction, concatenated=concatenated)
        check_loss(loss, [x], targets, value, [slope], differences=False)


def test_batch_first():
    x, targets = normal(6, 3, 5), integers(BATCHES["repeated labels"])
    value, slope = torch_ctc(x, *targets)
    loss = functools.partial(losses.ctc, logits=True, batch_first=True)
    check_loss(loss, [x.swapaxes(0, 1)], targets, value, [slope.swapaxes(0, 1)], differences=False)


@pytest.mark.parametrize("opset", [9, 12, 13, 17, 21, 26])
def test_opsets(opset):
    x, targets = normal(6, 3, 5), integers(BATCHES["padding that is no label"])
    value, slope = torch_ctc(x, *targets)
    loss = functools.partial(losses.ctc, logits=True)
    check_loss(loss, [x], targets, value, [slope], opset=opset, differences=False, on_runtime=["symbolic"])


# Training ----------------------------------------------------------------------------------------------------

HIDDEN = {"fc1.weight": (4, 8), "fc1.bias": (8,), "fc2.weight": (8, 5), "fc2.bias": (5,)}


def recognizer(log_probabilities: bool):
    """x [N, T, 4] -> scores y [N, T, 5], or their logarithms [T, N, 5] as torch wants them."""
    nodes = [
        helper.make_node("MatMul", ["x", "fc1.weight"], ["a"], "fc1"),
        helper.make_node("Add", ["a", "fc1.bias"], ["b"], "bias1"),
        helper.make_node("Tanh", ["b"], ["c"], "tanh"),
        helper.make_node("MatMul", ["c", "fc2.weight"], ["d"], "fc2"),
        helper.make_node("Add", ["d", "fc2.bias"], ["e" if log_probabilities else "y"], "bias2"),
    ]
    if log_probabilities:
        nodes.append(helper.make_node("Transpose", ["e"], ["f"], "time_first", perm=[1, 0, 2]))
        nodes.append(helper.make_node("LogSoftmax", ["f"], ["y"], "log_softmax", axis=-1))
    shape = ["T", "N", 5] if log_probabilities else ["N", "T", 5]
    return model(nodes, {"x": ["N", "T", 4]}, {"y": shape}, weights(HIDDEN))


@pytest.mark.parametrize("log_probabilities", [True, False])
def test_training_equals_torch(tmp_path: Path, log_probabilities: bool):
    """Twenty steps of SGD on batches whose sizes and lengths change."""
    loss = LossType.CTCLoss if log_probabilities else onnxblock.loss.CTCLoss(logits=True, batch_first=True)
    made = generate_artifacts(
        recognizer(log_probabilities), loss=loss, optimizer=onward.optim.sgd(), artifact_directory=tmp_path
    )
    assert [value.name for value in made.training_model.graph.input][:4] == [
        *("x", "labels", "input_lengths", "target_lengths")
    ]
    state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
    module = Module(made.paths["training_model"], state, made.paths["eval_model"])
    optimizer = Optimizer(made.paths["optimizer_model"], module)
    optimizer.set_learning_rate(0.1)

    w1, b1, w2, b2 = parameters = [torch.tensor(w, requires_grad=True) for w in weights(HIDDEN).values()]
    reference = torch.optim.SGD(parameters, lr=0.1)
    rng = np.random.default_rng(5)
    got, expected = [], []
    for _ in range(20):
        samples, steps, count = rng.integers(1, 4), rng.integers(7, 12), rng.integers(1, 4)
        x = rng.normal(size=(samples, steps, 4)).astype(np.float32)
        labels = rng.integers(1, 5, (samples, count))
        lengths = rng.integers(6, steps + 1, samples), rng.integers(0, count + 1, samples)
        got.append(float(module(x, labels, *lengths)))
        optimizer.step()
        module.lazy_reset_grad()

        scores = torch.tanh(torch.tensor(x) @ w1 + b1) @ w2 + b2
        value = functional.ctc_loss(scores.log_softmax(-1).swapaxes(0, 1), *map(torch.tensor, (labels, *lengths)))
        reference.zero_grad()
        value.backward()
        reference.step()
        expected.append(value.item())
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    for name, parameter in zip(HIDDEN, parameters, strict=True):
        trained = state.parameters[name].data
        np.testing.assert_allclose(trained, parameter.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_one_file_training_step():
    step = onward.training_step(recognizer(True), loss="ctc", optimizer="sgd")
    x, labels, lengths = normal(2, 8, 4).astype(np.float32), np.array([[1, 2], [3, 3]]), np.array([8, 8])
    feeds = {"x": x, "labels": labels, "input_lengths": lengths, "target_lengths": np.array([2, 2])}
    feeds |= {"learning_rate": np.array(0.5, np.float32), **onward.initial_state(step, recognizer(True))}
    values = []
    for number in range(1, 30):
        results = run(step, {**feeds, "step": np.array(number)})
        feeds.update({name.removesuffix(".updated"): a for name, a in results.items() if name.endswith(".updated")})
        values.append(float(results["loss"]))
    assert values[-1] < values[0] / 2


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((6, 3, 5), {"blank": 5}, r"blank=5 is not one of the 5 classes of the prediction \[6, 3, 5\]"),
        ((6, 3, 5), {"blank": -1}, "ctc needs the index of the blank class, not blank=-1"),
        ((6, 3, 5), {"reduction": "avg"}, "reduction='avg' is not known"),
        ((6, 3, 5, 1), {}, r"ctc takes predictions \[T, N, C\], .* but got shape \[6, 3, 5, 1\]"),
    ],
)
def test_errors(shape, options, message):
    with pytest.raises(OnwardError, match=message):
        loss_model(functools.partial(losses.ctc, **options), [normal(*shape)], integers(BATCHES["repeated labels"]))
