"""Every Python snippet in the documents runs: those of one file in order, in one namespace, in an empty directory.

A snippet that cannot run is preceded by a line ``<!-- not run: <reason> -->``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SNIPPET = re.compile(r"(?P<mark><!--[^\n]*-->\n)?```python[^\n]*\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = re.compile(r"<!-- not run: \S.*-->")


def program(text: str) -> str:
    """The snippets of a document as one program whose line numbers are those of the document."""
    lines = [""] * text.count("\n")
    for found in SNIPPET.finditer(text):
        if NOT_RUN.match(found["mark"] or ""):
            continue
        first = text[: found.start("code")].count("\n")
        code = found["code"].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines)


def documents_with_snippets() -> list[Path]:
    return [path for path in DOCUMENTS if program(path.read_text("utf-8")).strip()]


def test_there_are_snippets() -> None:
    assert {path.name for path in documents_with_snippets()} >= {"README.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize("document", documents_with_snippets(), ids=lambda path: path.name)
def test_snippets_run(document: Path, tmp_path: Path) -> None:
    """In a process of its own, since a snippet may register rules; what it prints is compared with its comments."""
    source = program(document.read_text("utf-8"))
    script = tmp_path / "snippets.py"
    script.write_text(source, "utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, f"{document.name}:\n{run.stderr}"
    expected = re.findall(r"^\s*print\(.*\)  # (.*)$", source, re.MULTILINE)
    if expected:
        assert run.stdout.splitlines() == expected
    assert "print(" not in source or len(expected) == len(re.findall(r"\bprint\(", source)), "say what print prints"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
