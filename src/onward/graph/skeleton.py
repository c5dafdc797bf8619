"""A model without its large weights, for the parts of onnx that only take a serialized model below 2 GB."""

from __future__ import annotations

import onnx
import onnx_ir as ir

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
        return ir.serde.serialize_model(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in order:
            graph.initializers.add(value)


def restore_weights(proto: onnx.ModelProto, model: ir.Model) -> ir.Model:
    """The inverse of `skeleton`: `proto` with the large weights of `model` put back."""
    result = ir.serde.deserialize_model(proto)
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
