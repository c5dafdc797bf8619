"""Importing this module makes `onnxruntime.training` importable, so that scripts written for it run unchanged.

    import onward.as_onnxruntime_training
    from onnxruntime.training import artifacts

Nothing is loaded before it is used, and onnxruntime itself is not touched: old releases look for
`onnxruntime.training.ortmodule` while they are being imported, and still do not find it.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from onward.errors import OnwardError

PACKAGE = "onnxruntime.training"
SUBMODULES = ("api", "artifacts", "experimental", "onnxblock")
_ORIGINALS = ("onnxruntime-training", "onnxruntime-training-cpu")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `onnxruntime.training` and lends it the modules of onward."""

    package = PACKAGE

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == PACKAGE:
            spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
            spec.submodule_search_locations = []
            return spec
        own = _own_name(fullname)
        if own is None or importlib.util.find_spec(own) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        own = _own_name(spec.name)
        if own is None:
            return _Package(spec.name, __doc__)
        module = importlib.import_module(own)
        # The import system is about to write the spec of the other name into the module.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        if module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


class _Package(ModuleType):
    """`onnxruntime.training`, whose submodules are loaded when they are asked for."""

    __all__ = SUBMODULES

    def __getattr__(self, name: str) -> Any:
        if name in SUBMODULES:
            return importlib.import_module(f"{PACKAGE}.{name}")
        raise AttributeError(
            f"module {PACKAGE!r} (of onward) has no attribute {name!r}; it has {', '.join(SUBMODULES)}"
        )

    def __dir__(self) -> list[str]:
        return sorted(SUBMODULES)


def _own_name(fullname: str) -> str | None:
    """The module of onward behind a module of `onnxruntime.training`."""
    package, _, rest = fullname.partition(f"{PACKAGE}.")
    if package or rest.partition(".")[0] not in SUBMODULES:
        return None
    return f"onward.{rest}"


def _refuse_beside_the_original() -> None:
    installed = []
    for name in _ORIGINALS:
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    package = importlib.machinery.PathFinder.find_spec("onnxruntime")
    folders = [] if package is None else package.submodule_search_locations or []
    if installed or any((Path(folder) / "training" / "artifacts.py").exists() for folder in folders):
        raise OnwardError(
            f"{PACKAGE} is installed already ({', '.join(installed) or 'in the onnxruntime package itself'}); onward "
            "does not replace it. Uninstall it and install onnxruntime, or import onward.artifacts, onward.onnxblock "
            "and onward.api under their own names."
        )


def install() -> None:
    """What importing this module does."""
    # By an attribute: reloading this module makes another class.
    if not any(getattr(finder, "package", None) == PACKAGE for finder in sys.meta_path):
        _refuse_beside_the_original()
        # Before the finder of files, which would load the files of onward a second time under the other name.
        sys.meta_path.insert(0, _Finder())


install()
