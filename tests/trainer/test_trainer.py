"""`Trainer`: fit, evaluate, predict, export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import onward
from tests.trainer.toys import classifier, labelled


def test_fit_evaluate_predict_export(tmp_path: Path) -> None:
    x, y = labelled(300)
    trainer = onward.Trainer(classifier(), "cross_entropy", learning_rate=0.02, metrics=["accuracy"])
    before = trainer.evaluate(x, y)
    history = trainer.fit(x, y, epochs=6, validation=labelled(50, seed=1))
    assert history is trainer.history
    after = trainer.evaluate(x, y)
    assert after["loss"] < before["loss"] / 2
    assert after["accuracy"] > 0.9
    scores = trainer.predict(x)
    assert scores.shape == (300, 3)
    assert (scores.argmax(axis=1) == y).mean() == after["accuracy"]

    trainer.export(tmp_path / "trained.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "trained.onnx")
    np.testing.assert_array_equal(session.run(["scores"], {"x": x})[0], trainer.predict(x, batch_size=300))
    original, exported = classifier().graph, onnx.load(tmp_path / "trained.onnx").graph
    assert list(exported.input) == list(original.input)
    assert [value.name for value in exported.output] == ["scores"]
