"""Importing this module makes `onnxcustom` importable, so that scripts written for it run unchanged.

    import onward.as_onnxcustom
    from onnxcustom.training.optimizers_partial import OrtGradientForwardBackwardOptimizer

Scripts that use `onnxruntime.TrainingSession` beside it import `onward.as_onnxruntime_training`, too. Nothing is loaded
before it is used.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from onward.errors import OnwardError

PACKAGE = "onnxcustom"
_OWN = "onward.onnxcustom"


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `onnxcustom` and lends it the modules of onward."""

    package = PACKAGE

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE or importlib.util.find_spec(_own_name(fullname)) is None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        spec.submodule_search_locations = []
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(_own_name(spec.name))
        # The import system is about to write the spec of the other name into the module.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        if module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state


def _own_name(fullname: str) -> str:
    return _OWN + fullname.removeprefix(PACKAGE)


def _refuse_beside_the_original() -> None:
    if importlib.machinery.PathFinder.find_spec(PACKAGE) is not None:
        raise OnwardError(
            f"{PACKAGE} is installed already; onward does not replace it. Uninstall it, or import {_OWN} under its own "
            "name."
        )


def install() -> None:
    """What importing this module does."""
    # By an attribute: reloading this module makes another class.
    if not any(getattr(finder, "package", None) == PACKAGE for finder in sys.meta_path):
        _refuse_beside_the_original()
        # Before the finder of files, which would load the files of onward a second time under the other name.
        sys.meta_path.insert(0, _Finder())


install()
