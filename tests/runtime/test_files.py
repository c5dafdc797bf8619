"""Files are replaced whole, or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from onward.errors import OnwardError
from onward.runtime.files import replacing, replacing_together, write_bytes


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


def test_a_name_as_long_as_names_may_be(tmp_path: Path) -> None:
    for name in ("n" * 255, "ä" * 127):
        write_bytes(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"


# Links -------------------------------------------------------------------------------------------------------------


def linked(tmp_path: Path) -> tuple[Path, Path]:
    """A link in one folder to a file in another."""
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "here" / "checkpoint", tmp_path / "there" / "latest"
    link.symlink_to(Path("..") / "there" / "latest")
    return link, target


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_replaced(exists: bool, tmp_path: Path) -> None:
    link, target = linked(tmp_path)
    if exists:
        target.write_bytes(b"old")
    write_bytes(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert (os.listdir(link.parent), os.listdir(target.parent)) == ([link.name], [target.name])


def test_links_among_files_that_are_replaced_together(tmp_path: Path) -> None:
    link, target = linked(tmp_path)
    with replacing_together(link.parent) as drafts:
        (drafts / link.name).write_bytes(b"new")
        (drafts / "other").write_bytes(b"other")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(os.listdir(link.parent)) == [link.name, "other"]


def test_an_error_leaves_what_a_link_leads_to(tmp_path: Path) -> None:
    link, target = linked(tmp_path)
    target.write_bytes(b"old")
    with pytest.raises(TypeError):
        write_bytes(link, "not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert os.listdir(target.parent) == [target.name]


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OnwardError, match=r"a' cannot be written: it is a link that leads to itself"):
        write_bytes(tmp_path / "a", b"")


# Folders of drafts -------------------------------------------------------------------------------------------------


def test_folders_of_drafts_of_the_killed_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    abandoned, used, young = (tmp_path / f".drafts.{name}.part" for name in ("abandoned", "used", "young"))
    for folder in (abandoned, used, young):
        folder.mkdir()
        (folder / "training_model.onnx").write_bytes(b"x")
        os.utime(folder, (1, 1))
    os.utime(young)
    held = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with replacing_together(tmp_path) as drafts:
            (drafts / "model").write_bytes(b"new")
    finally:
        os.close(held)
    assert sorted(os.listdir(tmp_path)) == sorted(["model", used.name, young.name])


KILLED = """
import os, sys, time
from pathlib import Path
from onward.runtime.files import replacing_together
with replacing_together(sys.argv[1]) as drafts:
    (drafts / "model").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_whoever_is_killed_leaves_drafts_that_the_next_removes(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (drafts,) = tmp_path.iterdir()
        os.utime(drafts, (1, 1))  # as if it had been there for long
        with replacing_together(tmp_path) as others:
            (others / "model").write_bytes(b"whole")
        assert drafts.exists(), "the other process lives"
        process.kill()
    os.utime(drafts, (1, 1))
    with replacing_together(tmp_path) as others:
        (others / "model").write_bytes(b"again")
    assert os.listdir(tmp_path) == ["model"]


# Folders that nobody may write to ----------------------------------------------------------------------------------

UNWRITABLE = """
import os, sys
from onward.errors import OnwardError
from onward.runtime.files import replacing_together, write_bytes
folder = sys.argv[1]
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
try:
    write_bytes(os.path.join(folder, "checkpoint"), b"x")
except OnwardError as error:
    print(error)
for place in (folder, os.path.join(folder, "new")):
    try:
        with replacing_together(place) as drafts:
            raise AssertionError(drafts)
    except OnwardError as error:
        print(error)
"""


def test_an_unwritable_folder_is_called_by_its_name() -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        folder.chmod(0o555)
        command = [sys.executable, "-c", UNWRITABLE, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        folder.chmod(0o755)
        folder.rmdir()
    file, place, new = done.stdout.splitlines()
    assert file == f"'{folder}/checkpoint' cannot be written to the folder '{folder}': Permission denied"
    assert place == f"nothing can be written to the folder '{folder}': Permission denied"
    assert new == f"nothing can be written to the folder '{folder}/new': Permission denied"


def test_a_full_disk_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        pytest.raises(OnwardError, match=r"checkpoint' cannot be written to the folder .*: No space left on device"),
        replacing(tmp_path / "checkpoint"),
    ):
        raise full
    assert os.listdir(tmp_path) == []
