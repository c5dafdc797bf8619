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
_DRAFTS = ".drafts."
_STALE = 10.0  # seconds
_LONGEST_TITLE = 32  # of the file's own name in that of its draft, which must not be longer than names may be


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends, and vanishes when it raises.

    Where `path` is a link, that is the place of the file that it leads to; the link stays.
    """
    named = Path(path)
    target = _followed(named)
    if not target.parent.is_dir():
        raise OnwardError(f"{str(named)!r} cannot be written: there is no directory {str(target.parent)!r}")
    if target.is_dir():
        raise OnwardError(f"{str(named)!r} cannot be written: it is a directory")
    _remove_abandoned(target.parent, _title(target))
    # Beside the target, because renaming is atomic only within one file system.
    draft = target.with_name(f"{_title(target)}{secrets.token_hex(6)}{_SUFFIX}")
    try:
        with _explained(named, target.parent):
            file = open(draft, "wb")  # noqa: SIM115  closed below
        with file:
            _lock(file.fileno())
            try:
                yield file
            except OSError as error:
                if error.filename is None:  # from writing to the draft: errors of opening something have a name
                    raise _unwritable(named, target.parent, error) from error
                raise
            with _explained(named, target.parent):
                file.flush()
                os.fsync(file.fileno())
        with _explained(named, target.parent):
            os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    _sync_directory(target.parent)


def write_bytes(path: str | os.PathLike[str], *parts: bytes | memoryview) -> None:
    """Write a file atomically."""
    with replacing(path) as file:
        for part in parts:
            file.write(part)


@contextlib.contextmanager
def replacing_together(directory: str | os.PathLike[str]) -> Iterator[Path]:
    """A directory for drafts; when the block ends they take their places in `directory`, which is made if missing.

    When the block raises nothing is changed. Each file is replaced whole; data files come before the models that refer
    to them.
    """
    target = Path(directory)
    missing = [folder for folder in (target, *target.parents) if not folder.exists()]
    try:
        with _explained(target, target):
            target.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target, _DRAFTS)
            drafts = target / f"{_DRAFTS}{secrets.token_hex(6)}{_SUFFIX}"
            drafts.mkdir()
        try:
            with _held(drafts):
                yield drafts
                for draft in sorted(drafts.iterdir(), key=lambda path: (path.suffix != ".data", path.name)):
                    _move(draft, target / draft.name)
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    _sync_directory(target)


def _move(draft: Path, named: Path) -> None:
    """Let a finished draft take the place of a file, or of what a link leads to, be it on another file system."""
    if named.is_symlink():
        with open(draft, "rb") as source, replacing(named) as file:
            shutil.copyfileobj(source, file)
        return
    with _explained(named, named.parent):
        with open(draft, "rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, named)


def _followed(path: Path) -> Path:
    """What a path leads to, be it yet to be written."""
    if not path.is_symlink():
        return path
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OnwardError(f"{str(path)!r} cannot be written: it is a link that leads to itself")
    return real


@contextlib.contextmanager
def _explained(named: Path, folder: Path) -> Iterator[None]:
    """Say what the user has named, instead of a draft."""
    try:
        yield
    except OSError as error:
        raise _unwritable(named, folder, error) from error


def _unwritable(named: Path, folder: Path, error: OSError) -> OnwardError:
    what = "nothing can" if named == folder else f"{str(named)!r} cannot"
    return OnwardError(f"{what} be written to the folder {str(folder)!r}: {error.strerror or error}")


def _title(target: Path) -> str:
    """What the names of drafts of a file begin with."""
    return f".{target.name[:_LONGEST_TITLE]}."


def _remove_abandoned(folder: Path, title: str) -> None:
    """Remove drafts of processes that were killed: those that nobody holds locked any more."""
    if sys.platform == "win32":
        return
    for draft in folder.glob(f"{_literal(title)}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            # A young draft may belong to a process that has not come to locking it yet.
            if time.time() - draft.lstat().st_mtime < _STALE or draft.is_symlink():
                continue
            with _opened(draft) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if draft.is_dir():
                    shutil.rmtree(draft, ignore_errors=True)
                else:
                    draft.unlink()


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder of drafts, so that nobody takes them for abandoned."""
    if sys.platform == "win32":
        yield
        return
    with _opened(folder) as descriptor:
        _lock(descriptor)
        yield


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable, where the system can."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError), _opened(directory) as descriptor:  # a folder need not be readable
        os.fsync(descriptor)
