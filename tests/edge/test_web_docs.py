"""The JavaScript of the documents runs in Node, after their Python, and prints what its comments say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge.web_models import WEB, needs_web

DOCUMENTS = [WEB / "README.md", WEB.parent / "docs" / "web.md"]
BLOCK = re.compile(r"^```(python|js)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^console\.log\(.*\); // (.*)$", re.MULTILINE)

pytestmark = [*needs_web, pytest.mark.usefixtures("built")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_snippets_run(document: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall(document.read_text("utf-8"))
    (tmp_path / "snippets.py").write_text("\n".join(code for language, code in blocks if language == "python"), "utf-8")
    script = "\n".join(code for language, code in blocks if language == "js")
    (tmp_path / "snippets.mjs").write_text(script, "utf-8")
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (modules / "onward-web").symlink_to(WEB)
    printed = ""
    for command in ([sys.executable, "-W", "error", "snippets.py"], ["node", "snippets.mjs"]):
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert run.returncode == 0, run.stderr
        printed = run.stdout
    expected = PRINTED.findall(script)
    assert printed.splitlines() == expected
    assert len(expected) == script.count("console.log(") > 2, "say what console.log prints"
