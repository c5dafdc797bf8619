"""Federated learning: equal to one process where arithmetic says so, the same each time, loud when it goes wrong."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onward
from onward.errors import OnwardError
from onward.federated import client_app, server_app, simulate
from onward.federated.exchange import Exchange
from onward.federated.simulation import LocalGrid
from tests.federated.federation import QUIET, Rows, divided, doubles, federated, make, parameters, trainer
from tests.trainer.toys import classifier, labelled

# After onward.federated, which keeps Flower's import quiet.
from flwr.app import Context, Message  # isort: skip
from flwr.clientapp import ClientApp  # isort: skip
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx, FedTrimmedAvg, Krum, Strategy  # isort: skip


# Equal to one process -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (3, 9, 20)], ids=["equal shards", "weighted by rows"])
@pytest.mark.parametrize(
    ("model", "tolerance"),
    [
        # (w - lr g1)/2 + (w - lr g2)/2 is rounded in other places than w - lr (g1 + g2)/2: some units of the last place
        # of weights around 1, in three steps.
        pytest.param(lambda: classifier(), 1e-6, id="float32"),
        pytest.param(lambda: doubles(classifier()), 1e-14, id="float64"),
    ],
)
def test_one_local_step_of_sgd_is_a_step_on_the_joined_batch(
    sizes: Sequence[int], model: Callable[[], onnx.ModelProto], tolerance: float
) -> None:
    x, y = labelled(32)
    x = x.astype(np.float64) if tolerance < 1e-10 else x
    made = functools.partial(trainer, model=model())
    averaged, _ = federated(made, divided((x, y), sizes), len(sizes), rounds=3, batch_size=32, strategy=FedAvg(**QUIET))
    joined = made(0)
    first = parameters(joined)
    for _ in range(3):
        joined.train_step((x, y))
    np.testing.assert_allclose(parameters(averaged), parameters(joined), rtol=0, atol=tolerance)
    assert np.abs(parameters(joined) - first).max() > 1e-2


def test_metrics_of_clients_are_those_of_all_rows() -> None:
    rows = labelled(40)
    averaged, result = federated(
        make(metrics=["accuracy"]), divided(rows, (5, 35)), 2, tested_with=divided(rows, (30, 10)), rounds=1
    )
    # Sums of float32 losses in another order.
    assert dict(result.evaluate_metrics_clientapp[1]) == pytest.approx(averaged.evaluate(*rows), rel=1e-6)


def test_the_server_tests_before_and_after_each_round() -> None:
    held = labelled(30, seed=9)
    made = make(metrics=["accuracy"])
    averaged, result = federated(made, divided(labelled(40), (20, 20)), 2, rounds=2, evaluation=held)
    assert sorted(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert dict(result.evaluate_metrics_serverapp[0]) == made(0).evaluate(*held)
    assert dict(result.evaluate_metrics_serverapp[2]) == averaged.evaluate(*held)


def test_a_trainer_gives_the_first_parameters() -> None:
    begun = trainer(3)
    begun.fit(*labelled(40), epochs=2, progress=False)
    first = parameters(begun)
    ended: list[Any] = []
    server = server_app(begun, rounds=1, learning_rate=1e-30, on_end=lambda *end: ended.append(end))
    simulate(server, client_app(make(), divided(labelled(20), (10, 10))), 2)
    np.testing.assert_allclose(parameters(begun), first, rtol=1e-6)  # the mean of two equal buffers
    assert ended[0][0] is begun


def test_the_rate_of_a_round() -> None:
    rows = labelled(16)
    averaged, _ = federated(make(), divided(rows, (16,)), 1, rounds=2, batch_size=16, learning_rate=lambda n: 0.5 / n)
    joined = trainer(0)
    for rate in (0.5, 0.25):
        joined.learning_rate = rate
        joined.train_step(rows)
    np.testing.assert_allclose(parameters(averaged), parameters(joined), rtol=0, atol=1e-6)


def test_streams_count_their_rows() -> None:
    """Only going through them tells how many there are."""
    rows, sizes = labelled(24), (4, 20)
    whole = divided(rows, sizes)

    def stream(context: Context) -> Callable[[], Iterable[Rows]]:
        x, y = whole(context)
        return lambda: ((x[start : start + 2], y[start : start + 2]) for start in range(0, len(x), 2))

    made = make(optimizer="adam", accumulate=16)  # one update, so that the order of rows does not matter
    streamed, counted = federated(made, stream, 2, rounds=1)
    batched, expected = federated(made, whole, 2, rounds=1, batch_size=2)
    np.testing.assert_allclose(parameters(streamed), parameters(batched), rtol=0, atol=1e-5)
    assert dict(counted.evaluate_metrics_clientapp[1]) == pytest.approx(dict(expected.evaluate_metrics_clientapp[1]))


# Running statistics ---------------------------------------------------------------------------------------------------


def test_pooled_statistics_are_those_of_all_rows() -> None:
    """Exact statistics of two sets, far from each other, give the exact statistics of both together."""
    random_ = np.random.default_rng(0)
    sets = [random_.normal(5, 1, (10, 16)), random_.normal(-3, 2, (30, 16))]
    buffers = []
    for rows in sets:
        exchange = Exchange(trainer(0, classifier(normalised=True)))
        held = {"mean": rows.mean(axis=0), "variance": rows.var(axis=0)}
        exchange.trainer.restore({name: array.astype(np.float32) for name, array in held.items()})
        buffers.append(exchange.statistics())
        before = exchange.trainer.snapshot()
        exchange.take_statistics(buffers[-1])  # there and back: the same bits
        assert all(np.array_equal(before[name], array) for name, array in exchange.trainer.snapshot().items())
    exchange.take_statistics(np.average(buffers, axis=0, weights=[10, 30]))
    pooled, joined = exchange.trainer.snapshot(), np.concatenate(sets)
    np.testing.assert_allclose(pooled["mean"], joined.mean(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pooled["variance"], joined.var(axis=0), rtol=1e-6)


def test_running_statistics_reach_the_exported_file(tmp_path: Path) -> None:
    model, rows, sizes = classifier(normalised=True), labelled(40), (10, 30)
    made = make(model=model)
    federated(made, divided(rows, sizes), 2, rounds=1, batch_size=40, export=tmp_path / "trained.onnx")
    moments, start = np.zeros((2, 16)), 0
    for size in sizes:
        local = made(0)
        local.train_step((rows[0][start : start + size], rows[1][start : start + size]))
        mean, variance = (local.snapshot()[name].astype(np.float64) for name in ("mean", "variance"))
        moments += size / sum(sizes) * np.array([mean, variance + mean**2])
        start += size
    exported = {
        each.name: numpy_helper.to_array(each) for each in onnx.load(tmp_path / "trained.onnx").graph.initializer
    }
    np.testing.assert_allclose(exported["mean"], moments[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(exported["variance"], moments[1] - moments[0] ** 2, rtol=1e-6)


def test_statistics_are_no_business_of_the_strategy() -> None:
    """Adam on the server would make variances negative; here they are the mean of clients, as in FedAvg."""
    made, rows = make(model=classifier(normalised=True)), divided(labelled(40), (10, 30))
    by_mean, _ = federated(made, rows, 2, rounds=1)
    strategy = FedAdam(eta=10.0, min_available_nodes=2)
    by_adam, result = federated(made, rows, 2, rounds=1, strategy=strategy)
    assert list(result.arrays) == ["parameters"]
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(by_adam.snapshot()[name], by_mean.snapshot()[name])


# The buffer -----------------------------------------------------------------------------------------------------------


def test_the_buffer_is_that_of_the_runtime() -> None:
    exchange = Exchange(trainer(0))
    flat = exchange.trainer.trained.module.parameters_as_buffer(trainable_only=True).numpy()
    np.testing.assert_array_equal(exchange.parameters(), flat)
    exchange.take_parameters(flat * 2)
    np.testing.assert_array_equal(exchange.parameters(), flat * 2)


def test_types_are_exchanged_exactly() -> None:
    """One buffer for float16, float32 and float64, and no bit lost in it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 2] x) => (float[N, 3] scores) {
            half = Cast <to = 10> (x)  h = MatMul(half, w16)  single = Cast <to = 1> (h)  s = Mul(single, w32)
            double = Cast <to = 11> (s)  d = Mul(double, w64)  scores = Cast <to = 1> (d)
        }
    """)
    draw = np.random.default_rng(0).normal
    for name, dtype, shape in (("w16", np.float16, (2, 3)), ("w32", np.float32, (3,)), ("w64", np.float64, (3,))):
        model.graph.initializer.append(numpy_helper.from_array(draw(size=shape).astype(dtype), name))
    exchange = Exchange(trainer(0, model))
    before, sent = exchange.trainer.snapshot(), exchange.parameters()
    assert sent.dtype == np.float64
    exchange.take_parameters(sent * 0)
    exchange.take_parameters(sent)
    after = exchange.trainer.snapshot()
    assert {name: array.dtype for name, array in after.items()} == {name: array.dtype for name, array in before.items()}
    assert all(np.array_equal(before[name], array) for name, array in after.items())
    rows = np.ones((8, 2), np.float32), np.zeros(8, np.int64)
    averaged, _ = federated(functools.partial(trainer, model=model), lambda context: rows, 2, rounds=1)
    assert not np.array_equal(averaged.snapshot()["w16"], before["w16"])


def test_the_exported_model_predicts_as_the_trainer_does(tmp_path: Path) -> None:
    averaged, _ = federated(make(), divided(labelled(40), (20, 20)), 2, rounds=1, export=tmp_path / "trained.onnx")
    x, _ = labelled(10, seed=4)
    (scores,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": x})
    np.testing.assert_allclose(scores, averaged.predict(x), rtol=1e-6, atol=1e-6)


# The same each time ---------------------------------------------------------------------------------------------------


class Disorder(LocalGrid):
    """Nodes with other numbers and in another order in each run, as Flower's engines have them."""

    def __init__(self, client: ClientApp, clients: int, run_config: dict[str, Any], seed: int) -> None:
        super().__init__(client, clients, run_config)
        self._random = random.Random(seed)
        numbers = self._random.sample(range(10, 10**6), clients)
        self._contexts = dict(zip(numbers, self._contexts.values(), strict=True))

    def get_node_ids(self) -> Iterable[int]:
        return self._random.sample(list(super().get_node_ids()), len(self._contexts))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return self._random.sample(replies, len(replies))


def test_a_seed_decides_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, the order of rows, who is drawn and how sums are rounded, whatever numbers nodes have."""
    rows = divided(labelled(50), (8, 12, 5, 25))

    def run(seed: int, grid: int) -> np.ndarray:
        monkeypatch.setattr("onward.federated.simulation.LocalGrid", functools.partial(Disorder, seed=grid))
        strategy = FedAvg(fraction_train=0.5, **QUIET)
        averaged, _ = federated(make(model=classifier(dropout=True)), rows, 4, rounds=3, strategy=strategy, seed=seed)
        return parameters(averaged)

    state = random.getstate()
    first = run(1, 1)
    assert random.getstate() == state
    np.testing.assert_array_equal(run(1, 2), first)
    assert not np.array_equal(run(2, 1), first)


def test_rounds_and_clients_draw_different_numbers() -> None:
    drawn: list[int] = []

    def noted(seed: int) -> onward.Trainer:
        drawn.append(seed)
        return trainer(seed)

    federated(noted, divided(labelled(20), (10, 10)), 2, rounds=2, strategy=FedAvg(**QUIET))
    assert len(drawn) == len(set(drawn)) == 1 + 2 * 2


# Other strategies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        FedAvgM(server_learning_rate=1.0, server_momentum=0.5, **QUIET),
        FedAdam(eta=0.01, **QUIET),
        FedMedian(**QUIET),
        FedTrimmedAvg(beta=0.3, **QUIET),
        Krum(num_malicious_nodes=1, **QUIET),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_strategies_of_flower(strategy: Strategy) -> None:
    rows = labelled(60)
    averaged, _ = federated(make(), divided(rows, (20, 20, 20)), 3, rounds=2, strategy=strategy, batch_size=10)
    assert averaged.evaluate(*rows)["loss"] < trainer(0).evaluate(*rows)["loss"]


def test_a_strategy_that_needs_more_of_clients_is_refused() -> None:
    with pytest.raises(OnwardError, match="FedProx asks clients for a proximal term"):
        federated(make(), divided(labelled(20), (10, 10)), 2, strategy=FedProx(proximal_mu=0.1, **QUIET))
