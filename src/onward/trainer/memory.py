"""How much memory this process uses."""

from __future__ import annotations

import os
import sys

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def resident_memory() -> int | None:
    """The bytes that are in main memory now; their maximum so far where a system only tells that; else None."""
    try:
        file = os.open("/proc/self/statm", os.O_RDONLY)  # `open` takes three times as long
        try:
            return int(os.read(file, 256).split()[1]) * _PAGE
        finally:
            os.close(file)
    except (OSError, ValueError, IndexError):
        return _peak()


def _peak() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
