"""What the functions of users read from outside of them: numbers of their file, variables of functions around them."""

from __future__ import annotations

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import Any

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_OF_PYTHON = sys.stdlib_module_names | {"torch"}


@functools.lru_cache(maxsize=4096)
def is_installed(kind: Any) -> bool:
    """Whether a class is Python's or torch's, whose attributes nobody changes."""
    if kind.__module__.partition(".")[0] not in _OF_PYTHON:
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is None or file.startswith(_LIBRARIES)  # not so a test.py of the user


def is_of_user(namespace: dict[str, Any]) -> bool:
    """Whether these are the names of a file that is not one of an installed package."""
    return not str(namespace.get("__file__") or "").startswith(_LIBRARIES)


@functools.lru_cache(maxsize=4096)
def names_read(code: types.CodeType) -> frozenset[tuple[str, ...]]:
    """The global names that a function reads, those inside of it too, with the attributes that it reads of them."""
    found: set[tuple[str, ...]] = set()
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            path = (str(instruction.argval),)
        elif path and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path += (str(instruction.argval),)
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG", "PRECALL"):
            path = ()
        if path:
            found.add(path)
    return frozenset(found).union(*(names_read(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def variables(function: types.FunctionType) -> Iterator[tuple[dict[str, Any], str]]:
    """Where the global variables are that a function reads, those of other files too: `settings.rate`."""
    for first, *attributes in sorted(names_read(function.__code__)):
        names, name = function.__globals__, first
        for attribute in attributes:
            value = names.get(name)
            if not isinstance(value, types.ModuleType):
                break
            names, name = vars(value), attribute
        if name in names and is_of_user(names):
            yield names, name
