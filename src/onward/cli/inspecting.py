"""`onward inspect`: what is in a model or a checkpoint, and what differs between two."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.callbacks.checkpoints import checkpoints_in
from onward.cli import recipe as recipes
from onward.cli import session
from onward.cli.files import existing
from onward.cli.model import shown
from onward.errors import InvalidModelError, OnwardError
from onward.graph.prepare import load
from onward.graph.shapes import dims
from onward.trainer import persistence

Array = np.ndarray[Any, Any]


@dataclass
class Content:
    """What is in a file.

    Attributes:
        facts: what can be said in a word, by what it is.
        tensors: weights and statistics by name.
        numbers: single numbers in Constant nodes, which are not listed.
        operators: how many nodes of each there are.
    """

    path: Path
    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, Array] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        described = {name: {"dtype": str(x.dtype), "shape": list(x.shape)} for name, x in self.tensors.items()}
        return {
            "path": str(self.path),
            "kind": self.kind,
            **self.facts,
            "tensors": described,
            "operators": self.operators,
        }


def content_of(path: Path) -> Content:
    """What is in a model, a checkpoint, or the folder of a training (its newest checkpoint)."""
    existing(path, "model or checkpoint")
    if path.is_dir() and (path / recipes.NAME).is_file():
        found = checkpoints_in(path / session.CHECKPOINTS)
        if not found:
            raise OnwardError(f"{str(path)!r} has no checkpoint yet")
        path = found[max(found)]
    if path.is_file() and path.suffix.lower() in (".onnx", ".onnxmodel"):
        return _model(path)
    try:
        return _checkpoint(path)
    except OnwardError as error:
        try:
            return _model(path)
        except (InvalidModelError, OnwardError):
            raise error from None


def _model(path: Path) -> Content:
    model = load(path)
    graph = model.graph
    tensors = {
        name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value is not None
    }
    numbers: dict[str, Array] = {}
    for node in graph.all_nodes():
        if node.op_type == "Constant" and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
            if tensor.dtype != ir.DataType.STRING:
                (tensors if tensor.size > 1 else numbers)[node.outputs[0].name or ""] = tensor.numpy()
    facts = {
        "producer": " ".join(filter(None, (model.producer_name, model.producer_version))),
        "opset": {domain or "ai.onnx": version for domain, version in model.opset_imports.items()},
        "ir_version": model.ir_version,
        "inputs": {value.name: _typed(value) for value in graph.inputs if not value.is_initializer()},
        "outputs": {value.name: _typed(value) for value in graph.outputs},
        "metadata": dict(model.metadata_props),
    }
    operators = Counter(f"{node.domain}.{node.op_type}".lstrip(".") for node in graph.all_nodes())
    return Content(path, "model", facts, dict(tensors), dict(operators.most_common()), numbers)


def _typed(value: ir.Value) -> str:
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    return f"{dtype} {shown(dims(value))}"


def _checkpoint(path: Path) -> Content:
    state, content = persistence.read(path)
    tensors = {name: np.array(state.tensor(name)) for name in (*state.trainable, *state.frozen)}
    facts: dict[str, Any] = {"trained": len(list(state.trainable)), "kept": len(list(state.frozen))}
    if state.optimizer is not None:
        facts |= {"step": state.optimizer.step, "learning_rate": state.optimizer.learning_rate}
        facts["slots"] = list(state.optimizer.slots)
    if content:
        facts["epochs"] = int(content["epoch"])
        epochs = content["history"]["epochs"]
        facts["last_epoch"] = dict(epochs[-1]) if epochs else {}
    if state.properties:
        facts["properties"] = dict(state.properties)
    return Content(path, "checkpoint", facts, tensors)


def changes(first: Content, second: Content) -> list[dict[str, Any]]:
    """What differs between the tensors of two files: how far each has moved, relative to its size."""
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys([*first.tensors, *second.tensors]):
        a, b = first.tensors.get(name), second.tensors.get(name)
        if a is None or b is None:
            one = b if a is None else a
            assert one is not None
            if _is_elsewhere(one, first if a is None else second):
                continue
            found.append(
                {
                    "name": name,
                    "change": "only in the second" if a is None else "only in the first",
                    "shape": list(one.shape),
                }
            )
        elif a.shape != b.shape or a.dtype != b.dtype:
            said = f"{a.dtype} {list(a.shape)} became {b.dtype} {list(b.shape)}"
            found.append({"name": name, "change": said, "shape": list(b.shape)})
        elif not np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
            found.append({"name": name, "change": "changed", "shape": list(b.shape), **_distance(a, b)})
    return found


def _is_elsewhere(tensor: Array, content: Content) -> bool:
    """Whether the same numbers have another name there, as constants get where a model is prepared for training."""
    return any(
        other.shape == tensor.shape and other.dtype == tensor.dtype and np.array_equal(other, tensor)
        for other in (*content.tensors.values(), *content.numbers.values())
    )


def _distance(a: Array, b: Array) -> dict[str, float]:
    if a.dtype.kind in "OUS":
        return {}
    x, y = a.astype(np.float64), b.astype(np.float64)
    size = float(np.linalg.norm(x.reshape(-1)))
    moved = float(np.linalg.norm((y - x).reshape(-1)))
    return {"relative": moved / size if size else float("inf"), "largest": float(np.abs(y - x).max())}
