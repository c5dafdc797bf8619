"""The documentation site: it builds without a warning, its pictures are current, and every page can be found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXTERNAL = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"?(?:https?:)?//[^\">]+")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return target


def test_every_page_is_built_and_nothing_comes_from_elsewhere(site: Path) -> None:
    for page in DOCS.rglob("*.md"):
        built = site / page.relative_to(DOCS).with_suffix(".html")
        found = EXTERNAL.findall(built.read_text("utf-8"))
        assert not [link for link in found if "canonical" not in link], f"{page.name}: {found}"


def test_reference_has_the_docstrings(site: Path) -> None:
    text = (site / "reference" / "trainer.html").read_text("utf-8")
    assert "learning_rate" in text
    assert "find_learning_rate" in text


def test_every_page_is_two_steps_from_the_readme() -> None:
    """The README links the first page, which links all others, or the list of them."""
    assert "docs/index.md" in (ROOT / "README.md").read_text("utf-8")
    first = DOCS / "index.md"
    lists = [first, DOCS / "reference" / "index.md"]
    linked = {(path.parent / target).resolve() for path in lists for target in links(path)}
    pages = {page.resolve() for page in DOCS.rglob("*.md")} - {first.resolve()}
    assert {page.name for page in pages - linked} == set()


def links(path: Path) -> list[str]:
    return re.findall(r"\]\(([^)#\s]+\.md)", path.read_text("utf-8"))


def test_pictures_of_graphs_are_current() -> None:
    command = [sys.executable, "scripts/draw_graphs.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_measured_tables_are_those_of_the_newest_results() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.comparison", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
