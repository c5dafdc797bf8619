"""Export the untrained network that the demo trains: needs torch and onnxscript, which the demo itself does not.

    python examples/models/export_digits_cnn.py

The committed digits_cnn.onnx was written by this script with torch 2.13.0 (its torch.export-based exporter, through
onnxscript 0.7.2). It is a plain inference graph: nothing in it knows that it will be trained.
"""

from pathlib import Path

import onnx
import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 2 * 2, 10),
    )
    path = Path(__file__).with_name("digits_cnn.onnx")
    torch.onnx.export(
        network.eval(),
        (torch.zeros(2, 1, 8, 8),),
        path,
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=18,
        external_data=False,
        dynamo=True,
    )
    forget_stack_traces(path)


def forget_stack_traces(path: Path) -> None:
    """The exporter notes for each node the source lines it came from: paths of the machine it ran on."""
    model = onnx.load(path)
    for node in model.graph.node:
        kept = [entry for entry in node.metadata_props if "stack_trace" not in entry.key]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(model, path)


if __name__ == "__main__":
    main()
