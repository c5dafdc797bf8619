"""The table of docs/migrating.md: every name of the originals is in it, and what it says of a name is true."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "migrating.md").read_text("utf-8")
ORIGINALS = Path(__file__).with_name("original_names.txt").read_text("utf-8")
# Attributes that __init__ sets, where that takes arguments.
ONLY_INSTANCES = {"onnxruntime.TrainingSession.loss_scale_input_name"}
ALIASES = ("onward.as_onnxruntime_training", "onward.as_onnxcustom")


@dataclass(frozen=True)
class Row:
    names: tuple[str, ...]  # whole, as in onnxruntime.training.api.Module.train
    here: str
    own: str  # the module of onward that the heading names

    @property
    def same(self) -> bool:
        return self.here.startswith("the same")


def rows() -> Iterator[Row]:
    for heading, body in re.findall(r"^### (.*)\n((?:(?!^##).*\n)*)", PAGE, re.MULTILINE):
        code = re.findall(r"`([^`]+)`", heading)
        module = code[0] if code else heading
        own = next((name for name in code if name.startswith("onward.")), "")
        for first, here in re.findall(r"^\| (`.*?) \| (.*?) \|", body, re.MULTILINE):
            owner, _, members = first.rpartition(": ")
            prefix = ".".join(filter(None, (module, owner.strip("`"))))
            listed = [f"{prefix}.{name}" for name in re.findall(r"`([^`]+)`", members)]
            yield Row((*([prefix] if owner else []), *listed), here, own)


def originals() -> Iterator[str]:
    for owner, names in re.findall(r"^([^#\n].*?): (.*)$", ORIGINALS, re.MULTILINE):
        yield from (f"{owner}.{name}" for name in names.split())


def resolve(path: str) -> Any:
    """What a dotted path names; fields of an instance too."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for name in parts[count:]:
            if not hasattr(found, name) and isinstance(found, type):
                found = found()
            found = getattr(found, name)
        return found
    raise ImportError(path)


def test_every_name_of_the_originals_is_in_the_table() -> None:
    listed = {name for row in rows() for name in row.names}
    assert [name for name in originals() if name not in listed] == []


@pytest.mark.parametrize("row", [row for row in rows() if row.own], ids=lambda row: row.names[0])
def test_what_the_table_says_is_true(row: Row) -> None:
    for alias in ALIASES:
        importlib.import_module(alias)
    if row.same:
        for name in row.names:
            assert name in ONLY_INSTANCES or resolve(name) is not None
    for path in re.findall(r"`(onward\.[\w.]+)`", row.here):
        assert resolve(path) is not None
