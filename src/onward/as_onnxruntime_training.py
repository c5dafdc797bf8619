"""Importing this module makes `onnxruntime.training` importable, so that scripts written for it run unchanged.

    import onward.as_onnxruntime_training
    from onnxruntime import TrainingSession
    from onnxruntime.training import ORTTrainer, artifacts

The classes of `onward.session` are found where training builds of onnxruntime have them: in `onnxruntime` itself, in
its native module, and in `onnxruntime.capi.training`. `onnxruntime.RunOptions` has `training_mode`, too.
The first ORTTrainer is in `onnxruntime.capi.ort_trainer`, the newer one in `onnxruntime.training`.

Nothing is loaded before it is used. Old releases look for `onnxruntime.training.ortmodule` while they are being
imported, and do not find it then: it needs onnxruntime itself. `torch_ort` is importable, too.
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
_SESSION, _TRAINER, _ORTMODULE = "onward.session", "onward.torch.orttrainer", "onward.torch.ortmodule"
_ORTTRAINER = {
    name: f"{_TRAINER}.{name}"
    for name in (
        "_checkpoint_storage",
        "_utils",
        "amp",
        "checkpoint",
        "model_desc_validation",
        "optim",
        "orttrainer",
        "orttrainer_options",
        "postprocess",
    )
}
# Its submodules -> the modules of onward behind them.
SUBMODULES = {
    **{name: f"onward.{name}" for name in ("api", "artifacts", "experimental", "onnxblock")},
    "ortmodule": _ORTMODULE,
    "utils": "onward.torch.utils",
    **_ORTTRAINER,
}
# The same of the package that it was at first.
_FIRST = "onnxruntime.capi.training"
_SUBMODULES = {PACKAGE: SUBMODULES, _FIRST: {**_ORTTRAINER, "training_session": f"{_SESSION}.training_session"}}
# Modules of onnxruntime -> what they get of `onward.session`.
_NATIVE = (
    "GradientGraphBuilder",
    "GraphInfo",
    "OrtModuleGraphBuilder",
    "OrtModuleGraphBuilderConfiguration",
    "OrtValueCache",
    "PartialGraphExecutionState",
    "PropagateCastOpsConfiguration",
    "PropagateCastOpsStrategy",
    "Severity",
    "TrainingAgent",
    "TrainingGraphTransformerConfiguration",
    "TrainingParameters",
)
_LENT: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("TrainingParameters", "TrainingSession"),
    "onnxruntime.capi._pybind_state": _NATIVE,
    "onnxruntime.capi.onnxruntime_pybind11_state": _NATIVE,
}
# Packages that stock onnxruntime does not have -> what they have, and of which module.
_PACKAGES: dict[str, dict[str, str]] = {
    PACKAGE: {
        **dict.fromkeys(("PropagateCastOpsStrategy", "TrainingParameters"), _SESSION),
        **dict.fromkeys(("ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"), _TRAINER),
        "ORTModule": _ORTMODULE,
    },
    _FIRST: {
        **dict.fromkeys(("TrainingParameters", "TrainingSession"), _SESSION),
        **dict.fromkeys(("ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"), _TRAINER),
    },
}
_MODULES = {
    "onnxruntime.capi.ort_trainer": f"{_TRAINER}.ort_trainer",
    "torch_ort": "onward.torch.torch_ort",
    "torch_ort.configure": "onward.torch.torch_ort.configure",
    "torch_ort.experimental": "onward.torch.torch_ort.experimental",
    "torch_ort.experimental.graph_config": "onward.torch.torch_ort.experimental.graph_config",
    "torch_ort.experimental.json_config": f"{_ORTMODULE}.experimental.json_config",
    "torch_ort.optim": f"{_TRAINER}.optim",
    "torch_ort.utils": "onward.torch.utils",
    "torch_ort.utils.data": "onward.torch.utils.data",
}
_ORIGINALS = ("onnxruntime-training", "onnxruntime-training-cpu")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `onnxruntime.training` and lends it the modules of onward; lends classes to modules of onnxruntime."""

    package = PACKAGE

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in _LENT:
            return _lending(fullname, path)
        if fullname in _PACKAGES:
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
    """A package that stock onnxruntime does not have; its content is loaded when it is asked for."""

    @property
    def __all__(self) -> list[str]:
        return sorted((*self._submodules(), *_PACKAGES[self.__name__]))

    def _submodules(self) -> tuple[str, ...]:
        return tuple(_SUBMODULES[self.__name__])

    def __getattr__(self, name: str) -> Any:
        if name in self._submodules():
            return importlib.import_module(f"{self.__name__}.{name}")
        if name in _PACKAGES[self.__name__]:
            return getattr(importlib.import_module(_PACKAGES[self.__name__][name]), name)
        raise AttributeError(
            f"module {self.__name__!r} (of onward) has no attribute {name!r}; it has {', '.join(self.__all__)}"
        )

    def __dir__(self) -> list[str]:
        return self.__all__


def _lending(fullname: str, path: Sequence[str] | None) -> importlib.machinery.ModuleSpec | None:
    """The module of onnxruntime as it is, which gets more when it has been loaded."""
    spec = importlib.machinery.PathFinder.find_spec(fullname, path)
    if spec is None or spec.loader is None:
        return spec
    execute = spec.loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        _lend(module)

    spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _lend(module: ModuleType) -> None:
    """Let a module have classes of `onward.session`, unless it has them already."""
    names, before = _LENT[module.__name__], module.__dict__.get("__getattr__")
    if getattr(before, "lent_by", None) == __name__:
        return

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in names:
            return getattr(importlib.import_module(_SESSION), name)
        if before is not None:
            return before(name)
        raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")

    __getattr__.lent_by = __name__  # type: ignore[attr-defined]
    module.__dict__["__getattr__"] = __getattr__
    options = module.__dict__.get("RunOptions")
    if module.__name__ == "onnxruntime" and options is not None and not hasattr(options, "training_mode"):
        module.__dict__["RunOptions"] = importlib.import_module("onward.runtime.options").RunOptions


def _own_name(fullname: str) -> str | None:
    """The module of onward behind a module of `onnxruntime.training`, or another that we have."""
    if fullname in _MODULES:
        return _MODULES[fullname]
    for package, modules in _SUBMODULES.items():
        first, dot, inner = fullname.removeprefix(f"{package}.").partition(".")
        if fullname.startswith(f"{package}.") and first in modules:
            early = first == "ortmodule" and _is_being_imported("onnxruntime")
            return None if early else f"{modules[first]}{dot}{inner}"
    return None


def _is_being_imported(name: str) -> bool:
    module = sys.modules.get(name)
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


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
        for name in _LENT:
            if name in sys.modules:
                _lend(sys.modules[name])


install()
