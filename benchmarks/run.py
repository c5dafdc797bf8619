"""Time training steps of every work by every peer: `make bench`.

Each peer trains in a process of its own on the same data from the same weights. Their losses have to agree before
anything is timed; then rounds of steps alternate between the peers, and the median round of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report, works

ROOT = Path(__file__).parent.parent
CHECKED_STEPS = 5
# Adam divides by the square root of its second moment: where a gradient is nothing but rounding, two correct programs
# take different steps. The losses of the works here differ by less than this after the checked steps.
LOSS_TOLERANCE = 2e-3
PAUSE = 0.1  # seconds, for the threads of the peer before to stop spinning


@dataclass(frozen=True)
class Peer:
    """A way to train, and how its worker is started."""

    title: str
    module: str
    python: str = sys.executable
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Result:
    """What one peer did in one work; `problem` says why there are no times."""

    milliseconds: list[float] = field(default_factory=list)
    mib: float = float("nan")
    build_seconds: float = float("nan")
    losses: list[float] = field(default_factory=list)
    problem: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds) if self.milliseconds else float("nan")


class Process:
    """A worker of a peer, as seen from here."""

    def __init__(self, peer: Peer, folder: Path, threads: int) -> None:
        self._process = subprocess.Popen(
            [peer.python, "-m", peer.module, str(folder), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **peer.environment},
        )

    def __enter__(self) -> Process:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with code {self._process.wait()}")
        return json.loads(line)


def measure(peers: Mapping[str, Peer], folder: Path, threads: int, rounds: int, seconds: float) -> dict[str, Result]:
    """Build, check the losses, then time; a peer that fails keeps its reason and is left out of the rest."""
    results = {name: Result() for name in peers}
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for name, peer in peers.items():
            try:
                # In a process of its own: what building needs in memory is not what training needs.
                with Process(peer, folder, threads) as builder:
                    results[name].build_seconds = builder.ask("build")["seconds"]
                process = stack.enter_context(Process(peer, folder, threads))
                process.ask("load")
                results[name].losses = process.ask("steps", n=CHECKED_STEPS)["losses"]
                running[name] = process
            except (RuntimeError, OSError) as error:
                results[name].problem = str(error)
        for name, problem in disagreements({name: results[name].losses for name in running}).items():
            results[name].problem = problem
            del running[name]
        _rounds(running, results, rounds, seconds)
        for name, process in running.items():
            results[name].mib = process.ask("memory")["mib"]
    return results


def disagreements(losses: Mapping[str, list[float]]) -> dict[str, str]:
    """The peers whose losses are not those of the majority, or of torch where there is none."""
    reference = losses.get("torch") or next(iter(losses.values()), [])
    problems = {}
    for name, values in losses.items():
        worst = max(abs(a - b) / abs(b) for a, b in zip(values, reference, strict=True))
        if not worst < LOSS_TOLERANCE:
            problems[name] = f"wrong loss: {', '.join(f'{v:.4f}' for v in values[:3])} ... instead of " + ", ".join(
                f"{v:.4f}" for v in reference[:3]
            )
    return problems


def _rounds(running: Mapping[str, Process], results: Mapping[str, Result], rounds: int, seconds: float) -> None:
    steps = {}
    for name, process in running.items():
        took = process.ask("steps", n=3)["seconds"] / 3
        steps[name] = max(3, round(seconds / took))
    order = list(running)
    for index in range(rounds):
        for name in order[index % len(order) :] + order[: index % len(order)]:
            time.sleep(PAUSE)
            running[name].ask("steps", n=1)
            took = running[name].ask("steps", n=steps[name])["seconds"]
            results[name].milliseconds.append(took / steps[name] * 1e3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(works.WORKS), help="works, with commas: %(default)s")
    parser.add_argument("--peers", default="onward,torch,original", help="with commas: %(default)s")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round of each peer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few and short rounds, to see that it works")
    parser.add_argument("--static", action="store_true", help="export with a fixed batch size")
    parser.add_argument("--ort-training", default="", help="a Python that has onnxruntime-training")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = min(options.rounds, 3), 0.2
    # Not every peer lets all of its threads be counted; none can use more than these cores.
    cores = sorted(os.sched_getaffinity(0))[: options.threads]
    os.sched_setaffinity(0, cores)
    known = {
        "onward": Peer("onward", "benchmarks.worker_ort"),
        "torch": Peer("PyTorch eager", "benchmarks.worker_torch"),
        "original": Peer(
            "onnxruntime-training 1.19.2", "benchmarks.worker_ort", options.ort_training, {"ORT_TRAINING": "1"}
        ),
    }
    peers = {name: known[name] for name in options.peers.split(",") if known[name].python}
    rows = {}
    for name in options.only.split(","):
        print(f"{works.WORKS[name].title} ...", flush=True)
        folder = ROOT / "out" / "bench" / name
        works.write(name, folder, static=options.static)
        rows[name] = measure(peers, folder, options.threads, options.rounds, options.seconds)
        print(report.line(works.WORKS[name], rows[name]), flush=True)
    titles = {name: peer.title for name, peer in peers.items()}
    print(report.write(rows, works.WORKS, titles, options.out, options.threads))


if __name__ == "__main__":
    main()
