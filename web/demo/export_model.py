"""Make what the page needs: the digit reader that `onward demo` trains, ready to be trained further in a browser.

    python web/demo/export_model.py [FOLDER]

The reader gets three more classes, for symbols of the visitor's own. Beside its folder go digits of the data that it
was trained with: some that it learned from, which are shown to it again so that it does not forget them, and all that
it was tested with, to see that it did not.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

import onward
from onward.cli import recipe
from onward.cli.commands.demonstration import demo
from onward.cli.preparation import prepare
from onward.edge import export
from onward.runtime.files import write_bytes

DIGITS, OWN = 10, 3
REMEMBERED = 40  # of each digit
# Next to never: a class without examples has weights of zero, and its score is this.
UNLIKELY = -8.0


def main() -> None:
    public = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("public")
    trained = public.parent / f".{public.name}-trained"  # not served
    demo(trained)
    classes = [*map(str, range(DIGITS)), *(f"own {number + 1}" for number in range(OWN))]
    model = with_own_classes(trained / "out" / "trained.onnx")
    export(model, public / "model", "cross_entropy", "adamw", learning_rate=0.0015, classes=classes)
    learned, tested = prepare(recipe.read(trained / "out" / recipe.NAME)).parts()
    assert tested is not None
    write_digits(public / "remembered.bin", *some_of_each(*learned))
    write_digits(public / "tested.bin", *tested)
    print(f"wrote {public}")


def with_own_classes(path: Path) -> onnx.ModelProto:
    """The model with more classes, which no picture belongs to yet."""
    old = last_layer(onnx.load(path))
    model, (weight, bias) = onward.new_head(path, classes=DIGITS + OWN)
    for tensor in model.graph.initializer:
        if tensor.name in (weight, bias):
            new = np.full(tensor.dims, 0.0 if tensor.name == weight else UNLIKELY, np.float32)
            new[:DIGITS] = old[len(tensor.dims)]
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
    return model


def last_layer(model: onnx.ModelProto) -> dict[int, np.ndarray]:
    """Weight [classes, features] and bias [classes] of the Gemm at the end, by their rank."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    (gemm,) = [node for node in model.graph.node if node.op_type == "Gemm"]
    return {tensors[name].ndim: tensors[name] for name in gemm.input[1:]}


def some_of_each(inputs: dict[str, np.ndarray], labels: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rows = np.concatenate([np.flatnonzero(labels == digit)[:REMEMBERED] for digit in range(DIGITS)])
    return {name: array[rows] for name, array in inputs.items()}, labels[rows]


def write_digits(path: Path, inputs: dict[str, np.ndarray], labels: np.ndarray) -> None:
    """65 bytes for each digit: its label, and how many of the 16 pixels of each of its 64 squares have ink."""
    ink = np.rint(inputs["image"].reshape(-1, 64) * 16)
    write_bytes(path, np.column_stack([labels, ink]).astype(np.uint8).tobytes())


if __name__ == "__main__":
    main()
