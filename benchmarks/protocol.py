"""The worker's side of a benchmark: one process for each peer, driven by lines of JSON.

A process that is ready says so; then `{"do": "steps", "n": 10}` runs ten steps and answers with their time and losses.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EPSILON, WEIGHT_DECAY = 1e-8, 0.01

Step = Callable[[int], Any]  # runs the step of that number and returns its loss, in whatever form is free


class Worker:
    """What a peer implements; imports at the top of its file are the "loaded program"."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self.work = json.loads((folder / "work.json").read_text())
        with np.load(folder / "data.npz") as data:
            self.x, self.y = data["x"], data["y"]

    def import_builder(self) -> None:
        """Load what only building needs."""

    def build(self) -> None:
        """Make whatever training needs, once and for all."""

    def load(self) -> Step:
        """Be ready to train."""
        raise NotImplementedError


def serve(worker: type[Worker]) -> None:
    """Answer commands until standard input ends."""
    # Libraries write to standard output as they like; the answers have it for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = worker(Path(sys.argv[1]), int(sys.argv[2]))
    loaded = memory("VmRSS")
    forget_peak()
    step: Step | None = None
    done = 0
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if command["do"] == "build":
            peer.import_builder()
        start = time.perf_counter()
        try:
            if command["do"] == "build":
                peer.build()
            elif command["do"] == "load":
                step = peer.load()
            elif command["do"] == "steps":
                assert step is not None
                losses = [step(done + index) for index in range(command["n"])]
                done += command["n"]
                answer["seconds"] = time.perf_counter() - start
                answer["losses"] = [float(loss) for loss in losses]
            elif command["do"] == "memory":
                answer["mib"] = memory("VmHWM") - loaded
        except Exception as error:
            answer["error"] = f"{type(error).__name__}: {error}"
        answer.setdefault("seconds", time.perf_counter() - start)
        print(json.dumps(answer), file=answers)


def memory(key: str) -> float:
    """MiB of this process: resident now (VmRSS), or at most so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise OSError(f"no {key} in /proc/self/status")


def forget_peak() -> None:
    """Let VmHWM begin again from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")
