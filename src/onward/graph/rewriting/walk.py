"""Walk through a model and rewrite the operators of other domains."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.blame import blaming_node
from onward.graph.builder import Builder
from onward.graph.inference import infer_shapes
from onward.graph.node_inference import inferred_types
from onward.graph.nodes import is_used, subgraphs, take_over
from onward.graph.rewriting.registry import (
    DOMAINS,
    Outputs,
    RefusedError,
    note_refusal,
    refuse_what_is_left_out,
    rewriter_of,
)
from onward.graph.upgrade import in_lowest_opset

Operators = Collection[tuple[str, str]]  # domain and name of each


def rewrite(model: ir.Model, keep: Operators = ()) -> ir.Model:
    """A prepared model with standard operators in place of those that a rewriter knows; those in `keep` stay."""
    if any(_is_rewritable(node, keep) for node in model.graph.all_nodes()):
        model = in_lowest_opset(model, lambda copy: _rewritten(copy, keep))
    used = {node.domain for node in model.graph.all_nodes()}
    for domain in [*model.opset_imports]:
        if domain in DOMAINS and domain not in used:
            del model.opset_imports[domain]
    return model


def _is_rewritable(node: ir.Node, keep: Operators) -> bool:
    return rewriter_of(node) is not None and (node.domain, node.op_type) not in keep


def _rewritten(model: ir.Model, keep: Operators) -> ir.Model:
    waiting: dict[ir.Node, str] = {}
    while True:
        before = len(waiting)
        waiting = _rewrite_once(model, keep)
        model.graph.sort()
        infer_shapes(model)
        # What was rewritten may tell the shapes that others wait for.
        if not waiting or len(waiting) == before:
            break
    for node, reason in waiting.items():
        note_refusal(node, reason)
    return model


def _rewrite_once(model: ir.Model, keep: Operators) -> dict[ir.Node, str]:
    """Rewrite nodes in their order, in place, inferring shapes on the way; those that cannot be, with the reason."""
    left: dict[ir.Node, str] = {}
    root = _InferringBuilder(model.graph, model.opset_imports[""])
    for node in list(model.graph.all_nodes()):
        rewriter = rewriter_of(node)
        if rewriter is None or not _is_rewritable(node, keep):
            _infer(node, root.opset)
            continue
        assert isinstance(node.graph, ir.Graph)
        op = root if node.graph is model.graph else root.subgraph(node.graph)
        emitted_after = op.graph[-1]
        try:
            with blaming_node("rewriting", node, RefusedError):
                refuse_what_is_left_out(node, rewriter)
                with op, op.scope(node.name or node.outputs[0].name or node.op_type):
                    _replace(op, node, rewriter.function(op, node), emitted_after)
        except (RefusedError, OnwardError) as error:
            _remove_after(op.graph, emitted_after)
            root.forget_unused()
            left[node] = str(error)
    return left


class _InferringBuilder(Builder):
    """Knows the shape of what it emits at once, so that the next rewriter sees it."""

    def __init__(self, graph: ir.Graph, opset: int, *, root: Builder | None = None) -> None:
        super().__init__(graph, opset, root=root)
        self._made: list[ir.Value] = []

    def initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        made = super().initializer(name, tensor)
        assert isinstance(self._root, _InferringBuilder)
        self._root._made.append(made)
        return made

    def forget_unused(self) -> None:
        """Remove the initializers of a node that could not be rewritten after all."""
        for value in [value for value in self._made if not value.uses()]:
            self.graph.initializers.pop(value.name or "")
            self._made.remove(value)

    def emit(self, op_type: str, *operands: Any, outputs: int = 1, **attributes: Any) -> Any:
        result = super().emit(op_type, *operands, outputs=outputs, **attributes)
        _infer(self.graph[-1], self.opset)
        return result

    def subgraph(self, graph: ir.Graph) -> Builder:
        inner = _InferringBuilder(graph, self.opset, root=self)
        return inner


def _infer(node: ir.Node, opset: int) -> None:
    """Infer the types and shapes of the outputs of one node, where they are not known, from those of its inputs."""
    if subgraphs(node) or all(output.type is not None and output.shape is not None for output in node.outputs):
        return
    found = inferred_types(node, opset)
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
