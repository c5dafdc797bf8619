"""From a captured model to the graphs that run: forward and backward, or forward alone."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onward.errors import ExporterWarning
from onward.graph.builder import Builder
from onward.graph.finish import finish, to_input
from onward.graph.upgrade import in_lowest_opset
from onward.torch.ortmodule._fallback import ORTModuleTorchModelException
from onward.torch.ortmodule.capture import Captured
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.own_gradient import lowered, without_own_gradients
from onward.torch.ortmodule.rehearsal import Rehearsal
from onward.training.modes import update_running_statistics
from onward.training.phases import phases


@dataclass(frozen=True)
class Graphs:
    """What runs, and the names at its borders."""

    forward: onnx.ModelProto
    states: list[str]  # tensors of the module that are inputs
    outputs: list[str]
    shapes: list[list[int | str]]  # of the arguments, as declared
    backward: onnx.ModelProto | None = None
    output_gradients: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    statistics: dict[str, str] = field(default_factory=dict)  # new value -> running statistic


def write(captured: Captured, state: Fingerprint, rehearsal: Rehearsal) -> Graphs:
    """The graphs: whatever torch computes a gradient of, the second graph does."""
    model = captured.model
    shapes = [_shape(value) for value in model.graph.inputs if value.name in captured.inputs]
    states = [name for name in dict.fromkeys(state.names) if name in model.graph.initializers]
    known = dict(zip(reversed(state.names), reversed(rehearsal.states), strict=True))
    trained = [name for name in states if known[name] is not None]
    inputs = [name for name, g in zip(captured.inputs, rehearsal.inputs, strict=True) if g is not None]
    differentiable = [has for index, has in enumerate(rehearsal.differentiable) if index not in captured.passed]
    differentiable += [False] * len(rehearsal.rewritten)
    outputs = [value.name or "" for value in model.graph.outputs]
    if len(captured.order) != len(differentiable):
        raise ORTModuleTorchModelException("it returns another number of tensors each time")
    chosen = [outputs[index] for index, has in zip(captured.order, differentiable, strict=True) if has]
    inputs = [name for name in inputs if name in {value.name for value in model.graph.inputs}]
    if not chosen or not (trained or inputs):
        return _forward_only(captured, states, shapes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExporterWarning)  # the comparison with torch says more
        found = phases(
            model, trainable=trained, requires_grad_inputs=inputs, fed=states, outputs=list(dict.fromkeys(chosen))
        )
    if found.info.random:
        raise ORTModuleTorchModelException("it draws random numbers in another way than by Dropout")
    return Graphs(
        lowered(found.forward),
        [*found.info.parameters, *found.info.statistics.values()],
        found.info.outputs,
        shapes,
        lowered(found.backward),
        found.info.output_gradients,
        found.info.gradients,
        found.info.statistics,
    )


def without_weights(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """The model itself, nobody's any more, with the tensors of the module as inputs."""
    for name in dict.fromkeys(names):
        if name in model.graph.initializers:
            to_input(model.graph.initializers[name])
    return model


def _forward_only(captured: Captured, states: list[str], shapes: list[list[int | str]]) -> Graphs:
    def written(model: ir.Model) -> Graphs:
        without_own_gradients(model)
        graph = model.graph
        outputs = [value.name or "" for value in graph.outputs]
        statistics = update_running_statistics(Builder(graph, model.opset_imports[""]))
        for name in states:
            if name in graph.initializers:
                to_input(graph.initializers[name])
        return Graphs(finish(model), [*states], outputs, shapes, statistics=statistics)

    return in_lowest_opset(captured.model.clone(), written)


def _shape(value: ir.Value) -> list[int | str]:
    if value.shape is None:
        raise ORTModuleTorchModelException(f"the rank of {value.name!r} is not known")
    return [size if isinstance(size, int) else str(size.value) for size in value.shape]
