"""The page as a whole: what it is made of, and what it never does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import onward
from onward import OnwardError
from tests.trainer.toys import classifier, labelled


def test_a_report_of_a_training(tmp_path: Path) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy", learning_rate=0.02, metrics=["accuracy"])
    trainer.fit(*labelled(60), epochs=3, batch_size=8, validation=0.2)
    path = trainer.report(tmp_path / "report.html", title="<script>alert(1)</script>")
    text = path.read_text("utf-8")
    assert "<script" not in text
    assert "validation=0.2" in text


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = onward.Trainer(classifier(), "cross_entropy")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(OnwardError, match=r"pip install 'onward\[report\]'"):
        trainer.report(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
