"""Killed at any moment, training continues from a whole checkpoint and ends where it would have ended anyway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api import kill_and_resume, toys


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
def test_killed_training_ends_bit_identical(tmp_path: Path) -> None:
    """Running statistics, optimizer, schedule, and what Dropout draws."""
    toys.generate(tmp_path, toys.with_dropout(toys.cnn(), "p"), optimizer="adamw")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.api.kill_and_resume", str(tmp_path), "0"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["killed"] > 5
    assert found["progress"] == sorted(found["progress"])
    assert 0 < found["progress"][0] < kill_and_resume.STEPS
    assert (tmp_path / "interrupted").read_bytes() == (tmp_path / "uninterrupted").read_bytes()
    # Kills while saving leave drafts, which a later save removes when they are old enough.
    assert list(tmp_path.glob(".interrupted.*.part"))
