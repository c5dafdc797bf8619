"""Which functions of `training/forms` and `training/lowering` did something: none is proved by never running."""

from __future__ import annotations

import ast
import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from onward.training import forms, lowering

FOLDERS = [Path(package.__file__).parent for package in (forms, lowering) if package.__file__]


def functions() -> set[str]:
    """All functions of forms and lowerings that return something, as <folder>/<module>.<name>."""
    found = set()
    for folder in FOLDERS:
        for file in folder.glob("*.py"):
            for node in ast.parse(file.read_text("utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not _returns_nothing(node):
                    found.add(f"{folder.name}/{file.stem}.{node.name}")
    return found


def _returns_nothing(node: ast.FunctionDef) -> bool:
    return isinstance(node.returns, ast.Constant) and node.returns.value is None


@functools.cache  # it is asked at every return of anything
def _name_of(code: CodeType) -> str | None:
    file = Path(code.co_filename)
    return f"{file.parent.name}/{file.stem}.{code.co_name}" if file.parent in FOLDERS else None


@contextlib.contextmanager
def fired() -> Iterator[set[str]]:
    """The functions that, while training graphs are made inside, return anything but None or False."""
    found: set[str] = set()

    def watch(frame: FrameType, event: str, result: Any) -> None:
        if event == "return" and result is not None and result is not False:
            name = _name_of(frame.f_code)
            if name is not None:
                found.add(name)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(before)
