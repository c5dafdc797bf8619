"""What the tests of onward-web share: the built package, and exported folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge.web_models import export_work, run_node


@pytest.fixture(scope="session")
def built() -> None:
    """dist/ is what the sources say."""
    run_node("node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The exported folder of a model of `web_models`, by name."""
    made: dict[tuple[str, str], Path] = {}

    def make(name: str, target: str = "wasm") -> Path:
        if (name, target) not in made:
            made[name, target] = export_work(name, tmp_path_factory.mktemp(name), target)
        return made[name, target]

    return make
