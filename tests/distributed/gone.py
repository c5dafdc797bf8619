"""Two processes, made by torch.multiprocessing, of which one ends in the middle. Usage: python -m tests.distributed.gone."""

from __future__ import annotations

import os
import sys
import time

import torch.multiprocessing

import onward
from onward.callbacks import Lambda
from onward.torch import Distributed
from tests.distributed.launch import free_port
from tests.trainer.toys import classifier, labelled


def train(rank: int, port: int) -> None:
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


if __name__ == "__main__":
    # Copies of this process, in which everything is imported; nothing of torch or onnxruntime has run yet.
    started = torch.multiprocessing.start_processes(train, (free_port(),), nprocs=2, join=False, start_method="fork")
    for process in started.processes:
        process.join(90)
    codes = [process.exitcode for process in started.processes]
    print(f"exit codes: {codes}")
    for process in started.processes:
        process.kill()
    sys.exit(None in codes)
