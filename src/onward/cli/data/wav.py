"""WAV files: PCM of 8 to 32 bits and floating point, which the standard library's `wave` does not read."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onward.cli.data.broken import SKIP
from onward.errors import OnwardError

Array = np.ndarray[Any, Any]

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FORMATS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 85: "MP3"}


class Sound(NamedTuple):
    """Samples from -1 to 1, of one channel."""

    samples: Array
    rate: int


class Header(NamedTuple):
    """What a file says about its samples, and where they are."""

    format: int
    channels: int
    rate: int
    bits: int
    start: int
    size: int

    @property
    def seconds(self) -> float:
        frame = self.channels * self.bits // 8
        return self.size // frame / self.rate


def read(path: Path) -> Sound:
    """A file; channels are mixed to one by their mean."""
    content = _content(path)
    header = read_header(path, content)
    data = content[header.start : header.start + header.size]
    samples = _samples(data, header, path)
    usable = len(samples) - len(samples) % header.channels
    if not usable or not np.isfinite(samples).all():
        what = "samples that are no numbers" if usable else "no samples"
        raise OnwardError(f"{str(path)!r} is a damaged WAV file: it has {what}{SKIP}")
    mixed = samples[:usable].reshape(-1, header.channels).mean(axis=1)
    return Sound(mixed.astype(np.float32), header.rate)


def read_header(path: Path, content: bytes | None = None) -> Header:
    """What a file says about its samples."""
    content = _content(path) if content is None else content
    if len(content) < 12 or content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise OnwardError(f"{str(path)!r} is no WAV file; convert it: ffmpeg -i FILE out.wav{SKIP}")
    place, described = 12, None
    while place + 8 <= len(content):
        kind, size = content[place : place + 4], struct.unpack("<I", content[place + 4 : place + 8])[0]
        place += 8
        if kind == b"fmt " and size >= 16:
            described = _described(content[place : place + size], path)
        elif kind == b"data" and described is not None:
            # What was written as a stream says 0 or far too much.
            left = len(content) - place
            return Header(*described, place, min(size, left) if size else left)
        place += size + size % 2
    raise OnwardError(f"{str(path)!r} is a damaged WAV file: it has no samples{SKIP}")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OnwardError(f"{str(path)!r} cannot be read: {error.strerror}{SKIP}") from error


def _described(text: bytes, path: Path) -> tuple[int, int, int, int]:
    kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", text[:16])
    if kind == _EXTENSIBLE and len(text) >= 26:
        kind = struct.unpack("<H", text[24:26])[0]
    known = (kind == _PCM and bits in (8, 16, 24, 32)) or (kind == _FLOAT and bits in (32, 64))
    if not known or not channels or not rate:
        raise OnwardError(
            f"{str(path)!r} is a WAV file of {bits} bits in the format {_FORMATS.get(kind, kind)}; convert it to 16 "
            f"bits: ffmpeg -i FILE -c:a pcm_s16le out.wav{SKIP}"
        )
    return kind, channels, rate, bits


def _samples(data: bytes, header: Header, path: Path) -> Array:
    width = header.bits // 8
    data = data[: len(data) - len(data) % width]
    if header.format == _FLOAT:
        return np.frombuffer(data, f"<f{width}").astype(np.float32)
    if width == 1:
        return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        parts = np.frombuffer(data, np.uint8).reshape(-1, 3).astype(np.int32)
        whole = (parts[:, 0] << 8 | parts[:, 1] << 16 | parts[:, 2] << 24) >> 8
        return (whole / 2.0**23).astype(np.float32)
    return (np.frombuffer(data, f"<i{width}") / 2.0 ** (header.bits - 1)).astype(np.float32)


def resampled(samples: Array, rate: int, wanted: int) -> Array:
    """Samples at another rate: what both rates can carry of the spectrum, as an ideal filter leaves it."""
    if rate == wanted or not len(samples):
        return samples
    # Mirrored at both ends, since the spectrum of a piece takes it for one that repeats itself.
    margin = min(len(samples) - 1, rate // 20)
    padded = np.pad(samples, margin, mode="reflect")
    count = round(len(padded) * wanted / rate)
    spectrum = np.fft.rfft(padded)
    kept = np.zeros(count // 2 + 1, complex)
    common = min(len(kept), len(spectrum))
    kept[:common] = spectrum[:common]
    whole = np.fft.irfft(kept, count) * (count / len(padded))
    start, length = round(margin * wanted / rate), round(len(samples) * wanted / rate)
    return whole[start : start + length].astype(np.float32)
