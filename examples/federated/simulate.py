"""All clients on this machine: `python examples/federated/simulate.py`; with --ray, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import digits

import onward
from onward.federated import simulate


def main(clients: int, rounds: int, output: Path, *, ray: bool) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    server = digits.server(rounds=rounds, clients=clients, export=output, on_end=show)
    if ray:
        from flwr.simulation import run_simulation

        run_simulation(server, digits.client, clients)
    else:
        simulate(server, digits.client, clients)
    print(f"wrote {output}")


def show(trainer: onward.Trainer, result: Any) -> None:
    """A line for each round: the mean over clients, and what the server finds on digits that nobody trained on."""
    print("round  loss of clients  accuracy of clients  held-out loss  held-out accuracy")
    for number, tested in sorted(result.evaluate_metrics_serverapp.items()):
        of_clients = result.evaluate_metrics_clientapp.get(number)
        means = "" if of_clients is None else f"{of_clients['loss']:15.4f}  {of_clients['accuracy']:19.1%}"
        print(f"{number:5}  {means:36}  {tested['loss']:13.4f}  {tested['accuracy']:17.1%}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--clients", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--output", type=Path, default=Path("out/digits_federated.onnx"), help="the trained model")
    arguments.add_argument("--ray", action="store_true", help="clients in processes of their own")
    given = arguments.parse_args()
    main(given.clients, given.rounds, given.output, ray=given.ray)
