"""Train an ONNX file in several processes: torchrun --nproc-per-node 2 examples/distributed/train.py.

All processes run this program, and make the same updates. Without torchrun, one process does the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import onward
from onward.callbacks import EarlyStopping

MODEL = Path(__file__).parents[1] / "models" / "digits_cnn.onnx"


def main(output: Path, epochs: int) -> None:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)

    trainer = onward.Trainer(
        MODEL,
        "cross_entropy",
        learning_rate=0.01,
        schedule="one_cycle",
        metrics=["accuracy"],
        strategy="auto",  # several processes where torchrun has started them
    )
    history = trainer.fit(
        images,
        labels,
        epochs=epochs,
        batch_size=64,  # of all processes together: each takes its part of the rows
        validation=0.25,
        callbacks=[EarlyStopping(patience=3, restore_best=True)],
        directory=output / "checkpoints",
        resume=True,
    )
    trainer.export(output / "digits_cnn_trained.onnx")  # written by the first process; the others wait
    if trainer.strategy.rank == 0:
        last = history.epochs[-1]
        print(f"{trainer.strategy.size} processes, {trainer.steps} steps: accuracy {last['val_accuracy']:.3f}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--output", type=Path, default=Path("out"), help="directory for what is written")
    arguments.add_argument("--epochs", type=int, default=10)
    given = arguments.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    main(given.output, given.epochs)
