"""A forward and a backward graph, for those who compute the loss somewhere else.

The forward graph returns what the model returns, and the activations that the backward graph takes, together with the
gradients of the outputs. Both are parts of one graph, with the forms and lowerings of a training graph: nothing
expensive runs in both (`keeping.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.gradient import cotangent_input, gradients_of
from onward.autodiff.registry import custom_operators
from onward.autodiff.sweep import differentiable_path
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.graph import provenance
from onward.graph.builder import Builder
from onward.graph.cleanup import remove_unused
from onward.graph.finish import fix_defaults, make_way, publish, to_input
from onward.graph.inference import infer_shapes
from onward.graph.naming import free_name, listed, quoted
from onward.graph.nodes import all_values
from onward.graph.parameters import parameters as parameters_of
from onward.graph.prepare import ModelLike, load, prepare
from onward.graph.propagation import name_sizes
from onward.graph.proto import drop_map_outputs
from onward.graph.shapes import is_floating
from onward.graph.upgrade import in_lowest_opset, upgrade
from onward.training.forms import choose_forms
from onward.training.labels import check_labels
from onward.training.lowering import faster_rules, lower
from onward.training.mask import is_mask
from onward.training.modes import running_statistics, update_running_statistics
from onward.training.objective import differentiable_values
from onward.training.phases.keeping import values_to_keep
from onward.training.phases.parts import PhaseInfo, backward_part, forward_part, gradient_part
from onward.training.randomness import draw_explicitly

__all__ = ["PhaseInfo", "Phases", "phases"]

GRADIENT = "_grad"


@dataclass(frozen=True)
class Phases:
    """The two graphs, and the values of initializers that have become inputs."""

    forward: onnx.ModelProto
    backward: onnx.ModelProto
    info: PhaseInfo
    weights: dict[str, ir.TensorProtocol]
    whole: ir.Model  # the graph that both are parts of

    def joined(self) -> onnx.ModelProto:
        """One graph that takes what both take, and returns the gradients."""
        return gradient_part(self.whole, self.info)


def phases(
    model: ModelLike,
    *,
    trainable: Sequence[str] | None = None,
    requires_grad_inputs: Sequence[str] = (),
    fed: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
    opset: int | None = None,
) -> Phases:
    """Forward and backward graph of `model`.

    Between the two, neither inputs nor parameters may change: the backward graph takes them again.

    Args:
        model: any model, with or without a loss.
        trainable: initializers whose gradient is computed; they become inputs of both graphs. None means every
            parameter that `onward.gradient` calls trainable. Zeros, if no output depends on one.
        requires_grad_inputs: inputs of the model whose gradient is computed.
        fed: initializers that become inputs without being trained; the others stay in the graphs. With names of
            `trainable` among them, this is also the order of the inputs.
        outputs: those whose gradients the backward graph takes; None means all that have one.
        opset: the lowest opset of the default domain that the graphs may have.
    """
    loaded = load(model)
    changes = provenance.changes_of(loaded)
    prepared = prepare(loaded, keep=custom_operators())
    graph = prepared.graph
    fix_defaults(graph)
    if opset is not None and opset > prepared.opset_imports[""]:
        prepared = upgrade(prepared, opset)
        graph = prepared.graph
    drop_map_outputs(graph)
    _tell_outputs_apart(graph)
    if trainable is None:
        names = [parameter.name for parameter in parameters_of(prepared) if parameter.trainable]
    else:
        names = list(dict.fromkeys(listed("trainable", trainable)))
        differentiable_values(prepared, names, argument="trainable", changes=changes)
    provenance.warn_of_changes(changes, trainable)
    wanted = [*_checked_inputs(prepared, requires_grad_inputs), *names]
    if not wanted:
        raise OnwardError(
            "there is nothing to differentiate with respect to: the model has no trainable parameter, and no input "
            "is named in `requires_grad_inputs`"
        )
    order = list(dict.fromkeys(listed("fed", fed)))
    unknown = [name for name in order if name not in graph.initializers]
    if unknown:
        raise UnknownNameError(
            f"`fed` names {quoted(unknown)}, but the model has no initializer of that name; it has "
            f"{quoted(graph.initializers) or 'none'}"
        )
    parameters = [*order, *(name for name in names if name not in order)]
    ends = _checked_outputs(graph, outputs)
    return in_lowest_opset(prepared, lambda copy: _phases(copy, wanted, parameters, ends))


def _tell_outputs_apart(graph: ir.Graph) -> None:
    """Let an output that is listed twice be two values: each has a gradient of its own."""
    taken = {value.name for value in all_values(graph)}
    seen: set[ir.Value] = set()
    for index, value in enumerate(graph.outputs):
        if value in seen:
            name = free_name(value.name or "output", taken)
            node = ir.node("Identity", [value], name=name)
            node.outputs[0].name, node.outputs[0].type = name, value.type
            node.outputs[0].shape = None if value.shape is None else value.shape.copy()
            graph.append(node)
            graph.outputs[index] = node.outputs[0]
        seen.add(value)


def _checked_inputs(model: ir.Model, names: Sequence[str]) -> list[str]:
    """Inputs that require a gradient, in the order of the model."""
    wanted = set(listed("requires_grad_inputs", names))
    inputs = [value.name or "" for value in model.graph.inputs]
    unknown = sorted(wanted - set(inputs))
    if unknown:
        raise UnknownNameError(
            f"`requires_grad_inputs` names {quoted(unknown)}, which the model does not have; it has {quoted(inputs)}"
        )
    found = [name for name in inputs if name in wanted]
    differentiable_values(model, found, argument="requires_grad_inputs", inputs=True)
    return found


def _checked_outputs(graph: ir.Graph, names: Sequence[str] | None) -> list[str]:
    known = {value.name or "": value for value in graph.outputs}
    if names is None:
        return [name for name, value in known.items() if is_floating(value)]
    chosen = set(listed("outputs", names))
    unknown = sorted(chosen - set(known))
    if unknown:
        raise UnknownNameError(f"`outputs` names {quoted(unknown)}; the model has the outputs {quoted(known)}")
    wrong = [name for name in known if name in chosen and not is_floating(known[name])]
    if wrong:
        kinds = ", ".join(str(known[name].type) for name in wrong)
        raise NotDifferentiableError(f"the outputs {quoted(wrong)} have no gradient: they are {kinds}")
    return [name for name in known if name in chosen]


def _phases(prepared: ir.Model, wanted: list[str], parameters: list[str], ends: list[str]) -> Phases:
    weights = {name: _tensor(prepared.graph.initializers[name]) for name in parameters}
    users = [value.name or "" for value in prepared.graph.inputs]
    changing = running_statistics(prepared.graph, prepared.opset_imports[""])
    for value in [prepared.graph.initializers[name] for name in parameters]:
        if value not in changing:  # those become inputs where they get new values
            to_input(value)  # at once: what it is, only the caller knows
    check_labels(Builder(prepared.graph, prepared.opset_imports[""]))
    model = expand_missing_rules(prepared, wanted, ends)
    graph = model.graph
    op = Builder(graph, model.opset_imports[""])
    outputs = [value.name or "" for value in graph.outputs]
    random = draw_explicitly(op)
    stored = {name: value.const_value for name, value in graph.initializers.items()}
    statistics = update_running_statistics(op)
    weights |= {name: tensor for name in statistics.values() if (tensor := stored.get(name)) is not None}
    choose_forms(model, op, wanted, [value for value in graph.outputs if value.name in ends])
    nodes = set(graph)

    taken = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    published = {name: free_name(f"{name}{GRADIENT}", taken) for name in wanted}
    seeds = {value: cotangent_input(op, value, taken) for value in _ends(graph, wanted, ends)}
    output_gradients = {value.name or "": seed.name or "" for value, seed in seeds.items()}
    with faster_rules():
        gradients = gradients_of(op, seeds, wanted)
    make_way(op, list(published.values()))
    results = list(graph.outputs)
    for name, gradient in zip(wanted, gradients.values(), strict=True):
        publish(gradient, published[name], graph)
    lower(op, nodes, given=seeds)
    remove_unused(model)
    infer_shapes(model)
    name_sizes(graph)  # sizes decide what is kept, and are those of the inputs of the second graph

    count = len(results)  # lowering may have replaced the values
    results, made = list(graph.outputs[:count]), list(graph.outputs[count:])
    kept = values_to_keep(graph, set(seeds.values()), set(results), made)
    masks = [value.name or "" for value in kept if is_mask(value) and value not in results]
    packed = {name: op.unique_name(f"{name}/packed") for name in masks}
    info = PhaseInfo(
        inputs=users,
        parameters=parameters,
        outputs=outputs,
        output_gradients=output_gradients,
        gradients=published,
        kept=[packed.get(value.name or "", value.name or "") for value in kept],
        statistics=statistics,
        random=random,
    )
    return Phases(forward_part(model, info, packed), backward_part(model, info, packed), info, weights, model)


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value


def _ends(graph: ir.Graph, wanted: Collection[str], ends: Collection[str]) -> list[ir.Value]:
    """The outputs whose gradients make a difference."""
    targets = [value for value in graph.inputs if value.name in wanted]
    outputs = [value for value in graph.outputs if value.name in ends]
    _, carrying = differentiable_path(graph, targets, outputs)
    return [value for value in outputs if value in carrying]
