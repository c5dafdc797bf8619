"""Room in memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache


def give_back() -> None:
    """Give the system back what has been freed, where there is a way to.

    glibc keeps freed blocks below 32 MiB, because as a rule they are needed again. What the comparison with torch took
    is not: half a gigabyte for a MobileNetV2 of 16 images.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another library than glibc
        return None
    return found
