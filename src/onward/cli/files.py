"""Files and folders that are given or written: what they are, and what tells them from others."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import OnwardError
from onward.runtime.files import write_bytes

if TYPE_CHECKING:
    import onnx

_BLOCK = 2**20


def existing(path: Path, what: str) -> Path:
    """A path that is there; else an error that says what may be meant."""
    if path.exists():
        return path
    parent = path.parent
    if not parent.is_dir():
        raise OnwardError(f"there is no {what} at {str(path)!r}: there is no folder {str(parent)!r} either")
    near = difflib.get_close_matches(path.name, [entry.name for entry in parent.iterdir()], n=1)
    meant = f"; is {str(parent / near[0])!r} meant?" if near else ""
    raise OnwardError(f"there is no {what} at {str(path)!r}{meant}")


def near(name: str, known: Iterable[str]) -> str:
    """Half a sentence on what may be meant by a name that is not known."""
    found = difflib.get_close_matches(name, [str(each) for each in known], n=1, cutoff=0.5)
    return f"; is {found[0]!r} meant?" if found else ""


def digest(path: Path) -> str:
    """Tells the content of a file from others; of a folder, all names and contents in it."""
    if path.is_file():
        return _of_file(path)
    whole = hashlib.sha256()
    for file in sorted(entry for entry in path.rglob("*") if entry.is_file()):
        whole.update(f"{file.relative_to(path).as_posix()}\0{_of_file(file)}\n".encode())
    return whole.hexdigest()


def _of_file(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def write_model(model: onnx.ModelProto, path: Path, folder: Path) -> None:
    """Write a model; weights that it has in files of `folder` are copied beside it."""
    from onnx.external_data_helper import uses_external_data

    from onward.graph.saving import save_model

    path.parent.mkdir(parents=True, exist_ok=True)
    if any(uses_external_data(tensor) for tensor in model.graph.initializer):
        save_model(model, path, external_data_folder=folder)
    else:
        write_bytes(path, model.SerializeToString())
