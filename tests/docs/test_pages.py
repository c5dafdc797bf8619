"""What the documents say beside their snippets: signatures are those of the code, and every page can be found."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from onward.optim import Group, schedules

ROOT = Path(__file__).parents[2]
EXPORTING = (ROOT / "docs" / "exporting.md").read_text("utf-8")


def test_every_page_can_be_found_from_the_readme() -> None:
    """By links, also over other pages."""
    found, coming = set[Path](), [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        found.add(page)
        links = re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)", page.read_text("utf-8"))
        targets = [(page.parent / link).resolve() for link in links]
        coming += [target for target in targets if target.exists() and target not in found]
    lost = [page.name for page in (ROOT / "docs").glob("*.md") if page.resolve() not in {p.resolve() for p in found}]
    assert not lost


def signature(value: type) -> str:
    """The arguments as a document writes them: without types."""
    parameters = inspect.signature(value).parameters.values()
    return ", ".join(
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
        for parameter in parameters
    )


@pytest.mark.parametrize("name", re.findall(r"^\| `([A-Z]\w+)`", EXPORTING, re.MULTILINE))
def test_signatures_of_schedules(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}`.*$", EXPORTING, re.MULTILINE)
    said = row.split("`")[-2 if name != "Step" else -4]
    said = said.replace("1/3", repr(1 / 3)).replace('"', "'").replace("1e4", "10000.0")
    actual = signature(getattr(schedules, name))
    if name == "ReduceOnPlateau":
        said = row.split("`")[3].replace("*, ", "").replace('"', "'").removesuffix(", ...")
        assert actual.startswith(said)
    else:
        assert actual == said


def test_all_schedules_are_listed() -> None:
    base = schedules.Schedule
    kinds = {name for name, kind in vars(schedules).items() if inspect.isclass(kind) and issubclass(kind, base)}
    listed = set(re.findall(r"`([A-Z]\w+)`", "\n".join(re.findall(r"^\| `[A-Z].*$", EXPORTING, re.MULTILINE))))
    assert listed == kinds - {"Schedule"}


def test_the_signature_of_a_group() -> None:
    assert f"`Group({signature(Group)})`" in EXPORTING
