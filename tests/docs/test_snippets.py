"""Every snippet of the documents runs: those of one file in order, Python in one namespace, in an empty directory.

```python is Python; what `print` prints is in a comment behind it. ```sh are commands, with the installed `onward`;
```console are lines behind `$ ` and what they print, where `...` stands for anything. Lines before a snippet say more:

    <!-- not run: <reason> -->       it cannot run here
    <!-- slow: <reason> -->          only `make test-all` runs it
    <!-- with: model.onnx, data.csv -->   what the reader has by then (given.py writes it)
"""

from __future__ import annotations

import codeop
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
BLOCK = re.compile(
    r"^(?P<marks>(?:<!--[^\n]*-->\n)*)```(?P<language>[a-z]*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
MARK = re.compile(r"<!-- (not run|slow|with): (\S.*?) -->")
LANGUAGES = ("python", "sh", "console")

# How many snippets do not run, by reason. One more is a decision, and each has to be said in the document.
NOT_RUN = {
    "a part of the program above": 1,
    "it installs packages": 5,
    "it waits for other processes": 2,
    "it starts ray": 1,
    "it takes what runs this test": 1,
    "needs an interrupted training": 1,
    "needs a model of TensorFlow": 1,
    "needs a model of Paddle": 1,
    "there is no such library here": 1,
    "tests/federated/test_example.py does": 1,
    "tests/test_language_model.py does": 2,
}


@dataclass(frozen=True)
class Snippet:
    language: str
    code: str
    line: int
    marks: dict[str, str]

    def statement(self) -> str:
        """What a Python program runs in its place; its lines are those of the document."""
        names = [name.strip() for name in self.marks.get("with", "").split(",") if name.strip()]
        files = f"_shell.given(*{names!r}); " if names else ""
        return self.code if self.language == "python" else f"{files}_shell.{self.language}({self.code!r})"


def snippets(document: Path) -> Iterator[Snippet]:
    text = document.read_text("utf-8")
    for found in BLOCK.finditer(text):
        if found["language"] in LANGUAGES:
            line = text[: found.start("code")].count("\n")
            yield Snippet(found["language"], found["code"], line, dict(MARK.findall(found["marks"])))


def program(document: Path, *, slow: bool) -> str:
    """The snippets that run as one program, or nothing where there is none."""
    run = [each for each in snippets(document) if "not run" not in each.marks and (slow or "slow" not in each.marks)]
    if not run:
        return ""
    lines = [""] * document.read_text("utf-8").count("\n")
    lines[0] = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import shell as _shell; del sys.path[0]"
    )
    for each in run:
        code = each.statement().splitlines()
        lines[each.line : each.line + len(code)] = code
    return "\n".join(lines)


def with_slow_snippets(document: Path) -> bool:
    return any("slow" in each.marks for each in snippets(document))


FAST = [path for path in DOCUMENTS if program(path, slow=False)]
SLOW = [path for path in DOCUMENTS if with_slow_snippets(path)]


def test_there_are_snippets() -> None:
    assert {path.name for path in FAST} >= {"README.md", "CONTRIBUTING.md", "tutorial.md", "command-line.md"}


def test_what_does_not_run_is_counted() -> None:
    reasons = [each.marks["not run"] for path in DOCUMENTS for each in snippets(path) if "not run" in each.marks]
    assert Counter(reasons) == NOT_RUN


def test_marks_are_understood() -> None:
    """A mark that is misspelt, or that stands before a line that is no snippet, would go unnoticed."""
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        understood = sum(len(MARK.findall(found["marks"])) for found in BLOCK.finditer(text))
        others = re.findall(r"^<!-- (?!begin |end |make edge-table writes this|to here)", text, re.MULTILINE)
        assert understood == len(others), path.name


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With the command on the path: the installed one, or where only the sources are there, one that starts it."""
    folders = [str(Path(sys.executable).parent), os.environ["PATH"]]
    if not Path(folders[0], "onward").exists():
        made = tmp_path_factory.mktemp("bin")
        (made / "onward").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m onward "$@"\n', "utf-8")
        (made / "onward").chmod(0o755)
        folders.insert(0, str(made))
    # Paths of sources are often relative, and documents run elsewhere.
    sources = [str(ROOT / path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**os.environ, "PATH": os.pathsep.join(folders), "PYTHONPATH": os.pathsep.join(sources), "COLUMNS": "120"}


def run_document(document: Path, folder: Path, environment: dict[str, str], *, slow: bool) -> None:
    """In a process of its own, since a snippet may register rules; what it prints is compared with its comments."""
    source = program(document, slow=slow)
    script = folder / "snippets.py"
    script.write_text(source, "utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, f"{document.name}:\n{run.stderr}"
    expected = re.findall(r"^\s*print\(.*\)  # (.*)$", source, re.MULTILINE)
    if expected:
        assert run.stdout.splitlines() == expected
    assert "print(" not in source or len(expected) == len(re.findall(r"\bprint\(", source)), "say what print prints"


@pytest.mark.parametrize("document", FAST, ids=lambda path: path.name)
def test_snippets_run(document: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    run_document(document, tmp_path, environment, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("document", SLOW, ids=lambda path: path.name)
def test_slow_snippets_run(document: Path, tmp_path: Path, environment: dict[str, str]) -> None:
    run_document(document, tmp_path, environment, slow=True)


@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_first_snippets_can_be_typed_into_python(name: str) -> None:
    """Line by line: in a prompt, a loop that is followed at once by another statement is an error."""
    for snippet in snippets(ROOT / name):
        typed = ""
        for line in snippet.code.splitlines() if snippet.language == "python" else []:
            typed += f"{line}\n"
            # A block is whole at an empty line only, which codeop takes the last newline for.
            if codeop.compile_command(typed.removesuffix("\n"), symbol="single") is not None:
                typed = ""
        assert codeop.compile_command(typed, symbol="single") is not None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_files_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text("utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
