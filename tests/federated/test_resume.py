"""A federation that ended in the middle goes on from the checkpoint of its server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import OnwardError, OnwardWarning
from onward.federated import client_app, server_app, simulate
from tests.federated.federation import Rows, divided, federated, make, parameters, trainer
from tests.trainer.toys import classifier, labelled

# After onward.federated, which keeps Flower's import quiet.
from flwr.app import Context  # isort: skip
from flwr.serverapp.strategy import FedAvg  # isort: skip

SIZES = (4, 6, 8, 22)
made: Callable[[int], onward.Trainer] = make(model=classifier(dropout=True, normalised=True), metrics=["accuracy"])


def failing_once(after: int) -> Callable[[Context], Rows]:
    """The rows of four clients of different sizes; reading them fails once, after so many times."""
    whole, count = divided(labelled(40), SIZES), 0

    def mine(context: Context) -> Rows:
        nonlocal count
        count += 1
        if count == after:
            raise OSError("the battery is empty")
        return whole(context)

    return mine


def run(data: Callable[[Context], Rows], **options: Any) -> tuple[np.ndarray, Any]:
    """Five rounds with half of the clients, whom the strategy draws."""
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=4)
    rates: Any = {"learning_rate": lambda number: 0.3 / number, "batch_size": 5, "seed": 7}
    averaged, result = federated(
        made, data, 4, strategy=strategy, evaluation=labelled(12, seed=1), **{"rounds": 5, **rates, **options}
    )
    return parameters(averaged), result


@pytest.fixture(scope="module")
def whole() -> tuple[np.ndarray, Any]:
    return run(divided(labelled(40), SIZES))


def test_a_client_that_fails_in_the_middle(tmp_path: Path, whole: tuple[np.ndarray, Any]) -> None:
    """Rows of different numbers, Dropout, running statistics, drawn clients: bit for bit as if nothing had happened."""
    file, data = tmp_path / "federation.checkpoint", failing_once(6)
    before = random.getstate()
    with pytest.raises(OnwardError, match=r"(?s)1 of 2 clients failed in round 3:.*the battery is empty"):
        run(data, checkpoint=file)
    again, result = run(data, checkpoint=file, resume=True)
    assert random.getstate() == before
    np.testing.assert_array_equal(again, whole[0])
    assert sorted(result.train_metrics_clientapp) == [3, 4, 5]
    assert sorted(result.evaluate_metrics_serverapp) == [2, 3, 4, 5]
    for number, metrics in result.evaluate_metrics_serverapp.items():
        assert dict(metrics) == dict(whole[1].evaluate_metrics_serverapp[number])


def test_one_that_has_ended_has_nothing_to_do(tmp_path: Path, whole: tuple[np.ndarray, Any]) -> None:
    file, data = tmp_path / "federation.checkpoint", divided(labelled(40), SIZES)
    first, _ = run(data, checkpoint=file, rounds=3, resume=True)  # there is no file yet
    same, result = run(data, checkpoint=file, rounds=3, resume=True)
    np.testing.assert_array_equal(same, first)
    assert not result.train_metrics_clientapp
    np.testing.assert_array_equal(run(data, checkpoint=file, rounds=5, resume=True)[0], whole[0])


def test_failures_that_are_accepted_are_not_made_up_for(tmp_path: Path) -> None:
    file = tmp_path / "federation.checkpoint"
    with pytest.warns(OnwardWarning, match="the battery is empty"):
        first, _ = run(failing_once(2), checkpoint=file, rounds=1, accept_failures=True)
    loaded = made(0)
    loaded.load(file)  # it is a checkpoint of a Trainer, too
    np.testing.assert_array_equal(parameters(loaded), first)
    assert not loaded.trained.state.properties.keys() - {"onward.federated"}


def test_mistakes(tmp_path: Path) -> None:
    file, data = tmp_path / "federation.checkpoint", divided(labelled(40), SIZES)
    run(data, checkpoint=file, rounds=1)
    with pytest.raises(OnwardError, match=r"is there already: go on from it with server_app\(..., resume=True\)"):
        run(data, checkpoint=file)
    with pytest.raises(OnwardError, match=r"cannot go on, because seed was 7, and is 8; batch_size was 5, and is 6"):
        run(data, checkpoint=file, resume=True, seed=8, batch_size=6)
    other = server_app(make(), seed=7, batch_size=5, checkpoint=file, resume=True)
    with pytest.raises(OnwardError, match=r"cannot go on, because the model was \w+, and is"):
        simulate(other, client_app(make(), data), 4)
    with pytest.raises(OnwardError, match="give `checkpoint`, too"):
        server_app(made, resume=True)
    plain = tmp_path / "trainer.checkpoint"
    trainer(0).save(plain)
    with pytest.raises(OnwardError, match="was not written by a server_app"):
        run(data, checkpoint=plain, resume=True)


@pytest.mark.parametrize("damage", ['"random": [3, [1, 2], null]', '"done": "x"'])
def test_a_damaged_file(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file, data = tmp_path / "federation.checkpoint", divided(labelled(40), SIZES)
    written = json.dumps
    key = damage.split(":")[0].strip('"')

    def damaged(content: Any, **options: Any) -> str:
        if isinstance(content, dict) and key in content:
            content = {**content, **json.loads("{" + damage + "}")}
        return written(content, **options)

    monkeypatch.setattr("onward.federated.rounds.json.dumps", damaged)
    run(data, checkpoint=file, rounds=1)
    monkeypatch.undo()
    with pytest.raises(OnwardError, match="is damaged: what the server has written"):
        run(data, checkpoint=file, resume=True)
