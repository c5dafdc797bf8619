"""A forward and a backward graph in the metadata of a gradient model, for the agent that gets a session of it.

A session of stock onnxruntime runs a graph as a whole. So the gradient model, which is loaded as in the original,
brings with it the two graphs that an agent runs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from onward import document
from onward.errors import OnwardError
from onward.graph.finish import LARGEST_PROTO
from onward.training.phases import Phases

METADATA_KEY = "onward.phases"
_TITLE = "the pair of graphs in the metadata of the gradient model"


@dataclass(frozen=True)
class Pair:
    """Both graphs, and the values of inputs that the caller does not feed."""

    forward: bytes
    backward: bytes
    stored: dict[str, np.ndarray]


def write_pair(model: onnx.ModelProto, made: Phases, fed: list[str]) -> None:
    """Put a pair into the metadata of a model; `fed` are the inputs that an agent's caller gives."""
    stored = {name: tensor for name, tensor in made.weights.items() if name not in fed}
    content = {
        "forward": _packed(made.forward.SerializeToString()),
        "backward": _packed(made.backward.SerializeToString()),
        "stored": {
            name: _packed(numpy_helper.from_array(tensor.numpy(), name).SerializeToString())
            for name, tensor in stored.items()
        },
    }
    text = json.dumps(content)
    if len(text) + model.ByteSize() >= LARGEST_PROTO:
        raise OnwardError(
            f"the gradient model would have {len(text) + model.ByteSize()} bytes, more than a file can: list the "
            "weights in initializer_names, so that they are inputs and not in the graphs"
        )
    model.metadata_props.add(key=METADATA_KEY, value=text)


def read_pair(metadata: Mapping[str, str]) -> Pair:
    """The pair of a gradient model."""
    if METADATA_KEY not in metadata:
        raise OnwardError(
            "the session was not made of a gradient model of onward: create it from "
            "OrtModuleGraphBuilder.get_gradient_model()"
        )
    content = document.parse(metadata[METADATA_KEY], _TITLE)
    stored = content.mapping("stored", lambda part, name: _unpacked(part.text(name)))
    return Pair(
        _unpacked(content.text("forward")),
        _unpacked(content.text("backward")),
        {name: _array(tensor) for name, tensor in stored.items()},
    )


def _packed(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _unpacked(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise OnwardError(f"{_TITLE} is damaged: {error}") from error


def _array(tensor: bytes) -> np.ndarray:
    try:
        return numpy_helper.to_array(onnx.TensorProto.FromString(tensor))
    except Exception as error:  # protobuf's have no common base but this
        raise OnwardError(f"{_TITLE} is damaged: {error}") from error
