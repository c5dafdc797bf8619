"""A model as the command sees it: what goes in, what comes out, and what it says about its classes."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.cli.files import existing
from onward.cli.recipe import Model as Change
from onward.errors import OnwardError
from onward.graph.naming import quoted
from onward.graph.prepare import load, prepare
from onward.graph.shapes import dims, is_floating, is_placeholder
from onward.head import new_head
from onward.head.ending import Head, read_classes, read_numbers
from onward.head.logistic import name_logistic
from onward.low_rank import Lora, lora
from onward.trainer.field import Field

CLASSES = "onward.classes"  # metadata: a JSON list of the names of classes


class ModelView:
    """A model file, with another last layer and low-rank pairs if wanted.

    Attributes:
        source: what a Trainer takes: the path, or the changed model.
        inputs: what the model is fed.
        outputs: what it returns, as far as these are tensors of known type.
        fresh: the parameters of the new last layer.
        adapted: the low-rank pairs that are trained instead of the weights.
    """

    def __init__(self, path: Path, change: Change | None = None, *, seed: int = 0) -> None:
        existing(path, "model file")
        if path.is_dir():
            raise OnwardError(f"{str(path)!r} is a folder; give the .onnx file in it")
        self.path = path
        self.source: Path | onnx.ModelProto = path
        self.fresh: list[str] = []
        self.adapted: Lora | None = None
        change = change or Change()
        if isinstance(change.new_head, int):
            self.source, self.fresh = new_head(path, change.new_head, layer=change.layer, seed=seed)
        if change.lora is not None:
            self.adapted = _adapted(self.source, change, self.fresh, seed)
            self.source = self.adapted.model
        self.prepared = prepare(self.source, keep=custom_operators())
        name_logistic(self.prepared)
        graph = self.prepared.graph
        self.inputs = [_field(value) for value in graph.inputs if not value.is_initializer()]
        self.outputs = {value.name or "": value for value in graph.outputs}

    def input(self, name: str) -> Field:
        from onward.cli.files import near

        for field in self.inputs:
            if field.name == name:
                return field
        names = [field.name for field in self.inputs]
        raise OnwardError(f"the model has no input {name!r}; it has {quoted(names)}{near(name, names)}")

    def trained(self, patterns: list[str] | None) -> list[str] | None:
        """What a Trainer trains: what was asked for; with low-rank pairs, these and a new last layer as well."""
        if self.adapted is None:
            return patterns
        return list(dict.fromkeys([*self.adapted.parameters, *self.fresh, *(patterns or [])]))

    @property
    def floating_outputs(self) -> list[str]:
        return [name for name, value in self.outputs.items() if is_floating(value)]

    def numbers(self, output: str | None) -> Head:
        """The end of the model, as that of one which predicts numbers."""
        return read_numbers(self.prepared, output or self._only())

    def ending(self, output: str | None) -> Head:
        """The end of the model, as that of one which predicts classes."""
        return read_classes(self.prepared, output or self._only())

    def _only(self) -> str | None:
        """The output that is looked at where several have numbers: the first of them."""
        return self.floating_outputs[0] if len(self.floating_outputs) > 1 else None

    def shape(self, name: str) -> tuple[int | str | None, ...] | None:
        """The sizes of an inner value or output; None stands for those that change."""
        from onward.graph.nodes import outer_values

        known = dims(outer_values(self.prepared.graph)[name])
        return None if known is None else tuple(None if is_placeholder(size) else size for size in known)

    @functools.cached_property
    def metadata(self) -> dict[str, str]:
        return dict(load(self.source).metadata_props)

    @property
    def fills_missing(self) -> bool:
        """Whether the model takes NaN for missing values, and puts others in their place."""
        return any(node.op_type == "Imputer" for node in load(self.source).graph)

    @property
    def classes(self) -> list[str | int] | None:
        """The names of the classes, if the file has them."""
        if self.fresh:
            return None
        try:
            found = json.loads(self.metadata.get(CLASSES, "null"))
        except ValueError:
            return None
        if isinstance(found, list) and all(isinstance(name, (str, int)) for name in found):
            return found
        try:
            labels = self.ending(None).labels
        except OnwardError:
            return None
        return None if labels is None else list(labels)


def _adapted(source: Path | onnx.ModelProto, change: Change, fresh: Sequence[str], seed: int) -> Lora:
    """Pairs beside the layers that were named, or beside all but a new last one, which is trained itself."""
    patterns = change.lora_layers or ["*"]
    if change.lora_layers is None and fresh:
        patterns = [pair.weight for pair in lora(source, "*").pairs if pair.weight not in fresh]
    assert change.lora is not None
    return lora(source, patterns, rank=change.lora, alpha=change.lora_alpha, seed=seed)


def _field(value: ir.Value) -> Field:
    if value.dtype is None:
        raise OnwardError(f"input {value.name!r} of the model has no type of a tensor ({value.type}); it cannot be fed")
    text = value.dtype == ir.DataType.STRING
    known = dims(value)
    shape = None if known is None else tuple(_size(dim) for dim in known)
    dtype: Any = object if text else value.dtype.numpy()
    return Field(value.name or "", np.dtype(dtype), shape)


def _size(dim: Any) -> int | str | None:
    """A size of an input; some exporters write -1 for one that changes."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return None if dim is None or is_placeholder(dim) or dim in ("?", "-1") else dim


def shown(shape: Sequence[Any] | None) -> str:
    """A shape for people."""
    return "any shape" if shape is None else "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
