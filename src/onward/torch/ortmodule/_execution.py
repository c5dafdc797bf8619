"""What programs written for the original look at inside of an ORTModule: its graphs, its devices, why it fell back.

    module._torch_module._execution_manager(is_training)._onnx_models.exported_model

Nothing is kept here: each of these is a view of what the ORTModule has.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import onnx
import torch

from onward.graph.proto import to_proto
from onward.torch.ortmodule._fallback import ORTModuleFallbackException, _FallbackPolicy, retries
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.options import DebugOptions, RuntimeOptions

if TYPE_CHECKING:
    from onward.torch.ortmodule.ortmodule import ORTModule
    from onward.torch.ortmodule.plan import Plan


@dataclass(frozen=True)
class ONNXModels:
    """The graphs of the last call, parameters as inputs."""

    exported_model: onnx.ModelProto  # as torch's exporter wrote it
    optimized_model: onnx.ModelProto  # the forward pass
    backward_model: onnx.ModelProto | None


@dataclass(frozen=True)
class InputInfo:
    """The arguments that the graphs of the last call are for."""

    names: list[str]
    require_grad_names: list[str]
    schema: Any


@dataclass(frozen=True)
class ExportedModelInfo:
    """The graph of the last call as torch's exporter wrote it."""

    exported_model: onnx.ModelProto
    onnx_graph_input_names: list[str]
    onnx_graph_input_names_require_grad: list[str]
    module_forward_args_schema: Any


@dataclass(frozen=True)
class GraphTransitions:
    """The forms that the graph of the last call has had."""

    _exported_model_info: ExportedModelInfo | None


class TorchModule:
    """The `_torch_module` of an ORTModule."""

    def __init__(self, wrapper: ORTModule) -> None:
        self._wrapper = wrapper
        self._execution_manager = ExecutionManagers(wrapper)

    def is_training(self) -> bool:
        """Whether calls are of training: the mode of the module, and whether gradients are on."""
        return self._wrapper._is_training()

    @property
    def _flattened_module(self) -> torch.nn.Module:
        return self._wrapper.module

    _original_module = _flattened_module


class ExecutionManagers:
    """One for each mode."""

    def __init__(self, wrapper: ORTModule) -> None:
        self._training_manager = ExecutionManager(wrapper, is_training=True)
        self._inference_manager = ExecutionManager(wrapper, is_training=False)

    def __call__(self, is_training: bool) -> ExecutionManager:
        return self._training_manager if is_training else self._inference_manager


class ExecutionManager:
    """Training, or inference, of an ORTModule."""

    def __init__(self, wrapper: ORTModule, *, is_training: bool) -> None:
        self._wrapper, self._is_training = wrapper, is_training

    @property
    def _runtime_options(self) -> RuntimeOptions:
        return self._wrapper._runner.runtime

    def __getattr__(self, name: str) -> Any:
        # As older releases call the options.
        if name in _OPTIONS:
            return getattr(self._runtime_options, name.removeprefix("_"))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OPTIONS:
            setattr(self._runtime_options, name.removeprefix("_"), value)
        else:
            super().__setattr__(name, value)

    @property
    def _original_model_has_changed(self) -> bool:
        """Whether the module is another one than at its last call, in its attributes, modes or types."""
        last = self._wrapper._runner.state
        return last is not None and Fingerprint(self._wrapper.module).key != last[0].key

    @property
    def _module_parameters(self) -> list[inspect.Parameter]:
        return list(self._wrapper._runner.signature.parameters.values())

    def _reinitialize_graph_builder(self, input_info: InputInfo) -> bool:
        """Whether arguments like these need other graphs than the last ones: gradients of others, for instance."""
        last = self._input_info
        return last is None or set(last.require_grad_names) != set(input_info.require_grad_names)

    @property
    def _graph_transition_manager(self) -> GraphTransitions:
        models, inputs = self._onnx_models, self._input_info
        if models is None or inputs is None:
            return GraphTransitions(None)
        return GraphTransitions(
            ExportedModelInfo(
                models.exported_model,
                [value.name for value in models.exported_model.graph.input],
                inputs.require_grad_names,
                inputs.schema,
            )
        )

    @property
    def _plan(self) -> Plan | None:
        return self._wrapper._runner.latest.get(self._is_training)

    @property
    def _onnx_models(self) -> ONNXModels | None:
        plan = self._plan
        if plan is None:
            return None
        return ONNXModels(to_proto(plan.exported), plan.graphs.forward, plan.graphs.backward)

    @property
    def _input_info(self) -> InputInfo | None:
        plan = self._plan
        return None if plan is None else InputInfo(*plan.arguments)

    @property
    def _execution_agent(self) -> Plan | None:
        return self._plan

    _graph_builder = _execution_agent

    @property
    def _export_mode(self) -> torch.onnx.TrainingMode:
        return torch.onnx.TrainingMode.TRAINING if self._is_training else torch.onnx.TrainingMode.EVAL

    @property
    def _device(self) -> torch.device:
        tensors = (*self._wrapper.parameters(), *self._wrapper.buffers())
        return tensors[0].device if tensors else torch.device("cpu")

    @property
    def _debug_options(self) -> DebugOptions:
        return self._wrapper._runner.options

    @_debug_options.setter
    def _debug_options(self, options: DebugOptions) -> None:
        self._wrapper._runner.options = options

    @property
    def _fallback_manager(self) -> FallbackManager:
        return FallbackManager(self._wrapper)


_OPTIONS = frozenset(f"_{option.name}" for option in fields(RuntimeOptions))


class FallbackManager:
    """What is left to torch, and why something was."""

    def __init__(self, wrapper: ORTModule) -> None:
        self._wrapper = wrapper

    @property
    def policy(self) -> _FallbackPolicy:
        """What is left to torch."""
        return self._wrapper._runner.policy

    @policy.setter
    def policy(self, policy: _FallbackPolicy) -> None:
        self._wrapper._runner.policy = policy

    @property
    def retry(self) -> bool:
        """Whether what has failed is tried again at each call."""
        return retries()

    @property
    def _raised_fallback_exception(self) -> bool:
        """Whether it has been said, once and for all, that torch runs the module."""
        return self._wrapper._runner.reason is not None and not self.retry

    @property
    def _exception(self) -> ORTModuleFallbackException | None:
        wrapper = self._wrapper
        if isinstance(wrapper._runner.reason, ORTModuleFallbackException):
            return wrapper._runner.reason
        if wrapper._runner.reason is None:
            return None
        found = [plan for plans in wrapper._runner.plans.values() for plan in plans.values()]
        errors = [plan for plan in found if isinstance(plan, ORTModuleFallbackException)]
        return errors[-1] if errors else ORTModuleFallbackException(wrapper._runner.reason)
