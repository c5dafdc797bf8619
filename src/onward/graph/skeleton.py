"""A model without its large weights, for the parts of onnx that only take a serialized model below 2 GB."""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir

from onward.graph.proto import from_proto, to_proto

# Inference needs the values of shapes, axes, pads and splits; weights are larger than this.
LARGEST_KEPT = 1024  # bytes


def skeleton(model: ir.Model) -> onnx.ModelProto:
    """`model` as a proto whose large initializers have become inputs; `model` itself is left as it was."""
    graph = model.graph
    inputs = list(graph.inputs)
    large = [
        value
        for value in graph.initializers.values()
        if value.const_value is None or value.const_value.nbytes > LARGEST_KEPT
    ]
    order = list(graph.initializers.values())
    try:
        for value in large:
            graph.initializers.pop(value.name or "")
            if not value.is_graph_input():
                graph.inputs.append(value)
        return to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in order:
            graph.initializers.add(value)


def restore_weights(proto: onnx.ModelProto, model: ir.Model) -> ir.Model:
    """The inverse of `skeleton`: `proto` with the large weights of `model` put back."""
    result = from_proto(proto)
    graph = result.graph
    original_inputs = {value.name for value in model.graph.inputs}
    for value in list(graph.inputs):
        source = model.graph.initializers.get(value.name or "")
        if source is None or source.name in graph.initializers:
            continue
        value.const_value = source.const_value
        graph.initializers.add(value)
        if source.name not in original_inputs:
            graph.inputs.remove(value)
    return result


def proto_skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same of a proto: a copy in which large and external initializers are inputs; they are not copied."""
    copy = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    source, graph = model.graph, copy.graph
    graph.name = source.name or "graph"
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    known = {value.name for value in source.input}
    for tensor in source.initializer:
        if _is_small(tensor):
            graph.initializer.append(tensor)
        elif tensor.name not in known:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return copy


def _is_small(tensor: onnx.TensorProto) -> bool:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    return math.prod(tensor.dims) * 8 <= LARGEST_KEPT
