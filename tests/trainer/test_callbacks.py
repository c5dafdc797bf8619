"""What callbacks see and do."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.callbacks import Callback, Checkpoints, CSVLog, EarlyStopping, Lambda, TensorBoard
from onward.errors import OnwardError
from onward.trainer.interruption import Uninterrupted
from onward.trainer.loop import Loop
from tests.trainer.toys import classifier, labelled

X, Y = labelled(24)


class Batch:
    rows = 4


class Batches:
    """Three batches an epoch."""

    steps = 3

    def epoch(self, number: int, start: int = 0) -> Any:
        return iter([Batch()] * (self.steps - start))


class Scripted:
    """Something that learns nothing; its losses are known beforehand."""

    def __init__(self, losses: list[float]) -> None:
        self.losses, self.weights = losses, {"w": np.zeros(2)}
        self.calls = 0

    def learn(self, batches: Any) -> tuple[float, float]:
        self.calls += 1
        self.weights = {"w": np.full(2, self.calls)}
        return self.losses[(self.calls - 1) // 3], 4.0

    def snapshot(self) -> dict[str, np.ndarray]:
        return dict(self.weights)

    def restore(self, snapshot: Any) -> None:
        self.weights = dict(snapshot)


def run(losses: list[float], *callbacks: Callback) -> tuple[Scripted, Loop]:
    learner = Scripted(losses)
    loop = Loop(learner, Batches(), epochs=len(losses), callbacks=callbacks)
    loop.run()
    return learner, loop


def test_hooks_are_called_in_order() -> None:
    seen: list[tuple[str, int, int, int]] = []

    class Watch(Callback):
        pass

    def note(hook: str) -> Any:
        return lambda self, run: seen.append((hook, run.epoch, run.batch, run.step))

    for hook in ("on_fit_begin", "on_epoch_begin", "on_step_end", "on_epoch_end", "on_settled", "on_fit_end"):
        setattr(Watch, hook, note(hook))
    run([1.0, 2.0], Watch())
    one = [("on_step_end", 0, 1, 1), ("on_settled", 0, 1, 1), ("on_step_end", 0, 2, 2), ("on_settled", 0, 2, 2)]
    assert seen[:2] == [("on_fit_begin", 0, 0, 0), ("on_epoch_begin", 0, 0, 0)]
    assert seen[2:6] == one
    assert seen[8:11] == [("on_epoch_end", 0, 3, 3), ("on_settled", 1, 0, 3), ("on_epoch_begin", 1, 0, 3)]
    assert seen[-2:] == [("on_settled", 2, 0, 6), ("on_fit_end", 2, 0, 6)]


def test_logs_go_into_the_history() -> None:
    def add(run: Any) -> None:
        run.logs["mine"] = run.epoch * 10

    _, loop = run([1.0, 3.0], Lambda(on_epoch_end=add))
    assert loop.history["mine"] == [0, 10]
    assert loop.history["loss"] == [1.0, 3.0]
    assert loop.history.losses == [1.0] * 3 + [3.0] * 3
    with pytest.raises(OnwardError, match="Lambda takes functions of `run` by the names on_fit_begin"):
        Lambda(on_batch_end=print)


def test_stop_ends_after_the_step() -> None:
    def stop(run: Any) -> None:
        if run.step == 4:
            run.stop("enough")

    learner, loop = run([1.0, 1.0, 1.0], Lambda(on_step_end=stop))
    assert learner.calls == 4
    assert loop.stopped == "enough"
    assert len(loop.history) == 1


@pytest.mark.parametrize(
    ("losses", "options", "epochs", "best"),
    [
        ([5.0, 4.0, 4.0, 4.0, 3.0], {"patience": 2}, 4, 1),
        ([5.0, 4.0, 4.5, 3.9, 4.0, 4.0], {"patience": 2}, 6, 3),
        ([5.0, 4.9, 4.8, 4.7], {"patience": 2, "min_delta": 0.5}, 3, 0),
        ([1.0, 2.0, 3.0, 2.0, 2.5], {"patience": 2, "mode": "max"}, 5, 2),
        ([float("nan"), 2.0, float("nan"), float("nan")], {"patience": 2}, 4, 1),
    ],
)
def test_early_stopping(losses: list[float], options: dict[str, Any], epochs: int, best: int) -> None:
    stopping = EarlyStopping("loss", restore_best=True, **options)
    learner, loop = run(losses, stopping)
    assert len(loop.history) == epochs
    assert stopping.best_epoch == best
    assert learner.weights["w"][0] == 3 * (best + 1)


def test_early_stopping_begins_anew_with_each_fit() -> None:
    stopping = EarlyStopping("loss", patience=1)
    for _ in range(2):
        _, loop = run([1.0, 2.0, 3.0], stopping)
        assert len(loop.history) == 2


def test_what_is_monitored_has_to_be_there() -> None:
    with pytest.raises(OnwardError, match=r"'val_loss' is monitored, but an epoch has 'loss'.*give fit\(\.\.\., valid"):
        run([1.0], EarlyStopping("val_loss"))
    for wrong in ({"patience": 0}, {"min_delta": -1.0}, {"mode": "best"}, {"monitor": 3}):
        with pytest.raises(OnwardError):
            EarlyStopping(**wrong)


def test_callbacks_may_use_the_trainer(tmp_path: Path) -> None:
    """Evaluate, predict, save and export while it trains."""
    found = []

    def use(run: Any) -> None:
        trainer = run.learner
        found.append(trainer.evaluate(X, Y)["loss"])
        assert trainer.predict(X).shape == (24, 3)
        trainer.export(tmp_path / "model.onnx")
        trainer.save(tmp_path / f"epoch-{run.epoch}")

    plain = onward.Trainer(classifier(dropout=True), "cross_entropy")
    plain.fit(X, Y, epochs=3)
    used = onward.Trainer(classifier(dropout=True), "cross_entropy")
    used.fit(X, Y, epochs=3, callbacks=[Lambda(on_step_end=use)])
    assert used.history.losses == plain.history.losses
    assert len(found) == 3
    again = onward.Trainer(classifier(dropout=True), "cross_entropy")
    again.load(tmp_path / "epoch-2")
    assert again.epochs == 2
    assert again.evaluate(X, Y)["loss"] == found[-1]


def test_checkpoints_every_so_many_steps(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def note(run: Any) -> None:
        seen.append(sorted(int(path.name[5:14]) for path in tmp_path.iterdir()))

    trainer = onward.Trainer(classifier(), "cross_entropy")
    checkpoints = Checkpoints(tmp_path, every=2, each_epoch=False, keep=2)
    trainer.fit(X, Y, batch_size=4, callbacks=[checkpoints, Lambda(on_step_end=note)])
    assert seen == [[], [], [2], [2], [2, 4], [2, 4]]
    assert checkpoints.newest == tmp_path / "step-000000006.checkpoint"
    other = onward.Trainer(classifier(), "cross_entropy")
    other.load(checkpoints.newest)
    assert all(np.array_equal(array, other.snapshot()[name]) for name, array in trainer.snapshot().items())
    with pytest.raises(OnwardError, match="Checkpoints would write nothing"):
        Checkpoints(tmp_path, each_epoch=False)
    with pytest.raises(OnwardError, match="has a directory already"):
        trainer.fit(X, Y, callbacks=[checkpoints], directory=tmp_path)


def test_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    """By a number that a callback makes up: its best epochs are 1 and 3."""
    scores = [0.5, 0.9, 0.1, 0.8, 0.2]

    def score(run: Any) -> None:
        run.logs["my_score"] = scores[run.epoch]

    trainer = onward.Trainer(classifier(), "cross_entropy")
    checkpoints = Checkpoints(tmp_path, keep_best=2, monitor="my_score")
    trainer.fit(X, Y, batch_size=12, epochs=5, callbacks=[Lambda(on_epoch_end=score), checkpoints])
    assert [path.name for path in checkpoints.best] == ["step-000000004.checkpoint", "step-000000008.checkpoint"]
    assert sorted(int(path.name[5:14]) for path in tmp_path.iterdir()) == [4, 8, 10]


def test_what_cannot_be_remembered_is_named(tmp_path: Path) -> None:
    class Odd(Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"set": {1, 2}}

    trainer = onward.Trainer(classifier(), "cross_entropy")
    with pytest.raises(OnwardError, match=r"\{1, 2\} \(set\) cannot be saved in a checkpoint"):
        trainer.fit(X, Y, callbacks=[Odd()], directory=tmp_path)


def test_callbacks_remember_arrays_and_numbers(tmp_path: Path) -> None:
    class Sums(Callback):
        def __init__(self) -> None:
            self.state: dict[str, Any] = {"sum": np.zeros(2), "by": {3: [1.5, "x", None]}, "count": 0}

        def on_step_end(self, run: Any) -> None:
            self.state["sum"] = self.state["sum"] + run.loss
            self.state["count"] += 1
            if run.step == stop:
                raise KeyboardInterrupt

        def state_dict(self) -> dict[str, Any]:
            return self.state

        def load_state_dict(self, state: Any) -> None:
            self.state = dict(state)

    stop = 7
    with pytest.raises(KeyboardInterrupt):
        onward.Trainer(classifier(), "cross_entropy").fit(
            X, Y, batch_size=4, epochs=2, callbacks=[Sums()], directory=tmp_path
        )
    stop, trainer, sums = -1, onward.Trainer(classifier(), "cross_entropy"), Sums()
    trainer.fit(X, Y, batch_size=4, epochs=2, callbacks=[sums], directory=tmp_path, resume=True)
    assert sums.state["count"] == 12
    assert sums.state["by"] == {3: [1.5, "x", None]}
    np.testing.assert_allclose(sums.state["sum"], np.full(2, sum(trainer.history.losses)))


def test_a_second_ctrl_c_is_acted_on_at_once() -> None:
    reached = []

    def press_twice() -> None:
        with Uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("after the first")
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("after the second")

    with pytest.raises(KeyboardInterrupt):
        press_twice()
    assert reached == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_csv(tmp_path: Path) -> None:
    """One line an epoch with all digits; a continued training keeps the lines that still hold."""
    path = tmp_path / "log.csv"
    trainer = onward.Trainer(classifier(), "cross_entropy", metrics=["accuracy"])

    def fail(run: Any) -> None:
        if run.epoch == 2 and run.batch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.fit(X, Y, batch_size=4, epochs=4, callbacks=[CSVLog(path), Lambda(on_step_end=fail)])
    path.write_text(path.read_text() + "2,99,0,0,0,0\n")  # of an epoch that did not happen
    trainer.fit(X, Y, batch_size=4, epochs=4, callbacks=[CSVLog(path)], resume=True)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["loss"]) for row in rows] == trainer.history["loss"]
    assert [int(row["step"]) for row in rows] == [6, 12, 18, 24]
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OnwardError, match="is no log of training"):
        trainer.fit(X, Y, callbacks=[CSVLog(tmp_path / "mine.csv")])


def test_tensorboard(tmp_path: Path) -> None:
    """Read with tensorboard's own reader."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    trainer = onward.Trainer(classifier(), "cross_entropy", metrics=["accuracy"])
    trainer.fit(X, Y, batch_size=4, epochs=2, callbacks=[TensorBoard(tmp_path / "run", every=3)])
    (path,) = (tmp_path / "run").iterdir()
    found: dict[str, dict[int, float]] = {}
    for event in loader.EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = value.tensor.float_val[0] if value.HasField("tensor") else value.simple_value
            found.setdefault(value.tag, {})[event.step] = number
    assert list(found["step/loss"]) == [3, 6, 9, 12]
    assert found["step/loss"][12] == pytest.approx(trainer.history.losses[-1])
    assert list(found["epoch/accuracy"].values()) == pytest.approx(trainer.history["accuracy"])
    assert set(found["epoch/loss"]) == {6, 12}
