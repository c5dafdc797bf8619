"""Pictures in files as the numbers that an input takes."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onward.cli.data.broken import SKIP
from onward.cli.data.rows import Rows
from onward.cli.data.table import Column
from onward.cli.model import shown
from onward.cli.recipe import Image
from onward.errors import OnwardError
from onward.trainer.field import Field

Array = np.ndarray[Any, Any]

FITS = ("stretch", "crop", "pad")
_SAMPLED = 50  # files whose size is looked at, where the model takes any
_GRID = 16  # sizes that are made up are multiples of this, which networks halve several times
_CHANNELS = (1, 3, 4)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclass(frozen=True)
class Layout:
    """Where an input has its channels, rows and columns of pixels; None are sizes that change."""

    channels: int
    height: int | None
    width: int | None
    last: bool  # whether channels are the last axis
    has_channels: bool = True


def layout_of(field: Field, grey: bool) -> Layout:
    """The layout of an input, by which of its axes has as many elements as there are channels."""
    shape = field.shape
    if shape is None or len(shape) == 4:
        axes: Sequence[Any] = (None, None, None) if shape is None else shape[1:]
        first, last = axes[0], axes[2]
        if last in _CHANNELS and first not in _CHANNELS:
            return Layout(last, _known(axes[0]), _known(axes[1]), True)
        if isinstance(first, int) and first not in _CHANNELS:
            raise OnwardError(
                f"input {field.name!r} of the model is {shown(shape)}, which is no picture of 1, 3 or 4 channels"
            )
        return Layout(first if isinstance(first, int) else 1 if grey else 3, _known(axes[1]), _known(axes[2]), False)
    if len(shape) == 3:
        return Layout(1, _known(shape[1]), _known(shape[2]), False, has_channels=False)
    raise OnwardError(f"input {field.name!r} of the model is {shown(shape)}, which is no picture")


def _known(size: Any) -> int | None:
    return size if isinstance(size, int) else None


def settle(wanted: Image, column: Column, field: Field, notes: list[str]) -> None:
    """Decide what was left open, and say so."""
    pillow()
    layout = layout_of(field, bool(wanted.grey))
    if wanted.grey and layout.channels != 1:
        raise OnwardError(f"--grey makes one channel, but input {field.name!r} of the model takes {layout.channels}")
    wanted.grey = layout.channels == 1
    _settle_size(wanted, layout, column, field, notes)
    wanted.fit = wanted.fit or "stretch"
    if wanted.fit not in FITS:
        raise OnwardError(f"--fit is one of {', '.join(FITS)}, not {wanted.fit!r}")
    if wanted.scale is None:
        assert field.dtype is not None
        wanted.scale = 1 / 255 if field.dtype.kind == "f" else 1.0
        if field.dtype.kind == "f" and wanted.mean is None and wanted.std is None:
            notes.append(
                "pixels become 0 to 1; if the model is used to other numbers, say so: --scale 1/255 --mean 0.5 "
                "--std 0.5, or --mean imagenet"
            )
    for name, values in (("mean", wanted.mean), ("std", wanted.std)):
        if values is not None and len(values) not in (1, layout.channels):
            raise OnwardError(f"--{name} has {len(values)} numbers, but pictures have {layout.channels} channels")
    if wanted.std is not None and 0.0 in wanted.std:
        raise OnwardError("--std has a 0, by which nothing can be divided")


def _settle_size(wanted: Image, layout: Layout, column: Column, field: Field, notes: list[str]) -> None:
    fixed = [layout.height, layout.width]
    if wanted.size is not None:
        if any(size is not None and size != given for size, given in zip(fixed, wanted.size, strict=True)):
            raise OnwardError(
                f"--size is {wanted.size}, but input {field.name!r} of the model takes {shown(field.shape)}"
            )
        return
    if None not in fixed:
        wanted.size = [size for size in fixed if size is not None]
        return
    sizes = Counter(_size(column.folder / name) for name in column.values[:: max(1, len(column) // _SAMPLED)])
    common, count = sizes.most_common(1)[0]
    if count < sum(sizes.values()):
        middle = np.median(list(sizes.elements()), axis=0)
        common = (_rounded(middle[0]), _rounded(middle[1]))
    wanted.size = [size or other for size, other in zip(fixed, common, strict=True)]
    notes.append(f"the model takes pictures of any size; they become {_by(wanted.size)} (--size HEIGHTxWIDTH)")


def _rounded(size: float) -> int:
    return max(_GRID, round(size / _GRID) * _GRID)


def described(wanted: Image) -> str:
    """What becomes of pictures, for people."""
    said = [f"{_by(wanted.size or [])} pixels", "grey" if wanted.grey else "bgr" if wanted.bgr else "colours"]
    if wanted.scale not in (None, 1.0):
        said.append(f"times {wanted.scale:.4g}")
    said += [f"{sign} {_listed(values)}" for sign, values in (("-", wanted.mean), ("/", wanted.std)) if values]
    return ", ".join(said)


def _by(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def images(column: Column, field: Field, wanted: Image) -> Any:
    """Pictures as an input takes them, decoded now if they are few, and else when they are needed."""
    layout = layout_of(field, bool(wanted.grey))
    assert wanted.size is not None
    assert field.dtype is not None
    height, width = wanted.size
    inner = (height, width, layout.channels) if layout.last else (layout.channels, height, width)
    shape = inner if layout.has_channels else (height, width)
    dtype = field.dtype if field.dtype.kind in "fu" else np.dtype(np.float32)

    def decode(name: str) -> Array:
        return _arranged(_decoded(column.folder / name, wanted, layout.channels), layout).astype(dtype)

    return Rows(column.values, shape, dtype, decode).loaded()


def _arranged(pixels: Array, layout: Layout) -> Array:
    if not layout.has_channels:
        return pixels[:, :, 0]
    return pixels if layout.last else pixels.transpose(2, 0, 1)


def _decoded(path: Path, wanted: Image, channels: int) -> Array:
    """The pixels of a picture, `[height, width, channels]`."""
    assert wanted.size is not None
    with opened(path) as picture:
        picture = _eight_bits(_upright(picture), path).convert(_MODES[channels])
    pixels = np.asarray(_resized(picture, wanted), np.float32).reshape(*wanted.size, channels)
    if wanted.bgr and channels == 3:
        pixels = pixels[:, :, ::-1]
    pixels = pixels * np.float32(1.0 if wanted.scale is None else wanted.scale)
    if wanted.mean is not None:
        pixels = pixels - np.array(wanted.mean, np.float32)
    return pixels if wanted.std is None else pixels / np.array(wanted.std, np.float32)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A picture in a file; what goes wrong with it names the file."""
    library = pillow()
    try:
        with library.open(path) as picture:
            yield picture
    except library.UnidentifiedImageError as error:
        raise OnwardError(f"{str(path)!r} is no picture{SKIP}") from error
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, library.DecompressionBombError) as error:
        raise OnwardError(f"{str(path)!r} cannot be read: {error}{SKIP}") from error


def check(path: Path) -> None:
    """Decode a picture, to see whether that works."""
    with opened(path) as picture:
        _eight_bits(picture, path).load()


def _eight_bits(picture: Any, path: Path) -> Any:
    """A picture of 16 bits as one of 8, where Pillow would cut off all numbers above 255."""
    if picture.mode == "F":
        raise OnwardError(f"{str(path)!r} has pixels of floating point, of unknown range; give arrays, in an npz file")
    if not picture.mode.startswith("I"):
        return picture
    from PIL import Image as Pictures

    return Pictures.fromarray((np.clip(np.asarray(picture, np.int64), 0, 65535) >> 8).astype(np.uint8))


def _upright(picture: Any) -> Any:
    """As cameras mean it: many write down how they were held instead of turning the picture."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def _resized(picture: Any, wanted: Image) -> Any:
    from PIL import Image as Pictures
    from PIL import ImageOps

    assert wanted.size is not None
    size = (wanted.size[1], wanted.size[0])
    if picture.size == size:
        return picture
    if wanted.fit == "crop":
        return ImageOps.fit(picture, size, Pictures.Resampling.BILINEAR)
    if wanted.fit == "pad":
        return ImageOps.pad(picture, size, Pictures.Resampling.BILINEAR)
    return picture.resize(size, Pictures.Resampling.BILINEAR)


def _size(path: Path) -> tuple[int, int]:
    with opened(path) as picture:
        width, height = _upright(picture).size
    return height, width


def pillow() -> Any:
    try:
        from PIL import Image as Pictures
    except ImportError as error:
        raise OnwardError("reading pictures needs the package pillow: pip install pillow") from error
    return Pictures
