"""Interrupted anywhere, `fit(resume=True)` ends bit for bit where it would have ended anyway."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward import optim
from onward.callbacks import Callback, Checkpoints, EarlyStopping, Lambda
from onward.errors import OnwardError
from tests.trainer.toys import classifier, labelled

X, Y = labelled(45)
HELD_OUT = labelled(20, seed=1)
FIT: dict[str, Any] = {"epochs": 4, "batch_size": 8, "validation": HELD_OUT}  # 6 batches an epoch, the last of 5 rows
MODEL = classifier(dropout=True, normalised=True)

# What has to be remembered, all at once: running statistics, masks, slots, rates, accumulation, metrics.
SETTINGS: dict[str, dict[str, Any]] = {
    "plateau": {
        "optimizer": optim.adamw(0.03),
        "schedule": ("reduce_on_plateau", {"patience": 0, "threshold": 0.2, "factor": 0.5}),
        "metrics": ["accuracy", "auc", lambda prediction, target: float(prediction.sum())],
    },
    "accumulation": {"optimizer": optim.sgd(0.1, momentum=0.9), "schedule": "one_cycle", "accumulate": 4, "clip": 0.5},
}


def trainer(setting: str) -> onward.Trainer:
    return onward.Trainer(MODEL, "cross_entropy", **SETTINGS[setting], seed=3)


def everything(made: onward.Trainer) -> dict[str, Any]:
    """All that has to be equal."""
    state = made._model.state
    assert state.optimizer is not None
    return {
        "parameters": {name: array.tobytes() for name, array in made.snapshot().items()},
        "slots": {
            slot: {name: tensors[name].tobytes() for name in tensors} for slot, tensors in state.optimizer.slots.items()
        },
        "random": state.random,
        "steps": made.steps,
        "losses": made.history.losses,
        "epochs": [{name: value for name, value in row.items() if name != "seconds"} for row in made.history.epochs],
        "rate": made.learning_rate,
    }


@pytest.fixture(scope="module", params=list(SETTINGS))
def setting(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def uninterrupted(setting: str) -> dict[str, Any]:
    made = trainer(setting)
    made.fit(X, Y, **FIT)
    return everything(made)


def steps_of(setting: str) -> int:
    return 4 * (2 if setting == "accumulation" else 6)


class Interrupt(Callback):
    """Ends training at a hook, at some step."""

    def __init__(self, hook: str, step: int, how: Callable[[], None]) -> None:
        def act(run: Any) -> None:
            if run.step == step and not self.done:
                self.done = True
                how()

        self.done = False
        setattr(self, hook, act)


def raised() -> None:
    raise KeyboardInterrupt


def pressed() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("how", [raised, pressed])
@pytest.mark.parametrize("hook", ["on_step_end", "on_settled"])
def test_in_any_step(setting: str, uninterrupted: dict[str, Any], hook: str, how: Callable[[], None]) -> None:
    """In the same process, without a folder: one trainer interrupted at every second step."""
    made = trainer(setting)
    for step in range(1, steps_of(setting), 2):
        with pytest.raises(KeyboardInterrupt):
            made.fit(X, Y, **FIT, callbacks=[Interrupt(hook, step, how)], resume=step > 1)
        assert made.steps == step
    made.fit(X, Y, **FIT, resume=True)
    assert everything(made) == uninterrupted


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_between_epochs(setting: str, uninterrupted: dict[str, Any], hook: str, tmp_path: Path) -> None:
    """With a folder, in another trainer."""
    middle = steps_of(setting) // 2
    with pytest.raises(KeyboardInterrupt):
        trainer(setting).fit(X, Y, **FIT, callbacks=[Interrupt(hook, middle, raised)], directory=tmp_path)
    made = trainer(setting)
    made.fit(X, Y, **FIT, directory=tmp_path, resume=True)
    assert everything(made) == uninterrupted


def test_in_validation_and_in_the_data(setting: str, uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    """Ctrl-C while a batch is waited for, and while the model is evaluated."""
    made = trainer(setting)
    evaluate = made._model.evaluate
    calls = 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            pressed()
        return evaluate(*args, **kwargs)

    made._model.evaluate = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.fit(X, Y, **FIT, directory=tmp_path)
    again = trainer(setting)
    run = again._model.run

    def slow(*args: Any) -> Any:
        if again.steps == steps_of(setting) - 2:
            # Arrives while the main thread waits in the step, or for data, or anywhere.
            threading.Timer(0.001, pressed).start()
        return run(*args)

    again._model.run = slow  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012  fit may be faster
        again.fit(X, Y, **FIT, directory=tmp_path, resume=True)
        threading.Event().wait(5)
    last = trainer(setting)
    last.fit(X, Y, **FIT, directory=tmp_path, resume=True)
    assert everything(last) == uninterrupted


def test_ctrl_c_does_not_break_into_a_step(setting: str, uninterrupted: dict[str, Any]) -> None:
    """It is acted on when the step is done, be it between the passes and the update."""
    made = trainer(setting)
    step = made._model.optimizer.step

    def interrupted() -> None:
        if made.steps == 3:
            pressed()
        step()

    made._model.optimizer.step = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.fit(X, Y, **FIT)
    assert made.steps == 4
    made.fit(X, Y, **FIT, resume=True)
    assert everything(made) == uninterrupted


def test_an_error_in_a_step_changes_nothing(setting: str, uninterrupted: dict[str, Any]) -> None:
    """The passes are done when it happens: statistics, random numbers and gradients are put back."""
    made = trainer(setting)
    run, calls = made._model.module.train_step, 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        outputs = run(*args)
        calls += 1
        if calls == 5:
            raise MemoryError("at last")
        return outputs

    made._model.module.train_step = failing  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="at last"):
        made.fit(X, Y, **FIT)
    made.fit(X, Y, **FIT, resume=True)
    assert everything(made) == uninterrupted


class BrokenError(Exception):
    pass


def test_a_generator_that_raises(setting: str) -> None:
    """The error arrives as it is, the model stays usable, and training goes on with the batch that was missing."""

    def data(broken: bool) -> Callable[[int], Any]:
        def batches(epoch: int) -> Any:
            for index in range(6):
                if broken and (epoch, index) == (1, 3):
                    raise BrokenError("no disk")
                yield X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]

        return batches

    options = {"epochs": 3, "validation": HELD_OUT}
    if setting == "accumulation":
        expected = onward.Trainer(MODEL, "cross_entropy", accumulate=4)
        made = onward.Trainer(MODEL, "cross_entropy", accumulate=4)
    else:
        expected, made = trainer(setting), trainer(setting)
    expected.fit(data(False), **options)
    with pytest.raises(BrokenError, match=r"^no disk$"):
        made.fit(data(True), **options)
    assert np.isfinite(made.evaluate(HELD_OUT)["loss"])
    made.fit(data(False), **options, resume=True)
    assert everything(made) == everything(expected)


def test_early_stopping_and_the_best_checkpoints(tmp_path: Path) -> None:
    """Counters, the parameters of the best epoch and the list of the best files survive."""

    def run(folder: Path, how: Callback | None, resume: bool = False) -> tuple[onward.Trainer, EarlyStopping, Any]:
        made = onward.Trainer(MODEL, "cross_entropy", "sgd", learning_rate=0.5)
        stopping = EarlyStopping("val_loss", patience=3, min_delta=0.05, restore_best=True)
        checkpoints = Checkpoints(folder, every=4, keep_best=2)
        made.fit(
            X, Y, epochs=30, batch_size=8, validation=HELD_OUT, resume=resume,
            callbacks=[checkpoints, stopping, *([] if how is None else [how])],
        )  # fmt: skip
        return made, stopping, checkpoints

    expected, stopping, checkpoints = run(tmp_path / "whole", None)
    assert stopping.stopped
    last = len(expected.history) * 6
    assert 6 < last < 180
    best = [path.name for path in checkpoints.best]
    for step, hook in ((5, "on_step_end"), (6, "on_epoch_end"), (last - 7, "on_step_end"), (last, "on_epoch_end")):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "parts", Interrupt(hook, step, raised), resume=True)
    for _ in range(2):  # the second finds that training is over
        made, again, files = run(tmp_path / "parts", None, resume=True)
        assert everything(made) == everything(expected)
        assert (again.best, again.best_epoch, again.waited) == (stopping.best, stopping.best_epoch, stopping.waited)
        assert [path.name for path in files.best] == best
        names = sorted(path.name for path in (tmp_path / "parts").iterdir())
        assert names == sorted(path.name for path in (tmp_path / "whole").iterdir())
        assert len(names) == 3  # the newest and the best two


# What cannot be continued ---------------------------------------------------------------------------------------------

OTHERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "rows": ({}, {"rows": 40}, "the number of rows was 45, and is 40"),
    "batch size": ({}, {"batch_size": 16}, "batch_size was 8, and is 16; the number of batches was 6, and is 3"),
    "model": ({"model": classifier()}, {}, "the model is another one"),
    "loss": ({"loss": "focal"}, {}, "the model is another one"),
    "optimizer": ({"optimizer": "adam"}, {}, "the optimizer is another one"),
    "rate": ({"learning_rate": 0.5}, {}, "the optimizer is another one"),
    "seed": ({"seed": 4}, {}, "seed was 0, and is 4"),
    "accumulation": ({"accumulate": 2}, {}, "accumulate was 1, and is 2"),
    "schedule": ({"schedule": "cosine"}, {}, "schedule was none, and is cosine"),
    "order": ({}, {"shuffle": False}, "shuffle was True, and is False"),
}


@pytest.fixture(scope="module")
def interrupted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted")
    made = onward.Trainer(MODEL, "cross_entropy")
    with pytest.raises(KeyboardInterrupt):
        made.fit(X, Y, epochs=2, batch_size=8, directory=folder, callbacks=[Interrupt("on_step_end", 3, raised)])
    return folder


@pytest.mark.parametrize("case", OTHERS)
def test_other_settings_are_refused(case: str, interrupted_folder: Path) -> None:
    changed, fit, said = OTHERS[case]
    made = onward.Trainer(**{"model": MODEL, "loss": "cross_entropy", **changed})
    rows = fit.pop("rows", 45)
    before = made.snapshot()
    with pytest.raises(OnwardError, match=said) as caught:
        made.fit(
            X[:rows], Y[:rows], **{"epochs": 2, "batch_size": 8, "directory": interrupted_folder, **fit}, resume=True
        )
    assert "step-000000003.checkpoint" in str(caught.value)
    assert all(np.array_equal(before[name], array) for name, array in made.snapshot().items())


def test_more_epochs(tmp_path: Path) -> None:
    """May be asked for when training is continued, unless the rates depend on their number."""
    whole = onward.Trainer(MODEL, "cross_entropy")
    whole.fit(X, Y, epochs=4)
    for schedule in (None, "cosine"):
        folder = tmp_path / str(schedule)
        onward.Trainer(MODEL, "cross_entropy", schedule=schedule).fit(X, Y, epochs=2, directory=folder)
        made = onward.Trainer(MODEL, "cross_entropy", schedule=schedule)
        if schedule is not None:
            with pytest.raises(OnwardError, match="epochs was 2, and is 4"):
                made.fit(X, Y, epochs=4, directory=folder, resume=True)
            continue
        made.fit(X, Y, epochs=4, directory=folder, resume=True)
        assert everything(made) == everything(whole)


def test_nothing_to_continue(tmp_path: Path) -> None:
    made = onward.Trainer(classifier(), "cross_entropy")
    with pytest.raises(OnwardError, match="no interrupted fit to continue"):
        made.fit(X, Y, resume=True)
    made.fit(X, Y, resume=True, directory=tmp_path / "new")  # a script need not know whether it runs for the first time
    assert len(made.history) == 1
    with pytest.raises(OnwardError, match="has checkpoints of another training"):
        onward.Trainer(classifier(), "cross_entropy").fit(X, Y, directory=tmp_path / "new")
    made.fit(X, Y, directory=tmp_path / "new")  # the same one goes on
    assert len(made.history) == 2


def test_a_finished_fit_is_finished(tmp_path: Path) -> None:
    made = onward.Trainer(classifier(), "cross_entropy")
    made.fit(X, Y, epochs=2, directory=tmp_path)
    again = onward.Trainer(classifier(), "cross_entropy")
    again.fit(X, Y, epochs=2, directory=tmp_path, resume=True)
    assert everything(again) == everything(made)


def test_fit_twice_goes_on() -> None:
    """Other orders of the rows, the same history; a schedule that is named begins again."""
    made = onward.Trainer(classifier(), "cross_entropy", "sgd", learning_rate=0.1, schedule="cosine")
    orders: list[int] = []
    made.fit(X, Y, epochs=2, batch_size=8, callbacks=[Lambda(on_epoch_begin=lambda run: orders.append(run.epoch))])
    assert made.learning_rate == pytest.approx(0, abs=1e-9)
    made.fit(X, Y, epochs=1, batch_size=8, callbacks=[Lambda(on_epoch_begin=lambda run: orders.append(run.epoch))])
    assert orders == [0, 1, 2]
    assert made.history["epoch"] == [0, 1, 2]
    assert made.epochs == 3
    assert made.steps == len(made.history.losses) == 18
    assert made.history["rate"][2] < 0.1
    assert made.history["rate"][0] > made.history["rate"][1]
    assert made.history["rate"][2] == pytest.approx(0.1 * (1 + np.cos(np.pi * 5 / 6)) / 2)
