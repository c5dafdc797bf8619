"""What onnx infers of a single node, from what is known of its inputs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from onward.graph.opsets import all_schemas, schema
from onward.graph.skeleton import LARGEST_KEPT


def inferred_types(node: ir.Node, opset: int) -> Mapping[str, onnx.TypeProto]:
    """The types, with shapes, of the outputs of a node of the default domain without bodies; {} if it finds none."""
    present = [value for value in node.inputs if value is not None]
    if node.domain != "" or not all_schemas(node.op_type) or any(value.type is None for value in present):
        return {}
    types, data = {}, {}
    for value in present:
        assert value.name is not None
        types[value.name] = ir.serde.serialize_value(value).type
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input() and tensor.nbytes <= LARGEST_KEPT:
            data[value.name] = ir.serde.serialize_tensor(tensor)
    try:
        return onnx.shape_inference.infer_node_outputs(
            schema(node.op_type, opset),
            ir.serde.serialize_node(node),
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid("", opset)],
            ir_version=10,
        )
    except Exception:
        return {}  # inference of the whole model decides what is wrong
