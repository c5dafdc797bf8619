"""A training loop in numpy over the gradients of an ONNX file: `python examples/gradient_by_hand.py`.

The network was exported for inference by torch (see examples/models/export_digits_cnn.py); torch is not needed here.
`onward.gradient` makes a second ONNX model that also computes the gradients; the rest of a training loop is numpy. For
the same as one command see `onward demo`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import onward

matplotlib.use("Agg")  # draws into files: works without a display
from matplotlib import pyplot

MODEL = Path(__file__).parent / "models" / "digits_cnn.onnx"
EPOCHS, BATCH, LEARNING_RATE, MOMENTUM = 25, 32, 0.02, 0.9


def main(output: Path) -> None:
    train_x, test_x, train_y, test_y = digits()
    forward = onnx.load(MODEL)
    print(f"{MODEL.name}: {len(forward.graph.node)} nodes, made by {forward.producer_name} {forward.producer_version}")
    print(f"accuracy on {len(test_y)} held-out digits before training: {accuracy(MODEL, test_x, test_y):.1%}")

    # Inputs: image, label and all weights. Outputs: logits, loss and the gradient of the loss for each weight.
    step = onward.gradient(with_loss(forward), of="loss", parameters="inputs")
    print(f"with loss and gradients: {len(step.graph.node)} nodes, all of them standard operators")
    names = [value.name.removesuffix("_grad") for value in step.graph.output if value.name.endswith("_grad")]
    weights = {t.name: numpy_helper.to_array(t).copy() for t in forward.graph.initializer if t.name in names}
    losses = train(session(step.SerializeToString()), weights, train_x, train_y)

    output.mkdir(parents=True, exist_ok=True)
    trained, picture = output / "digits_cnn_trained.onnx", output / "loss.png"
    onnx.save(with_weights(forward, weights), trained)
    draw(losses, picture)
    print(f"accuracy after training: {accuracy(trained, test_x, test_y):.1%}")
    print(f"wrote {trained} and {picture}")


def digits() -> list[np.ndarray]:
    """Images `[N, 1, 8, 8]` and labels `[N]`: a training and a held-out part of each."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return train_test_split(images, labels.astype(np.int64), test_size=0.25, random_state=0, stratify=labels)


def with_loss(forward: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of the model with one more input, the labels, and one more output, the mean cross-entropy."""
    model = onnx.ModelProto()
    model.CopyFrom(forward)
    model.graph.node.append(helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "label"], ["loss"]))
    model.graph.input.append(helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]))
    model.graph.output.append(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    return model


def train(
    step: onnxruntime.InferenceSession, weights: dict[str, np.ndarray], images: np.ndarray, labels: np.ndarray
) -> list[float]:
    """Gradient descent with momentum; changes `weights` in place and returns the loss of every step."""
    random = np.random.default_rng(0)
    velocity = {name: np.zeros_like(w) for name, w in weights.items()}
    wanted = ["loss", *(f"{name}_grad" for name in weights)]
    losses: list[float] = []
    batches = len(labels) // BATCH
    with tqdm(total=EPOCHS * batches, desc="training", unit=" steps") as progress:
        for _ in range(EPOCHS):
            for rows in np.array_split(random.permutation(len(labels)), batches):
                loss, *grads = step.run(wanted, {"image": images[rows], "label": labels[rows], **weights})
                for (name, w), g in zip(weights.items(), grads, strict=True):
                    velocity[name] = MOMENTUM * velocity[name] + g
                    w -= LEARNING_RATE * velocity[name]
                losses.append(float(loss))
                progress.set_postfix(loss=f"{np.mean(losses[-batches:]):.4f}", refresh=False)
                progress.update()
    return losses


def with_weights(forward: onnx.ModelProto, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    """A copy of the model with other weights; nothing else differs from what the exporter wrote."""
    model = onnx.ModelProto()
    model.CopyFrom(forward)
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    return model


def session(model: str | bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def accuracy(path: Path, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images that the model in a file, run as any inference model, gets right."""
    (logits,) = session(str(path)).run(["logits"], {"image": images})
    return float(np.mean(logits.argmax(axis=1) == labels))


def draw(losses: list[float], path: Path) -> None:
    """The loss of every step, and its moving mean."""
    window = max(1, len(losses) // 30)
    smooth = np.convolve(losses, np.ones(window) / window, mode="valid")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(losses, color="tab:blue", alpha=0.3, linewidth=0.8, label="each step")
    axes.plot(np.arange(len(smooth)) + window - 1, smooth, color="tab:blue", label=f"mean of {window} steps")
    axes.set(title="Training digits_cnn.onnx on onnxruntime", xlabel="step", ylabel="cross-entropy", yscale="log")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--output", type=Path, default=Path("out"), help="directory for what is written")
    main(arguments.parse_args().output)
