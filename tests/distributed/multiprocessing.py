"""Processes that torch.multiprocessing makes.

Usage: python -m tests.distributed.multiprocessing dies; or: spawn <folder> <number of processes> <scenario> ...
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed
import torch.multiprocessing

import onward
from onward.callbacks import Lambda
from onward.torch import Distributed
from tests.distributed.launch import free_port
from tests.distributed.worker import found_in, write
from tests.trainer.toys import classifier, labelled


def dies(rank: int, port: int) -> None:
    """Train in two processes, of which one ends in the middle."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    trainer = onward.Trainer(classifier(), "cross_entropy", strategy=Distributed(timeout=60))

    def end(run: onward.callbacks.Run) -> None:
        if rank == 1 and run.step == 2:
            os._exit(7)

    began = time.monotonic()
    try:
        trainer.fit(*labelled(16), batch_size=4, callbacks=[Lambda(on_step_end=end)], progress=False)
    except onward.errors.PeerError as error:
        print(f"rank {rank} knew within a minute: {time.monotonic() - began < 60}; {error}", flush=True)


def scenarios(rank: int, port: int, size: int, folder: str, names: list[str]) -> None:
    """Run some scenarios, with others that were found without the environment."""
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    write(Path(folder), found_in(Path(folder), names))
    torch.distributed.destroy_process_group()


def main(how: str, *arguments: str) -> None:
    if how == "spawn":
        folder, size, *names = arguments
        torch.multiprocessing.spawn(scenarios, (free_port(), int(size), folder, names), nprocs=int(size))
        return
    # Copies of this process, in which everything is imported; nothing of torch or onnxruntime has run yet.
    started = torch.multiprocessing.start_processes(dies, (free_port(),), nprocs=2, join=False, start_method="fork")
    for process in started.processes:
        process.join(90)
    print(f"exit codes: {[process.exitcode for process in started.processes]}")
    for process in started.processes:
        process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
