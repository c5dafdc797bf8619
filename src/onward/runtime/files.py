"""Write files so that whoever is killed in between leaves the old file or the new one, whole."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from onward.errors import OnwardError

if sys.platform != "win32":
    import fcntl

_SUFFIX = ".part"
_STALE = 10.0  # seconds


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends, and vanishes when it raises."""
    target = Path(path)
    if not target.parent.is_dir():
        raise OnwardError(f"{str(target)!r} cannot be written: there is no directory {str(target.parent)!r}")
    if target.is_dir():
        raise OnwardError(f"{str(target)!r} cannot be written: it is a directory")
    _remove_abandoned(target)
    # Beside the target, because renaming is atomic only within one file system.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}{_SUFFIX}")
    try:
        with open(draft, "wb") as file:
            _lock(file)
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


def _remove_abandoned(target: Path) -> None:
    """Remove drafts of processes that were killed: those that nobody holds locked any more."""
    if sys.platform == "win32":
        return
    for draft in target.parent.glob(f".{_literal(target.name)}.*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            # A young draft may belong to a process that has not come to locking it yet.
            if time.time() - draft.stat().st_mtime < _STALE:
                continue
            with open(draft, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()


def _lock(file: IO[bytes]) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable, where the system can."""
    if os.name != "posix":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing_together(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory for drafts; when the block ends they take their places in `directory`, which is made if missing.

    When the block raises nothing is changed. Each file is replaced whole; data files come before the models that refer
    to them.
    """
    target = Path(directory)
    missing = [folder for folder in (target, *target.parents) if not folder.exists()]
    target.mkdir(parents=True, exist_ok=True)
    drafts = target / f".drafts.{secrets.token_hex(6)}.part"
    drafts.mkdir()
    try:
        yield drafts
        for draft in sorted(drafts.iterdir(), key=lambda path: (path.suffix != ".data", path.name)):
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, target / draft.name)
    except BaseException:
        shutil.rmtree(drafts, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    drafts.rmdir()
    _sync_directory(target)
