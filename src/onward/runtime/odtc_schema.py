"""The format of onnxruntime-training's checkpoints ("ODTC"): flatbuffers, whose classes come with onnxruntime."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import onnxruntime

from onward.errors import OnwardError

IDENTIFIER = b"ODTC"
VERSIONS = (1, 2)
_SCHEMA = "ort_flatbuffers_py"


def external_path(path: Path) -> Path:
    """Where the tensors of a large checkpoint are."""
    return path.with_name(f"{path.name}.data")


def load_table(name: str) -> Any:
    """The generated module of one table of the schema; loaded when needed: few checkpoints are of this format."""
    try:
        _import_schema()
        return importlib.import_module(f"{_SCHEMA}.fbs.{name}")
    except ImportError as error:
        raise OnwardError(
            "checkpoints of onnxruntime-training need flatbuffers and onnxruntime.tools, which come with the "
            "onnxruntime package from PyPI"
        ) from error


def _import_schema() -> None:
    """Make the generated modules importable by the name that they call each other by.

    Importing onnxruntime.tools would do that too, but needs onnx.
    """
    if _SCHEMA in sys.modules:
        return
    folder = Path(onnxruntime.__file__).parent / "tools" / "ort_format_model" / _SCHEMA
    spec = importlib.util.spec_from_file_location(
        _SCHEMA, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not folder.is_dir():
        raise ImportError(f"{folder} does not exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_SCHEMA] = module
