"""A loss that is itself an ONNX model."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.nodes import subgraphs
from onward.graph.opsets import NeedsOpsetError
from onward.graph.prepare import ModelLike, prepare
from onward.graph.shapes import is_floating, is_placeholder, static_shape, static_size
from onward.graph.upgrade import upgrade
from onward.losses.base import Loss, match, with_signature
from onward.losses.target import TargetKind


def from_model(model: ModelLike, *, targets: Sequence[str] | None = None, output: str | None = None) -> Loss:
    """A loss that puts the graph of `model` into the graph being built; its weights stay constant.

    Args:
        model: its inputs are the predictions and then the targets; one output of one element is the loss.
        targets: the names of the inputs that are targets; all but the first by default.
        output: the name of the output; the first by default.
    """
    prepared = prepare(model)
    inputs = _fed_inputs(prepared.graph)
    names = [value.name or "" for value in inputs]
    if not names:
        raise OnwardError("a model used as a loss needs at least one input, for the prediction")
    chosen = names[1:] if targets is None else list(targets)
    unknown = [name for name in chosen if name not in names]
    if unknown:
        raise UnknownNameError(f"`targets` names {unknown}, but the inputs of the loss model are {names}")
    _output(prepared.graph, output)
    predictions = [value for value in inputs if value.name not in chosen]
    if not predictions:
        raise OnwardError(f"`targets` names every input of the loss model ({names}); one must be the prediction")

    kinds = {value.name or "": _kind(predictions, value) for value in inputs if value.name in chosen}
    prediction_names = [value.name or "" for value in predictions]

    def loss(op: Builder, *values: ir.Value, **named: ir.Value) -> ir.Value:
        bound = _bind(inputs, values, named)
        bound.update(match(op, loss, bound, prediction_names, kinds, {}))
        return _inline(op, prepared, bound, output)

    loss.__name__ = loss.__qualname__ = prepared.graph.name or "loss_model"
    return with_signature(loss, prediction_names, kinds)


def _fed_inputs(graph: ir.Graph) -> list[ir.Value]:
    return [value for value in graph.inputs if not value.is_initializer()]


def _output(graph: ir.Graph, name: str | None) -> ir.Value:
    """The loss among the outputs of the model, checked."""
    outputs = {value.name: value for value in graph.outputs}
    if not outputs or (name is not None and name not in outputs):
        raise UnknownNameError(f"the loss model has no output {name or ''!r}; it has {list(outputs)}")
    output = graph.outputs[0] if name is None else outputs[name]
    shape = static_shape(output)
    if not is_floating(output) or (output.shape is not None and (shape is None or static_size(output) != 1)):
        raise OnwardError(
            f"the output {output.name!r} of the loss model is {output.type} of shape {output.shape}; a loss is a "
            "floating-point scalar. Reduce it in the model, or name another output."
        )
    return output


def _bind(inputs: Sequence[ir.Value], values: Sequence[ir.Value], named: dict[str, ir.Value]) -> dict[str, ir.Value]:
    """What is fed to each input of the model, in its order or by name."""
    names = [value.name or "" for value in inputs]
    bound = {**dict(zip(names, values, strict=False)), **named}
    if len(values) + len(named) != len(names) or set(bound) != set(names):
        raise OnwardError(
            f"the loss model has the inputs {names}; given were {len(values)} values in order and {list(named)} by name"
        )
    for declared in inputs:
        fed = bound[declared.name or ""]
        if fed.dtype is not None and fed.dtype != declared.dtype:
            raise OnwardError(
                f"input {declared.name!r} of the loss model has type {declared.dtype}, but {fed.name!r} has type "
                f"{fed.dtype}; cast one of them"
            )
    return bound


def _kind(predictions: Sequence[ir.Value], target: ir.Value) -> TargetKind:
    """A target as the model declares it, its symbols replaced by what they are in the actual predictions.

    A size without a name is that of the first prediction on the same axis, if that has none either: a loss that means
    two sizes gives them names.
    """

    def fresh(actual: Sequence[ir.Value]) -> ir.Value:
        sizes: dict[str, int | ir.SymbolicDim] = {}
        for declared, given in zip(predictions, actual, strict=True):
            for dim, size in _pairs(declared, given):
                if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                    sizes[dim.value] = size
        unnamed = [size if _is_unnamed(dim) else None for dim, size in _pairs(predictions[0], actual[0])]

        def size_of(axis: int, dim: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
            if isinstance(dim, int):
                return dim
            return unnamed[axis] if _is_unnamed(dim) and axis < len(unnamed) else sizes.get(dim.value or "", dim)

        shape = None if target.shape is None else ir.Shape([size_of(*pair) for pair in enumerate(target.shape)])
        return ir.Value(name=None, type=target.type, shape=shape)

    return fresh


def _pairs(declared: ir.Value, given: ir.Value) -> list[tuple[int | ir.SymbolicDim, int | ir.SymbolicDim]]:
    if declared.shape is None or given.shape is None:
        return []
    return list(zip(declared.shape, given.shape, strict=False))


def _is_unnamed(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and (dim.value is None or is_placeholder(dim.value))


def _inline(op: Builder, model: ir.Model, bound: dict[str, ir.Value], output: str | None) -> ir.Value:
    opset = model.opset_imports.get("", 1)
    if opset > op.opset:
        raise NeedsOpsetError("the loss model", opset)
    copy = upgrade(model, op.opset) if opset < op.opset else model.clone()
    graph = copy.graph
    result = _output(graph, output)
    for value in _fed_inputs(graph):
        _replace(value, bound[value.name or ""])
    for value in list(graph.initializers.values()):
        assert value.const_value is not None
        _replace(value, op.constant(value.const_value.numpy(), value.dtype))
    if result in graph.inputs or result.is_initializer():
        raise OnwardError(f"the output {result.name!r} of the loss model is not computed from its inputs")
    scalar = static_shape(result) == ()
    graph.outputs.clear()
    for node in list(graph):
        graph.remove(node)
        _rename(op, node)
        op.graph.append(node)
    for domain, version in copy.opset_imports.items():
        op.graph.opset_imports.setdefault(domain, version)
    return result if scalar else op.reshape(result, [])


_replace = functools.partial(ir.convenience.replace_all_uses_with, replace_graph_outputs=True)


def _rename(op: Builder, node: ir.Node) -> None:
    """Give a node and all inside names that are free; forget shapes whose symbols mean nothing in the other graph."""
    inner = [(graph, list(graph)) for graph in subgraphs(node)]
    for _, nodes in inner:
        for child in nodes:
            _rename(op, child)
    node.name = op.unique_name(f"loss/{node.name or node.op_type}")
    values = [*node.outputs, *(value for graph, _ in inner for value in graph.inputs)]
    for value in values:
        if value.name:
            value.name = op.unique_name(f"loss/{value.name}")
        if static_shape(value) is None:
            value.shape = None
