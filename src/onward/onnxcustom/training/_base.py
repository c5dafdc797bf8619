"""What estimators, losses, penalties and learning rates have in common: parameters, and graphs to look at."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.errors import warn
from onward.onnxcustom.training.excs import MissingFolderError
from onward.runtime.files import write_bytes

Saved = dict[str, Any]  # attribute -> file name, bytes or Saved
_SHORTER = {"Learning": "L", "OrtGradient": "Grad", "ForwardBackward": "FB"}


class BaseOnnxClass:
    """Something with parameters, those of its constructor, and with ONNX graphs among its attributes."""

    @classmethod
    def _get_param_names(cls) -> list[tuple[str, Any]]:
        """The parameters of the constructor and their defaults."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return [(p.name, p.default) for p in parameters if p.name != "self" and p.kind != p.VAR_KEYWORD]

    def save_onnx_graph(
        self, folder: str | os.PathLike[str] | type[bytes], prefix: str | None = None, suffix: str | None = None
    ) -> Saved:
        """Write every graph among the attributes, and among theirs, to `folder`; attribute -> name of the file.

        Files are called `{prefix}{class}{suffix}.{attribute}.onnx`, the class in short. Where `folder` is the type
        `bytes`, nothing is written and graphs are returned serialized.
        """
        return save_graphs(vars(self), type(self).__name__, folder, prefix, suffix)


def save_graphs(
    attributes: Mapping[str, Any], owner: str, folder: Any, prefix: str | None = None, suffix: str | None = None
) -> Saved:
    """What `save_onnx_graph` does, for the attributes of an object or of a class."""
    in_memory = folder is bytes
    if not in_memory and not Path(folder).is_dir():
        raise MissingFolderError(f"there is no folder {str(folder)!r}")
    saved: Saved = {}
    for attribute, value in attributes.items():
        if hasattr(value, "SerializeToString"):
            name = f"{prefix or ''}{owner}{suffix or ''}.{attribute}"
            saved[attribute] = value.SerializeToString() if in_memory else _write(folder, name, value)
        elif hasattr(value, "save_onnx_graph"):
            saved[attribute] = value.save_onnx_graph(folder, prefix=prefix, suffix=f"{suffix or ''}.{attribute}")
    return saved


def _write(folder: Any, name: str, graph: Any) -> str:
    for long, short in _SHORTER.items():
        name = name.replace(long, short)
    path = Path(folder) / f"{name}.onnx"
    if path.exists():
        warn(f"{str(path)!r} exists already; it is replaced")
    write_bytes(path, graph.SerializeToString())
    return str(path)
