"""The page in a browser, where there is one: as wide as a phone, in light and in dark."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import onward
from tests.trainer.toys import classifier, labelled

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without the network that a browser looks for when it starts; a sandbox needs more rights than tests have.
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000")  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trainer = onward.Trainer(classifier(), "cross_entropy", metrics=["accuracy"])
    trainer.fit(*labelled(60), epochs=4, batch_size=8, validation=0.25)
    names = ["a" * 60, "long name " * 12, "c"]
    return trainer.report(tmp_path_factory.mktemp("browser") / "report.html", classes=names)


def run(folder: Path, *arguments: str) -> str:
    command = [str(CHROMIUM), *OPTIONS, f"--user-data-dir={folder / 'profile'}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_page(report: Path, tmp_path: Path, width: int) -> None:
    """In a frame of that width, with all details open: a window of a browser has a least width of its own."""
    page = report.read_text("utf-8").replace("<details", "<details open")
    script = (
        "const inner = frame.contentDocument.documentElement; document.title = inner.scrollWidth - inner.clientWidth"
    )
    outer = tmp_path / "outer.html"
    frame = f'<iframe id="frame" style="width:{width}px;height:800px;border:0" srcdoc="{html.escape(page)}"></iframe>'
    outer.write_text(f"<!doctype html>{frame}<script>frame.onload = () => {{ {script} }}</script>", "utf-8")
    found = re.search(r"<title>(\d+)</title>", run(tmp_path, "--dump-dom", outer.as_uri()))
    assert found is not None
    assert int(found[1]) == 0


def test_light_and_dark(report: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    brightness = []
    for scheme in (1, 0):  # light, dark
        target = tmp_path / f"{scheme}.png"
        options = (f"--blink-settings=preferredColorScheme={scheme}", "--window-size=900,900", f"--screenshot={target}")
        run(tmp_path, *options, report.as_uri())
        with image.open(target) as shot:
            pixels = shot.convert("L").histogram()
        brightness.append(sum(value * count for value, count in enumerate(pixels)) / sum(pixels))
    assert brightness[0] > 200
    assert brightness[1] < 60
