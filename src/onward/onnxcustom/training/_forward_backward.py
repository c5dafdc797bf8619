"""A graph that runs forward and backward: the base of the classes that `ortgradient` makes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx

from onward.errors import OnwardError
from onward.onnxcustom.training._base import Saved, save_graphs
from onward.onnxcustom.training.excs import ProviderError, UnsupportedError, WrongTypeError
from onward.onnxcustom.utils.onnxruntime_helper import ort_device_to_string
from onward.runtime.two_phase import PhaseState, TwoPhases
from onward.runtime.values import OrtValueVector, as_value, run, value_from_array, vector_of, wrapped
from onward.session.agent import TrainingAgent
from onward.session.configuration import GraphInfo
from onward.session.graph_builder import OrtModuleGraphBuilder
from onward.signature import Role
from onward.training.phases import PhaseInfo

_DEVICE_NAMES = {"cpu": "Cpu", "cuda": "Gpu"}


class OrtGradientForwardBackwardFunction:
    """Base of the classes that `OrtGradientForwardBackward` makes.

    Forward passes in training mode may be many; each backward pass is that of the last one that has had none.
    """

    _phases: ClassVar[TwoPhases]
    _info: ClassVar[PhaseInfo]
    _sess_eval: ClassVar[Any]
    _statistics: ClassVar[dict[str, Any]]
    _logger: ClassVar[logging.Logger | None]
    _debug: ClassVar[bool]
    _devices: ClassVar[list[Any]]
    _grad_input_names: ClassVar[list[str]]
    _bw_fetches_names: ClassVar[list[str]]
    _output_names: ClassVar[list[str]]
    _trained_onnx: ClassVar[onnx.ModelProto]
    _optimized_pre_grad_model: ClassVar[onnx.ModelProto]
    # The same passes with the classes of onnxruntime's training builds.
    _graph_builder: ClassVar[OrtModuleGraphBuilder]
    _graph_info: ClassVar[GraphInfo]
    _training_agent: ClassVar[TrainingAgent]
    _sess: ClassVar[Any]

    def __init__(self) -> None:
        self.states_: list[PhaseState] = []
        self.saved_tensors_: list[Any] | None = None
        # What is neither an input nor a weight: running statistics, and what Dropout draws from.
        self.statistics_ = dict(self._statistics)
        self.pass_ = 0
        self.seed_ = int(np.random.randint(2**31)) if self._info.random else 0

    @classmethod
    def save_onnx_graph(
        cls, folder: str | os.PathLike[str] | type[bytes], prefix: str | None = None, suffix: str | None = None
    ) -> Saved:
        """Write the graphs of this class to a folder, or return them where it is the type `bytes`."""
        graphs = {name: getattr(cls, name) for name in ("_trained_onnx", "_optimized_pre_grad_model")}
        return save_graphs(graphs, cls.__name__, folder, prefix, suffix)

    @staticmethod
    def device_name(device: Any) -> str:
        """How onnxruntime's values call a device: Cpu or Gpu."""
        return _DEVICE_NAMES[ort_device_to_string(device).partition(":")[0]]

    @staticmethod
    def input_to_ort(tensors: Any, devices: Sequence[Any], debug: bool) -> Any:
        """Arrays or OrtValues of either kind as a vector of onnxruntime; that as it is."""
        if isinstance(tensors, OrtValueVector):
            values = [tensors[index] for index in range(len(tensors))]
        else:
            values = []
            for index, tensor in enumerate(tensors):
                if tensor is None:
                    raise UnsupportedError(f"tensor {index} is None; give all of them")
                value = as_value(tensor, devices[min(index, len(devices) - 1)])
                if value is None:
                    raise WrongTypeError(f"tensor {index} is {type(tensor).__name__}, no array and no OrtValue")
                values.append(value)
        if debug:
            for index, (value, device) in enumerate(zip(values, devices, strict=False)):
                wanted = OrtGradientForwardBackwardFunction.device_name(device)
                if value.device_name().lower() not in (wanted.lower(), "cuda" if wanted == "Gpu" else "cpu"):
                    raise ProviderError(f"tensor {index} is on {value.device_name()}, not on {wanted}")
        return tensors if isinstance(tensors, OrtValueVector) else vector_of(values)

    def save_for_backward(self, inputs: Sequence[Any]) -> None:
        """Remember the tensors of a forward pass."""
        self.saved_tensors_ = [inputs[index] for index in range(len(inputs))]

    @property
    def saved_tensors(self) -> list[Any]:
        """The tensors of the last forward pass in training mode."""
        if self.saved_tensors_ is None:
            raise OnwardError("no tensors were saved: run forward(..., training=True) first")
        return self.saved_tensors_

    def forward(self, inputs: Any, training: bool = False, forward_outputs_cache: Any = None) -> Any:
        """The outputs of the graph, as a vector of onnxruntime.

        Args:
            inputs: features, then weights: arrays, OrtValues of either kind, or a vector of them.
            training: whether a backward pass is to follow.
            forward_outputs_cache: not used.
        """
        self._debug_log("forward", "begin%s", " with gradient" if training else "")
        vector = self.input_to_ort(inputs, self._devices, self._debug)
        if len(vector) != len(self._grad_input_names):
            raise OnwardError(
                f"there are {len(vector)} tensors, and the graph takes {', '.join(self._grad_input_names)}"
            )
        feeds = {name: vector[index] for index, name in enumerate(self._grad_input_names)}
        outputs = self._run_forward(feeds) if training else self._evaluate(feeds)
        if training:
            self.save_for_backward(inputs)
        self._debug_log("forward", "end")
        return vector_of(outputs)

    def _evaluate(self, feeds: Mapping[str, Any]) -> list[Any]:
        found = run(self._sess_eval, {**feeds, **self.statistics_}, self._output_names, self._devices[0])
        return [found[index] for index in range(len(found))]

    def _run_forward(self, feeds: Mapping[str, Any]) -> list[Any]:
        given = {name: wrapped(value) for name, value in (*feeds.items(), *self.statistics_.items())}
        numbers = {Role.SEED: self.seed_, Role.PASS: self.pass_}
        given |= {name: np.array(numbers[role], np.int64) for name, role in self._info.random.items()}
        result = self._phases.forward(given)
        self.statistics_.update((name, value._ortvalue) for name, value in result.statistics.items())
        self.states_.append(result.state)
        self.pass_ += 1
        return [result.outputs[name]._ortvalue for name in self._output_names]

    def backward(self, grad_outputs: Any, backward_outputs_cache: Any = None) -> Any:
        """The gradients of all inputs and weights, as a vector of onnxruntime.

        Args:
            grad_outputs: the gradients of outputs of floating point, in order.
            backward_outputs_cache: not used.
        """
        self._debug_log("backward", "begin")
        if not self.states_:
            raise OnwardError("there is no forward pass to go back over: run forward(..., training=True) first")
        vector = self.input_to_ort(grad_outputs, self._devices, self._debug)
        state = self.states_.pop()
        names = [name for name in self._output_names if name in self._phases.output_gradients]
        if len(vector) != len(names):
            raise OnwardError(f"there are {len(vector)} gradients, for the outputs {', '.join(names)}")
        gradients = {
            name: wrapped(_shaped(vector[index], state.outputs[name][0], name, self._devices[0]))
            for index, name in enumerate(names)
        }
        found = self._phases.backward(state, gradients)
        self._debug_log("backward", "end")
        return vector_of([found[name]._ortvalue for name in self._grad_input_names if name in found])

    def _debug_log(self, method: str, message: str, *args: Any) -> None:
        if self._logger is not None:
            self._logger.debug(f"[%s.{method}] {message}", type(self).__name__, *args)


def _shaped(gradient: Any, shape: list[int], name: str, device: Any) -> Any:
    """The gradient of an output in its shape; one without axes of size 1, or as one row, is taken for it too."""
    given = gradient.shape()
    if given == shape:
        return gradient
    axes = [[size for size in sizes if size != 1] for sizes in (given, shape)]
    size = int(np.prod(shape))
    if axes[0] != axes[1] and given not in ([size], [1, size]):
        raise OnwardError(f"the gradient of output {name!r} must have its shape {shape}, not {given}")
    return value_from_array(gradient.numpy().reshape(shape), device)
