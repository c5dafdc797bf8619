"""The logarithm of a mel spectrogram: what most networks for sounds take."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_FLOOR = 1e-6  # of the power, so that silence has a logarithm


def log_mel(samples: Array, rate: int, mels: int, window_ms: float, hop_ms: float) -> Array:
    """`[frames, mels]`: log(power + 1e-6) of windows by Hann, in triangles that are even on the mel scale of HTK."""
    size, hop = round(rate * window_ms / 1000), max(1, round(rate * hop_ms / 1000))
    if len(samples) < size:
        samples = np.pad(samples, (0, size - len(samples)))
    length = 1 << (size - 1).bit_length()
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    power = np.abs(np.fft.rfft(frames * np.hanning(size + 1)[:-1], length)) ** 2 / size
    return np.log(power @ _filters(rate, length, mels) + _FLOOR).astype(np.float32)


@functools.lru_cache(maxsize=8)
def _filters(rate: int, length: int, mels: int) -> Array:
    """`[bins, mels]`: triangles between 20 Hz and half the rate."""
    frequencies = np.arange(length // 2 + 1) * rate / length
    edges = _hertz(np.linspace(_mel(20.0), _mel(rate / 2), mels + 2))
    rising = (frequencies[:, None] - edges[None, :-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[None, 2:] - frequencies[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0.0, np.minimum(rising, falling))


def _mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))


def _hertz(mel: Array) -> Array:
    return np.asarray(700 * (10 ** (mel / 2595) - 1))
