"""Start the processes of a test: nothing hangs, since all of them are killed when their time is up."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """What has become of a process."""

    code: int
    output: str


def environment(**others: str) -> dict[str, str]:
    """One thread each: there are as many processes as cores."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **others}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launch(arguments: Sequence[str], *, size: int = 2, limit: float = 120, **others: str) -> list[Ended]:
    """Run ``python *arguments`` in several processes that know of each other by their environment."""
    port = str(free_port())
    processes = []
    for rank in range(size):
        known = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(_start([sys.executable, "-W", "error", *arguments], environment(**known, **others)))
    return _wait(processes, limit)


def torchrun(arguments: Sequence[str], folder: Path, *, limit: float = 120, **others: str) -> Ended:
    """Run ``torchrun --nproc-per-node 2 *arguments``."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    return _wait([_start([*command, *arguments], environment(**others), folder)], limit)[0]


def _start(command: Sequence[str], known: Mapping[str, str], folder: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=dict(known), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _wait(processes: Sequence[subprocess.Popen[str]], limit: float) -> list[Ended]:
    end = time.monotonic() + limit
    ended = []
    try:
        for process in processes:
            output, _ = process.communicate(timeout=max(0.0, end - time.monotonic()))
            ended.append(Ended(process.returncode, output))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
    return ended
