"""Numbers in the cells of a confusion matrix can be read on the strongest colour that these get, in light and dark."""

from __future__ import annotations

import re
from importlib import resources

import pytest

STYLE = resources.files("onward.report").joinpath("page.css").read_text("utf-8")
LEAST = 4.5  # of text of this size: WCAG 2.2, 1.4.3


def schemes() -> dict[str, dict[str, str]]:
    """The custom properties of the page in light, and in dark."""
    light, dark = (dict(re.findall(r"--([\w-]+): ([^;]+);", block)) for block in STYLE.split("@media", 1)[:2])
    return {"light": light, "dark": {**light, **dark}}


def channels(colour: str) -> list[float]:
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(digit * 2 for digit in digits)
    return [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]


def luminance(channel: list[float]) -> float:
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channel]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("colour", "most"), [("shade", "most-right"), ("second", "most-wrong")])
def test_numbers_of_a_confusion_matrix_can_be_read(scheme: str, colour: str, most: str) -> None:
    values = schemes()[scheme]
    share = float(values[most].removesuffix("%")) / 100
    mixed = [
        share * over + (1 - share) * under
        for over, under in zip(channels(values[colour]), channels(values["card"]), strict=True)
    ]
    low, high = sorted((luminance(mixed), luminance(channels(values["ink"]))))
    assert (high + 0.05) / (low + 0.05) >= LEAST
