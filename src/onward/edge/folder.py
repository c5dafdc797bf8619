"""Read what `onward.edge.export` wrote; no onnx is needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onward import document
from onward.document import Document
from onward.errors import OnwardError
from onward.runtime.tensorfile import numpy_dtype

MANIFEST = "manifest.json"
FORMAT, VERSION = "onward.edge", 1
STATE_FORMAT = "onward.edge.state"


@dataclass(frozen=True)
class StateEntry:
    """One tensor of the state: a parameter, a running statistic, or a slot of the optimizer.

    Attributes:
        following: the output of the step that replaces it.
        initial: what each element begins with; None where the checkpoint has the values.
    """

    name: str
    role: str
    dtype: np.dtype
    shape: tuple[int, ...]
    following: str
    initial: float | None


class Folder:
    """An exported folder: its manifest, and files that are what the manifest says."""

    def __init__(self, directory: Path) -> None:
        path = directory / MANIFEST
        if not path.is_file():
            raise OnwardError(f"there is no {MANIFEST} in {str(directory)!r}; onward.edge.export writes such folders")
        self.directory = directory
        self.manifest: Document = document.parse(path.read_bytes(), str(path))
        if self.manifest.text("format") != FORMAT:
            raise self.manifest.damaged(f"its format is not {FORMAT!r}")
        self.manifest.require_version(VERSION)
        self.state = [_entry(item) for item in self.manifest.list_of("state")]

    def read(self, what: str) -> bytes:
        """The bytes of a file, by its name in the manifest."""
        entry = self.manifest.inside("files").inside(what)
        path = self.path(what)
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry.text("sha256"):
            raise OnwardError(f"{str(path)!r} is not the file that {MANIFEST} describes; export the folder again")
        return content

    def path(self, what: str) -> Path:
        """Where a file is."""
        name = self.manifest.inside("files").inside(what).text("file")
        if Path(name).name != name:
            raise self.manifest.damaged(f"the file {name!r} is not in the folder")
        path = self.directory / name
        if not path.is_file():
            raise OnwardError(f"there is no {name} in {str(self.directory)!r}; export the folder again")
        return path

    def name_of(self, key: str) -> str:
        """The name of a single input or output: of the loss, of the learning rate, of the step."""
        return self.manifest.inside(key).text("name")

    def names(self, key: str) -> list[str]:
        """The names of several."""
        return [item.text("name") for item in self.manifest.list_of(key)]

    def frozen(self) -> list[Document]:
        """The weights of inference that are in the shared file."""
        files = self.manifest.inside("files")
        return files.inside("frozen").list_of("tensors") if files.has("frozen") else []

    def schedule(self) -> dict[str, Any] | None:
        """The description of the schedule."""
        return self.manifest.inside("schedule").plain() if self.manifest.has("schedule") else None


def _entry(item: Document) -> StateEntry:
    return StateEntry(
        name=item.text("name"),
        role=item.text("role"),
        dtype=numpy_dtype(item.text("type")),
        shape=item.shape("shape"),
        following=item.text("next"),
        initial=item.number("initial") if item.has("initial") else None,
    )
