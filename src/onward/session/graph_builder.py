"""Gradient graphs from serialized models, with the classes that the original had in its native module."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.autodiff.gradient import gradient
from onward.autodiff.registry import custom_operators
from onward.errors import OnwardError, UnknownNameError
from onward.graph.finish import finish, fix_defaults, to_input
from onward.graph.naming import quoted
from onward.graph.prepare import load, prepare
from onward.graph.saving import save_model
from onward.runtime.files import replacing_together
from onward.session.configuration import (
    GraphInfo,
    OrtModuleGraphBuilderConfiguration,
    TrainingGraphTransformerConfiguration,
)
from onward.session.pair import write_pair
from onward.training.phases import PhaseInfo, phases


class OrtModuleGraphBuilder:
    """Makes the graphs of a model whose loss is computed elsewhere.

    ``initialize``, ``build``, then ``get_gradient_model`` (the graph that a session and with it a TrainingAgent is made
    of), ``get_forward_model`` (for evaluation) and ``get_graph_info``.

    The gradient model takes the inputs of the model, `initializer_names`, and the gradients of the outputs, where the
    original has a YieldOp; it returns the gradients of inputs, then of `initializer_names_to_train`.
    """

    def __init__(self) -> None:
        self._model: ir.Model | None = None
        self._config = OrtModuleGraphBuilderConfiguration()
        self._forward: bytes | None = None
        self._gradient: bytes | None = None
        self._info = GraphInfo()

    def initialize(self, model: bytes, config: OrtModuleGraphBuilderConfiguration) -> None:
        """Take a serialized model."""
        if not isinstance(model, bytes):
            raise TypeError(f"OrtModuleGraphBuilder takes a serialized model, not {type(model).__name__}")
        loaded = load(onnx.load_model_from_string(model))
        names = set(loaded.graph.initializers)
        unknown = [name for name in config.initializer_names if name not in names]
        if unknown:
            raise UnknownNameError(
                f"initializer_names has {quoted(unknown)}, but the model has no initializer of that name; it has "
                f"{quoted(names)}"
            )
        self._model, self._config = loaded, config
        self._forward = self._gradient = None

    def build(
        self,
        config: TrainingGraphTransformerConfiguration | Sequence[Sequence[int]] | None = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Make the graphs. `input_shapes` are not needed: the graphs take inputs of any size that the model takes."""
        del input_shapes
        if self._model is None:
            raise OnwardError("OrtModuleGraphBuilder has no model: call initialize(model, config) first")
        settings = self._config
        transformer = config if isinstance(config, TrainingGraphTransformerConfiguration) else None
        if transformer is None:
            transformer = settings.graph_transformer_config
        forward = _forward_model(self._model, settings.initializer_names)
        self._forward = forward.SerializeToString()
        path = transformer.optimized_pre_grad_filepath
        if path:
            _save(forward, path)
        outputs = [value.name for value in forward.graph.output]
        trained, inputs = list(settings.initializer_names_to_train), list(settings.input_names_require_grad)
        if not settings.build_gradient_graph or not (trained or inputs):
            self._info = GraphInfo(
                user_input_names=[value.name for value in forward.graph.input][
                    : -len(settings.initializer_names) or None
                ],
                initializer_names=list(settings.initializer_names),
                user_output_names=outputs,
                output_grad_indices_non_differentiable=list(range(len(outputs))),
                output_grad_indices_require_full_shape=[],
            )
            return
        made = phases(self._model, trainable=trained, requires_grad_inputs=inputs, fed=settings.initializer_names)
        model = made.joined()
        write_pair(model, made, [*made.info.inputs, *settings.initializer_names])
        self._gradient = model.SerializeToString()
        self._info = _graph_info(made.info, settings)

    def get_gradient_model(self) -> bytes:
        """The gradient model, serialized."""
        if self._gradient is None:
            raise OnwardError(
                "there is no gradient model: call build() first, with build_gradient_graph and something in "
                "initializer_names_to_train or input_names_require_grad"
            )
        return self._gradient

    def get_forward_model(self) -> bytes:
        """The model with `initializer_names` as inputs, serialized."""
        if self._forward is None:
            raise OnwardError("there is no forward model: call build() first")
        return self._forward

    def get_graph_info(self) -> GraphInfo:
        """The names at the borders of both."""
        if self._forward is None:
            raise OnwardError("there is nothing to know about the graphs yet: call build() first")
        return self._info

    # What they were called up to 1.13.
    get_model = get_gradient_model
    get_inference_optimized_model = get_forward_model


def _forward_model(model: ir.Model, parameters: Sequence[str]) -> onnx.ModelProto:
    copy = prepare(model, keep=custom_operators())
    fix_defaults(copy.graph)
    for name in parameters:
        to_input(copy.graph.initializers[name])
    return finish(copy)


def _graph_info(info: PhaseInfo, settings: OrtModuleGraphBuilderConfiguration) -> GraphInfo:
    trained = list(settings.initializer_names_to_train)
    places = {name: index for index, name in enumerate(info.outputs)}
    return GraphInfo(
        user_input_names=info.inputs,
        user_input_grad_names={name: info.gradients[name] for name in info.inputs if name in info.gradients},
        initializer_names=list(settings.initializer_names),
        initializer_names_to_train=trained,
        initializer_grad_names_to_train=[info.gradients[name] for name in trained],
        user_output_names=info.outputs,
        output_grad_indices_non_differentiable=[
            place for name, place in places.items() if name not in info.output_gradients
        ],
        output_grad_indices_require_full_shape=[places[name] for name in info.output_gradients],
        module_output_indices_requires_save_for_backward=[places[name] for name in info.kept if name in places],
        module_output_gradient_name=list(info.output_gradients.values()),
    )


class GradientGraphBuilder:
    """The gradient of a loss as outputs of the model itself.

    Args:
        serialized_model: with the loss.
        y_node_arg_names: the outputs to keep; `x_node_arg_names` what to differentiate with respect to.
        loss_node_arg_name: the loss.
        options: accepted, without effect.
    """

    def __init__(
        self,
        serialized_model: bytes,
        y_node_arg_names: Collection[str],
        x_node_arg_names: Collection[str],
        loss_node_arg_name: str,
        options: object = None,
    ) -> None:
        del options
        self._model = onnx.load_model_from_string(serialized_model)
        self._outputs, self._targets = set(y_node_arg_names), set(x_node_arg_names)
        self._loss = loss_node_arg_name
        known = {output.name for output in self._model.graph.output}
        unknown = sorted({self._loss, *self._outputs} - known)
        if unknown:
            raise UnknownNameError(f"the model has no output {quoted(unknown)}; it has {quoted(sorted(known))}")
        self._result: onnx.ModelProto | None = None

    def build(self) -> None:
        """Differentiate; gradients come after the outputs, in the order of the model."""
        graph = self._model.graph
        known = [*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)]
        order = [name for name in dict.fromkeys(known) if name in self._targets]
        others = sorted(self._targets - set(order))
        self._result = gradient(self._model, wrt=[*order, *others], of=self._loss)

    def get_model(self) -> bytes:
        """The model with gradients, serialized."""
        return self._built().SerializeToString()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file."""
        _save(self._built(), path)

    def _built(self) -> onnx.ModelProto:
        if self._result is None:
            raise OnwardError("there is no gradient yet: call build() first")
        return self._result


def _save(model: onnx.ModelProto, path: str | os.PathLike[str]) -> None:
    file = Path(path)
    with replacing_together(file.parent) as drafts:
        save_model(model, drafts / file.name)
