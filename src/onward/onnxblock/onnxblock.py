"""Blocks that turn the model they work on into a forward model, or into a training and an evaluation model."""

from __future__ import annotations

import copy
import threading
import weakref
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import OnwardError
from onward.onnxblock import _graph_utils, model_accessor
from onward.onnxblock.block import Block
from onward.onnxblock.checking import check_model
from onward.training.split import SplitModels, split

_by_thread = threading.local()


def _keep(block: Block, result: Any) -> None:
    """Remember what a block made: for the thread that called it, and for those that did not."""
    vars(block)["_result"] = result
    if not hasattr(_by_thread, "results"):
        _by_thread.results = weakref.WeakKeyDictionary()
    _by_thread.results[block] = result


def _kept(block: Block) -> Any:
    return getattr(_by_thread, "results", {}).get(block, vars(block).get("_result"))


Parameters = tuple[list[onnx.TensorProto], list[onnx.TensorProto]]


class ForwardBlock(Block):
    """A block whose result becomes the output of the model.

    Subclasses implement `build`, which returns the name of the output, or several names.
    """

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Stack blocks on top of the given values; returns the names of the outputs of the model."""

    def to_model_proto(self) -> onnx.ModelProto:
        """The model as it was when the block had been called."""
        model = _kept(self)
        if model is None:
            raise OnwardError("Please build the forward models first before trying to retrieve it.")
        return model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._run(args, kwargs)
        accessor = model_accessor.current()
        self.infer_shapes_on_base()
        _graph_utils.register_graph_outputs(accessor.model, self._outputs(output))
        check_model(accessor.model, type(self).__name__)
        _keep(self, copy.deepcopy(accessor.model))
        return output

    def _outputs(self, output: Any) -> str | Sequence[str]:
        """The outputs of the model, from what `build` returned."""
        return output


class TrainingBlock(Block):
    """A block whose (first) result is the loss: calling it adds the backward pass to the model.

    Subclasses implement `build`, which returns the name of the loss, or that name and those of further outputs.
    """

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Stack blocks on top of the given values; returns the name of the loss, and of further outputs."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Say that an initializer (or graph input) is trained, or with False that it is kept as it is."""
        self._settings()[argument_name] = value is True

    def parameters(self) -> Parameters:
        """The trainable and the frozen parameters; other initializers stay inside the models."""
        models = self._built("Please build the training model first before trying to retrieve the parameters.")
        return _protos(models.trainable), _protos(models.frozen)

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """The training and the evaluation model."""
        models = self._built("Please build the training and eval models first before trying to retrieve them.")
        return models.training, models.evaluation

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self._run(args, kwargs)
        accessor = model_accessor.current()
        self.infer_shapes_on_base()
        _graph_utils.register_graph_outputs(accessor.model, output)
        self._set(self._split(accessor))
        accessor.model, _ = self.to_model_proto()
        return output

    def _split(self, accessor: model_accessor.ModelAccessor) -> SplitModels:
        settings = self._settings()
        return split(
            accessor.to_ir(),
            trainable=[name for name, trained in settings.items() if trained],
            frozen=[name for name, trained in settings.items() if not trained],
            targets=accessor.added_inputs(),
        )

    def _settings(self) -> dict[str, bool]:
        # Not made in __init__, which users' blocks do not always call.
        return vars(self).setdefault("_requires_grad", {})

    def _set(self, models: SplitModels) -> None:
        _keep(self, models)

    def _built(self, message: str) -> SplitModels:
        models = _kept(self)
        if models is None:
            raise OnwardError(message)
        return models


def _protos(tensors: dict[str, ir.TensorProtocol]) -> list[onnx.TensorProto]:
    return [
        onnx.TensorProto(name=name, data_type=int(t.dtype), dims=t.shape.numpy(), raw_data=t.tobytes())
        for name, t in tensors.items()
    ]
