"""Masks as floats: numbers that are all 0 or 1, because a product is the fastest way to apply them."""

from __future__ import annotations

import onnx_ir as ir

_KEY = "onward.mask"


def as_mask(value: ir.Value) -> ir.Value:
    """Note that a value says yes or no: whoever keeps it may keep a bit of each element."""
    value.meta[_KEY] = True
    return value


def is_mask(value: ir.Value) -> bool:
    return bool(value.meta.get(_KEY))
