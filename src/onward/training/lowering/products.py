"""Matrix products."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at, standard_producer
from onward.graph.shapes import dims

_MANY_COLUMNS = 1024


def scaled_operand(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """(s D) w as s (D w) or D (s w), where s is a number and D has many columns: the gradients of scores by classes.

    The mean of a loss over tokens divides a gradient of tokens times classes, a pass over what may be the largest
    tensor of all; its products with weights and with inputs are far smaller.
    """
    if input_at(node, 2) is not None:
        return None
    a, b = node.inputs
    for wide, other in ((a, b), (b, a)):
        found = None if wide is None or other is None or dims(other) is None else _unscaled(op, wide)
        if found is None:
            continue
        value, factor, columns = found
        assert other is not None
        small = columns not in (dims(other) or ())
        if small:
            other = op.Mul(other, factor)
        operands = (value, other) if wide is a else (other, value)
        product = op.emit(node.op_type, *operands, **{name: attr.value for name, attr in node.attributes.items()})
        return [product if small else op.Mul(product, factor)]
    return None


def transposed_product(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """(a^T b)^T as b^T a: the gradient of a weight that the model transposes.

    onnxruntime knows this too, but puts the nodes that it makes where it likes, and gradients shall run early.
    """
    x = node.inputs[0]
    product = None if x is None else x.producer()
    if x is None or product is None or product.domain != "" or len(x.uses()) > 1 or x.is_graph_output():
        return None
    if product.op_type == "MatMul":
        return _transposed_stack(op, node, product)
    if product.op_type != "Gemm" or input_at(product, 2) is not None or attribute(node, "perm", (1, 0)) != (1, 0):
        return None
    flags = {name: attr.value for name, attr in product.attributes.items()}
    a, b = product.inputs[:2]
    flags |= {"transA": 1 - flags.get("transB", 0), "transB": 1 - flags.get("transA", 0)}
    return [op.Gemm(b, a, **flags)]


def _transposed_stack(op: Builder, node: ir.Node, product: ir.Node) -> list[ir.Value] | None:
    """The same of stacks of matrices, where one operand is transposed already: the gradient of keys in attention.

    onnxruntime multiplies operands whose last two axes are exchanged as they are.
    """
    a, b = product.inputs
    ranks = {len(dims(value) or ()) for value in (a, b, node.inputs[0]) if value is not None}
    if a is None or b is None or len(ranks) != 1 or not _exchanges_last(node, *ranks):
        return None
    plain_a, plain_b = (_exchanged(value) for value in (a, b))
    if plain_a is None and plain_b is None:
        return None
    rank = max(ranks)
    order = [*range(rank - 2), rank - 1, rank - 2]
    left = op.Transpose(b, perm=order) if plain_b is None else plain_b
    right = op.Transpose(a, perm=order) if plain_a is None else plain_a
    return [op.MatMul(left, right)]


def _exchanged(value: ir.Value) -> ir.Value | None:
    """x, if a value is x with its last two axes exchanged."""
    node, known = value.producer(), dims(value)
    if node is None or node.domain != "" or node.op_type != "Transpose" or known is None:
        return None
    return node.inputs[0] if _exchanges_last(node, len(known)) else None


def _exchanges_last(node: ir.Node, rank: int) -> bool:
    order: list[int] = list(attribute(node, "perm", ()))
    return rank >= 3 and order == [*range(rank - 2), rank - 1, rank - 2]


def shape_of_scaled(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """The shape of s D is that of D: nobody else may need s D."""
    found = None if node.inputs[0] is None else _unscaled(op, node.inputs[0])
    if found is None:
        return None
    return [op.Shape(found[0], **{name: attr.value for name, attr in node.attributes.items()})]


def _unscaled(op: Builder, value: ir.Value) -> tuple[ir.Value, ir.Value, int] | None:
    """D, s and the columns of D, if a value is s D or that in another shape with as many columns."""
    columns = (dims(value) or (None,))[-1]
    if value.dtype != ir.DataType.FLOAT or not isinstance(columns, int) or columns < _MANY_COLUMNS:
        return None
    source, shape = value, None
    while (node := standard_producer(source)) is not None and node.op_type == "Reshape" and node.inputs[0] is not None:
        # The last one decides, as long as it says what each size is.
        shape = constant_of(node.inputs[1]) if shape is None else shape
        if shape is None or 0 in shape:
            return None
        source = node.inputs[0]
    if node is None or node.op_type != "Mul":
        return None
    for tensor, factor in (node.inputs, reversed(node.inputs)):
        if tensor is not None and factor is not None and dims(factor) == ():
            return tensor if shape is None else op.Reshape(tensor, shape), factor, columns
    return None
