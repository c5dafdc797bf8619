"""The examples in examples/distributed learn, in two processes that torchrun has started."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.distributed.conftest import Two
from tests.distributed.launch import ROOT, torchrun

pytest.importorskip("torch")
EXAMPLES = ROOT / "examples" / "distributed"


def accuracy(output: str) -> float:
    found = re.findall(r"^2 processes, .*: accuracy ([\d.]+)$", output, re.MULTILINE)
    assert len(found) == 1, output
    return float(found[0])


def test_trainer(two: Two) -> None:
    first, second = two.both("train.py")
    assert accuracy(first) > 0.9
    assert second == ""
    assert (two.folder / "digits_cnn_trained.onnx").is_file()
    assert [path.name for path in (two.folder / "checkpoints").iterdir()] == ["step-000000088.checkpoint"]


def test_ortmodule(two: Two) -> None:
    first, second = two.both("ortmodule.py")
    assert accuracy(first) > 0.9
    assert second == ""


@pytest.mark.slow  # the same programs, in processes of their own
@pytest.mark.parametrize("name", ["train.py", "ortmodule.py"])
def test_the_commands(name: str, tmp_path: Path) -> None:
    ended = torchrun([str(EXAMPLES / name), "--epochs", "4"], tmp_path)
    assert ended.code == 0, ended.output
    assert accuracy(ended.output) > 0.9
