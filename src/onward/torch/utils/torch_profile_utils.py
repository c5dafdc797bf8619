"""Ranges for NVIDIA's profiler, and memory: where there is no GPU, ranges are nothing and memory is the process's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from logging import Logger
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Found = TypeVar("Found")


def torch_nvtx_range_push(msg: str) -> None:
    """Begin a range of the profiler."""
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_push(msg)  # type: ignore[no-untyped-call]


def torch_nvtx_range_pop() -> None:
    """End the innermost range."""
    if torch.cuda.is_available():
        torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call]


def nvtx_function_decorator(func: Callable[Given, Found]) -> Callable[Given, Found]:
    """Make each call of a function a range that has its name."""

    @functools.wraps(func)
    def within_range(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        torch_nvtx_range_push(getattr(func, "__qualname__", repr(func)))
        try:
            return func(*args, **kwargs)
        finally:
            torch_nvtx_range_pop()

    return within_range


def log_memory_usage(
    cur_phase: str, rank_0_only: bool = True, step_info: str = "", logger: Logger | None = None
) -> None:
    """Say how much memory is used, on the first of several processes only, if not told otherwise."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank_0_only and distributed and torch.distributed.get_rank() != 0:
        return
    mebibyte = 1 << 20
    if torch.cuda.is_available():
        used = (
            f"allocated {torch.cuda.memory_allocated() / mebibyte:.0f} MiB, "
            f"at most {torch.cuda.max_memory_allocated() / mebibyte:.0f} MiB, "
            f"reserved {torch.cuda.memory_reserved() / mebibyte:.0f} MiB"
        )
    else:
        used = f"the process has used at most {_peak() / mebibyte:.0f} MiB"
    message = f"{cur_phase}{f' ({step_info})' if step_info else ''}: {used}"
    print(message) if logger is None else logger.info(message)


def _peak() -> float:
    if sys.platform == "win32":
        return float("nan")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
