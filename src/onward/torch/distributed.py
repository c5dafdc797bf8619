"""Several processes that train one model with `onward.Trainer`, over torch.distributed."""

from __future__ import annotations

import atexit
import datetime
import os
import pickle
import time
from typing import Any

import numpy as np

from onward.errors import OnwardError, PeerError
from onward.runtime.tensors import FlatTensors

_ROOM = 1024  # bytes that are exchanged in any case; what is larger takes a second round
_LENGTH = np.dtype(np.int64)
_WAKE_UP = datetime.timedelta(seconds=0.5)  # waiting in torch cannot be interrupted by Ctrl-C
_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Distributed:
    """A strategy of `onward.Trainer`: torch.distributed carries gradients and parameters between processes.

    All processes run the same program. torchrun starts them; or anything else does that sets RANK, WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, or calls `torch.distributed.init_process_group` before.

    Gradients are added up where they are: torch sees the buffer that onnxruntime has written.

    Args:
        backend: what carries tensors: "gloo" for those in main memory, "nccl" for those on GPUs.
        timeout: seconds after which a process that does not answer is given up.
        sharded: each process is given its own part of the data, and `batch_size` is that of one process. By default all
            are given the same data, and divide each batch.

    Attributes:
        rank: the number of this process.
        size: how many there are.
    """

    def __init__(self, backend: str = "gloo", *, timeout: float = 1800.0, sharded: bool = False) -> None:
        if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout > 0:
            raise OnwardError(f"`timeout` is a number of seconds, more than 0, not {timeout!r}")
        self.backend, self.timeout, self.sharded = backend, float(timeout), bool(sharded)
        self._distributed = _torch_distributed()
        _require_backend(self._distributed, backend)
        limit = datetime.timedelta(seconds=self.timeout)
        if not self._distributed.is_initialized():
            _join(self._distributed, backend, limit)
        self.rank, self.size = int(self._distributed.get_rank()), int(self._distributed.get_world_size())
        # Groups of our own, so that nothing of the user's comes in between. What is said is always in main memory.
        self._talk = self._distributed.new_group(backend="gloo", timeout=limit)
        self._tensors = self._talk if backend == "gloo" else self._distributed.new_group(backend=backend, timeout=limit)
        self._broken: str | None = None

    def gather(self, value: Any) -> list[Any]:
        """What each process gives, in the order of ranks; processes that train together trust each other's pickles."""
        content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        said = np.zeros(_ROOM, np.uint8)
        said[: _LENGTH.itemsize] = np.array([len(content)], _LENGTH).view(np.uint8)
        inline = content if len(content) <= _ROOM - _LENGTH.itemsize else b""
        said[_LENGTH.itemsize : _LENGTH.itemsize + len(inline)] = np.frombuffer(inline, np.uint8)
        heard = self._all_gather(said)
        lengths = [int(row[: _LENGTH.itemsize].view(_LENGTH)[0]) for row in heard]
        if max(lengths) <= _ROOM - _LENGTH.itemsize:
            contents = [row[_LENGTH.itemsize :][:length] for row, length in zip(heard, lengths, strict=True)]
        else:
            said = np.zeros(max(lengths), np.uint8)
            said[: len(content)] = np.frombuffer(content, np.uint8)
            contents = [row[:length] for row, length in zip(self._all_gather(said), lengths, strict=True)]
        return [pickle.loads(row.tobytes()) for row in contents]

    def _all_gather(self, said: np.ndarray) -> list[np.ndarray]:
        import torch

        heard = [np.empty_like(said) for _ in range(self.size)]
        rows = [torch.from_numpy(row) for row in heard]
        self._wait("all_gather", rows, torch.from_numpy(said), group=self._talk)
        return heard

    def add_up(self, tensors: FlatTensors, weight: float) -> None:
        """Sum weight times the tensors over all processes, in place."""
        for buffer in self._buffers(tensors):
            if weight == 0:
                buffer.zero_()  # what has not been computed may be anything, also not a number
            elif weight != 1:
                buffer.mul_(weight)
            self._wait("all_reduce", buffer, group=self._tensors)

    def broadcast(self, tensors: FlatTensors) -> None:
        """Let the tensors be those of rank 0, in place."""
        for buffer in self._buffers(tensors):
            self._wait("broadcast", buffer, 0, group=self._tensors)

    def _buffers(self, tensors: FlatTensors) -> list[Any]:
        """Flat tensors as torch sees them, in the memory that they are in."""
        import torch

        if tensors.device.is_host:
            if self.backend == "nccl":
                raise OnwardError(
                    "nccl carries tensors on GPUs, but the parameters are in main memory: use "
                    "strategy=onward.torch.Distributed('gloo'), or Trainer(device='cuda')"
                )
            arrays = [tensors.whole_array(dtype) for dtype in tensors.dtypes]
            # numpy's bfloat16 is a type of ml_dtypes, which torch does not know.
            return [
                torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
                if array.dtype.name == "bfloat16"
                else torch.from_numpy(array)
                for array in arrays
            ]
        values = [tensors.whole(dtype) for dtype in tensors.dtypes]
        return [torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()) for value in values]

    def _wait(self, operation: str, *arguments: Any, group: Any) -> None:
        """Do something that all processes do, and wait until it is done."""
        if self._broken is not None:
            raise PeerError(f"there is no connection any more: {self._broken}. Start all processes again")
        self._broken = "an exchange was interrupted"  # until it is done
        began = time.monotonic()
        try:
            work = getattr(self._distributed, operation)(*arguments, group=group, async_op=True)
            while not work.is_completed():
                try:
                    work.wait(_WAKE_UP)
                except RuntimeError:
                    if time.monotonic() - began > self.timeout + 10:
                        raise
            work.wait()  # which raises what has gone wrong
        except RuntimeError as error:
            others = [str(rank) for rank in range(self.size) if rank != self.rank]
            who = f"rank {others[0]}" if len(others) == 1 else f"one of the ranks {', '.join(others)}"
            late = time.monotonic() - began >= self.timeout
            what = f"{who} did not answer within {self.timeout:g} s" if late else f"the connection to {who} is lost"
            self._broken = what
            raise PeerError(
                f"{what}: it has ended, hangs, or does something else. Its own output says more ({_first_line(error)})"
            ) from error
        self._broken = None

    def __repr__(self) -> str:
        return f"Distributed({self.backend!r}, rank={self.rank}, size={self.size})"


def _torch_distributed() -> Any:
    try:
        import torch.distributed as distributed
    except ImportError as error:
        raise OnwardError(
            "training in several processes needs the package torch, for its communication only: pip install "
            "onward[torch]; see https://pytorch.org for smaller builds without CUDA"
        ) from error
    if not distributed.is_available():
        raise OnwardError("the installed torch was built without torch.distributed; install another build of torch")
    return distributed


def _require_backend(distributed: Any, backend: str) -> None:
    """Refuse what cannot carry anything here, before other processes are waited for."""
    import torch

    known = [name for name in distributed.Backend.backend_list if name not in ("undefined", "fake")]
    if not isinstance(backend, str) or (backend not in known and ":" not in backend):
        raise OnwardError(f"`backend` is one of {', '.join(map(repr, known))}, not {backend!r}")
    available = getattr(distributed, f"is_{backend}_available", None)
    if available is not None and not available():
        raise OnwardError(f"the installed torch was built without {backend}; use backend='gloo'")
    if backend == "nccl" and not torch.cuda.is_available():
        raise OnwardError(
            "nccl carries tensors between GPUs, and torch finds none on this machine: use "
            "strategy=onward.torch.Distributed('gloo'), which carries those in main memory"
        )


def _join(distributed: Any, backend: str, limit: datetime.timedelta) -> None:
    """Become one of the processes that the environment tells of."""
    missing = [name for name in _ENVIRONMENT if name not in os.environ]
    if missing:
        raise OnwardError(
            f"there are no other processes to train with: {', '.join(missing)} is not in the environment. Start the "
            "program with `torchrun --nproc-per-node 2 program.py`, set all of "
            f"{', '.join(_ENVIRONMENT)}, or call torch.distributed.init_process_group before; Trainer(strategy='auto') "
            "trains in one process where there are no others"
        )
    try:
        distributed.init_process_group(backend, timeout=limit)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise OnwardError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others at {where}: "
            f"{_first_line(error)}"
        ) from error
    atexit.register(_leave, distributed)


def _leave(distributed: Any) -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
