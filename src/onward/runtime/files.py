"""Write files so that whoever is killed in between leaves the old file or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends, and vanishes when it raises."""
    target = Path(path)
    # Beside the target, because renaming is atomic only within one file system.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        with open(draft, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        raise
    _sync_directory(target.parent)


def write_bytes(path: str | os.PathLike[str], *parts: bytes | memoryview) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        for part in parts:
            file.write(part)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
