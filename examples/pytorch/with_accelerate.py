"""A loop of one's own with accelerate, a BERT on onnxruntime: `python with_accelerate.py [--engine torch]`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tiny_bert import batch, bert, sentences
from torch.utils.data import DataLoader
from transformers import BertForSequenceClassification


def train(engine: str, folder: Path, *, precision: str = "no") -> tuple[list[float], float]:
    """Two epochs, the second one from a checkpoint: the losses, and the accuracy at the end."""
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True, mixed_precision=precision)
    set_seed(0)
    model = bert(engine)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, optimizer, schedule, rows, others = accelerator.prepare(
        model,
        optimizer,
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=6),
        DataLoader(sentences(48, seed=1), batch_size=6, collate_fn=batch),
        DataLoader(sentences(24, seed=2), batch_size=12, collate_fn=batch),
    )
    losses = []
    for epoch in range(2):
        model.train()
        for given in rows:
            with accelerator.accumulate(model):
                loss = model(**given).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            accelerator.save_state(str(folder / "state"))
            for parameter in model.parameters():
                parameter.data.zero_()
            accelerator.load_state(str(folder / "state"))
    model.eval()
    right = []
    for given in others:
        with torch.no_grad():
            logits = model(**given).logits
        right.append(accelerator.gather_for_metrics(logits.argmax(-1) == given["labels"]))
    accelerator.unwrap_model(model).save_pretrained(folder / "bert")
    return losses, float(torch.cat(right).float().mean())


def main() -> None:
    """Train, save, and load what was saved in plain torch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("onnxruntime", "torch"), default="onnxruntime")
    parser.add_argument("--precision", choices=("no", "bf16"), default="no", help="bf16: under autocast")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        losses, accuracy = train(chosen.engine, Path(folder), precision=chosen.precision)
        print("losses", [round(loss, 4) for loss in losses])
        print("accuracy", accuracy)
        loaded = BertForSequenceClassification.from_pretrained(f"{folder}/bert").eval()
        rows = batch(sentences(4, seed=3))
        with torch.no_grad():
            print("classes by plain torch:", loaded(**rows).logits.argmax(-1).tolist(), "of", rows["labels"].tolist())


if __name__ == "__main__":
    main()
