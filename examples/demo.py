"""Train an ONNX file on stock onnxruntime: `make demo`, or `python examples/demo.py`.

The network was exported for inference by torch (see examples/models/export_digits_cnn.py); torch is not needed here.
What `onward.Trainer` does is written out in examples/gradient_by_hand.py, with numpy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import onward

matplotlib.use("Agg")  # draws into files: works without a display

MODEL = Path(__file__).parent / "models" / "digits_cnn.onnx"


def main(output: Path) -> None:
    train_x, test_x, train_y, test_y = digits()
    trainer = onward.Trainer(MODEL, "cross_entropy", learning_rate=0.01, schedule="one_cycle", metrics=["accuracy"])
    print(trainer.summary())
    before = trainer.evaluate(test_x, test_y)
    print(f"accuracy on {len(test_y)} held-out digits before training: {before['accuracy']:.1%}")

    history = trainer.fit(train_x, train_y, epochs=15, validation=(test_x, test_y), progress=True)
    print(history)

    output.mkdir(parents=True, exist_ok=True)
    trained, picture = output / "digits_cnn_trained.onnx", output / "loss.png"
    trainer.export(trained)
    history.plot(picture)
    print(f"accuracy after training: {accuracy(trained, test_x, test_y):.1%}")
    print(f"wrote {trained} and {picture}")


def digits() -> list[np.ndarray]:
    """Images `[N, 1, 8, 8]` and labels `[N]`: a training and a held-out part of each."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return train_test_split(images, labels, test_size=0.25, random_state=0, stratify=labels)


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images that the model in a file, run as any inference model, gets right."""
    (logits,) = onnxruntime.InferenceSession(path).run(["logits"], {"image": images})
    return float(np.mean(logits.argmax(axis=1) == labels))


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--output", type=Path, default=Path("out"), help="directory for what is written")
    main(arguments.parse_args().output)
