"""How wide the numbers are that a graph has for its own sake: 64 bits, or 32 for devices that have no more (WebGPU).

What a model computes keeps its types. This is about what is written around it: learning rate and corrections of the
optimizer, the number of the step, labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import onnx_ir as ir

_narrow: ContextVar[bool] = ContextVar("onward_narrow", default=False)


@contextlib.contextmanager
def narrow_numbers(wanted: bool = True) -> Iterator[None]:
    """Inside, graphs are written with numbers of 32 bits, if wanted."""
    token = _narrow.set(wanted)
    try:
        yield
    finally:
        _narrow.reset(token)


def is_narrow() -> bool:
    return _narrow.get()


def real() -> ir.DataType:
    """The type of numbers that should not lose digits."""
    return ir.DataType.FLOAT if is_narrow() else ir.DataType.DOUBLE


def whole() -> ir.DataType:
    """The type of counters and labels."""
    return ir.DataType.INT32 if is_narrow() else ir.DataType.INT64
