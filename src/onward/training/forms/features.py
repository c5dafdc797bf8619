"""Dense layers with the features first, as `[F, N]`.

onnxruntime packs the second operand of a product each time that it runs. In `x w^T` that is the weight, most often the
larger one; in `w x^T` it is the batch. Nothing has to be turned round: elementwise nodes do not care, and the next
product takes its operands either way. (Only of weights `[F, I]`, as torch has them: to read `[I, F]` turned round costs
as much as is gained.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at
from onward.graph.replacement import emitting_before
from onward.graph.shapes import dims, static_shape
from onward.training.forms.elementwise import counts_elements, operands, repeated

# Measured with two threads, forward and backward: batches up to twice the features gain up to a fifth, larger ones lose
# a twentieth. Of sizes that are not known when graphs are made, batches are mostly the smaller ones.
_FEWEST_FEATURES = 256


def put_features_first(op: Builder, path: Iterable[ir.Node], carrying: Collection[ir.Value]) -> bool:
    """Rewrite the dense layers of `path` that gain by it, in place; whether there were any."""
    layers = {node for node in path if operands(node) is not None or _is_dense(node, carrying)}
    doubtful = list(layers)
    while doubtful:
        node = doubtful.pop()
        if node in layers and not _stays_inside(node, layers):
            layers.remove(node)
            doubtful += [*node.predecessors(), *node.successors()]
    _rewrite(op, [node for node in path if node in layers])
    return bool(layers)


def _is_dense(node: ir.Node, carrying: Collection[ir.Value]) -> bool:
    """Whether a node is `x w^T + b` of a trained weight, with features enough."""
    if node.domain != "" or node.op_type != "Gemm" or not attribute(node, "transB", 0):
        return False
    w, bias = node.inputs[1], input_at(node, 2)
    # A frozen weight is packed once. One that was computed may be a layer of its own.
    if w is None or w not in carrying or w.producer() is not None or w.dtype != ir.DataType.FLOAT:
        return False
    rows, features = dims(node.outputs[0]) or (None, None)
    if not isinstance(features, int) or features < _FEWEST_FEATURES:
        return False
    if isinstance(rows, int) and rows > 2 * features:
        return False
    return bias is None or static_shape(bias) == (features,)


def _stays_inside(node: ir.Node, layers: Collection[ir.Node]) -> bool:
    """Whether nobody has to turn round what a layer takes or returns."""
    y = node.outputs[0]
    if y.is_graph_output() or not all(_takes(user, index, y, layers) for user, index in y.uses()):
        return False
    return node.op_type == "Gemm" or all(value.producer() in layers for value in operands(node) or ())


def _takes(user: ir.Node, index: int, y: ir.Value, layers: Collection[ir.Node]) -> bool:
    if user.domain == "" and user.op_type == "Gemm":
        return index < 2
    return counts_elements(user) or (user in layers and y in (operands(user) or ()))


def _rewrite(op: Builder, layers: Sequence[ir.Node]) -> None:
    turned: dict[ir.Value, ir.Value] = {}
    for node in layers:
        y = node.outputs[0]
        with emitting_before(op, node):
            turned[y] = found = _product(op, node, turned) if node.op_type == "Gemm" else repeated(op, node, turned)
        found.type, sizes = y.type, dims(y)
        found.shape = None if sizes is None else ir.Shape(sizes[::-1])
    inside = set(layers)
    for y, found in turned.items():
        for user, index in list(y.uses()):
            if user in inside:
                continue
            user.replace_input_with(index, found)
            if user.op_type == "Gemm":
                name = ("transA", "transB")[index]
                user.attributes[name] = ir.AttrInt64(name, 1 - attribute(user, name, 0))
    for node in reversed(layers):
        op.graph.remove(node, safe=True)


def _product(op: Builder, node: ir.Node, turned: dict[ir.Value, ir.Value]) -> ir.Value:
    x, w, bias = node.inputs[0], node.inputs[1], input_at(node, 2)
    assert x is not None
    is_turned = attribute(node, "transA", 0) == 1
    if x in turned:
        x, is_turned = turned[x], not is_turned
    column = None if bias is None else op.Unsqueeze(bias, [1])
    numbers = {name: attribute(node, name, 1.0) for name in ("alpha", "beta")}
    return op.Gemm(w, x, column, transB=int(not is_turned), **numbers)
