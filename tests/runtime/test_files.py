"""Files are replaced whole, or not at all."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from onward.errors import OnwardError
from onward.runtime.files import write_bytes


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    write_bytes(path, b"ne", memoryview(b"w"))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_an_error_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    with pytest.raises(TypeError):
        write_bytes(path, b"half of it", "not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_abandoned_drafts_are_removed_and_drafts_in_use_are_not(tmp_path: Path) -> None:
    abandoned, used, young, other = (
        tmp_path / f".{name}.0123456789ab.part" for name in ("a[1]", "a[1].x", "a[1].y", "b")
    )
    for draft in (abandoned, used, young, other):
        draft.write_bytes(b"x")
        os.utime(draft, (1, 1))
    os.utime(young)
    with open(used, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        write_bytes(tmp_path / "a[1]", b"new")
    assert sorted(os.listdir(tmp_path)) == sorted(["a[1]", used.name, young.name, other.name])


def test_impossible_places(tmp_path: Path) -> None:
    with pytest.raises(OnwardError, match="there is no directory"):
        write_bytes(tmp_path / "missing" / "checkpoint", b"")
    with pytest.raises(OnwardError, match="it is a directory"):
        write_bytes(tmp_path, b"")
