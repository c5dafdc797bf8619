"""Killed at any moment, `fit` continues from a whole checkpoint and ends where it would have ended anyway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_a_killed_fit_ends_bit_identical(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.trainer.kill_and_resume", str(tmp_path), "0"]
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=240)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["killed"] >= 5
    assert found["progress"] == sorted(found["progress"])
    assert 0 < found["progress"][0] < 40
    assert (tmp_path / "interrupted").read_bytes() == (tmp_path / "uninterrupted").read_bytes()
    kept, whole = (
        sorted(path.name for path in (tmp_path / folder).glob("step-*.checkpoint")) for folder in ("parts", "whole")
    )
    assert kept == whole
