"""`onward.gradient`: the gradient of an ONNX model as an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.sweep import backpropagate
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.nodes import all_values
from onward.graph.opsets import NeedsOpsetError
from onward.graph.parameters import parameters as parameters_of
from onward.graph.prepare import ModelLike, prepare
from onward.graph.shapes import is_floating, static_shape, static_size
from onward.graph.upgrade import upgrade


def gradient(
    model: ModelLike,
    wrt: Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    *,
    parameters: Literal["initializers", "inputs"] = "initializers",
) -> onnx.ModelProto:
    """The model's outputs followed by their gradient, as one model of standard operators.

    Args:
        model: a ModelProto, an onnx_ir.Model, or the path of an .onnx file (external data and files above 2 GB too).
        wrt: names of initializers, Constant outputs or graph inputs; None means every trainable parameter (how those
            are told from other constants is written in `onward.graph.parameters`).
        of: the output to differentiate, or a list of them; None means the first output. An output of one element is
            differentiated as it is. For any other, its cotangent becomes a new graph input ``<output>_grad``.
        parameters: "initializers" leaves the differentiated parameters in the model; "inputs" makes them graph inputs.

    Returns:
        A model with the original inputs, then cotangents, then parameters where they are inputs; and the original
        outputs followed by ``<name>_grad`` in the order of `wrt`, zeros for a name that does not influence `of`.
        A public name that is already taken gets a number: in the gradient of a gradient, ``<name>_grad_1``.
    """
    if parameters not in ("initializers", "inputs"):
        raise OnwardError(f"parameters={parameters!r} is not known; use 'initializers' or 'inputs'")
    forward = prepare(model)
    names = _target_names(forward, wrt)
    outputs = _output_names(forward, of)
    while True:
        attempt = expand_missing_rules(forward, names, outputs)
        try:
            return _differentiate(attempt, names, outputs, parameters == "inputs")
        except NeedsOpsetError as need:
            forward = upgrade(forward, need.version)


def _differentiate(model: ir.Model, names: list[str], outputs: list[str], as_inputs: bool) -> onnx.ModelProto:
    graph = model.graph
    values = {value.name: value for value in all_values(graph)}
    targets = [values[name] for name in names]
    op = Builder(graph, model.opset_imports[""])
    border = {value.name for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())}
    published = [_free_name(f"{name}_grad", border) for name in names]

    seeds = {}
    for name in outputs:
        output = values[name]
        seeds[output] = _seed(op, output, border)
    cotangents = backpropagate(op, graph, seeds, targets)
    for name, target, cotangent in zip(published, targets, cotangents, strict=True):
        with op.scope("grad"):
            value = op.zeros_like(target) if cotangent is None else cotangent
        _make_way(values, name, op)
        publish(value, name, graph)
    if as_inputs:
        for target in targets:
            if target.is_initializer():
                graph.initializers.pop(target.name or "")
                if not target.is_graph_input():
                    graph.inputs.append(target)
                target.const_value = None
    return finish(model)


def _target_names(model: ir.Model, wrt: Sequence[str] | None) -> list[str]:
    """The names to differentiate with respect to, checked."""
    if wrt is None:
        names = [parameter.name for parameter in parameters_of(model) if parameter.trainable]
        if not names:
            raise OnwardError(
                "the model has no trainable floating-point parameter, so there is nothing to differentiate with "
                "respect to; name graph inputs or initializers in `wrt`"
            )
        return names
    if isinstance(wrt, str):
        wrt = [wrt]
    values = {value.name: value for value in all_values(model.graph) if value.name}
    unknown = [name for name in wrt if name not in values]
    if unknown:
        raise UnknownNameError(_unknown_names("wrt", unknown, _candidates(model)))
    if len(set(wrt)) < len(wrt):
        raise OnwardError(f"`wrt` names a value twice: {sorted({name for name in wrt if list(wrt).count(name) > 1})}")
    for name in wrt:
        if not is_floating(values[name]):
            raise NotDifferentiableError(
                f"{name!r} in `wrt` has type {values[name].type}; only float, double, float16 and bfloat16 tensors "
                "have a gradient. Leave it out of `wrt`."
            )
    return list(wrt)


def _output_names(model: ir.Model, of: str | Sequence[str] | None) -> list[str]:
    outputs = {output.name: output for output in model.graph.outputs if output.name}
    if not outputs:
        raise OnwardError("the model has no outputs, so there is nothing to differentiate")
    names = [next(iter(outputs))] if of is None else [of] if isinstance(of, str) else list(of)
    unknown = [name for name in names if name not in outputs]
    if unknown:
        raise UnknownNameError(_unknown_names("of", unknown, list(outputs)))
    for name in names:
        if not is_floating(outputs[name]):
            raise NotDifferentiableError(
                f"output {name!r} has type {outputs[name].type}; only float, double, float16 and bfloat16 tensors have "
                f"a gradient. Name another output in `of`; the model has {', '.join(map(repr, outputs))}."
            )
    return names


def _candidates(model: ir.Model) -> list[str]:
    floating = [value for value in (*model.graph.inputs, *model.graph.initializers.values()) if is_floating(value)]
    return [value.name for value in floating if value.name]


def _unknown_names(argument: str, unknown: list[str], known: list[str]) -> str:
    shown = ", ".join(map(repr, known[:20])) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return (
        f"`{argument}` names {', '.join(map(repr, unknown))}, which the model does not have; it has {shown or 'none'}"
    )


def _seed(op: Builder, output: ir.Value, border: set[str | None]) -> ir.Value:
    """One for an output of one element, else a new input for the caller's cotangent."""
    assert output.dtype is not None
    if static_size(output) == 1:
        return op.constant(np.ones(static_shape(output) or ()), output.dtype)
    seed = ir.Value(
        name=_free_name(f"{output.name}_grad", border),
        type=ir.TensorType(output.dtype),
        shape=None if output.shape is None else output.shape.copy(),
    )
    op.graph.inputs.append(seed)
    return seed


def _free_name(wanted: str, taken: set[str | None]) -> str:
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name


def _make_way(values: dict[str | None, ir.Value], name: str, op: Builder) -> None:
    """Rename an inner value that happens to have a name which is about to be published."""
    inner = values.get(name)
    if inner is not None:
        inner.name = op.unique_name(f"{name}/inner")
