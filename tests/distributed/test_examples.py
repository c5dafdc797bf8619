"""The examples train, started as they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.distributed.launch import ROOT, torchrun

pytest.importorskip("torch")
EXAMPLES = ROOT / "examples" / "distributed"


def accuracy(example: str, tmp_path: Path, *arguments: str) -> float:
    ended = torchrun([str(EXAMPLES / example), *arguments], tmp_path)
    assert ended.code == 0, ended.output
    found = re.findall(r"^2 processes, .*: accuracy ([\d.]+)$", ended.output, re.MULTILINE)
    assert len(found) == 1, ended.output
    return float(found[0])


def test_trainer(tmp_path: Path) -> None:
    assert accuracy("train.py", tmp_path, "--epochs", "4", "--output", str(tmp_path)) > 0.9
    assert (tmp_path / "digits_cnn_trained.onnx").is_file()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000088.checkpoint"]


def test_ortmodule(tmp_path: Path) -> None:
    assert accuracy("ortmodule.py", tmp_path, "--epochs", "4") > 0.9
