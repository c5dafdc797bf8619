"""A graph that runs forward, and backward with the gradients of its outputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx

from onward.errors import UnknownNameError
from onward.graph.finish import to_input
from onward.graph.prepare import import_default_domain, load
from onward.graph.proto import to_proto
from onward.onnxcustom.training._forward_backward import OrtGradientForwardBackwardFunction
from onward.onnxcustom.training.excs import WrongValueError
from onward.onnxcustom.training.grad_helper import DerivativeOptions, onnx_derivative
from onward.onnxcustom.utils.onnxruntime_helper import get_ort_device, provider_to_device
from onward.onnxcustom.utils.orttraining_helper import get_train_initializer
from onward.runtime.session import NUMPY_TYPES, open_session
from onward.runtime.two_phase import TwoPhases
from onward.runtime.values import value_from_array
from onward.session.agent import OrtValueCache, TrainingAgent
from onward.session.configuration import OrtModuleGraphBuilderConfiguration
from onward.session.graph_builder import OrtModuleGraphBuilder
from onward.training.modes import switch_to_evaluation
from onward.training.phases import PhaseInfo, phases

__all__ = ["OrtGradientForwardBackward", "OrtGradientForwardBackwardFunction"]

_LOG = "[OrtGradientForwardBackward] "
_FLOATING = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


class OrtGradientForwardBackward:
    """Makes a class whose instances run a graph forward and backward: `cls_type_`.

    Args:
        onnx_model: the graph.
        weights_to_train: initializers, in alphabetical order and in that of the graph; None for all of floating point.
        input_names: not used but kept; None for all.
        output_names: the outputs that are returned and have gradients; None for all.
        class_name: how to call the class.
        sess_options: of onnxruntime.
        providers: None, 'cpu', 'cuda', 'cuda:0', 'gpu', a list of execution providers, or an object with a type and
            an index; only those of CPU and CUDA are known.
        provider_options: one dictionary for each provider.
        run_options: kept.
        graph_builder_config: names of inputs and weights as `OrtModuleGraphBuilderConfiguration` has them.
        device_index: which of several devices of CUDA.
        enable_logging: whether the logger "onnxcustom" is told what is made.
        debug: whether devices of tensors are checked.
    """

    def __init__(
        self,
        onnx_model: onnx.ModelProto,
        weights_to_train: list[str] | None = None,
        input_names: list[str] | None = None,
        output_names: list[str] | None = None,
        class_name: str | None = None,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        run_options: Any = None,
        graph_builder_config: Any = None,
        device_index: int = 0,
        enable_logging: bool = False,
        debug: bool = False,
    ) -> None:
        weights = {tensor.name for tensor in onnx_model.graph.initializer}
        fed = [value.name for value in onnx_model.graph.input if value.name not in weights]
        self.onnx_model = onnx_model
        self.weights_to_train = (
            list(get_train_initializer(onnx_model)) if weights_to_train is None else weights_to_train
        )
        self.input_names = fed if input_names is None else input_names
        self.output_names = [o.name for o in onnx_model.graph.output] if output_names is None else output_names
        self.class_name = class_name or f"OrtGradientForwardBackwardFunction_{id(self)}"
        self.sess_options = sess_options
        self.device_index = device_index
        self.providers, self.provider_options = self._checked_providers(providers, provider_options)
        self.run_options = run_options
        self.graph_builder_config = graph_builder_config
        self.enable_logging = enable_logging
        self.debug = debug
        self._check_weights()
        self._init_next()

    def _checked_providers(self, providers: Any, options: Any) -> tuple[list[str], list[dict[str, Any]]]:
        """Names of execution providers, and options for each."""
        if hasattr(providers, "type"):
            self.device_index = self.device_index if providers.type == "cpu" else providers.index
            providers = providers.type
        if providers is None or isinstance(providers, str):
            known = {None: "CPU", "cpu": "CPU", "cuda": "CUDA", "cuda:0": "CUDA", "gpu": "CUDA"}
            providers = [f"{known.get(providers, providers)}ExecutionProvider"]
        names = [entry if isinstance(entry, str) else entry[0] for entry in providers]
        for name in names:
            provider_to_device(name)
        if not names:
            raise WrongValueError("`providers` is empty; name CPUExecutionProvider or CUDAExecutionProvider")
        own = [{} if isinstance(entry, str) else dict(entry[1]) for entry in providers]
        given = own if options is None else [dict(entry or {}) for entry in options]
        if len(given) != len(names):
            raise WrongValueError(f"there are {len(names)} providers and {len(given)} provider_options")
        self.device_index = int(given[0].get("device_id", self.device_index))
        return names, given

    def _check_weights(self) -> None:
        names = list(self.weights_to_train)
        known = [tensor.name for tensor in self.onnx_model.graph.initializer]
        advice = "Use onnx_rename_weights first."
        if not names:
            raise WrongValueError(f"there is nothing to train: weights_to_train is empty, and initializers are {known}")
        if len(set(names)) != len(names):
            raise WrongValueError(f"weights to train must be unique, {names} are not")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise WrongValueError(f"there is no initializer {unknown[0]!r}; the graph has {known}")
        if names != sorted(names):
            raise WrongValueError(f"weights to train must be in alphabetical order, {names} are not. {advice}")
        if names != [name for name in known if name in names]:
            raise WrongValueError(
                f"weights to train must be in the order of the graph, {known}; {names} are not. {advice}"
            )

    def new_instance(self) -> OrtGradientForwardBackwardFunction:
        """An instance of `cls_type_`."""
        return self.cls_type_()

    def get_initializer(self, name: str, exc: bool = True) -> Any:
        """An initializer of the graph as an array; where there is none of that name, an error, or None."""
        for tensor in self.onnx_model.graph.initializer:
            if tensor.name == name:
                return np.array(onnx.numpy_helper.to_array(tensor))
        if exc:
            names = [tensor.name for tensor in self.onnx_model.graph.initializer]
            raise UnknownNameError(f"unable to find initializer {name!r} in {names}")
        return None

    def __getstate__(self) -> dict[str, Any]:
        """No sessions, and no options, which onnxruntime cannot save."""
        state = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        return state | {"run_options": None, "graph_builder_config": None, "sess_options": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._init_next()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"

    # Making the class -----------------------------------------------------------------------------------------------

    def _init_next(self) -> None:
        self._info("create training onnx")
        self._info("input_names=%r", self.input_names)
        self._info("output_names=%r", self.output_names)
        self._info("weights_to_train=%r", self.weights_to_train)
        attributes = self._create_onnx_graphs()
        self._info("grad_input_names=%r", attributes["_grad_input_names"])
        self._info("bw_fetches_names=%r", attributes["_bw_fetches_names"])
        self._info("instantiate dynamic class %r", self.class_name)
        bases = (OrtGradientForwardBackwardFunction,)
        self.cls_type_: type[OrtGradientForwardBackwardFunction] = type(self.class_name, bases, attributes)

    def _info(self, message: str, *args: Any) -> None:
        if self.enable_logging:
            logging.getLogger("onnxcustom").info(_LOG + message, *args)

    def _create_onnx_graphs(self) -> dict[str, Any]:
        """The attributes of the class."""
        config = self.graph_builder_config
        weights = list(self.weights_to_train if config is None else config.initializer_names_to_train)
        differentiated = self._floating_inputs() if config is None else list(config.input_names_require_grad)
        made = phases(
            self.onnx_model, trainable=weights, requires_grad_inputs=differentiated, outputs=self._chosen_outputs()
        )
        info = made.info
        device = get_ort_device(self._device())
        evaluation = _evaluation_graph(self.onnx_model, info)
        providers = list(zip(self.providers, self.provider_options, strict=True))
        two = TwoPhases(
            made.forward.SerializeToString(),
            made.backward.SerializeToString(),
            options=self.sess_options,
            providers=providers,
        )
        session = open_session(evaluation.SerializeToString(), options=self.sess_options, providers=providers)
        inputs = [*info.inputs, *info.parameters]
        gradients = [info.gradients[name] for name in inputs if name in info.gradients]
        self.input_dtypes_ = [NUMPY_TYPES[value.type] for value in session.get_inputs()[: len(info.inputs)]]
        return {
            "__doc__": "Runs a graph forward and backward.",
            "__module__": OrtGradientForwardBackwardFunction.__module__,
            "_run_options": self.run_options,
            "_logger": logging.getLogger("onnxcustom") if self.enable_logging else None,
            "_debug": self.debug,
            "_phases": two,
            "_info": info,
            "_sess_eval": session,
            "_statistics": {
                name: value_from_array(np.array(made.weights[name].numpy()), device)
                for name in info.statistics.values()
            },
            "_input_names": self.input_names,
            "_output_names": self.output_names,
            "_weights_to_train": sorted(weights),
            "_grad_input_names": inputs,
            "_bw_fetches_names": gradients,
            "_onx_inp": inputs,
            "_onx_out": gradients,
            "_devices": [device] * len(inputs),
            "_fw_outputs_device_info": [device] * len(self.output_names),
            "_bw_outputs_device_info": [device] * len(gradients),
            "_fw_no_grad_output_device_info": [device] * len(self.output_names),
            "_optimized_pre_grad_model": evaluation,
            "_trained_onnx": _Once(lambda: _gradient_graph(self.onnx_model, weights, differentiated)),
            "_cache": OrtValueCache(),
            "_graph_builder": _Once(lambda: self._graph_builder(weights, differentiated)),
            "_graph_info": _Once(lambda: self.cls_type_._graph_builder.get_graph_info()),
            "_sess": _Once(lambda: self._gradient_session(providers)),
            "_training_agent": _Once(lambda: self._training_agent(device)),
        }

    def _graph_builder(self, weights: list[str], inputs: list[str]) -> OrtModuleGraphBuilder:
        config = OrtModuleGraphBuilderConfiguration()
        config.initializer_names = config.initializer_names_to_train = weights
        config.input_names_require_grad = inputs
        builder = OrtModuleGraphBuilder()
        builder.initialize(self.onnx_model.SerializeToString(), config)
        builder.build()
        return builder

    def _gradient_session(self, providers: list[Any]) -> Any:
        model = self.cls_type_._graph_builder.get_gradient_model()
        return open_session(model, options=self.sess_options, providers=providers)

    def _training_agent(self, device: Any) -> TrainingAgent:
        kind = self.cls_type_
        inputs, gradients = kind._grad_input_names, kind._bw_fetches_names
        outputs = [device] * len(kind._output_names)
        return TrainingAgent(kind._sess._sess, inputs, outputs, gradients, [device] * len(gradients))

    def _device(self) -> str:
        kind = provider_to_device(self.providers[0])
        return f"{kind}:{self.device_index}" if kind == "cuda" and self.device_index else kind

    def _floating_inputs(self) -> list[str]:
        weights = {tensor.name for tensor in self.onnx_model.graph.initializer}
        fed = [value for value in self.onnx_model.graph.input if value.name not in weights]
        return [value.name for value in fed if value.type.tensor_type.elem_type in _FLOATING]

    def _chosen_outputs(self) -> list[str] | None:
        """The outputs that have gradients; None for all of floating point."""
        kinds = {value.name: value.type.tensor_type.elem_type for value in self.onnx_model.graph.output}
        unknown = [name for name in self.output_names if name not in kinds]
        if unknown:
            raise WrongValueError(f"there is no output {unknown[0]!r}; the graph has {list(kinds)}")
        if set(kinds) == set(self.output_names):
            return None
        # Files need not say what type an output has: that is found out later.
        return [name for name in self.output_names if kinds[name] in (*_FLOATING, onnx.TensorProto.UNDEFINED)]


class _Once:
    """An attribute of a class that is made when somebody asks for it: nothing here does."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        made = self._make()
        setattr(owner, self._name, made)
        return made


def _gradient_graph(model: onnx.ModelProto, weights: list[str], inputs: list[str]) -> onnx.ModelProto:
    """The gradient as one graph, with the YieldOp that divides it in the original."""
    graph = onnx_derivative(model, weights, inputs, DerivativeOptions.KeepYieldOp)
    for index, node in enumerate(graph.graph.node):
        node.name = node.name or f"N{index}"
    return graph


def _evaluation_graph(model: onnx.ModelProto, info: PhaseInfo) -> onnx.ModelProto:
    """`model` as it is used: weights are inputs, and running statistics may be fed."""
    copy = load(model)
    import_default_domain(copy)
    graph = copy.graph
    switch_to_evaluation(copy)
    for name in info.parameters:
        value = graph.initializers[name]
        if value.is_graph_input():
            graph.inputs.remove(value)
        to_input(value)
    for name in info.statistics.values():
        value = graph.initializers[name]
        if not value.is_graph_input():
            graph.inputs.append(value)
    copy.ir_version = max(copy.ir_version, 4)  # the first whose initializers need not be inputs too
    return to_proto(copy)
