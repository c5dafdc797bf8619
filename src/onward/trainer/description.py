"""What a trainer was told, as a program that tells it again."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.optim import Optimizer

_WIDTH = 88
_LONGEST = 200
# Values that a program would have to make first; these are the names that they have in it.
_PLACEHOLDERS = {"data": "data", "targets": "targets", "validation": "validation", "sample_weight": "weights"}


def arguments_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, str]:
    """The arguments of a call that are not the default ones, as Python writes them."""
    written = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        value = given[name]
        if parameter.default is inspect.Parameter.empty or not _is_default(value, parameter.default):
            written[name] = _argument(name, value)
    return written


def _is_default(value: Any, default: Any) -> bool:
    if value is default:
        return True
    plain = isinstance(value, (str, bool, int, float, tuple, list))
    return plain and type(value) is type(default) and bool(value == default)


def _argument(name: str, value: Any) -> str:
    if name in _PLACEHOLDERS and not isinstance(value, (bool, float)):
        return _PLACEHOLDERS[name]
    return _written(value)


def _written(value: Any) -> str:
    """A value as a program has it; `...` and what it is where it cannot be said shortly."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, os.PathLike):
        return _written(os.fspath(value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_written(key)}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(_written, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, functools.partial):
        options = [_written(item) for item in value.args]
        options += [f"{key}={_written(item)}" for key, item in value.keywords.items()]
        return f"functools.partial({', '.join([_written(value.func), *options])})"
    return _described(value)


def _described(value: Any) -> str:
    """A name for what has none in a program."""
    if isinstance(value, onnx.ModelProto):
        return f"...  # the model {value.graph.name!r}"
    if isinstance(value, ir.Model):
        return f"...  # the model {value.graph.name!r}"
    if isinstance(value, Optimizer):
        return f"...  # the optimizer {value.name!r} with learning rate {value.learning_rate:g}"
    if inspect.isroutine(value) and "<" not in value.__qualname__:
        module = value.__module__ or ""
        return f"onward.losses.{value.__name__}" if module.startswith("onward.losses") else value.__qualname__
    text = repr(value)
    readable = len(text) <= _LONGEST and " at 0x" not in text and "\n" not in text
    return text if readable else f"...  # a {type(value).__name__}"


def program(name: str, arguments: Mapping[str, str], positional: int = 0) -> str:
    """A call as Python writes it: in one line if that is short."""
    items = [text if i < positional else f"{key}={text}" for i, (key, text) in enumerate(arguments.items())]
    line = f"{name}({', '.join(items)})"
    if len(line) <= _WIDTH and "  # " not in line:
        return line
    lines = [_with_comma(item) for item in items]
    return "\n".join([f"{name}(", *(f"    {line}" for line in lines), ")"])


def _with_comma(item: str) -> str:
    """The comma comes before a comment."""
    text, mark, comment = item.partition("  # ")
    return f"{text},{mark}{comment}"
