"""Check what a block did: only the nodes it added, so that building stays linear in the size of the model."""

from __future__ import annotations

import onnx

from onward.errors import InvalidModelError
from onward.graph.skeleton import proto_skeleton
from onward.onnxblock.model_accessor import ModelAccessor


def check_nodes_since(accessor: ModelAccessor, start: int, block: str) -> None:
    """Refuse nodes from number `start` on that are not valid, or use values that nothing produces."""
    model = accessor.model
    context = onnx.checker.C.CheckerContext()
    context.ir_version = model.ir_version
    context.opset_imports = {imported.domain: imported.version for imported in model.opset_import}
    for node in model.graph.node[start:]:
        try:
            # Subgraphs take values of the outer graph, of which the checker knows nothing here.
            if not any(attribute.type == onnx.AttributeProto.GRAPH for attribute in node.attribute):
                onnx.checker.check_node(node, context)
        except onnx.checker.ValidationError as error:
            raise InvalidModelError(f"the block {block} made an invalid node; the checker says: {error}") from error
        missing = [name for name in node.input if name and not accessor.has(name)]
        if missing:
            raise InvalidModelError(
                f"the block {block} made a {node.op_type} node {node.name!r} with the input {missing[0]!r}, which is "
                "no value of the model"
            )


def check_model(model: onnx.ModelProto, block: str) -> None:
    """Run onnx's checker on the whole model, without its weights."""
    proto = proto_skeleton(model)
    for value in (*proto.graph.input, *proto.graph.output):
        # The checker insists on a shape here; onnxruntime does not, and real files leave it out.
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise InvalidModelError(f"the block {block} made an invalid model; the checker says: {error}") from error
