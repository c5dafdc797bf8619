"""Operators that onnxruntime keeps in the default domain, moved to its own."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from onward.graph.contrib.domain import MICROSOFT

# onnxruntime also finds these in the default domain, in opsets in which the standard has no such operator.
_ADOPTED_BELOW: dict[str, int | None] = {
    "SimplifiedLayerNormalization": None,
    "SparseSoftmaxCrossEntropy": None,  # training builds only
    "LayerNormalization": 17,
    **dict.fromkeys("Affine Crop DynamicSlice ImageScaler ParametricSoftplus Scale ScaledTanh".split(), 10),
}


def adopt(model: ir.Model) -> None:
    """Move, in place, what onnxruntime's optimizer writes into the default domain to onnxruntime's own."""
    for graph, imports in [
        (model.graph, model.opset_imports),
        *((function.graph, function.opset_imports) for function in model.functions.values()),
    ]:
        opset = imports.get("", model.opset_imports.get("", 1))
        for node in graph.all_nodes():
            if node.domain == "" and _is_adopted(node.op_type, opset):
                node.domain = MICROSOFT.name
            if node.domain == MICROSOFT.name:
                imports.setdefault(MICROSOFT.name, 1)
                model.opset_imports.setdefault(MICROSOFT.name, 1)


def adopt_proto(model: onnx.ModelProto) -> None:
    """The same of a proto, for those who infer its shapes before it is prepared; functions are left as they are."""
    opset = next((imported.version for imported in model.opset_import if imported.domain in ("", "ai.onnx")), 1)
    graphs, own = [model.graph], False
    for graph in graphs:
        for node in graph.node:
            if node.domain in ("", "ai.onnx") and _is_adopted(node.op_type, opset):
                node.domain = MICROSOFT.name
            own = own or node.domain == MICROSOFT.name
            for attribute in node.attribute:
                graphs.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    if own and all(imported.domain != MICROSOFT.name for imported in model.opset_import):
        model.opset_import.add(domain=MICROSOFT.name, version=1)


def _is_adopted(op_type: str, opset: int) -> bool:
    below = _ADOPTED_BELOW.get(op_type, 0)
    return below is None or opset < below
