"""Inputs as pictures: arrays as PNG, sounds as the outline of their waves."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from onward.report.markup import Markup, tag

_LARGEST = 160  # pixels of a side: larger pictures are made smaller
_SMALLEST = 4
_SHORTEST_WAVE = 400
_OUTLINE = 120  # columns of the outline of a wave
_CHANNELS = (1, 3, 4)


def picture_of(array: np.ndarray, description: str) -> Markup | None:
    """An array as a picture or as a wave, if it looks like one; else None."""
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        return None
    pixels = _pixels(array)
    if pixels is not None:
        content = base64.b64encode(png(_bytes(_reduced(pixels)))).decode("ascii")
        return tag("img", src=f"data:image/png;base64,{content}", alt=description, class_="picture")
    wave = array.reshape(-1) if array.dtype.kind == "f" and max(array.shape, default=0) == array.size else None
    return None if wave is None or wave.size < _SHORTEST_WAVE else _wave(wave, description)


def _pixels(array: np.ndarray) -> np.ndarray | None:
    """`[H, W, C]` of something that has rows and columns, and 1, 3 or 4 colours."""
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3:
        return None
    if array.shape[0] in _CHANNELS and min(array.shape[1:]) >= _SMALLEST:
        array = np.moveaxis(array, 0, -1)
    elif array.shape[2] not in _CHANNELS:
        return None
    height, width = array.shape[:2]
    is_picture = min(height, width) >= _SMALLEST and max(height, width) <= 16 * min(height, width)
    return array.astype(np.float32) if is_picture else None


def _reduced(pixels: np.ndarray) -> np.ndarray:
    """Means of squares of pixels, where there are more than a page needs."""
    step = -(-max(pixels.shape[:2]) // _LARGEST)
    if step <= 1:
        return pixels
    height, width = (size // step * step for size in pixels.shape[:2])
    blocks = pixels[:height, :width].reshape(height // step, step, width // step, step, -1)
    return np.asarray(blocks.mean(axis=(1, 3)))


def _bytes(pixels: np.ndarray) -> np.ndarray:
    """Numbers as brightness: 0 to 1 and 0 to 255 as they are, others from their lowest to their highest."""
    pixels = np.nan_to_num(pixels, nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or high > 255:
        pixels = (pixels - low) / max(high - low, 1e-12) * 255
    elif high <= 1:
        pixels = pixels * 255
    return pixels.round().clip(0, 255).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    """`[H, W, C]` of 8 bits as a file."""
    height, width, channels = pixels.shape
    kind = {1: 0, 3: 2, 4: 6}[channels]
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _wave(wave: np.ndarray, description: str) -> Markup:
    """The lowest and the highest number of each part of a sound, as one outline."""
    wave = np.nan_to_num(wave.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    parts = np.array_split(wave, _OUTLINE)
    largest = max(float(np.abs(wave).max()), 1e-12)
    high = [-float(part.max()) / largest for part in parts]
    low = [-float(part.min()) / largest for part in parts]
    places = [*enumerate(high), *reversed(list(enumerate(low)))]
    path = "M" + "L".join(f"{x},{30 + 28 * y:.1f}" for x, y in places) + "Z"
    drawn = tag("path", d=path, fill="var(--first)", stroke="var(--first)", stroke_width="0.6")
    return tag("svg", drawn, viewBox=f"0 0 {_OUTLINE - 1} 60", role="img", aria_label=description, class_="wave")
