"""Where gradients are others than an exported graph says: what was detached, and padding in tables of embeddings.

To the exporter these are plain operations. Each becomes a function that computes the same, with a gradient of its own.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from onward.autodiff.custom import nondifferentiable, vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.provenance.record import OPERATION

_DOMAIN, _DETACHED, _PADDED, _INDEX = "onward.torch", "Detached", "Padded", "padding_idx"
_EMBEDDING = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (\d+)")

nondifferentiable(_DETACHED, domain=_DOMAIN)


@vjp(_PADDED, domain=_DOMAIN)
def _padded(op: Builder, node: ir.Node, dy: ir.Value) -> tuple[ir.Value, None]:
    """Rows that were looked up for padding: their gradient does not count."""
    ids = node.inputs[1]
    assert ids is not None
    padding = op.constant(attribute(node, _INDEX, 0), ids.dtype)
    return op.Where(op.Unsqueeze(op.Equal(ids, padding), [-1]), 0, dy), None


def mark_gradients(model: ir.Model) -> None:
    """Mark, in place, what `torch.export` has recorded."""
    for node in list(model.graph.all_nodes()):
        record = node.metadata_props.get(OPERATION, "")
        if node.domain != "":
            continue
        if node.op_type == "Identity" and "aten.detach." in record:
            node.domain, node.op_type = _DOMAIN, _DETACHED
            _define(model, _DETACHED, ["x"])
        elif node.op_type == "Gather" and (found := _EMBEDDING.search(record)):
            _mark_padding(model, node, int(found[1]))


def _mark_padding(model: ir.Model, node: ir.Node, index: int) -> None:
    rows, graph = node.outputs[0], node.graph
    assert graph is not None
    marked = ir.node(_PADDED, [rows, node.inputs[1]], {_INDEX: index}, domain=_DOMAIN)
    output = marked.outputs[0]
    output.type, output.shape, output.name = rows.type, rows.shape, f"{rows.name}/padded"
    ir.convenience.replace_all_uses_with(rows, output, replace_graph_outputs=True)
    marked.replace_input_with(0, rows)
    graph.insert_after(node, marked)
    _define(model, _PADDED, ["x", "ids"], [_INDEX])


def _define(model: ir.Model, name: str, inputs: list[str], attributes: list[str] | None = None) -> None:
    """A function that returns its first input."""
    values = [ir.Value(name=given) for given in inputs]
    identity = ir.node("Identity", [values[0]])
    identity.outputs[0].name = "y"
    body = ir.Graph(values, identity.outputs, nodes=[identity], opset_imports={"": model.opset_imports[""]})
    declared = [ir.Attr(given, ir.AttributeType.INT, None) for given in attributes or ()]
    function = ir.Function(_DOMAIN, name, graph=body, attributes=declared)
    model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
