"""Imports go downward only: which part of the package may import which, and which may import what from outside."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "onward"

# Part of the package -> parts below it that it may import. A part that is not listed here fails the test.
BASE = {"document", "errors", "location", "ort_format", "plan", "rate", "signature"}
BUILD = BASE | {"graph", "autodiff", "losses", "optim", "training"}
FRONT = BUILD | {"runtime"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "rate": {"errors"},
    "document": {"errors"},
    "location": {"errors"},
    "ort_format": {"errors"},
    "signature": {"document", "errors"},
    "plan": {"document", "errors", "signature"},
    "graph": BASE,
    "autodiff": BASE | {"graph"},
    "losses": BASE | {"graph"},
    "optim": BASE | {"graph"},
    "training": BASE | {"graph", "autodiff", "losses", "optim"},
    # A device without onnx and onnx_ir can train, so this one stands on nothing that builds graphs.
    "runtime": BASE,
    "metrics": {"errors"},
    "callbacks": {"errors", "runtime"},
    "inspection": BUILD,
    # The report of a training is told what happened, by whoever trains.
    "report": {"errors", "metrics"},
    "testing": FRONT,
    # Front-ends. They never import each other, but artifacts are made of blocks.
    "artifacts": FRONT | {"onnxblock"},
    "onnxblock": FRONT,
    "step": FRONT,
    "api": FRONT,
    "edge": FRONT,
    "head": BASE | {"graph"},
    "low_rank": BASE | {"graph", "runtime"},
    "trainer": FRONT | {"callbacks", "metrics", "report"},
    "sklearn": FRONT | {"callbacks", "head", "trainer"},
    "federated": FRONT | {"callbacks", "trainer"},
    # ORTTrainer stands on TrainingSession.
    "torch": FRONT | {"session"},
    # Stands on all others but those for other libraries.
    "cli": FRONT
    | {
        "artifacts",
        "callbacks",
        "head",
        "inspection",
        "low_rank",
        "metrics",
        "onnxblock",
        "step",
        "testing",
        "trainer",
    },
    "__main__": {"cli"},
    "experimental": FRONT,
    "session": FRONT,
    # The training part of onnxcustom stands on TrainingSession and TrainingAgent, and runs the one loop.
    "onnxcustom": FRONT | {"trainer", "callbacks", "session"},
    "as_onnxcustom": {"errors"},
    "as_onnxruntime_training": FRONT | {"artifacts", "onnxblock", "api", "experimental", "session"},
}

# Package from outside -> the parts that may import it. The standard library and numpy are open to all.
MAY_BE_IMPORTED_BY: dict[str, set[str]] = {
    "onnx": BUILD
    | {
        "inspection",
        "testing",
        "artifacts",
        "onnxblock",
        "edge",
        "head",
        "low_rank",
        "step",
        "trainer",
        "sklearn",
        "torch",
        "cli",
        "experimental",
        "onnxcustom",
        "session",
    },
    "onnx_ir": BUILD
    | {
        "inspection",
        "testing",
        "artifacts",
        "onnxblock",
        "edge",
        "head",
        "low_rank",
        "step",
        "trainer",
        "sklearn",
        "torch",
        "cli",
        "onnxcustom",
        "session",
    },
    "flwr": {"federated"},
    "PIL": {"cli"},
    "click": {"cli"},
    "llvmlite": {"runtime"},
    "matplotlib": {"trainer"},
    "tensorboard": {"callbacks"},
    "tqdm": {"trainer", "onnxcustom"},
    # Sessions are sessions of onnxruntime, and agents take its vectors.
    "onnxruntime": {"runtime", "session", "testing"},
    "pandas": {"trainer"},
    "pyarrow": {"cli"},
    "rich": {"cli"},
    "tokenizers": {"cli"},
    "torch": {"torch", "experimental"},
    "typer": {"cli"},
    "skl2onnx": {"onnxcustom"},
    "sklearn": {"onnxcustom", "sklearn"},
    "vl_convert": {"report"},
}


def part(module: str) -> str:
    """The part of the package that a module belongs to: onward.graph.shapes -> graph."""
    return module.split(".")[1]


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["onward", *path.relative_to(SOURCE).with_suffix("").parts]
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(module: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, anywhere in it, with the line."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            assert node.module is not None
            # `from onward import graph` imports onward.graph.
            names = [f"onward.{alias.name}" for alias in node.names] if node.module == "onward" else [node.module]
            yield from ((name, node.lineno) for name in names)


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_go_downward(module: str, path: Path) -> None:
    if module == "onward":
        return  # gathers the public names from everywhere; test_import.py sees to it that this costs nothing
    here = part(module)
    assert here in MAY_IMPORT, f"{here} is not in the table of layers; see ARCHITECTURE.md"
    wrong = []
    for name, line in imports(module, path):
        root = name.split(".")[0]
        if root == "onward":
            allowed = name == "onward.__version__" or part(name) in MAY_IMPORT[here] | {here}
        elif root in MAY_BE_IMPORTED_BY:
            allowed = here in MAY_BE_IMPORTED_BY[root]
        else:
            allowed = root in sys.stdlib_module_names or root in {"numpy", "ml_dtypes"}
        if not allowed:
            wrong.append(f"{path.relative_to(SOURCE.parent)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_every_package_of_the_table_is_used() -> None:
    """So that nobody takes for a dependency what is none."""
    imported = {name.split(".")[0] for module, path in modules() for name, _ in imports(module, path)}
    assert MAY_BE_IMPORTED_BY.keys() <= imported


def test_the_table_has_no_circle() -> None:
    seen: set[str] = set()
    while len(seen) < len(MAY_IMPORT):
        ready = {name for name, below in MAY_IMPORT.items() if below <= seen} - seen
        assert ready, f"these import each other: {sorted(MAY_IMPORT.keys() - seen)}"
        seen |= ready


def test_rules_do_not_know_the_engine() -> None:
    """Rules are mathematics: they see the builder, nodes and shapes, never the public function or the expansion."""
    for module, path in modules():
        if module.startswith("onward.autodiff.rules."):
            known = {name for name, _ in imports(module, path)}
            assert not known & {"onward.autodiff.gradient", "onward.autodiff.expansion"}, module
