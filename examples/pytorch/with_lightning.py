"""Lightning trains a BERT on onnxruntime: `python with_lightning.py [--engine torch]`."""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import lightning as L  # noqa: N812  as everybody calls it
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny_bert import batch, bert, sentences
from torch.utils.data import DataLoader

# On machines with many processors it asks for workers, which would take longer than these few rows.
warnings.filterwarnings("ignore", message=".*does not have many workers")


class Classifier(L.LightningModule):
    """A BERT with its loss, its optimizer and a schedule."""

    def __init__(self, engine: str) -> None:
        super().__init__()
        self.model = bert(engine)
        self.losses: list[float] = []

    def training_step(self, given: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**given).loss
        self.losses.append(loss.item())
        return loss

    def validation_step(self, given: dict[str, torch.Tensor], index: int) -> None:
        found = self.model(**given)
        rows = len(given["labels"])
        self.log("loss", found.loss, batch_size=rows)
        self.log("accuracy", (found.logits.argmax(-1) == given["labels"]).float().mean(), batch_size=rows)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=5e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def train(engine: str, folder: Path, *, precision: str = "32-true") -> tuple[Classifier, L.Trainer]:
    """Two epochs with accumulated and clipped gradients, evaluation, and a checkpoint of the best epoch."""
    L.seed_everything(0, verbose=False)
    classifier = Classifier(engine)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        precision=precision,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        callbacks=[ModelCheckpoint(folder, monitor="loss")],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = DataLoader(sentences(48, seed=1), batch_size=6, collate_fn=batch)
    others = DataLoader(sentences(24, seed=2), batch_size=12, collate_fn=batch)
    trainer.fit(classifier, rows, others)
    return classifier, trainer


def main() -> None:
    """Train, and load the checkpoint in plain torch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("onnxruntime", "torch"), default="onnxruntime")
    parser.add_argument("--precision", choices=("32-true", "bf16-mixed"), default="32-true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        classifier, trainer = train(chosen.engine, Path(folder), precision=chosen.precision)
        print("losses", [round(loss, 4) for loss in classifier.losses])
        print({name: round(float(value), 4) for name, value in trainer.callback_metrics.items()})
        plain = Classifier("torch").eval()
        checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
        plain.load_state_dict(checkpoint["state_dict"])
        rows = batch(sentences(4, seed=3))
        with torch.no_grad():
            classes = plain.model(**rows).logits.argmax(-1)
        print("classes by plain torch:", classes.tolist(), "of", rows["labels"].tolist())


if __name__ == "__main__":
    main()
