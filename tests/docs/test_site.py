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


# Public names -> where the reference has them, or why it has not.
ELSEWHERE = {
    "onward.OnwardError": "onward.errors.OnwardError",
    "onward.losses.share": "onward.losses.share.share",
    "onward.losses.weighted": "onward.losses.weighted.weighted",
}
NOT_IN_THE_REFERENCE = {
    "onward.edge": "a package; its functions are there",
    "onward.losses.Loss": "a name of a type",
    "onward.torch.ortmodule._fallback": "a module that programs for the original import from",
    "onward.torch.ortmodule._utils": "likewise",
}


def test_reference_has_every_public_name(site: Path) -> None:
    anchors = {
        anchor
        for page in (site / "reference").glob("*.html")
        for anchor in re.findall(r"id=\"?(onward\.[\w.]+)", page.read_text("utf-8"))
    }
    snapshot = (ROOT / "tests" / "architecture" / "public_api.txt").read_text("utf-8")
    names = re.findall(r"^(?:class )?(onward\.[\w.]+)", snapshot, re.MULTILINE)
    missing = {name for name in names if ELSEWHERE.get(name, name) not in anchors}
    assert missing == {name for name in NOT_IN_THE_REFERENCE if name in names}


def test_every_page_is_two_steps_from_the_readme() -> None:
    """By links: the README, a page that it links, and all that this page links."""
    first = links(ROOT / "README.md")
    reached = first.union(*(links(page) for page in first if page.suffix == ".md"))
    wanted = [*DOCS.rglob("*.md"), *(ROOT / "examples").rglob("README.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    assert [str(page.relative_to(ROOT)) for page in wanted if page.resolve() not in reached] == []


def links(path: Path) -> set[Path]:
    """The files that a page links."""
    targets = re.findall(r"\]\(([^)#:\s]+\.(?:md|ipynb))(?:#[^)]*)?\)", path.read_text("utf-8"))
    return {(path.parent / target).resolve() for target in targets}


def test_pictures_of_graphs_are_current() -> None:
    command = [sys.executable, "scripts/draw_graphs.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_measured_tables_are_those_of_the_newest_results() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.comparison", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
