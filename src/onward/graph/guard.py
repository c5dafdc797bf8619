"""Let a graph refuse at run time what it must not take, in standard operators.

A Reshape that is impossible fails in every onnxruntime, whose error names the node: the name says what is wrong. A
Reshape to the sizes that a tensor has anyway costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from onward.graph.width import is_narrow
from onward.signature import CHECK

if TYPE_CHECKING:
    from onward.graph.builder import Builder

_IMPOSSIBLE = -2
_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")  # what onnxruntime makes one Reshape of


def guarded(op: Builder, x: ir.Value, sizes: ir.Value, rule: str, *, exact: bool = True) -> ir.Value:
    """`x`, or an error that contains `rule` where its sizes are not these.

    `exact` compares them one by one; without it, which is cheaper, the number of elements must be right.
    """
    if exact:
        own = op.Shape(x)
        sizes = op.Where(op.Equal(own, sizes), own, _IMPOSSIBLE)
    result = _named(op, op.reshape(x, sizes, exact=not exact), rule)
    result.shape = None if x.shape is None else x.shape.copy()
    return result


def guarded_number(op: Builder, x: ir.Value, fits: ir.Value, rule: str) -> ir.Value:
    """A value of one element, or an error that contains `rule` unless `fits`, a boolean of its shape, is true.

    By Gather, because a Reshape may follow; see `keep_guards`. On a GPU, Gather takes any index, and only a Reshape
    fails.
    """
    if is_narrow():
        return _guarded_by_size(op, x, fits, rule)
    index = op.Where(fits, *(op.constant(place, ir.DataType.INT64) for place in (0, 1)))
    row = op.Unsqueeze(x, [0]) if x.shape is not None and len(x.shape) == 0 else x
    result = _named(op, op.Gather(row, index, axis=0), rule)
    result.shape = None if x.shape is None else x.shape.copy()
    return result


def guarded_all(op: Builder, x: ir.Value, wrong: ir.Value, rule: str) -> ir.Value:
    """`x`, or an error that contains `rule` where an element of `wrong`, booleans of its shape, is true."""
    counted = op.Reshape(op.cast(wrong, ir.DataType.FLOAT), [-1])
    fits = op.Less(op.ReduceSum(counted, [0], keepdims=1), 1)  # of no elements, too
    if x.shape is not None and len(x.shape) == 0:
        return _guarded_by_size(op, x, fits, rule)
    return guarded(op, x, op.Where(fits, op.Shape(x), _IMPOSSIBLE), rule, exact=False)


def _guarded_by_size(op: Builder, x: ir.Value, fits: ir.Value, rule: str) -> ir.Value:
    """A value of one element by a Reshape, to a single element or to an impossible number of them."""
    size = op.Where(op.Reshape(fits, [1]), *(op.constant([size], ir.DataType.INT64) for size in (1, _IMPOSSIBLE)))
    result = _named(op, op.reshape(op.reshape(x, [1]), size), rule)  # a guard keeps the shape of its input
    result.shape = ir.Shape([1])
    return op.reshape_like(result, x)


def unforeseen(op: Builder, x: ir.Value) -> ir.Value:
    """`x`, of known rank, with sizes that onnxruntime learns only when it runs: for those it would misjudge.

    A Reshape to zeros keeps all sizes. That they are zeros follows from the data (no number is greater than itself),
    so that it cannot be computed beforehand. Of no data, the sum is 0 too.
    """
    assert x.shape is not None
    number = op.cast(op.Slice(op.Reshape(x, [-1]), [0], [1], [0]), ir.DataType.FLOAT)
    zero = op.ReduceSum(op.cast(op.Greater(number, number), ir.DataType.INT64), [0], keepdims=1)
    result = _named(op, op.Reshape(x, op.Add(zero, [0] * len(x.shape))), f"{x.name!r} keeps its sizes")
    result.shape = x.shape.copy()
    return result


def _named(op: Builder, result: ir.Value, rule: str) -> ir.Value:
    node = result.producer()
    assert node is not None
    node.name = op.unique_name(f"{CHECK}{rule}")
    return result


def positive(op: Builder, sizes: ir.Value) -> ir.Value:
    """Sizes of which none is 0: 1 in its place, which a tensor without elements cannot be reshaped to."""
    if op.opset >= 12:
        return op.Max(sizes, 1)
    return op.Where(op.Greater(sizes, 0), sizes, 1)


def is_guard(node: ir.Node | None) -> bool:
    """Whether a node gives its input back, or fails."""
    return node is not None and node.op_type == "Reshape" and (node.name or "").startswith(CHECK)


def keep_guards(graph: ir.Graph) -> None:
    """Part guards from the reshapes around them, in place, in a graph that is complete.

    onnxruntime makes one Reshape of several that follow each other, where it knows the sizes behind the last, and the
    guard would be gone. So the sizes behind a guard are left to inference; and a Concat of one tensor is a copy that
    onnxruntime leaves alone.
    """
    for node in list(graph):
        checked = node.outputs[0] if is_guard(node) else None
        if checked is None or checked.is_graph_output():
            continue
        users = list(checked.uses())
        if len(users) == 1 and users[0].node.op_type in _RESHAPES and not users[0].node.domain:
            copy = ir.node("Concat", [checked], {"axis": 0}, name=f"{node.name}/Concat")
            copied = copy.outputs[0]
            copied.name, copied.type, copied.shape = f"{checked.name}/copy", checked.type, checked.shape
            users[0].node.replace_input_with(users[0].idx, copied)
            graph.insert_after(node, copy)
        checked.shape = None


def show_guards(graph: onnx.GraphProto) -> None:
    """Replace guards by Identity, through which inference sees, in place."""
    for node in graph.node:
        if node.op_type == "Reshape" and node.name.startswith(CHECK):
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]
