"""Walk through a model and rewrite onnxruntime's own operators."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.contrib.registry import (
    DOMAIN,
    LAYOUT_DOMAINS,
    REWRITERS,
    Outputs,
    RefusedError,
    note_refusal,
    refuse_what_is_left_out,
)
from onward.graph.inference import infer_shapes
from onward.graph.nodes import is_used, subgraphs, take_over
from onward.graph.opsets import all_schemas, schema
from onward.graph.skeleton import LARGEST_KEPT
from onward.graph.upgrade import in_lowest_opset

# onnxruntime also finds these in the default domain, in opsets in which the standard has no such operator.
_ADOPTED_BELOW: dict[str, int | None] = {
    "SimplifiedLayerNormalization": None,
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
                node.domain = DOMAIN
            if node.domain == DOMAIN:
                imports.setdefault(DOMAIN, 1)
                model.opset_imports.setdefault(DOMAIN, 1)


def adopt_proto(model: onnx.ModelProto) -> None:
    """The same of a proto, for those who infer its shapes before it is prepared; functions are left as they are."""
    opset = next((imported.version for imported in model.opset_import if imported.domain in ("", "ai.onnx")), 1)
    graphs, own = [model.graph], False
    for graph in graphs:
        for node in graph.node:
            if node.domain in ("", "ai.onnx") and _is_adopted(node.op_type, opset):
                node.domain = DOMAIN
            own = own or node.domain == DOMAIN
            for attribute in node.attribute:
                graphs.extend([attribute.g] if attribute.HasField("g") else attribute.graphs)
    if own and all(imported.domain != DOMAIN for imported in model.opset_import):
        model.opset_import.add(domain=DOMAIN, version=1)


def _is_adopted(op_type: str, opset: int) -> bool:
    below = _ADOPTED_BELOW.get(op_type, 0)
    return below is None or opset < below


def rewrite(model: ir.Model, keep: Collection[tuple[str, str]] = ()) -> ir.Model:
    """A prepared model with standard operators in place of onnxruntime's own, where a rewriter knows them.

    Operators in `keep`, (domain, name), stay as they are.
    """
    kept = {name for domain, name in keep if domain == DOMAIN}
    if any(_is_rewritable(node, kept) for node in model.graph.all_nodes()):
        model = in_lowest_opset(model, lambda copy: _rewritten(copy, kept))
    used = {node.domain for node in model.graph.all_nodes()}
    for domain in [*model.opset_imports]:
        if domain in (DOMAIN, *LAYOUT_DOMAINS) and domain not in used:
            del model.opset_imports[domain]
    return model


def _is_rewritable(node: ir.Node, kept: Collection[str]) -> bool:
    return node.domain == DOMAIN and node.op_type in REWRITERS and node.op_type not in kept


def _rewritten(model: ir.Model, kept: Collection[str]) -> ir.Model:
    waiting: dict[ir.Node, str] = {}
    while True:
        before = len(waiting)
        waiting = _rewrite_once(model, kept)
        model.graph.sort()
        infer_shapes(model)
        # What was rewritten may tell the shapes that others wait for.
        if not waiting or len(waiting) == before:
            break
    for node, reason in waiting.items():
        note_refusal(node, reason)
    return model


def _rewrite_once(model: ir.Model, kept: Collection[str]) -> dict[ir.Node, str]:
    """Rewrite nodes in their order, in place, inferring shapes on the way; those that cannot be, with the reason."""
    left: dict[ir.Node, str] = {}
    root = _InferringBuilder(model.graph, model.opset_imports[""])
    for node in list(model.graph.all_nodes()):
        if not _is_rewritable(node, kept):
            _infer(node, root.opset)
            continue
        assert isinstance(node.graph, ir.Graph)
        op = root if node.graph is model.graph else root.subgraph(node.graph)
        rewriter = REWRITERS[node.op_type]
        emitted_after = op.graph[-1]
        try:
            refuse_what_is_left_out(node, rewriter)
            with op, op.scope(node.name or node.outputs[0].name or node.op_type):
                _replace(op, node, rewriter.function(op, node), emitted_after)
        except (RefusedError, OnwardError) as error:
            _remove_after(op.graph, emitted_after)
            left[node] = str(error)
    return left


class _InferringBuilder(Builder):
    """Knows the shape of what it emits at once, so that the next rewriter sees it."""

    def emit(self, op_type: str, *operands: Any, outputs: int = 1, **attributes: Any) -> Any:
        result = super().emit(op_type, *operands, outputs=outputs, **attributes)
        _infer(self.graph[-1], self.opset)
        return result

    def subgraph(self, graph: ir.Graph) -> Builder:
        inner = _InferringBuilder(graph, self.opset, root=self)
        return inner


def _infer(node: ir.Node, opset: int) -> None:
    """Infer the types and shapes of the outputs of one node, where they are not known, from those of its inputs."""
    if node.domain != "" or not all_schemas(node.op_type) or subgraphs(node):
        return
    if all(output.type is not None and output.shape is not None for output in node.outputs):
        return
    present = [value for value in node.inputs if value is not None]
    if any(value.type is None for value in present):
        return
    types, data = {}, {}
    for value in present:
        assert value.name is not None
        types[value.name] = ir.serde.serialize_value(value).type
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input() and tensor.nbytes <= LARGEST_KEPT:
            data[value.name] = ir.serde.serialize_tensor(tensor)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema(node.op_type, opset),
            ir.serde.serialize_node(node),
            types,
            data,
            opset_imports=[onnx.helper.make_opsetid("", opset)],
            ir_version=10,
        )
    except Exception:
        return  # inference of the whole model decides what is wrong
    for output in node.outputs:
        inferred = found.get(output.name or "")
        if inferred is not None:
            output.type = output.type or ir.serde.deserialize_type_proto_for_type(inferred)
            output.shape = output.shape or ir.serde.deserialize_type_proto_for_shape(inferred)


def _replace(op: Builder, node: ir.Node, results: Outputs, emitted_after: ir.Node) -> None:
    values = [results] if isinstance(results, ir.Value) else list(results)
    values += [None] * (len(node.outputs) - len(values))
    pairs = [(old, new) for old, new in zip(node.outputs, values, strict=False) if is_used(old)]
    for old, new in pairs:
        if new is None:
            raise RefusedError(f"its output {old.name!r} (number {old.index()}) is used and not supported")
    own: set[ir.Value] = set()
    for current in reversed(op.graph):
        if current is emitted_after:
            break
        own.update(current.outputs)
    for old, new in pairs:
        assert new is not None
        # An output needs a value of its own: not an input of the node, not the value of another output.
        take_over(old, new if new in own else op.Identity(new))
        own.discard(new)
    assert node.graph is not None
    node.graph.remove(node, safe=True)


def _remove_after(graph: ir.Graph, last: ir.Node) -> None:
    for node in list(reversed(graph)):
        if node is last:
            return
        graph.remove(node, safe=True)
