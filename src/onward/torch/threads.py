"""torch's threads and onnxruntime's share the cores."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

_SOFT = 1  # omp_pause_soft, of OpenMP 5.0: what threads have of their own is kept


def rest_openmp() -> None:
    """End the waiting of torch's threads, where it can be ended.

    Threads of OpenMP wait for the next operator of torch by spinning, for milliseconds: GCC's runtime has no limit in
    time but a number of turns. As long as they do, onnxruntime's threads have to share the cores with them, and a step
    takes up to half as long again. Asked for a pause, the runtime gives its threads up, and makes new ones when they
    are needed, which takes some 30 microseconds each; if there are none, it does nothing. Where there are cores for
    both, nobody is in the way: torch counts one thread for two cores that share their units.
    """
    threads = torch.get_num_threads()
    if threads > 1 and threads + threads - 1 > _cores():  # the caller is one of both
        pause = _pause()
        if pause is not None:
            pause(_SOFT)


@cache
def _cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pause() -> Callable[[int], int] | None:
    """`omp_pause_resource_all` of the OpenMP that torch is linked with; other systems have none, or an older one."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")):
        try:
            # Symbols of what a library is linked with are found through it.
            found: Callable[[int], int] = ctypes.CDLL(str(library)).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        return found
    return None
