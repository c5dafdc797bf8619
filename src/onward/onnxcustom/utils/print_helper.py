"""Values as text."""

from __future__ import annotations

from typing import Any

_SHOWN = 5  # elements at either end


def str_ortvalue(ov: Any) -> str:
    """Where an OrtValue of either kind is, its type, shape and first and last elements."""
    value = getattr(ov, "_ortvalue", ov)
    array = value.numpy()
    elements = array.ravel().tolist()
    if len(elements) > 2 * _SHOWN:
        elements = [*elements[:_SHOWN], "...", *elements[-_SHOWN:]]
    return f"device={value.device_name()} dtype={array.dtype!r} shape={array.shape!r} value={elements!r}"
