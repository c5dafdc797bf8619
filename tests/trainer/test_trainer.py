"""`Trainer`: fit, evaluate, predict, export, and what users do wrong."""

from __future__ import annotations

import functools
import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from onward import losses, optim
from onward.api import CheckpointState
from onward.errors import NonFiniteError, NonFiniteWarning, OnwardError, UnknownNameError
from onward.trainer import loop
from onward.trainer.data import Field, source
from tests.trainer.toys import classifier, labelled, regressor


def test_fit_evaluate_predict_export(tmp_path: Path) -> None:
    x, y = labelled(300)
    trainer = onward.Trainer(classifier(), "cross_entropy", learning_rate=0.02, metrics=["accuracy"])
    before = trainer.evaluate(x, y)
    history = trainer.fit(x, y, epochs=6, validation=labelled(50, seed=1))
    assert history is trainer.history
    assert set(history.columns) == {"epoch", "loss", "accuracy", "val_loss", "val_accuracy", "rate", "seconds"}
    after = trainer.evaluate(x, y)
    assert after["loss"] < before["loss"] / 2
    assert after["accuracy"] > 0.9
    scores = trainer.predict(x)
    assert scores.shape == (300, 3)
    assert (scores.argmax(axis=1) == y).mean() == after["accuracy"]

    trainer.export(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    np.testing.assert_array_equal(session.run(["scores"], {"x": x})[0], trainer.predict(x, batch_size=300))
    original, exported = classifier().graph, onnx.load(tmp_path / "trained.onnx").graph
    assert list(exported.input) == list(original.input)
    assert list(exported.output) == list(original.output)


@pytest.fixture(scope="module")
def trained() -> onward.Trainer:
    """For tests that do not care what it has learned."""
    return onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.01)


# Data -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 5])
def test_a_batch_larger_than_the_data(trained: onward.Trainer, rows: int) -> None:
    before = trained.steps
    trained.fit(*labelled(rows), batch_size=64)
    assert trained.steps == before + 1


def test_no_rows(trained: onward.Trainer) -> None:
    x, y = labelled(1)
    for call in (trained.fit, trained.evaluate):
        with pytest.raises(OnwardError, match="there is no data"):
            call(x[:0], y[:0])
    with pytest.raises(OnwardError, match="there is no data"):
        trained.predict(x[:0])


def test_no_epochs(trained: onward.Trainer) -> None:
    before = trained.snapshot()
    trained.fit(*labelled(10), epochs=0)
    assert all(np.array_equal(before[name], array) for name, array in trained.snapshot().items())
    with pytest.raises(OnwardError, match="`epochs` is a number, at least 0"):
        trained.fit(*labelled(10), epochs=-1)


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int64, np.float64])
def test_labels_of_any_number_type(trained: onward.Trainer, dtype: Any) -> None:
    x, y = labelled(20)
    assert trained.evaluate(x, y.astype(dtype)) == trained.evaluate(x, y)


def test_labels_that_are_none(trained: onward.Trainer) -> None:
    x, y = labelled(20)
    with pytest.raises(OnwardError, match="encode it as numbers first"):
        trained.fit(x, y.astype(str))
    with pytest.raises(OnwardError, match="from 0 to 2"):
        trained.fit(x, y + 1)
    assert np.isfinite(trained.evaluate(x, y)["loss"])


def test_inputs_are_named(trained: onward.Trainer) -> None:
    x, y = labelled(20)
    trained.fit({"x": x, "labels": y})
    with pytest.raises(UnknownNameError, match="input 'x' is missing"):
        trained.fit({"z": x, "labels": y})
    with pytest.raises(OnwardError, match="has shape \\[N, 4\\], but the data has \\[20, 3\\]"):
        trained.fit(x[:, :3], y)


def test_targets_are_not_broadcast() -> None:
    """`[N]` and `[N, 1]` mean the same here; anything else is an error."""
    x = labelled(20)[0]
    y = x.sum(axis=1)
    trainer = onward.Trainer(regressor(), "mse", "sgd", learning_rate=0.1)
    flat, column = trainer.evaluate(x, y)["loss"], trainer.evaluate(x, y[:, None])["loss"]
    prediction = trainer.predict(x)
    assert flat == column == pytest.approx(np.mean((prediction[:, 0] - y) ** 2), rel=1e-5)
    with pytest.raises(OnwardError, match="target 'target'"):
        trainer.evaluate(x, np.stack([y, y], axis=1))
    assert trainer.fit(x, y, epochs=30)["loss"][-1] < flat / 10


def test_validation_may_be_a_part_of_the_rows() -> None:
    x, y = labelled(50)
    trainer = onward.Trainer(classifier(), "cross_entropy", seed=1)
    rows: list[int] = []
    trainer.fit(
        x, y, validation=0.2, callbacks=[onward.callbacks.Lambda(on_epoch_end=lambda run: rows.append(run.rows))]
    )
    assert rows == [40]
    assert trainer.history["val_loss"][0] > 0
    for wrong in (0.0, 1.0, 1.5):
        with pytest.raises(OnwardError, match="a part of the rows between 0 and 1"):
            trainer.fit(x, y, validation=wrong)
    with pytest.raises(OnwardError, match="one row only"):
        trainer.fit(x[:1], y[:1], validation=0.5)
    with pytest.raises(OnwardError, match="the data yields batches"):
        trainer.fit([(x, y)], validation=0.5)


def test_validation_may_be_named(trained: onward.Trainer) -> None:
    x, y = labelled(20)
    history = trained.fit({"x": x, "labels": y}, validation={"x": x, "labels": y})
    assert history["val_loss"][-1] == trained.evaluate(x, y)["loss"]


# What training is -----------------------------------------------------------------------------------------------------


def test_train_step_takes_one_batch() -> None:
    x, y = labelled(100)
    one, other = (onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.1) for _ in range(2))
    losses_ = [one.train_step((x, y)), one.train_step({"x": x, "labels": y})]
    history = other.fit(x, y, epochs=2, batch_size=100, shuffle=False)
    assert history.losses == losses_
    assert one.steps == 2


def test_the_seed_decides_order_and_dropout() -> None:
    found = []
    for seed in (0, 0, 1):
        trainer = onward.Trainer(classifier(dropout=True), "cross_entropy", seed=seed)
        found.append(trainer.fit(*labelled(40), epochs=2, batch_size=8).losses)
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_evaluation_is_as_in_inference() -> None:
    """No Dropout, and the running statistics of BatchNormalization, which evaluation does not change."""
    x, y = labelled(40)
    trainer = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy")
    trainer.fit(x, y, epochs=2, batch_size=8)
    before = trainer.snapshot()
    assert not np.array_equal(before["mean"], np.zeros(16))
    assert trainer.evaluate(x, y, batch_size=40)["loss"] == pytest.approx(trainer.evaluate(x, y, batch_size=7)["loss"])
    assert all(np.array_equal(before[name], array) for name, array in trainer.snapshot().items())


def test_names_and_patterns_say_what_is_trained() -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", trainable=["*2"])
    before = trainer.snapshot()
    assert set(before) == {"w2", "b2"}
    trainer = onward.Trainer(classifier(), "cross_entropy", frozen="w*")
    assert set(trainer.snapshot()) == {"b1", "b2"}
    with pytest.raises(UnknownNameError, match="`frozen` names 'w3'"):
        onward.Trainer(classifier(), "cross_entropy", frozen=["w3"])


def test_weights_of_rows() -> None:
    """Rows of weight 0 do not count, in training and in evaluation."""
    x, y = labelled(40)
    weight = (np.arange(40) % 2).astype(np.float32) * 3
    weighted = onward.Trainer(classifier(), "cross_entropy", "sgd", sample_weight=True, accumulate=3)
    plain = onward.Trainer(classifier(), "cross_entropy", "sgd")
    odd = slice(1, None, 2)
    for size in (3, 40):
        assert weighted.evaluate(x, y, sample_weight=weight, batch_size=size)["loss"] == pytest.approx(
            plain.evaluate(x[odd], y[odd])["loss"], rel=1e-5
        )
    weighted.fit(x, y, sample_weight=weight, batch_size=8, shuffle=False, epochs=2)
    plain.fit(x[odd], y[odd], batch_size=12, shuffle=False, epochs=2)
    np.testing.assert_allclose(weighted.history.losses, plain.history.losses, rtol=1e-5)
    with pytest.raises(OnwardError, match="sample_weight=True"):
        plain.fit(x, y, sample_weight=weight)


def test_a_model_with_a_loss_of_its_own() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 2] x, float[N, 1] y) => (float loss, float[N, 1] guess) <float[2, 1] w = {0.5, -0.5}> {
            guess = MatMul(x, w)  d = Sub(guess, y)  s = Mul(d, d)  loss = ReduceMean <keepdims = 0> (s)
        }
    """)
    x = labelled(30)[0][:, :2]
    y = x.sum(axis=1, keepdims=True)
    trainer = onward.Trainer(model, None, "sgd", learning_rate=0.1, trainable=["w"])
    history = trainer.fit({"x": x, "y": y}, epochs=20)
    assert history["loss"][-1] < history["loss"][0] / 10
    assert trainer.evaluate((x, y))["loss"] == pytest.approx(np.mean((trainer.predict({"x": x}) - y) ** 2), rel=1e-4)
    measured = onward.Trainer(model, None, metrics={"error": ("mse", "guess", "y")}, trainable=["w"])
    results = measured.evaluate((x, y), batch_size=7)
    assert results["error"] == pytest.approx(results["loss"], rel=1e-5)
    assert measured.evaluate(x, y, batch_size=7) == results
    assert set(measured.fit((x, y), validation=0.2).columns) >= {"error", "val_error"}
    for metrics in (["mse"], {"error": "mse"}, {"error": ("mse", "guess")}):
        with pytest.raises(OnwardError, match=r"Name an output and an input: metrics=.*'guess'"):
            onward.Trainer(model, None, metrics=metrics, trainable=["w"])
    with pytest.raises(UnknownNameError, match=r"the output 'loss'; there are 'guess'"):
        onward.Trainer(model, None, metrics={"error": ("mse", "loss", "y")}, trainable=["w"])


def test_a_function_that_does_not_say_what_its_targets_are() -> None:
    def own(op: Any, scores: Any, labels: Any) -> Any:
        return losses.cross_entropy(op, scores, labels)

    with pytest.raises(OnwardError, match=r"@onward\.losses\.targets"):
        onward.Trainer(classifier(), own)


def test_models_with_several_outputs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 3] probabilities, int64[N] label) <float[4, 3] w = {0.1, 0.2, 0.3, 0.4, 0.5,
            0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2}> {
            scores = MatMul(x, w)
            probabilities = Softmax(scores)
            label = ArgMax <axis = 1, keepdims = 0> (scores)
        }
    """)
    x, y = labelled(60)
    with pytest.raises(OnwardError, match=r"several outputs.*`loss_inputs`"):
        onward.Trainer(model, "cross_entropy")
    trainer = onward.Trainer(
        model, "cross_entropy", loss_inputs="scores", trainable="w", metrics=["accuracy"], learning_rate=0.1
    )
    trainer.fit(x, y, epochs=20)
    found = trainer.predict(x, batch_size=17)
    assert set(found) == {"probabilities", "label"}
    assert (found["label"] == y).mean() == pytest.approx(trainer.evaluate(x, y)["accuracy"])
    trainer.export(tmp_path / "model.onnx")
    assert [value.name for value in onnx.load(tmp_path / "model.onnx").graph.output] == ["probabilities", "label"]
    trainer.export(tmp_path / "scores.onnx", ["scores"])
    assert [value.name for value in onnx.load(tmp_path / "scores.onnx").graph.output] == ["scores"]


def test_outputs_that_are_no_tensors(tmp_path: Path) -> None:
    """A list of dictionaries, as skl2onnx makes it of a classifier."""
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    x, y = labelled(60)
    model = to_onnx(LogisticRegression(C=1e-3).fit(x, y), x[:1], target_opset=18)
    trainer = onward.Trainer(
        model, "cross_entropy", optim.sgd(0.5), loss_inputs=["LinearClassifier.scores"], metrics=["accuracy"]
    )
    trainer.fit(x, y, epochs=20)
    found = trainer.predict(x, batch_size=25)
    assert (found["output_label"] == y).mean() == trainer.evaluate(x, y)["accuracy"] > 0.9
    assert len(found["output_probability"]) == 60
    trainer.export(tmp_path / "trained.onnx")
    original, exported = model.graph, onnx.load(tmp_path / "trained.onnx").graph
    assert list(exported.input) == list(original.input)
    assert list(exported.output) == list(original.output)
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    labels, probabilities = session.run(None, {"X": x})
    np.testing.assert_array_equal(labels, found["output_label"])
    assert probabilities[0] == pytest.approx(found["output_probability"][0])


def test_metrics_say_what_they_compare() -> None:
    """Two heads, two targets, one loss over both."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 3] scores, float[N, 1] value) <float[4, 3] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6,
            0.7, 0.8, 0.9, 1.0, 1.1, 1.2}, float[4, 1] v = {0.1, 0.2, 0.3, 0.4}> {
            scores = MatMul(x, w)  value = MatMul(x, v)
        }
    """)

    @losses.targets(labels=losses.class_indices, amount=lambda predictions: _like(predictions[1]))
    def both(op: Any, scores: Any, value: Any, labels: Any, amount: Any) -> Any:
        return losses.cross_entropy(op, scores, labels) + losses.mse(op, value, amount)

    x, y = labelled(60)
    amount = x.sum(axis=1, keepdims=True)
    trainer = onward.Trainer(
        model,
        both,
        learning_rate=0.05,
        trainable=["w", "v"],
        metrics={"right": ("accuracy", "scores"), "error": ("mse", "value", "amount")},
    )
    history = trainer.fit({"x": x, "labels": y, "amount": amount}, epochs=20)
    assert history["right"][-1] > 0.8
    found = trainer.predict(x)
    expected = np.mean((found["value"] - amount) ** 2)
    assert trainer.evaluate((x, (y, amount)))["error"] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(UnknownNameError, match="cannot look at the output 'h'"):
        trainer.evaluate((x, (y, amount)), metrics={"m": ("mse", "h")})


def _like(value: Any) -> Any:
    return losses.like_prediction([value])


def test_names_that_epochs_have_already() -> None:
    def loss(prediction: Any, target: Any) -> float:
        return 0.0

    with pytest.raises(OnwardError, match="a metric cannot be called 'loss'"):
        onward.Trainer(classifier(), "cross_entropy", metrics=[loss])
    trainer = onward.Trainer(classifier(), "cross_entropy", metrics={"nothing": loss})
    assert trainer.evaluate(*labelled(10))["nothing"] == 0


def test_a_generator_is_one_epoch(trained: onward.Trainer) -> None:
    x, y = labelled(10)
    batches = ((x, y) for _ in range(3))
    before = trained.steps
    for options in ({"data": batches}, {"data": x, "targets": y, "validation": batches}):
        with pytest.raises(OnwardError, match="is a generator, which yields its batches once, but epochs=2"):
            trained.fit(**options, epochs=2)
    trained.fit(batches)
    assert trained.steps == before + 3


def test_two_trainers_in_two_threads() -> None:
    x, y = labelled(64)
    alone = onward.Trainer(classifier(dropout=True), "cross_entropy").fit(x, y, epochs=4, batch_size=8).losses
    trainers = [onward.Trainer(classifier(dropout=True), "cross_entropy") for _ in range(2)]
    threads = [threading.Thread(target=functools.partial(made.fit, x, y, epochs=4, batch_size=8)) for made in trainers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [made.history.losses for made in trainers] == [alone, alone]


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_stops(tmp_path: Path) -> None:
    """The message says where; nothing has changed by that step, and there is a checkpoint of the one before."""
    x, y = labelled(40)
    x[13] = np.nan
    trainer = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy", "sgd", learning_rate=0.25)
    with pytest.raises(NonFiniteError) as caught:
        trainer.fit(x, y, batch_size=4, shuffle=False, directory=tmp_path)
    message = str(caught.value)
    assert "step 3 (epoch 0, batch 3 with 4 rows, learning rate 0.25), rows 12, 13, 14, 15 of the data" in message
    assert "the loss is nan: input 'x' has elements that are NaN or infinite" in message
    assert trainer.steps == 3
    assert all(np.isfinite(array).all() for array in trainer.snapshot().values())
    good = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy", "sgd", learning_rate=0.25)
    good.fit(x[:12], y[:12], batch_size=4, shuffle=False)
    assert all(np.array_equal(array, good.snapshot()[name]) for name, array in trainer.snapshot().items())
    again = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy", "sgd", learning_rate=0.25)
    again.load(tmp_path / "step-000000003.checkpoint")
    assert all(np.array_equal(array, good.snapshot()[name]) for name, array in again.snapshot().items())
    with pytest.warns(NonFiniteWarning):
        assert np.isnan(trainer.evaluate(x, y)["loss"])


def test_a_model_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    """A rate that is far too high makes parameters infinite while the loss is still a number."""
    x, y = labelled(16)
    x *= np.float32(1e10)
    trainer = onward.Trainer(regressor(), functools.partial(losses.mse, reduction="sum"), "sgd", learning_rate=3e18)
    with pytest.raises(NonFiniteError):
        trainer.fit(x, y.astype(np.float32), batch_size=16, epochs=3, directory=tmp_path)
    for path in tmp_path.iterdir():
        saved = CheckpointState.load_checkpoint(path)
        assert all(np.isfinite(parameter.data).all() for _, parameter in saved.parameters)


def test_labels_of_which_none_counts() -> None:
    trainer = onward.Trainer(classifier(), functools.partial(losses.cross_entropy, ignore_index=0), "sgd")
    x, y = labelled(8)
    with pytest.raises(NonFiniteError, match="no label counts"):
        trainer.fit(x, np.zeros_like(y))


def test_a_callback_that_raises(trained: onward.Trainer) -> None:
    ended = []

    def fail(run: Any) -> None:
        raise ZeroDivisionError("mine")

    callbacks = [onward.callbacks.Lambda(on_step_end=fail), onward.callbacks.Lambda(on_fit_end=ended.append)]
    with pytest.raises(ZeroDivisionError, match="mine"):
        trained.fit(*labelled(10), callbacks=callbacks)
    assert isinstance(ended[0].error, ZeroDivisionError)
    trained.fit(*labelled(10))
    with pytest.raises(ZeroDivisionError, match="mine"):
        trained.fit(*labelled(10), callbacks=[onward.callbacks.Lambda(on_fit_end=fail)])
    with pytest.raises(OnwardError, match=r"a callback is an onward\.callbacks.Callback"):
        trained.fit(*labelled(10), callbacks=[print])  # type: ignore[list-item]


def test_places_that_cannot_be_written(trained: onward.Trainer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = trained.steps
    with pytest.raises(OnwardError, match="checkpoints cannot be written to"):
        trained.fit(*labelled(10), directory=tmp_path / "file")
    assert trained.steps == before
    with pytest.raises(OnwardError, match="there is no directory"):
        trained.export(tmp_path / "missing" / "model.onnx")
    with pytest.raises(OnwardError, match="it is a directory"):
        trained.save(tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"accumulate": 0}, "`accumulate` is a number of batches"),
        ({"seed": "no"}, "`seed` is an integer"),
        ({"loss": "crossentropy"}, "there is no loss 'crossentropy'"),
        ({"optimizer": "adamx"}, "there is no optimizer 'adamx'"),
        ({"schedule": "cosin"}, "there is no schedule 'cosin'"),
        ({"schedule": ("step", {"size": 3})}, "has no option 'size'"),
        ({"schedule": 3}, "`schedule` is one of"),
        ({"metrics": ["acuracy"]}, "is 'accuracy' meant"),
        ({"clip": -1.0}, "needs a positive bound"),
        ({"learning_rate": -1.0}, "not negative"),
        ({"device": "tpu"}, "Unsupported device type"),
        ({"trainable": []}, "`trainable` is empty"),
    ],
)
def test_arguments_that_mean_nothing(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OnwardError, match=said):
        onward.Trainer(**{"model": classifier(), "loss": "cross_entropy", **options})


def test_a_schedule_needs_the_number_of_steps() -> None:
    x, y = labelled(8)
    trainer = onward.Trainer(classifier(), "cross_entropy", schedule="cosine")
    with pytest.raises(OnwardError, match="depends on the number of steps, which is not known here"):
        trainer.fit(lambda: iter([(x, y)]))


@pytest.mark.parametrize("name", onward.optim.schedules.names())
def test_every_schedule_by_name(name: str) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.1, schedule=name)
    history = trainer.fit(*labelled(24), batch_size=4, epochs=2)
    assert len(history.losses) == 12
    assert all(0 <= rate <= 0.1 for rate in history["rate"])


# Files and descriptions -----------------------------------------------------------------------------------------------


def test_save_and_load(tmp_path: Path) -> None:
    x, y = labelled(40)
    whole = onward.Trainer(classifier(dropout=True), "cross_entropy", schedule="reduce_on_plateau")
    whole.fit(x, y, epochs=3)
    whole.save(tmp_path / "saved")
    part = onward.Trainer(classifier(dropout=True), "cross_entropy", schedule="reduce_on_plateau")
    part.load(tmp_path / "saved")
    assert part.history == whole.history
    for made in (whole, part):
        made.fit(x, y, epochs=2)
    assert part.history.losses == whole.history.losses
    assert part.epochs == 5
    state = CheckpointState.load_checkpoint(tmp_path / "saved")  # others read the file too
    assert set(dict(state.parameters)) == {"w1", "b1", "w2", "b2"}


def test_save_before_training(tmp_path: Path) -> None:
    made = onward.Trainer(classifier(), "cross_entropy", schedule="cosine")
    made.save(tmp_path / "saved")
    other = onward.Trainer(classifier(), "cross_entropy", schedule="cosine")
    other.load(tmp_path / "saved")
    assert other.fit(*labelled(20)).losses == made.fit(*labelled(20)).losses


def test_the_learning_rate_can_be_set() -> None:
    made = onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.1)
    made.learning_rate = 0.5
    assert made.fit(*labelled(20))["rate"] == [0.5]
    with pytest.raises(OnwardError, match="learning_rate must be a finite number"):
        made.learning_rate = float("nan")
    made = onward.Trainer(classifier(), "cross_entropy", "sgd", schedule=onward.optim.schedules.Constant(0.1))
    with pytest.raises(OnwardError, match="give another schedule instead"):
        made.learning_rate = 0.5


def test_an_update_that_is_not_finite_is_noticed() -> None:
    """Also if it is the last one, after which no loss is computed."""
    x, y = labelled(16)
    trainer = onward.Trainer(regressor(), functools.partial(losses.mse, reduction="sum"), "sgd", learning_rate=1e38)
    with pytest.raises(NonFiniteError, match=r"'w'.* has elements that are NaN or infinite: an update made it so"):
        trainer.fit(x * np.float32(1e10), y.astype(np.float32), batch_size=16)


@pytest.mark.parametrize("loss", list(onward.artifacts.LossType), ids=lambda loss: loss.name)
def test_losses_by_the_names_of_artifacts(loss: onward.artifacts.LossType) -> None:
    block: Any = getattr(onward.onnxblock.loss, loss.name)()
    assert losses.get(loss) is losses.get(loss.name) is block._function.func


def test_outputs_without_rows() -> None:
    """Cannot be put together from batches; of one batch they are returned."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 1] y, float total) <float[4, 1] w = {1, 2, 3, 4}> {
            y = MatMul(x, w)  total = ReduceSum <keepdims = 0> (y)
        }
    """)
    trainer = onward.Trainer(model, "mse", loss_inputs="y", trainable="w")
    x = labelled(10)[0]
    assert trainer.predict(x)["total"] == pytest.approx(trainer.predict(x)["y"].sum(), rel=1e-5)
    with pytest.raises(OnwardError, match="the output 'total' has shape"):
        trainer.predict(x, batch_size=4)


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    onward.Trainer(regressor(), "mse").save(tmp_path / "saved")
    with pytest.raises(OnwardError, match="the checkpoint does not have the trainable parameter 'w1'"):
        onward.Trainer(classifier(), "cross_entropy").load(tmp_path / "saved")


@pytest.mark.parametrize("large", [False, True])
def test_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """A model whose weights are in another file, some trained and some not; a large one stays there."""
    if large:  # as models of more than 2 GB
        monkeypatch.setattr("onward.graph.finish.LARGEST_PROTO", 0)
        monkeypatch.setattr("onward.runtime.wire.LARGEST_MESSAGE", 0)
    onnx.save(
        classifier(), tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0, location="weights.bin"
    )
    x, y = labelled(40)
    trainer = onward.Trainer(tmp_path / "model.onnx", "cross_entropy", frozen=["w1"])
    expected = onward.Trainer(classifier(), "cross_entropy", frozen=["w1"])
    assert trainer.fit(x, y).losses == expected.fit(x, y).losses
    np.testing.assert_array_equal(trainer.predict(x), expected.predict(x))
    trainer.export(tmp_path / "trained.onnx")
    (tmp_path / "weights.bin").unlink()
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], trainer.predict(x, batch_size=40))


def test_it_says_what_it_is() -> None:
    trainer = onward.Trainer(classifier(normalised=True), "cross_entropy", "sgd", learning_rate=0.1, frozen=["w1"])
    assert repr(trainer).startswith("Trainer(5 parameters with 99 numbers, loss=cross_entropy, optimizer=sgd")
    summary = str(trainer.summary())
    assert {line.split()[2] for line in summary.splitlines()[1:-1]} == {"float32"}
    rows = {line.split()[0]: line for line in summary.splitlines()}
    assert "trained" in rows["w2"]
    assert "frozen" in rows["w1"]
    assert "statistic" in rows["mean"]
    assert "99" in summary.splitlines()[-1]


def test_progress(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", metrics=["accuracy"])
    with caplog.at_level(logging.INFO, "onward.trainer"):
        trainer.fit(*labelled(40), epochs=2)  # stderr is no terminal here
    assert capfd.readouterr().err == ""
    assert [record.message.split(":")[0] for record in caplog.records] == ["epoch 1/2", "epoch 2/2"]
    assert "accuracy" in caplog.records[0].message
    trainer.fit(*labelled(40), validation=labelled(10), epochs=2, progress=True)
    shown = capfd.readouterr().err
    assert "epoch 4/4:   0%|" in shown
    # And a line at the end of each, which no width of a terminal cuts.
    numbers = r"loss [\d.]+, accuracy [\d.]+, val_loss [\d.]+, val_accuracy [\d.]+, rate 0.001"
    assert re.search(rf"\repoch 4/4: {numbers}\n", shown)


def test_metrics_know_what_the_model_returns() -> None:
    """Of a loss that onward does not know, the last operator says it: above 0.5 for a Sigmoid, above 0 without."""
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    plain, target = regressor(), (x[:, :1] > 0).astype(np.float32)

    def squares(op, prediction, target):
        return op.ReduceMean((prediction - target) * (prediction - target), keepdims=0)

    ended = onnx.ModelProto.FromString(plain.SerializeToString())
    ended.graph.node.append(onnx.helper.make_node("Sigmoid", ["y"], ["p"]))
    ended.graph.output[0].name = "p"
    for model, limit in ((plain, 0.0), (ended, 0.5)):
        trainer = onward.Trainer(model, squares, metrics=["accuracy"])
        predicted = trainer.predict(x) > limit
        assert 0 < predicted.mean() < 1
        assert trainer.evaluate(x, target)["accuracy"] == np.mean(predicted == target)


def test_history_of_steps() -> None:
    trainer = onward.Trainer(
        classifier(), "cross_entropy", "sgd", learning_rate=0.5, clip=1e-3, schedule=lambda t: 0.1 + t
    )
    norms = []

    class Norms(onward.callbacks.Callback):
        def on_step_end(self, run: Any) -> None:
            gradients = run.learner._model.module.gradients
            norms.append(np.sqrt(sum(np.square(gradients[name], dtype=np.float64).sum() for name in gradients)))

    history = trainer.fit(*labelled(40), epochs=2, batch_size=8, callbacks=[Norms()])
    assert history.rates == [0.1 + t for t in range(10)]
    assert history.ends == [5, 10]
    assert sum(history.seconds) == pytest.approx(sum(history["seconds"]))
    np.testing.assert_allclose([sample.gradient_norm for sample in history.samples], norms, rtol=1e-6)
    assert min(norms) > 1e-3  # before clipping
    assert all(sample.memory > 2**20 for sample in history.samples)


def test_samples_take_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten thousand steps of a millisecond, a sample of 0.1 ms is taken every 34."""
    clock = [0.0]

    class Learner:
        def learn(self, batches: Any) -> tuple[float, float]:
            clock[0] += 1e-3
            return 1.0, 1.0

        @property
        def gradient_norm(self) -> float:
            clock[0] += 1e-4
            return 2.0

    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    data = source(np.zeros((10_000, 1), np.float32), inputs=[Field("x")], batch_size=1)
    history = loop.Loop(Learner(), data, epochs=1).run()
    assert len(history.losses) == 10_000
    assert len(history.samples) == pytest.approx(16 + 10_000 / 34, rel=0.1)
