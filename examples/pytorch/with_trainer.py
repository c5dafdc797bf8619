"""The Trainer of Hugging Face trains a BERT on onnxruntime: `python with_trainer.py [--engine torch]`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from tiny_bert import batch, bert, sentences
from transformers import BertForSequenceClassification, Trainer, TrainingArguments


def accuracy(prediction: Any) -> dict[str, float]:
    """The share of right classes."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def train(engine: str, folder: Path, *, bf16: bool = False) -> Trainer:
    """Two epochs with accumulated and clipped gradients, a schedule, evaluation and checkpoints."""
    settings = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=2,
        per_device_train_batch_size=6,
        per_device_eval_batch_size=12,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        lr_scheduler_type="linear",
        warmup_steps=2,
        max_grad_norm=0.5,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        logging_steps=1,
        use_cpu=True,
        bf16=bf16,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=0,
    )
    trainer = Trainer(
        model=bert(engine),
        args=settings,
        train_dataset=sentences(48, seed=1),
        eval_dataset=sentences(24, seed=2),
        data_collator=batch,
        compute_metrics=accuracy,
    )
    trainer.train()
    return trainer


def main() -> None:
    """Train, save, and load what was saved in plain torch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("onnxruntime", "torch"), default="onnxruntime")
    parser.add_argument("--bf16", action="store_true", help="under autocast")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = train(chosen.engine, Path(folder), bf16=chosen.bf16)
        for line in trainer.state.log_history:
            print({name: round(value, 4) for name, value in line.items() if "loss" in name or "accuracy" in name})
        trainer.save_model(f"{folder}/best")
        loaded = BertForSequenceClassification.from_pretrained(f"{folder}/best").eval()
        rows = batch(sentences(4, seed=3))
        with torch.no_grad():
            print("classes by plain torch:", loaded(**rows).logits.argmax(-1).tolist(), "of", rows["labels"].tolist())


if __name__ == "__main__":
    main()
