"""Replace operators by the function body that the ONNX standard gives for them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx.inliner
import onnx_ir as ir
from onnx_ir.passes import common as passes

from onward.graph.blame import blaming_model
from onward.graph.opsets import all_schemas, schema
from onward.graph.skeleton import restore_weights, skeleton


def body_since(node: ir.Node, opset: int) -> int | None:
    """The opset in which the standard's definition of this operator is written; None where there is none.

    It may be newer than `opset`: some definitions came later than the operator.
    """
    if node.domain != "" or not all_schemas(node.op_type):
        return None
    return min(_body_opsets(schema(node.op_type, opset)), default=None)


def _body_opsets(spec: onnx.defs.OpSchema) -> list[int]:
    # onnx's stubs do not list these two.
    return [*spec.function_opset_versions, *spec.context_dependent_function_opset_versions]  # type: ignore[attr-defined]


def expand(model: ir.Model, op_types: Iterable[str]) -> ir.Model:
    """The model with every node of these default-domain operators replaced by its standard function body."""
    wanted = sorted(set(op_types))
    copy = model.clone()
    for node in copy.graph.all_nodes():
        if node.domain == "" and node.op_type in wanted:
            _write_defaults(node, schema(node.op_type, copy.opset_imports[""]))
    proto = skeleton(copy)
    # The inliner wants a type for every input, absent ones included; those have the empty name.
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))
    functions = [("", op_type) for op_type in wanted]
    with blaming_model(f"putting the definition of {', '.join(wanted)} in place"):
        inlined = onnx.inliner.inline_selected_functions(proto, functions, inline_schema_functions=True)
    for index in reversed(range(len(inlined.graph.value_info))):
        if not inlined.graph.value_info[index].name:
            del inlined.graph.value_info[index]
    result = restore_weights(inlined, copy)
    # As in a prepared model, constants are initializers, so that rules can read axes and shapes.
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(result)
    passes.LiftSubgraphInitializersToMainGraphPass()(result)
    return result


def write_defaults(model: ir.Model) -> None:
    """Write down, in place, the default attributes of operators whose inference goes through their function body.

    onnx does not know the defaults there and calls such a node (MeanVarianceNormalization) invalid. Of STFT, its
    inference takes another default for `onesided` than the standard says.
    """
    opset = model.opset_imports.get("", 1)
    for node in model.graph.all_nodes():
        if node.domain == "" and all_schemas(node.op_type):
            spec = schema(node.op_type, opset)
            in_body = _body_opsets(spec) and not spec.has_type_and_shape_inference_function
            if in_body or node.op_type == "STFT":
                _write_defaults(node, spec)


def _write_defaults(node: ir.Node, spec: onnx.defs.OpSchema) -> None:
    """The inliner does not know default attributes; what refers to them in a body would have no value."""
    for name, attribute in spec.attributes.items():
        if name not in node.attributes and attribute.default_value.name:
            node.attributes.add(ir.serde.deserialize_attribute(attribute.default_value))
