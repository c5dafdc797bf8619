"""Models of torch through the Trainer: they learn, continue where they were, and predict what their file does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import onward
from onward.callbacks import Lambda, Run
from tests.parity.architectures import ARCHITECTURES
from tests.parity.exporting import export, feeds

SAMPLE = ("resnet_training", "gpt")
CASES = [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in ARCHITECTURES]


def stop(run: Run) -> None:
    if run.step == 3:
        raise KeyboardInterrupt


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::onward.errors.ExporterWarning", "ignore::onward.errors.LossWarning")
def test_a_model_of_torch(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]
    torch.manual_seed(0)
    module, inputs = architecture.build()
    model = export(architecture, module, inputs, architecture.exporters[0], 17)
    fed = dict(zip((value.name for value in model.graph.input), feeds(inputs).values(), strict=True))
    first = onnxruntime.InferenceSession(model.SerializeToString()).run(None, fed)[0]
    is_loss, random = first.ndim == 0, np.random.default_rng(0)
    targets = [] if is_loss else [random.normal(size=first.shape).astype(first.dtype) for _ in range(4)]
    batches = [fed] * 4 if is_loss else [{**fed, "target": target} for target in targets]
    several = len(model.graph.output) > 1 and not is_loss

    def trainer() -> onward.Trainer:
        inner = [model.graph.output[0].name] if several else None
        return onward.Trainer(model, None if is_loss else "mse", accumulate=2, loss_inputs=inner)

    whole, parts = trainer(), trainer()
    history = whole.fit(batches, epochs=3)
    assert history["loss"][-1] < history["loss"][0]
    with pytest.raises(KeyboardInterrupt):
        parts.fit(batches, epochs=3, callbacks=[Lambda(on_step_end=stop)])
    parts.fit(batches, epochs=3, resume=True)
    assert parts.history.losses == history.losses
    assert all(np.array_equal(array, parts.snapshot()[key]) for key, array in whole.snapshot().items())

    whole.export(tmp_path / "trained.onnx")
    expected = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, fed)
    if is_loss and len(expected) == 1:
        assert whole.evaluate([fed])["loss"] == pytest.approx(float(expected[0]), rel=1e-5)
    elif not is_loss:
        found = whole.predict(fed, batch_size=len(next(iter(fed.values()))))
        # Weights that are constants are packed, and summed in another order.
        np.testing.assert_allclose(
            next(iter(found.values())) if isinstance(found, dict) else found, expected[0], rtol=1e-4, atol=1e-5
        )
