"""Reshapes whose target a program has computed from the shapes of other tensors."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.guard import is_guard
from onward.graph.kernel_sizes import is_doubtful
from onward.graph.nodes import attribute, constant_of, integers, standard_producer, subgraphs
from onward.graph.shapes import dims, same_dims, target_in_numbers
from onward.graph.sizes import product


def view(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Say without computing what the shape of a result is, where names of sizes tell."""
    if is_guard(node) or len(node.inputs) < 2 or node.inputs[0] is None:
        return None
    turned = _turned(op, node)
    if turned is not None:
        return [turned]
    if constant_of(node.inputs[1]) is not None:
        return None
    target = target_in_numbers(dims(node.inputs[0]), dims(node.outputs[0]))
    return None if target is None else [op.Reshape(node.inputs[0], target)]


def leading_to_doubt(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that lead to one whose sizes onnxruntime may misjudge when it loads a model (`graph/kernel_sizes.py`).

    It does so if it knows the sizes that such a node reads. So these stay computed, where a program computes them.
    """
    found: set[ir.Node] = set()
    for node in reversed(graph):
        if node.op_type == "Shape" and node.domain == "":
            continue  # sizes become numbers there, and whoever uses those computes with them
        leads = any(user in found for output in node.outputs for user in output.consumers())
        if leads or subgraphs(node) or _is_doubtful(node):
            found.add(node)
    return found


def _is_doubtful(node: ir.Node) -> bool:
    if node.op_type != "Slice":
        return is_doubtful(node)
    steps = integers(node, 4, "steps")  # forwards, inference is right where it knows sizes
    return steps is not None and not (isinstance(steps, tuple) and all(step > 0 for step in steps))


def _turned(op: Builder, node: ir.Node) -> ir.Value | None:
    """Exchange the last two axes of x, instead of those of a stack of matrices that x was made to for that.

    torch's exporter writes the transposition of keys in this way, whatever the rank.
    """
    turning = _producer(node.inputs[0], "Transpose")
    stacking = _producer(None if turning is None else turning.inputs[0], "Reshape")
    x = None if stacking is None or is_guard(stacking) else stacking.inputs[0]
    if turning is None or stacking is None or x is None or list(attribute(turning, "perm", ())) != [0, 2, 1]:
        return None
    known = dims(x)
    if known is None or len(known) < 3:
        return None
    *leading, rows, columns = known
    if not same_dims(dims(stacking.outputs[0]), (product(leading), rows, columns)):
        return None
    if not same_dims(dims(node.outputs[0]), (*leading, columns, rows)):
        return None
    last = len(leading)
    return op.Transpose(x, perm=[*range(last), last + 1, last])


def scaled_before_turning(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """A number times x^T as (a number times x)^T: a product that follows takes a transposed operand as it is."""
    for turned, number in (node.inputs, reversed(node.inputs)):
        turning = _producer(turned, "Transpose")
        x = None if turning is None else turning.inputs[0]
        if turned is None or turning is None or x is None or number is None or dims(number) not in ((), (1,)):
            continue
        order: list[int] = list(attribute(turning, "perm", ()))
        last = len(order) - 2
        alone = len(turned.uses()) == 1 and not turned.is_graph_output()
        if alone and last >= 0 and order == [*range(last), last + 1, last]:
            return [op.Transpose(op.Mul(x, number), perm=order)]
    return None


def _producer(value: ir.Value | None, op_type: str) -> ir.Node | None:
    node = standard_producer(value)
    return node if node is not None and node.op_type == op_type else None
