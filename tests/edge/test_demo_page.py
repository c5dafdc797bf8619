"""The page of web/demo in a real Chromium: drawn with a mouse, with keys and with fingers; what it learned, in Python.

Needs node, `npm ci` in web/ (`make test-web` does it) and Chromium; CHROMIUM says where that is.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.edge.web_models import WEB, needs_web

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""

pytestmark = [
    *needs_web,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium; CHROMIUM=/path/of/it names one"),
    pytest.mark.slow,  # a minute: people draw slowly
    pytest.mark.usefixtures("built"),
]


@dataclass(frozen=True)
class Visit:
    """What visitors saw, and where they downloaded to."""

    seen: dict[str, Any]
    folder: Path


@pytest.fixture(scope="module")
def visit(built: None, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    folder = tmp_path_factory.mktemp("page")
    run = subprocess.run(
        [sys.executable, WEB / "demo" / "export_model.py", folder / "public"], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    environment = {**os.environ, "CHROMIUM": CHROMIUM, "ONWARD_DEMO_PUBLIC": str(folder / "public")}
    vite = ["node_modules/vite/bin/vite.js", "build", "demo", "--logLevel", "error", "--outDir", str(folder / "site")]
    for command in (vite, ["demo/test/page.mjs", str(folder / "site"), str(folder)]):
        run = subprocess.run(["node", *command], cwd=WEB, capture_output=True, text=True, env=environment, timeout=600)
        assert run.returncode == 0, run.stderr
    return Visit(json.loads(run.stdout), folder)


def test_a_symbol_is_learned(visit: Visit) -> None:
    seen = visit.seen["mouse"]
    assert seen["errors"] == []
    assert seen["elsewhere"] == [], "nothing leaves the machine, and nothing comes from elsewhere"
    read = [seen["digits"][str(digit)] == str(digit) for digit in range(10)]
    assert sum(read) >= 9, "drawn digits look to the model like those that it learned from"
    assert seen["before"]["glyph"] in set("0123456789")
    assert seen["untaught"] in set("0123456789")
    assert seen["figuresBefore"]["own"] == "0 of 5"
    assert seen["loss"]["last"] < 0.1 * seen["loss"]["first"]
    assert seen["after"]["glyph"] == "★", "a star that it was not taught"
    assert seen["figuresAfter"]["own"] == "5 of 5"
    assert seen["figuresAfter"]["says"] == ["reads ★ ✓"] * 5
    assert seen["figuresBefore"]["strangers"] > 97
    assert seen["figuresAfter"]["strangers"] > 93, "digits of others are not forgotten"


def test_what_was_learned_stays_until_it_is_forgotten(visit: Visit) -> None:
    seen = visit.seen["mouse"]
    assert seen["reloaded"] == seen["figuresAfter"]
    assert seen["chartAfterReload"].count("L") > 100
    assert seen["shown"]["star"]["glyph"] == "★"
    assert seen["forgotten"] == seen["before"]["glyph"]
    assert seen["afterForgetting"]["says"] == []
    assert seen["afterForgetting"]["strangers"] == seen["figuresBefore"]["strangers"]


def test_the_downloaded_file_reads_the_same_in_python(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the very program that the page shows, for each drawing."""
    monkeypatch.chdir(visit.folder)
    assert visit.seen["mouse"]["file"] == "my-digits.onnx"
    onnx.checker.check_model("my-digits.onnx", full_check=True)
    shown = visit.seen["mouse"]["shown"]
    assert len(shown) == 11
    for name, drawing in shown.items():
        names: dict[str, Any] = {}
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(drawing["program"], names)
        assert said.getvalue().strip() == drawing["glyph"], name
        scores = names["scores"][0].astype(np.float64)
        likely = np.exp(scores - scores.max())
        # The page shows three decimals.
        np.testing.assert_allclose((likely / likely.sum())[: len(drawing["bars"])], drawing["bars"], atol=1e-3)


def test_it_works_with_keys_alone(visit: Visit) -> None:
    seen = visit.seen["keys"]
    assert seen["errors"] == []
    assert all(seen[place] for place in ("reachesPad", "reachesNaming", "backAtPad", "reachesTrain"))
    assert seen["line"] == "1"
    assert seen["undone"] == "·"
    assert seen["before"] in set("0123456789")
    assert seen["announced"] == "2 of 5: draw it again."
    assert seen["figures"]["own"] == "2 of 2"


def test_it_works_on_a_phone(visit: Visit) -> None:
    seen = visit.seen["fingers"]
    assert seen["errors"] == []
    assert seen["width"] == seen["widthAfter"] == 390, "nothing is wider than the screen"
    assert seen["stayed"], "drawing does not scroll the page"
    assert seen["three"] == "3"
    assert seen["figures"]["own"] == "5 of 5"
    assert seen["star"] == "★"
    assert seen["small"] == [], "buttons that a finger cannot meet"
