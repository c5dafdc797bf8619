"""Put what is written in the builder notation (losses, clipping) into the model that blocks are working on.

The function is traced on a small graph of its own, whose inputs have the names and types of the model's values; its
nodes then join the model under names that are free there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx
import onnx_ir as ir

from onward import losses
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values
from onward.graph.opsets import NeedsOpsetError
from onward.losses.activation import remember_origin
from onward.onnxblock.model_accessor import ModelAccessor

Traced = Callable[[Builder, list[ir.Value]], ir.Value]


def trace(accessor: ModelAccessor, function: Traced, inputs: Sequence[ir.Value], token: str) -> str:
    """Add the nodes that `function` emits over `inputs`; returns the name of its result, ``onnx::<token>::<n>``."""
    while True:
        try:
            return _trace(accessor, function, inputs, token)
        except NeedsOpsetError as need:
            accessor.upgrade(need.version)


def _trace(accessor: ModelAccessor, function: Traced, inputs: Sequence[ir.Value], token: str) -> str:
    own = [ir.Value(name=value.name, type=value.type, shape=value.shape) for value in inputs]
    for copy, value in zip(own, inputs, strict=True):
        remember_origin(copy, value)
    graph = ir.Graph(own, [], nodes=[], name="block", opset_imports={"": accessor.opset})
    op = Builder(graph, accessor.opset)
    with op:
        result = function(op, own)
        if result.producer() is None:
            result = op.Identity(result)
    graph.outputs.append(result)
    if isinstance(result.type, ir.TensorType) or result.type is None:
        infer_shapes(ir.Model(graph, ir_version=accessor.model.ir_version))
    _join(accessor, graph, result, token)
    return result.name or ""


def _join(accessor: ModelAccessor, graph: ir.Graph, result: ir.Value, token: str) -> None:
    result.name = accessor.numbered_name(token)
    own = [value for value in all_values(graph) if value.name and value is not result and value not in graph.inputs]
    names = [accessor.unique_name(value.name or "") for value in own]
    for index, value in enumerate(own):
        value.name = f"joining/{index}"  # none stands in the way of another's new name
    for value, name in zip(own, names, strict=True):
        value.name = name
    for node in graph.all_nodes():
        node.name = accessor.unique_name(node.name or node.op_type)
    target = accessor.model.graph
    for value in graph.initializers.values():
        assert value.const_value is not None
        tensor = ir.serde.serialize_tensor(value.const_value)
        tensor.name = value.name or ""
        target.initializer.append(tensor)
    for node in graph:
        target.node.append(ir.serde.serialize_node(node))
    target.value_info.extend(
        ir.serde.serialize_value(output)
        for node in graph
        for output in node.outputs
        if output.name and output.type is not None
    )
    for domain, version in graph.opset_imports.items():
        if not any(imported.domain == domain for imported in accessor.model.opset_import) and domain:
            accessor.model.opset_import.append(onnx.helper.make_opsetid(domain, version))


def trace_loss(
    accessor: ModelAccessor, loss: losses.Loss, predictions: Sequence[str], target_names: Mapping[str, str]
) -> str:
    """Put a loss on top of values of the model; targets that do not exist yet become graph inputs.

    `target_names` renames targets, by the parameters of the loss.
    """
    values = [accessor.prepared_value(name) for name in predictions]
    targets = losses.target_inputs(loss, values)
    for parameter, target in targets.items():
        name = target_names.get(parameter, parameter)
        if name in predictions:
            raise OnwardError(f"the loss would compare {name!r} with itself; give its target another name")
        if accessor.has(name):
            targets[parameter] = accessor.prepared_value(name)
        else:
            target.name = name
            accessor.model.graph.input.append(ir.serde.serialize_value(target))

    def emit(op: Builder, inputs: list[ir.Value]) -> ir.Value:
        given = inputs[: len(values)]
        return losses.apply(op, loss, given, dict(zip(targets, inputs[len(values) :], strict=True)))

    return trace(accessor, emit, [*values, *targets.values()], "loss")
