"""The gradient of a model as a model."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from enum import IntFlag
from typing import Any

import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.gradient import ends_of, gradient, gradients_of, output_names, target_names
from onward.autodiff.registry import custom_operators
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.finish import finish, make_way, publish, to_input
from onward.graph.prepare import prepare
from onward.graph.shapes import is_floating
from onward.graph.upgrade import in_lowest_opset
from onward.onnxcustom.training.excs import WrongTypeError, WrongValueError
from onward.onnxcustom.utils.orttraining_helper import get_train_initializer
from onward.runtime.files import write_bytes

_FLOATING = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)


class DerivativeOptions(IntFlag):
    """What the graph of a gradient looks like.

    `Zero`: it takes the gradient of each output. `KeepYieldOp`: it takes that from a node YieldOp, which only training
    builds of onnxruntime can run. `KeepOutputs`: it returns the outputs, too. `FillGrad`, with `KeepOutputs`: the
    gradients of outputs are ones. `Loss`: the gradient of a loss that is in the graph.
    """

    Zero = 0
    KeepYieldOp = 1
    KeepOutputs = 2
    FillGrad = 4
    Loss = 5


_YIELD = DerivativeOptions.KeepYieldOp


def onnx_derivative(
    onx: onnx.ModelProto,
    weights: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    options: DerivativeOptions = DerivativeOptions.Zero,
    loss: str | None = None,
    label: str | Collection[str] | None = None,
    path_name: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """The gradient with respect to inputs and weights, each called `<name>_grad`.

    Args:
        weights: initializers, which become inputs; None for all of floating point.
        inputs: None for all of floating point.
        loss: with `Loss`, the output to differentiate; weights stay initializers, and outputs stay.
        label: with `Loss`, the inputs that have no gradient. Where the graph has no output `loss`, the outputs whose
            gradients it takes instead.
        path_name: with `Loss`, where the graph is written to.
    """
    if not isinstance(options, DerivativeOptions):
        raise WrongTypeError(f"options must be DerivativeOptions, not {type(options).__name__}")
    if options == DerivativeOptions.Loss:
        return _of_a_loss(onx, weights, inputs, loss, label, path_name)
    if options & _YIELD and options != _YIELD:
        raise WrongValueError("KeepYieldOp cannot be combined with other options")
    if options & DerivativeOptions.FillGrad and not options & DerivativeOptions.KeepOutputs:
        raise WrongValueError("FillGrad needs KeepOutputs: it makes ones in the shape of outputs")
    names = _listed(_floating_inputs(onx) if inputs is None else inputs)
    trained = list(get_train_initializer(onx)) if weights is None else list(weights)
    model = _derivative(onx, names, trained, options)
    return _yielding(model, [value.name for value in onx.graph.output]) if options == _YIELD else model


def _floating_inputs(onx: onnx.ModelProto) -> list[str]:
    weights = {tensor.name for tensor in onx.graph.initializer}
    fed = [value for value in onx.graph.input if value.name not in weights]
    return [value.name for value in fed if value.type.tensor_type.elem_type in _FLOATING]


def _listed(names: str | Collection[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _derivative(
    onx: onnx.ModelProto, inputs: list[str], weights: list[str], options: DerivativeOptions
) -> onnx.ModelProto:
    """It takes inputs, weights and the gradients of outputs, and returns gradients, and maybe outputs."""
    forward = prepare(onx, keep=custom_operators())
    wrt = target_names(forward, [*inputs, *weights])
    names = output_names(forward, [value.name or "" for value in forward.graph.outputs if is_floating(value)])

    def build(copy: ir.Model) -> onnx.ModelProto:
        model = expand_missing_rules(copy, wrt, names)
        graph = model.graph
        op = Builder(graph, model.opset_imports[""])
        for name in weights:
            to_input(graph.initializers[name])
        make_way(op, [f"{name}_grad" for name in (*names, *wrt)])
        seed = _ones if options & DerivativeOptions.FillGrad else _taken
        seeds = {end: seed(op, end) for end in ends_of(graph, names)}
        outputs = list(graph.outputs)
        graph.outputs.clear()
        for target, value in gradients_of(op, seeds, wrt).items():
            publish(value, f"{target.name}_grad", graph)
        if options & (DerivativeOptions.KeepOutputs | _YIELD):
            graph.outputs.extend(outputs)
        return finish(model)

    return in_lowest_opset(forward, build)


def _ones(op: Builder, output: ir.Value) -> ir.Value:
    with op.scope("grad"):
        return op.ones_like(output)


def _taken(op: Builder, output: ir.Value) -> ir.Value:
    shape = None if output.shape is None else output.shape.copy()
    seed = ir.Value(name=f"{output.name}_grad", type=output.type, shape=shape)
    op.graph.inputs.append(seed)
    return seed


def _yielding(model: onnx.ModelProto, outputs: Sequence[str]) -> onnx.ModelProto:
    """`model` with a node that hands outputs to the caller, and takes their gradients: before all that uses those."""
    graph = model.graph
    names = [name for name in outputs if any(value.name == f"{name}_grad" for value in graph.input)]
    taken = {f"{name}_grad" for name in names}
    node = onnx.helper.make_node(
        "YieldOp",
        names,
        [f"{name}_grad" for name in names],
        name="YieldOp",
        domain="com.microsoft",
        full_shape_outputs=list(range(len(names))),
    )
    first = next((index for index, other in enumerate(graph.node) if taken & set(other.input)), len(graph.node))
    graph.node.insert(first, node)
    for value in [value for value in graph.input if value.name in taken]:
        graph.input.remove(value)
    for value in [value for value in graph.output if value.name in outputs]:
        graph.output.remove(value)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model


def _of_a_loss(
    onx: onnx.ModelProto,
    weights: Any,
    inputs: Sequence[str] | None,
    loss: str | None,
    label: str | Collection[str] | None,
    path_name: str | os.PathLike[str] | None,
) -> onnx.ModelProto:
    if path_name is None:
        raise WrongValueError("with Loss, path_name says where the gradient is written to")
    if weights is not None:
        raise WrongValueError("with Loss, weights must be None: the gradient is that of inputs")
    if label is None or not isinstance(loss, str):
        raise WrongValueError(
            "with Loss, label names the inputs without gradient, and loss the output to differentiate"
        )
    labels = set(_listed(label))
    wrt = [name for name in (_floating_inputs(onx) if inputs is None else _listed(inputs)) if name not in labels]
    outputs = [value.name for value in onx.graph.output]
    of = [loss] if loss in outputs else [name for name in outputs if name in labels]
    if not of:
        raise OnwardError(f"the model has no output {loss!r}, nor one that `label` names; it has {outputs}")
    model = gradient(onx, wrt, of)
    write_bytes(path_name, model.SerializeToString())
    return model
