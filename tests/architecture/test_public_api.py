"""The public names and their signatures, as in public_api.txt; a change to them is a decision, not an accident.

After such a decision (and a line in CHANGELOG.md): python -m tests.architecture.test_public_api
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("public_api.txt")
PUBLIC_MODULES = [
    "onward",
    "onward.api",
    "onward.artifacts",
    "onward.autodiff.registry",
    "onward.callbacks",
    "onward.errors",
    "onward.experimental",
    "onward.federated",
    "onward.losses",
    "onward.metrics",
    "onward.onnxblock",
    "onward.onnxblock.blocks",
    "onward.onnxblock.loss",
    "onward.onnxblock.optim",
    "onward.optim",
    "onward.session",
    "onward.sklearn",
    "onward.testing",
    "onward.torch",
    "onward.torch.ortmodule",
]


def public_names(module_name: str) -> list[str]:
    """What `__all__` lists, or else the functions and classes that the module defines."""
    module = importlib.import_module(module_name)
    defined = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module_name and callable(value)
    ]
    return sorted(getattr(module, "__all__", defined))


def describe() -> Iterator[str]:
    for module_name in PUBLIC_MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module_name):
            value = getattr(module, name)
            if inspect.isclass(value):
                yield f"class {module_name}.{name}({', '.join(base.__name__ for base in value.__bases__)})"
            elif inspect.isroutine(value):
                yield f"{module_name}.{name}{inspect.signature(value)}"
            else:  # a module, or a name for a type
                yield f"{module_name}.{name}"


def test_public_api_is_as_recorded() -> None:
    assert list(describe()) == SNAPSHOT.read_text("utf-8").splitlines(), __doc__


def test_public_names_have_docstrings() -> None:
    for module_name in PUBLIC_MODULES:
        module = importlib.import_module(module_name)
        assert module.__doc__, module_name
        for name in public_names(module_name):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
                assert inspect.getdoc(value), f"{module_name}.{name}"


if __name__ == "__main__":
    SNAPSHOT.write_text("".join(f"{line}\n" for line in describe()), "utf-8")
