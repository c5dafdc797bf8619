"""Numbers as people read them."""

from __future__ import annotations

import math


def shown(value: object) -> str:
    """A number with four digits that count; NaN and infinity by name; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.1%}".replace(".0%", "%")


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if math.isnan(seconds):
        return "–"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def size(count: float) -> str:
    """Bytes in the unit that suits them."""
    if math.isnan(count):
        return "–"
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.3g} {unit}" if count < 1000 else f"{count:,.0f} {unit}"
