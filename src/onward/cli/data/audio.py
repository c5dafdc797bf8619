"""Sounds in files as the numbers that an input takes: samples, or the logarithm of a mel spectrogram."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.cli.data import wav
from onward.cli.data.rows import Rows
from onward.cli.data.spectrum import log_mel
from onward.cli.data.table import Column
from onward.cli.model import shown
from onward.cli.recipe import Audio
from onward.errors import OnwardError
from onward.trainer.field import Field

Array = np.ndarray[Any, Any]

RAW, MEL = "raw", "mel"
_MELS = (8, 10, 12, 13, 16, 20, 24, 26, 32, 40, 60, 64, 80, 96, 120, 128)  # what models take
_FEW, _MANY = 40, 80  # mels where the model takes any number
_WINDOW_MS, _HOP_MS = 25.0, 10.0


@dataclass(frozen=True)
class Layout:
    """What an input takes: samples, or a spectrogram with mels on one axis and time on another."""

    features: str
    time: int | None  # samples or frames; None if any number
    mels: int | None = None
    mels_first: bool = True
    channel: int | None = None  # the axis of a single channel


def layout_of(field: Field, wanted: Audio) -> Layout:
    """The layout of an input, by its rank and sizes."""
    shape = field.shape
    if shape is None:
        raise OnwardError(f"input {field.name!r} of the model has no known shape; give arrays, in an npz file")
    inner = [size if isinstance(size, int) else None for size in shape[1:]]
    if len(inner) == 1:
        return Layout(RAW, inner[0])
    if len(inner) == 2 and wanted.features != MEL and 1 in inner:
        place = inner.index(1)
        return Layout(RAW, inner[1 - place], channel=place)
    if wanted.features == RAW:
        raise OnwardError(
            f"input {field.name!r} of the model takes {shown(shape)}, which are no samples; --features mel"
        )
    if len(inner) == 3 and 1 in (inner[0], inner[2]):
        place = 0 if inner[0] == 1 else 2
        inner.pop(place)
        return _spectrogram(inner, wanted, place)
    if len(inner) == 2:
        return _spectrogram(inner, wanted, None)
    raise OnwardError(
        f"input {field.name!r} of the model takes {shown(shape)}, which is neither samples nor a spectrogram"
    )


def _spectrogram(sizes: Sequence[int | None], wanted: Audio, channel: int | None) -> Layout:
    """Which axis has the mels: the one of the wanted number, of a usual one, or that does not change."""
    first, second = sizes
    if wanted.mels is not None and wanted.mels in sizes:
        mels_first = first == wanted.mels
    elif (first in _MELS) != (second in _MELS):
        mels_first = first in _MELS
    else:
        mels_first = first is not None and (second is None or first <= second)
    mels, time = (first, second) if mels_first else (second, first)
    return Layout(MEL, time, mels if mels is not None else wanted.mels, mels_first, channel)


def settle(wanted: Audio, column: Column, field: Field, notes: list[str]) -> None:
    """Decide what was left open, and say so."""
    layout = layout_of(field, wanted)
    headers = [wav.read_header(column.folder / name) for name in column.values]
    rates = Counter(header.rate for header in headers)
    wanted.features = layout.features
    if wanted.rate is None:
        wanted.rate = rates.most_common(1)[0][0]
        notes.append(
            f"sounds have {wanted.rate} samples a second; if the model is used to another rate, say so: --rate 16000"
        )
    others = sum(count for rate, count in rates.items() if rate != wanted.rate)
    if others:
        notes.append(f"{others} of {len(headers)} sounds are resampled to {wanted.rate} samples a second")
    mixed = sum(header.channels > 1 for header in headers)
    if mixed:
        notes.append(f"{mixed} sounds have several channels, which are mixed to one")
    if layout.features == MEL:
        wanted.mels = layout.mels or wanted.mels or (_FEW if wanted.rate < 12000 else _MANY)
        wanted.window_ms, wanted.hop_ms = wanted.window_ms or _WINDOW_MS, wanted.hop_ms or _HOP_MS
    _settle_length(wanted, layout, [header.seconds for header in headers], notes)


def _settle_length(wanted: Audio, layout: Layout, seconds: Sequence[float], notes: list[str]) -> None:
    assert wanted.rate is not None
    given = wanted.seconds
    if layout.time is not None:
        wanted.seconds = _seconds_of(layout.time, wanted)
        if given is not None and abs(given - wanted.seconds) > 1 / wanted.rate:
            raise OnwardError(f"--seconds is {given:g}, but the model takes {wanted.seconds:g} seconds")
    elif given is None:
        wanted.seconds = round(max(seconds), 6)
    assert wanted.seconds is not None
    short, long = (sum(1 for s in seconds if compare(s)) for compare in (_shorter(wanted), _longer(wanted)))
    if short or long:
        said = [
            f"{short} shorter ones get silence at the end" if short else "",
            f"{long} longer ones are cut" if long else "",
        ]
        how = "" if layout.time is not None else " (--seconds)"
        notes.append(f"all sounds become {wanted.seconds:g} s{how}: {' and '.join(filter(None, said))}")


def _shorter(wanted: Audio) -> Any:
    return lambda seconds: seconds < (wanted.seconds or 0) - 1e-3


def _longer(wanted: Audio) -> Any:
    return lambda seconds: seconds > (wanted.seconds or 0) + 1e-3


def _seconds_of(time: int, wanted: Audio) -> float:
    """How long a sound is that has so many samples or frames."""
    assert wanted.rate is not None
    if wanted.features == RAW:
        return time / wanted.rate
    assert wanted.window_ms is not None
    assert wanted.hop_ms is not None
    return ((time - 1) * wanted.hop_ms + wanted.window_ms) / 1000


def described(wanted: Audio) -> str:
    """What becomes of sounds, for people."""
    said = f"{wanted.seconds:g} s at {wanted.rate} Hz"
    if wanted.features == MEL:
        return f"{said}, log of {wanted.mels} mels, every {wanted.hop_ms:g} ms"
    return f"{said}, samples from -1 to 1"


def sounds(column: Column, field: Field, wanted: Audio) -> Any:
    """Sounds as an input takes them."""
    layout = layout_of(field, wanted)
    assert wanted.rate is not None
    assert wanted.seconds is not None
    assert field.dtype is not None
    count = round(wanted.seconds * wanted.rate)
    dtype = field.dtype if field.dtype.kind == "f" else np.dtype(np.float32)

    def decode(name: str) -> Array:
        sound = wav.read(column.folder / name)
        samples = fitted(wav.resampled(sound.samples, sound.rate, wanted.rate or sound.rate), count)
        return _arranged(samples, layout, wanted)

    shape = decode(column.values[0]).shape
    return Rows(column.values, shape, dtype, decode).loaded()


def fitted(samples: Array, count: int) -> Array:
    """So many samples: the middle of a longer sound, or a shorter one and silence."""
    if len(samples) >= count:
        start = (len(samples) - count) // 2
        return samples[start : start + count]
    return np.pad(samples, (0, count - len(samples)))


def _arranged(samples: Array, layout: Layout, wanted: Audio) -> Array:
    if layout.features == RAW:
        return samples if layout.channel is None else np.expand_dims(samples, layout.channel)
    assert wanted.mels is not None
    assert wanted.window_ms is not None
    assert wanted.hop_ms is not None
    assert wanted.rate is not None
    mel = log_mel(samples, wanted.rate, wanted.mels, wanted.window_ms, wanted.hop_ms)
    if layout.time is not None:  # rounding of milliseconds to samples may make one more or less
        mel = np.pad(mel, ((0, max(0, layout.time - len(mel))), (0, 0)), mode="edge")[: layout.time]
    mel = mel.T if layout.mels_first else mel
    return mel if layout.channel is None else np.expand_dims(mel, layout.channel)
