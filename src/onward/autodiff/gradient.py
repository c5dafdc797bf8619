"""`onward.gradient`: the gradient of an ONNX model as an ONNX model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.registry import custom_operators
from onward.autodiff.sweep import backpropagate
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.changing import changing
from onward.graph.finish import finish, make_way, publish, to_input
from onward.graph.naming import free_name, listed, quoted
from onward.graph.nodes import all_values, outer_values
from onward.graph.parameters import parameters as parameters_of
from onward.graph.parameters import weights_elsewhere
from onward.graph.prepare import ModelLike, prepare
from onward.graph.proto import map_type
from onward.graph.shapes import floating_origin, is_floating, static_shape, static_size
from onward.graph.upgrade import in_lowest_opset


def gradient(
    model: ModelLike,
    wrt: Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    *,
    parameters: Literal["initializers", "inputs"] = "initializers",
) -> onnx.ModelProto:
    """The model's outputs followed by their gradient, as one model of standard operators.

    Args:
        model: a ModelProto, an onnx_ir.Model, or the path of an .onnx file (external data and files above 2 GB too;
            where the weights of the result pass 2 GB, it refers to the same external files: save it beside them).
        wrt: names of initializers, Constant outputs or graph inputs (or any other value outside of subgraphs); None
            means every trainable parameter (how those are told from constants: see `onward.graph.parameters`).
        of: the output to differentiate, or a list of them; None means the first output. Any other value outside of
            subgraphs will do, as the scores from which a classifier makes labels; it becomes an output, too. A value
            of one element is differentiated as it is. For any other, its cotangent becomes a new graph input
            ``<output>_grad``.
        parameters: "initializers" leaves the differentiated parameters in the model; "inputs" makes them graph inputs.

    Returns:
        A model with the original inputs, then cotangents, then parameters where they are inputs; and the original
        outputs followed by ``<name>_grad`` in the order of `wrt`, zeros for a name that does not influence `of`.
        A public name that is already taken gets a number: in the gradient of a gradient, ``<name>_grad_1``.
    """
    if parameters not in ("initializers", "inputs"):
        raise OnwardError(f"parameters={parameters!r} is not known; use 'initializers' or 'inputs'")
    forward = prepare(model, keep=custom_operators())
    names = target_names(forward, wrt)
    outputs = output_names(forward, of)
    return in_lowest_opset(forward, lambda copy: _gradient(copy, names, outputs, parameters == "inputs"))


def _gradient(forward: ir.Model, names: list[str], outputs: list[str], as_inputs: bool) -> onnx.ModelProto:
    model = expand_missing_rules(forward, names, outputs)
    graph = model.graph
    op = Builder(graph, model.opset_imports[""])
    border = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    published = [free_name(f"{name}_grad", border) for name in names]
    seeds = {end: seed_of(op, end, border) for end in ends_of(graph, outputs)}
    gradients = gradients_of(op, seeds, names)
    make_way(op, published)
    for name, (target, value) in zip(published, gradients.items(), strict=True):
        publish(value, name, graph)
        if as_inputs and target.is_initializer():
            to_input(target)
    return finish(model)


def gradients_of(op: Builder, seeds: Mapping[ir.Value, ir.Value], names: Sequence[str]) -> dict[ir.Value, ir.Value]:
    """Emit the backward pass; the gradient of each named value, zeros where it does not influence the outputs."""
    values = {value.name: value for value in all_values(op.graph)}
    targets = [values[name] for name in names]
    with changing(op.graph, names):
        cotangents = backpropagate(op, op.graph, seeds, targets)
    with op.scope("grad"):
        pairs = zip(targets, cotangents, strict=True)
        return {target: op.zeros_like(target) if dx is None else dx for target, dx in pairs}


def target_names(model: ir.Model, wrt: Sequence[str] | None) -> list[str]:
    """The names to differentiate with respect to, checked."""
    if wrt is None:
        names = [parameter.name for parameter in parameters_of(model) if parameter.trainable]
        if not names:
            raise OnwardError(
                "the model has no trainable floating-point parameter, so there is nothing to differentiate with "
                f"respect to; {weights_elsewhere(model.graph)}name graph inputs or initializers in `wrt`"
            )
        return names
    wrt = listed("wrt", wrt, one=True)
    values = outer_values(model.graph)
    unknown = [name for name in wrt if name not in values]
    if unknown:
        raise UnknownNameError(_unknown_names("wrt", unknown, _candidates(model)))
    _refuse_repetition("wrt", wrt)
    for name in wrt:
        if not is_floating(values[name]):
            raise NotDifferentiableError(
                f"{name!r} in `wrt` has type {values[name].type}; only float, double, float16 and bfloat16 tensors "
                "have a gradient. Leave it out of `wrt`."
            )
    return list(wrt)


def output_names(model: ir.Model, of: str | Sequence[str] | None) -> list[str]:
    outputs = {output.name: output for output in model.graph.outputs if output.name}
    if not outputs:
        raise OnwardError("the model has no outputs, so there is nothing to differentiate")
    names = [next(iter(outputs))] if of is None else listed("of", of, one=True)
    values = outer_values(model.graph)
    unknown = [name for name in names if name not in values]
    if unknown:
        raise UnknownNameError(_unknown_names("of", unknown, list(outputs)))
    if not names:
        raise OnwardError(f"`of` is empty; name at least one output: the model has {', '.join(map(repr, outputs))}")
    _refuse_repetition("of", names)
    for name in names:
        if not is_floating(values[name]):
            raise NotDifferentiableError(
                f"output {name!r} has type {map_type(values[name]) or values[name].type}; only float, double, float16 "
                f"and bfloat16 tensors have a gradient. {_other_output(outputs, values[name])}"
            )
    return names


def _other_output(outputs: Mapping[str, ir.Value], chosen: ir.Value) -> str:
    """What to name in `of` instead of an output without derivative: models may end in an ArgMax."""
    floating = [name for name, output in outputs.items() if is_floating(output)]
    if floating:
        return f"Name another output in `of`: {quoted(floating)}."
    value = floating_origin(chosen)
    origin = "" if value is None else f": {value.name!r}"
    return f"No output has; name the value that it is computed from in `of`{origin}."


def _candidates(model: ir.Model) -> list[str]:
    floating = [value for value in (*model.graph.inputs, *model.graph.initializers.values()) if is_floating(value)]
    return [value.name for value in floating if value.name]


def _unknown_names(argument: str, unknown: list[str], known: list[str]) -> str:
    return f"`{argument}` names {quoted(unknown)}, which the model does not have; it has {quoted(known) or 'none'}"


def _refuse_repetition(argument: str, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise OnwardError(f"`{argument}` names {', '.join(map(repr, repeated))} more than once")


def ends_of(graph: ir.Graph, names: Sequence[str]) -> list[ir.Value]:
    """The values to differentiate; those that are no outputs of the graph become some."""
    values = outer_values(graph)
    ends = [values[name] for name in names]
    graph.outputs.extend(end for end in ends if not end.is_graph_output())
    return ends


def seed_of(op: Builder, output: ir.Value, border: set[str | None]) -> ir.Value:
    """One for an output of one element, else a new input for the caller's cotangent."""
    assert output.dtype is not None
    if static_size(output) == 1:
        return op.constant(np.ones(static_shape(output) or ()), output.dtype)
    return cotangent_input(op, output, border)


def cotangent_input(op: Builder, output: ir.Value, border: set[str | None]) -> ir.Value:
    """A new input for the cotangent of an output."""
    assert output.dtype is not None
    name = free_name(f"{output.name}_grad", border)
    make_way(op, [name])
    seed = ir.Value(
        name=name,
        type=ir.TensorType(output.dtype),
        shape=None if output.shape is None else output.shape.copy(),
    )
    op.graph.inputs.append(seed)
    return seed
