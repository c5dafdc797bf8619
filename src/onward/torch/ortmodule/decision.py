"""Decisions by a random number: layers that are left out with some probability, which is often zero."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from onward.torch.ortmodule._fallback import ORTModuleTorchModelException


class _Number:
    """A number of [0, 1) that is not known: it can be compared where the result is the same for all of them."""

    def __lt__(self, limit: Any) -> bool:
        return _certain(limit, never=limit <= 0, always=limit >= 1)

    def __le__(self, limit: Any) -> bool:
        return _certain(limit, never=limit < 0, always=limit >= 1)

    def __gt__(self, limit: Any) -> bool:
        return not self <= limit

    def __ge__(self, limit: Any) -> bool:
        return not self < limit

    def __getattr__(self, name: str) -> Any:
        raise ORTModuleTorchModelException(f"it draws a single random number, and asks for its {name!r}")


def _certain(limit: Any, *, never: bool, always: bool) -> bool:
    if bool(never) == bool(always):
        raise ORTModuleTorchModelException(f"it decides by a random number, whether it is below {limit}")
    return bool(always)


@contextlib.contextmanager
def decided() -> Iterator[None]:
    """Let this thread draw, by `torch.rand([])`, numbers to decide by; exporters cannot follow those of tensors."""
    own, draw = threading.get_ident(), torch.rand

    def rand(*size: Any, **options: Any) -> Any:
        if threading.get_ident() == own and size in ((), ([],), ((),)) and not options.get("size"):
            return _Number()
        return draw(*size, **options)

    setattr(torch, "rand", rand)  # noqa: B010  mypy does not let functions be assigned
    try:
        yield
    finally:
        setattr(torch, "rand", draw)  # noqa: B010
