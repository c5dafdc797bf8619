"""The search for a learning rate finds one, and leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onward
from onward import OnwardError
from onward.trainer.finder import RateSearch
from tests.trainer.toys import classifier, labelled, regressor

X, Y = labelled(200)


def everything(trainer: onward.Trainer) -> dict[str, Any]:
    """All bits that training changes."""
    state = trainer._model.state
    return {
        **{name: np.array(state.tensor(name)).tobytes() for name in (*state.trainable, *state.frozen)},
        **{
            f"{kind}/{name}": np.array(array).tobytes()
            for kind, slot in state.optimizer.slots.items()
            for name, array in slot.items()
        },
        "step": state.optimizer.step,
        "rate": (trainer.rate, trainer.learning_rate),
        "random": (state.random.seed, state.random.passes),
        "history": trainer.history.state_dict()["epochs"],
        "losses": list(trainer.history.losses),
        "epochs": trainer.epochs,
    }


@pytest.fixture(scope="module")
def trainer() -> onward.Trainer:
    made = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy", "adamw", metrics=["accuracy"])
    made.fit(X, Y, epochs=1, progress=False)
    return made


def test_nothing_is_changed(trainer: onward.Trainer) -> None:
    before = everything(trainer)
    found = trainer.find_learning_rate(X, Y)
    assert found.losses[0] != found.losses[-1]
    assert everything(trainer) == before


def test_training_goes_on_as_if_nothing_had_been(tmp_path) -> None:
    histories, exported = [], []
    for search in (False, True):
        trainer = onward.Trainer(classifier(dropout=True, normalised=True), "cross_entropy", seed=3)
        trainer.fit(X, Y, epochs=1, progress=False)
        if search:
            trainer.find_learning_rate(X, Y, steps=30)
        trainer.fit(X, Y, epochs=1, progress=False)
        histories.append(trainer.history.losses)
        trainer.export(tmp_path / "model.onnx")
        exported.append((tmp_path / "model.onnx").read_bytes())
    assert histories[0] == histories[1]
    assert exported[0] == exported[1]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_suggestion_trains(optimizer: str) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", optimizer, metrics=["accuracy"])
    found = trainer.find_learning_rate(X, Y)
    assert 1e-3 < found.suggestion < 10
    assert found.suggestion <= found.best
    assert found.tenth_of_best == found.best / 10
    trainer.learning_rate = found.suggestion
    history = trainer.fit(X, Y, epochs=15, progress=False)
    assert history["accuracy"][-1] > 0.9


def test_rates_rise_and_losses_are_smoothed() -> None:
    trainer = onward.Trainer(regressor(), "mse", "sgd")
    found = trainer.find_learning_rate(X, Y[:, None], lowest=1e-6, highest=1e-2, steps=20, smoothing=0.5)
    np.testing.assert_allclose(found.rates, np.geomspace(1e-6, 1e-2, 20))
    assert found.ended == "the highest rate of 0.01 was reached"
    smoothed = [np.average(found.losses[: n + 1], weights=0.5 ** np.arange(n, -1, -1)) for n in range(20)]
    np.testing.assert_allclose(found.smoothed, smoothed)


def test_it_ends_when_the_loss_explodes() -> None:
    trainer = onward.Trainer(regressor(), "mse", "sgd")
    found = trainer.find_learning_rate(X, Y[:, None], highest=1e6, smoothing=0.5)
    assert found.ended.startswith("the loss exploded at a rate of ")
    assert len(found.rates) < 100
    assert np.isfinite(found.losses).all()


@pytest.mark.filterwarnings("error")
def test_it_ends_when_the_loss_is_no_number() -> None:
    trainer = onward.Trainer(regressor(), "mse", "sgd", clip=1e9)
    before = everything(trainer)
    found = trainer.find_learning_rate(X, Y[:, None], lowest=1e-3, highest=1e30, steps=8, divergence=1e300)
    assert found.ended.startswith("the loss was not finite at a rate of ")
    assert 0 < len(found.rates) < 8
    assert everything(trainer) == before


def test_a_loss_that_does_not_fall() -> None:
    found = RateSearch([1e-3, 1e-2, 1e-1], [1.0, 2.0, 3.0], [1.0, 1.5, 2.0], "the end")
    assert found.suggestion is None
    assert "the loss did not fall" in repr(found)
    assert RateSearch([], [], [], "the end").best is None


def test_data_that_raises_leaves_no_trace(trainer: onward.Trainer) -> None:
    def failing():
        yield X[:32], Y[:32]
        raise KeyError("mine")

    before = everything(trainer)
    with pytest.raises(KeyError, match="mine"):
        trainer.find_learning_rate(failing)
    assert everything(trainer) == before


def test_plot(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    trainer = onward.Trainer(classifier(), "cross_entropy")
    found = trainer.find_learning_rate(X, Y, steps=40)
    figure = found.plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert figure.axes[0].get_xscale() == "log"
    with pytest.raises(OnwardError, match="nothing to plot: the end"):
        RateSearch([], [], [], "the end").plot()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lowest": 0}, "from `lowest` up to `highest`, not from 0 to 10"),
        ({"lowest": 1, "highest": 0.1}, "from `lowest` up to `highest`"),
        ({"steps": 1}, "`steps` is a number of steps, at least 2"),
        ({"smoothing": 1}, "`smoothing` is the share"),
        ({"divergence": 1}, "`divergence` says how many times"),
    ],
)
def test_mistakes(trainer: onward.Trainer, options: dict[str, float], message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        trainer.find_learning_rate(X, Y, **options)
    with pytest.raises(OnwardError, match="would use them up; give a function"):
        trainer.find_learning_rate(iter([(X, Y)]))
