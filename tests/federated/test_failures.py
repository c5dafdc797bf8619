"""What goes wrong in a federation is said, and by whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

import onward
from onward.errors import OnwardError, OnwardWarning
from onward.federated import client_app, server_app, simulate, simulation
from onward.federated.simulation import LocalGrid
from tests.federated.federation import QUIET, Rows, divided, doubles, federated, make, parameters, trainer
from tests.trainer.toys import classifier, labelled, regressor

# After onward.federated, which keeps Flower's import quiet.
from flwr.app import ConfigRecord, Context, Message, RecordDict  # isort: skip
from flwr.clientapp import ClientApp  # isort: skip
from flwr.serverapp.strategy import FedAvg  # isort: skip


def failing(*places: int, sizes: Sequence[int] = (10, 10, 10)) -> Callable[[Context], Rows]:
    """Rows, but not for all clients."""
    whole = divided(labelled(sum(sizes)), sizes)

    def mine(context: Context) -> Rows:
        if context.node_config["partition-id"] in places:
            raise FileNotFoundError("no such camera")
        return whole(context)

    return mine


def test_a_client_that_fails_ends_training() -> None:
    with pytest.raises(
        OnwardError, match=r"(?s)1 of 3 clients failed in round 1:\n  client 1: .*no such camera.*accept"
    ):
        federated(make(), failing(1), 3)


def test_failures_can_be_accepted() -> None:
    with pytest.warns(OnwardWarning, match=r"(?s)client 1: .*no such camera"):
        averaged, _ = federated(make(), failing(1), 3, rounds=1, batch_size=10, accept_failures=True)
    x, y = labelled(30)
    joined = trainer(0)
    keep = np.r_[0:10, 20:30]
    joined.train_step((x[keep], y[keep]))
    np.testing.assert_allclose(parameters(averaged), parameters(joined), rtol=0, atol=1e-6)


def test_answers_that_are_fetched_later_are_not_mixed_up() -> None:
    """As strategies do that send and fetch by themselves."""
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return Message(
            RecordDict({"who": ConfigRecord({"place": context.node_config["partition-id"]})}), reply_to=message
        )

    simulation._identify()
    grid = LocalGrid(app, 3, {})
    nodes = list(grid.get_node_ids())
    asked = [Message(RecordDict(), node, "query") for node in nodes]
    first, second = grid.push_messages(asked[:2])
    grid.pull_messages([first])
    (third,) = grid.push_messages(asked[2:])
    places = [reply.content["who"]["place"] for reply in grid.pull_messages([second, third])]
    assert places == [1, 2]


def test_somebody_has_to_answer() -> None:
    with pytest.raises(OnwardError, match=r"3 of 3 clients failed"):
        federated(make(), failing(0, 1, 2), 3, accept_failures=True)


def test_a_client_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(LocalGrid):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            return list(super().push_messages(messages))[1:]

    monkeypatch.setattr("onward.federated.simulation.LocalGrid", Deaf)
    with pytest.raises(OnwardError, match=r"(?s)1 of 2 clients failed.*node 2: no answer within 7"):
        federated(make(), divided(labelled(20), (10, 10)), 2, timeout=7)


def test_a_client_without_rows() -> None:
    with pytest.raises(OnwardError, match=r"(?s)client 1: .*has no rows"):
        federated(make(), divided(labelled(10), (10, 0)), 2)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (make(model=regressor(), loss="mse"), r"'w' \(trained\) is a parameter of the client's model, but not of the"),
        (make(frozen="w1"), r"'w1' \(trained\) is a parameter of the server's model, not of the client's"),
        (make(model=doubles(classifier())), r"'w1' is float64 \[4, 16\] \(trained\) on the client, but float32"),
        (
            make(loss="multi_margin"),
            "their parameters have the same names and sizes, but graph, loss or frozen weights differ",
        ),
    ],
    ids=["other names", "other frozen ones", "other types", "other loss"],
)
def test_another_model_is_refused(client: Callable[[int], onward.Trainer], message: str) -> None:
    server = server_app(make(), rounds=1)
    with pytest.raises(OnwardError, match=f"(?s)client and server have different models: {message}"):
        simulate(server, client_app(client, divided(labelled(20), (10, 10))), 2)


def test_other_frozen_weights_are_refused() -> None:
    """They are not exchanged, so nobody would notice."""
    other = classifier()
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((4, 16), np.float32), "w1"))
    client = client_app(make(model=other, frozen="w1"), divided(labelled(20), (10, 10)))
    with pytest.raises(OnwardError, match="frozen weights differ"):
        simulate(server_app(make(frozen="w1"), rounds=1), client, 2)


def test_parameters_that_are_no_numbers() -> None:
    x, y = labelled(20)
    with pytest.raises(OnwardError, match=r"(?s)client 0: .*NaN or infinite"):
        federated(make(learning_rate=1e38), lambda context: (x * 1e20, y), 2, rounds=2, batch_size=5)


def answer(change: Callable[[RecordDict], Any]) -> ClientApp:
    """A client whose answers are changed on the way."""
    right = client_app(make(), divided(labelled(20), (10, 10)))
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        reply = right(message, context)
        change(reply.content)
        return reply

    app.train()(train)
    app.query()(right)
    return app


def _shorter(content: RecordDict) -> None:
    record = content.array_records["arrays"]
    record["parameters"] = type(record["parameters"])(record["parameters"].numpy()[:-1])


def _infinite(content: RecordDict) -> None:
    record = content.array_records["arrays"]
    record["parameters"] = type(record["parameters"])(record["parameters"].numpy() / 0.0)


def _rowless(content: RecordDict) -> None:
    content.metric_records["metrics"]["num-examples"] = 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_shorter, r"client 0 answered with float32 \[130\], but the parameters of the model are float32 \[131\]"),
        (_infinite, "client 0 answered with parameters that are NaN or infinite"),
        (_rowless, "client 0 answered with num-examples=0"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_answers_that_cannot_be_averaged(change: Callable[[RecordDict], Any], message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        simulate(server_app(make(), rounds=1, strategy=FedAvg(**QUIET)), answer(change), 2)


def test_a_strategy_that_waits_for_more_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.sleep", lambda seconds: None)
    with pytest.raises(OnwardError, match="waits for more clients than the 1 of this simulation"):
        simulate(server_app(make()), client_app(make(), divided(labelled(10), (10,))), 1)


def test_a_strategy_that_trains_nobody() -> None:
    with pytest.raises(OnwardError, match="FedAvg has averaged nothing"):
        federated(make(), divided(labelled(10), (10,)), 1, strategy=FedAvg(fraction_train=0.0, **QUIET))


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: server_app(make(), rounds=0), "`rounds` is a number, at least 1"),
        (lambda: server_app(make(), learning_rate=0), "`learning_rate` is 0"),
        (lambda: server_app(make(), learning_rate=-1.0), "must be a finite number that is not negative"),
        (
            lambda: server_app(make(), strategy="FedAvg"),
            r"of flwr.serverapp.strategy, such as FedAvg\(\), not 'FedAvg'",
        ),  # type: ignore[arg-type]
        (lambda: server_app(make(), timeout=-1), "`timeout` is a number of seconds, more than 0, not -1"),
        (lambda: federated(make(), None, 2, export="no/where.onnx"), "'no/where.onnx' could not be written in the end"),
        (lambda: client_app(trainer(0), lambda context: None), "`make_trainer` is a function, not Trainer"),
        (lambda: client_app(make(), labelled(3)), "`data` is a function, not tuple"),
        (lambda: simulate(server_app(make()), client_app(make(), labelled), 0), "`clients` is a number, at least 1"),
        (lambda: federated(lambda seed: trainer(0), labelled, 2, seed=5), r"seed 5, but its trainer has 0"),
        (lambda: federated(lambda seed: None, labelled, 2), "has to return an onward.Trainer, not NoneType"),
    ],
)
def test_mistakes(mistake: Callable[[], Any], message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        mistake()


def test_a_client_needs_a_server_of_ours() -> None:
    message = Message(RecordDict(), 1, "train")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(OnwardError, match=r"needs a server of it, onward.federated.server_app"):
        client_app(make(), labelled)(message, context)
