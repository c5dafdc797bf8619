"""Where external data may be: in the folder of its model, and nowhere else.

A model names the files that hold its weights. One from somewhere else could name any file of its user's, whose contents
would then be in whatever is exported. Pure Python: the device runtime and the graph layer ask the same code.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from onward.errors import InvalidModelError

# Opening must neither follow a link in the last place nor wait for somebody who writes to a pipe.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)
_BY_COMPONENT = os.open in os.supports_dir_fd and hasattr(os, "O_DIRECTORY") and hasattr(os, "O_NOFOLLOW")


def resolve_inside(folder: str | os.PathLike[str], location: str) -> Path:
    """The file that a model in `folder` calls `location`, all links followed; it need not exist.

    Links within the folder are fine; what leaves it, by whatever way, is refused.
    """
    base = os.path.realpath(os.fspath(folder))
    if not location or "\0" in location:
        raise InvalidModelError(f"the model keeps weights in a file called {location!r}, which is no name of a file")
    named = os.path.normpath(os.path.join(base, location))
    real = os.path.realpath(os.path.join(base, location))
    for path in (named, real):
        if os.path.isabs(location) or os.path.splitdrive(location)[0] or not _is_inside(path, base):
            raise InvalidModelError(
                f"the model keeps weights in {location!r}, which is outside of its folder {str(folder)!r}; external "
                "data must lie beside the model. Copy it there, and correct the location, if you trust the model."
            )
    return Path(real)


def _is_inside(path: str, base: str) -> bool:
    path, base = os.path.normcase(path), os.path.normcase(base)
    return path != base and os.path.commonpath([path, base]) == base


def open_inside(folder: str | os.PathLike[str], location: str) -> IO[bytes]:
    """Open external data for reading: what was opened is what was checked, whoever swaps files meanwhile.

    Raises FileNotFoundError where there is nothing.
    """
    path = resolve_inside(folder, location)
    try:
        descriptor = _open(Path(os.path.realpath(folder)), path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"there is no {location!r} in {str(folder)!r}") from error
    except OSError as error:
        raise InvalidModelError(f"{str(path)!r}, which holds weights, cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidModelError(f"{str(path)!r} should hold weights of the model, but it is not a file")
        if found.st_nlink > 1:
            # A hard link to a file elsewhere cannot be told from a file here; onnx and onnx_ir refuse them too.
            raise InvalidModelError(
                f"{str(path)!r}, which holds weights, is hard-linked: it may be a file from outside of the folder. "
                "Make it a file of its own by copying it."
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _open(base: Path, path: Path) -> int:
    """Open a file that is known to be inside, without links, from the folder downwards."""
    if not _BY_COMPONENT:
        return os.open(path, _FLAGS)
    *folders, name = path.relative_to(base).parts
    current = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
            os.close(current)
            current = inner
        return os.open(name, _FLAGS, dir_fd=current)
    finally:
        os.close(current)


def read_inside(folder: str | os.PathLike[str], location: str, offset: int, length: int | None) -> bytes:
    """Bytes of external data; to the end of the file where no length is given."""
    with open_inside(folder, location) as file:
        size = os.fstat(file.fileno()).st_size
        wanted = size - offset if length is None else length
        if offset < 0 or wanted < 0 or offset + wanted > size:
            raise InvalidModelError(
                f"the model keeps {wanted} bytes of weights at {offset} in {location!r}, which has only {size}: one of "
                "the two files is damaged or of another version"
            )
        file.seek(offset)
        return file.read(wanted)
