"""The class that all blocks derive from."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import onnx

from onward.errors import OnwardError
from onward.onnxblock import model_accessor
from onward.onnxblock.checking import check_nodes_since


class Block(ABC):
    """What can be stacked on top of a model: a function from names of values to names of values.

    Subclasses implement `build`, which changes `self.base` (with `onnx.helper`, or by calling other blocks) and
    returns the names of what it made. Blocks keep no state of the model: they can be called many times, on many models
    and in many threads. Subclasses need not call `__init__`. `temp_file_name` is accepted and not used: no file is
    ever written.
    """

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if os.path.isabs(temp_file_name):
            raise OnwardError("Please pass in a relative path for the temp_file_name.")
        self.temp_onnx_file_path = os.path.join(os.getcwd(), temp_file_name)
        self.temp_external_data_file_name = f"{temp_file_name}.data"

    @property
    def base(self) -> onnx.ModelProto | None:
        """The model to change; after `with onnxblock.base(...)`, the one that the block was called on last."""
        accessor = model_accessor.active()
        return vars(self).get("_last_base") if accessor is None else accessor.model

    @base.setter
    def base(self, model: onnx.ModelProto | None) -> None:
        accessor = model_accessor.active()
        if accessor is not None and model is not None:
            accessor.model = model
        vars(self)["_last_base"] = model

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Change the model; returns the names of the results."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs)

    def _run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        accessor = model_accessor.current()
        vars(self)["_last_base"] = accessor.model
        start = len(accessor.model.graph.node)
        output = self.build(*args, **kwargs)
        check_nodes_since(accessor, start, type(self).__name__)
        return output

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Write all types and shapes that can be inferred into the model."""
        accessor = model_accessor.current()
        inferred = accessor.inferred()
        del accessor.model.graph.value_info[:]
        accessor.model.graph.value_info.extend(inferred.graph.value_info)
        return accessor.model
