"""Training low-rank pairs against training everything: `python -m benchmarks.lora`.

The same transformer on the same batches, by the same programs as `benchmarks.run`: artifacts are generated in a process
of their own, and processes that only train run steps by turns. Memory is the peak above the loaded program.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import torch

import onward
from benchmarks.run import PAUSE, ROOT, Peer, Process
from benchmarks.works import BATCHES, Transformer

VOCABULARY, WIDTH, LAYERS, BATCH, TOKENS = 8000, 512, 6, 8, 64
PEER = Peer("onward", "benchmarks.worker_ort")


@dataclass
class Way:
    """One way to train: its model, and what it took."""

    title: str
    model: onnx.ModelProto
    trained: dict[str, int]  # numbers by name
    milliseconds: list[float] = field(default_factory=list)
    mib: float = math.nan
    checkpoint: int = 0

    def row(self) -> str:
        count = sum(self.trained.values())
        held = 4 * count * 4 / 2**20  # values, gradients and two slots of AdamW, in float32
        least, median = min(self.milliseconds), statistics.median(self.milliseconds)
        return (
            f"| {self.title} | {count:,} | {held:,.1f} | {self.mib:,.0f} | {median:,.0f} ({least:,.0f}) | "
            f"{self.checkpoint / 2**20:,.1f} |"
        )


def ways(ranks: list[int]) -> list[Way]:
    torch.manual_seed(0)
    network = Transformer(VOCABULARY, WIDTH, 8, 4 * WIDTH, LAYERS, TOKENS, tied=False)
    model = onward.torch.export(network, (torch.zeros(BATCH, TOKENS, dtype=torch.int64),), verify=False)
    trained = {name: parameter.numel() for name, parameter in network.named_parameters()}
    found = [Way("everything", model, trained)]
    for rank in ranks:
        adapted = onward.lora(model, "layers.*", rank=rank, alpha=2 * rank)
        sizes = {name: array.size for name, array in adapted.weights().items()}
        found.append(Way(f"pairs of rank {rank}", adapted.model, sizes))
    return found


def prepare(way: Way, folder: Path) -> None:
    """Put down what a worker reads."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    x = random.integers(0, VOCABULARY, (BATCHES, BATCH, TOKENS))
    np.savez(folder / "data.npz", x=x, y=random.integers(0, VOCABULARY, (BATCHES, BATCH * TOKENS)))
    onnx.save(way.model, folder / "forward.onnx")
    settings = {"work": "lora", "trainable": list(way.trained), "frozen": [], "learning_rate": 1e-3}
    (folder / "work.json").write_text(json.dumps(settings))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="4,16", help="with commas: %(default)s")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=3, help="of each round")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    compared = ways([int(rank) for rank in options.ranks.split(",")])
    with ExitStack() as stack:
        running: list[tuple[Way, Process]] = []
        for way in compared:
            folder = ROOT / "out" / "bench" / "lora" / way.title.replace(" ", "-")
            prepare(way, folder)
            with Process(PEER, folder, options.threads) as builder:
                builder.ask("build")
            process = stack.enter_context(Process(PEER, folder, options.threads))
            process.ask("load")
            process.ask("steps", n=2)
            way.checkpoint = (folder / "onward" / "checkpoint").stat().st_size
            running.append((way, process))
        for _ in range(options.rounds):
            for way, process in running:
                time.sleep(PAUSE)
                took = process.ask("steps", n=options.steps)["seconds"]
                way.milliseconds.append(took / options.steps * 1e3)
        for way, process in running:
            way.mib = process.ask("memory")["mib"]
    print("| trained | numbers | their state, MiB | memory, MiB | step, ms: median (least) | checkpoint, MiB |")
    print("|---|---|---|---|---|---|")
    for way in compared:
        print(way.row())


if __name__ == "__main__":
    main()
