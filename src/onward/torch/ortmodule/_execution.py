"""What programs written for the original look at inside of an ORTModule: its graphs, its devices, why it fell back.

    module._torch_module._execution_manager(is_training)._onnx_models.exported_model

Nothing is kept here: each of these is a view of what the ORTModule has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx
import torch

from onward.graph.proto import to_proto
from onward.torch.ortmodule._fallback import ORTModuleFallbackException, _FallbackPolicy
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


class TorchModule:
    """The `_torch_module` of an ORTModule."""

    def __init__(self, wrapper: ORTModule) -> None:
        self._wrapper = wrapper
        self._execution_manager = ExecutionManagers(wrapper)

    def is_training(self) -> bool:
        """Whether calls are of training: the mode of the module, and whether gradients are on."""
        return self._wrapper._is_training()


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
        self._runtime_options = RuntimeOptions()

    @property
    def _plan(self) -> Plan | None:
        return self._wrapper._latest.get(self._is_training)

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
        return self._wrapper._options

    @_debug_options.setter
    def _debug_options(self, options: DebugOptions) -> None:
        self._wrapper.__dict__["_options"] = options

    @property
    def _fallback_manager(self) -> FallbackManager:
        return FallbackManager(self._wrapper)


class FallbackManager:
    """What is left to torch, and why something was."""

    def __init__(self, wrapper: ORTModule) -> None:
        self._wrapper = wrapper

    @property
    def policy(self) -> _FallbackPolicy:
        """What is left to torch."""
        return self._wrapper._policy

    @policy.setter
    def policy(self, policy: _FallbackPolicy) -> None:
        self._wrapper.__dict__["_policy"] = policy

    @property
    def _exception(self) -> ORTModuleFallbackException | None:
        wrapper = self._wrapper
        if isinstance(wrapper._reason, ORTModuleFallbackException):
            return wrapper._reason
        if wrapper._reason is None:
            return None
        found = [plan for plans in wrapper._plans.values() for plan in plans.values()]
        errors = [plan for plan in found if isinstance(plan, ORTModuleFallbackException)]
        return errors[-1] if errors else ORTModuleFallbackException(wrapper._reason)
