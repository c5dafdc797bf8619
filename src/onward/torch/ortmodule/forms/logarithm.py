"""Logarithms, exponentials and sigmoids that neither overflow nor lose small numbers."""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.guard import guarded_all
from onward.graph.nodes import attribute, input_at
from onward.graph.provenance.record import OPERATION
from onward.torch.ortmodule.forms.origin import made_by
from onward.torch.ortmodule.marks import detached, sloped

_SMALL = 0.1  # below it, 1 + x has lost digits of x
# What a value may go through on its way out, and where it is still told from zero.
_MOVING = frozenset("Cast Concat Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split())
_ARITHMETIC = frozenset("Add Clip Div Max Min Mul Neg Sub Where".split())


def sigmoid(op: Builder, node: ir.Node) -> ir.Value | None:
    """1 / (1 + exp(-x)) where small numbers count; onnxruntime's kernel is exact to 1e-7, and 0 from -18 on."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or not _is_returned_or_in_a_log(y):
        return None
    value = op.Reciprocal(op.Exp(-x) + 1)
    return sloped(op, value, x, value * (1 - value))


def _is_returned_or_in_a_log(value: ir.Value) -> bool:
    """Whether a value, moved at most, is a result, or whether there is a logarithm of what follows from it."""
    return is_in_a_log(value, or_returned=True)


def is_in_a_log(value: ir.Value, *, or_returned: bool = False) -> bool:
    """Whether there is a logarithm of what follows from a value by arithmetic."""
    todo, seen = [(value, True)], {value}
    while todo:
        current, is_moved = todo.pop()
        if or_returned and is_moved and current.is_graph_output():
            return True
        for node, _ in current.uses():
            if node.op_type == "Log":
                return True
            if node.op_type in _MOVING or node.op_type in _ARITHMETIC:
                found = [(output, is_moved and node.op_type in _MOVING) for output in node.outputs]
                todo += [pair for pair in found if pair[0] not in seen]
                seen.update(node.outputs)
    return False


def with_its_slope(op: Builder, node: ir.Node) -> ir.Value | None:
    """Softplus: dx = 1 / (1 + exp(-x)), which is not 0 for negative x: logarithms of standard deviations need it."""
    x = node.inputs[0]
    return None if x is None else sloped(op, op.Softplus(x), x, op.Reciprocal(op.Exp(-x) + 1))


def log_sigmoid(op: Builder, node: ir.Node) -> ir.Value | None:
    """-log(1 + exp(-x))."""
    inner = made_by(node.inputs[0], "Sigmoid")
    x = None if inner is None else inner.inputs[0]
    return None if x is None else -softplus(op, -x)


def softplus(op: Builder, x: ir.Value) -> ir.Value:
    """log(1 + exp(x))."""
    if x.dtype == ir.DataType.FLOAT:
        found: ir.Value = op.Softplus(x)
        return found
    # There is no kernel for others.
    return op.Max(x, op.constant(0, x.dtype)) + op.Log(op.Exp(-op.Abs(x)) + 1)


def log_add_exp(op: Builder, node: ir.Node) -> ir.Value | None:
    """max(a, b) + log(1 + exp(-|a - b|)), where two infinities have no difference; da = sigmoid(a - b)."""
    exponents = operands_of_log_add_exp(node)
    if exponents is None:
        return None
    a, b = exponents
    y = op.Max(a, b) + softplus(op, -op.Abs(op.Where(op.Equal(a, b), 0, a - b)))
    return sloped(op, sloped(op, y, a, op.Sigmoid(a - b)), b, op.Sigmoid(b - a))


def operands_of_log_add_exp(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """The exponents, if this is the logarithm of a sum of two powers."""
    total = made_by(node.inputs[0], "Add")
    exps = [] if total is None else [made_by(value, "Exp") for value in total.inputs]
    if len(exps) != 2 or exps[0] is None or exps[1] is None:
        return None
    a, b = exps[0].inputs[0], exps[1].inputs[0]
    assert a is not None
    assert b is not None
    return a, b


def log_sum_exp(op: Builder, node: ir.Node) -> ir.Value:
    """onnxruntime's kernel takes 0 for the largest element if the first one is infinite."""
    x, axes = node.inputs[0], input_at(node, 1)
    given = [] if axes is None else [axes]
    largest = op.ReduceMax(x, *given, keepdims=1)
    shift = detached(op, op.Where(op.IsInf(largest), 0, largest))
    y = op.Log(op.ReduceSum(op.Exp(x - shift), *given, keepdims=1)) + shift
    return y if attribute(node, "keepdims", 1) else op.Squeeze(y, *given)


def log1p(op: Builder, node: ir.Node) -> ir.Value | None:
    """log(u) x / (u - 1) with u = 1 + x rounded: the same mistake in both cancels out."""
    total = made_by(node.inputs[0], "Add")
    if total is None or total.inputs[0] is None:
        return None
    x, u = total.inputs[0], total.outputs[0]
    lost = op.Equal(u, 1)
    exact = op.Where(lost, x, op.Log(u) * (x / op.Where(lost, 1, u - 1)))
    return sloped(op, op.Where(op.Less(op.Abs(x), _SMALL), exact, op.Log(u)), x, op.Reciprocal(u))


def expm1(op: Builder, node: ir.Node) -> ir.Value | None:
    """(u - 1) x / log(u) with u = exp(x) rounded."""
    exp = made_by(node.inputs[0], "Exp")
    if exp is None or exp.inputs[0] is None:
        return None
    x, u = exp.inputs[0], exp.outputs[0]
    lost = op.Equal(u, 1)
    exact = op.Where(lost, x, (u - 1) * (x / op.Where(lost, 1, op.Log(u))))
    value = op.Where(op.Less(op.Abs(x), _SMALL), exact, u - 1)
    return sloped(op, value, x, value + 1)


def binary_cross_entropy(op: Builder, node: ir.Node) -> ir.Value | None:
    """(t - 1) max(log(1 - x), -100) - t max(log(x), -100), with torch's gradient at 0 and 1.

    dx = (x - t) / max(x (1 - x), 1e-12); dt = log(1 - x) - log(x).
    """
    found = operands_of_cross_entropy(node)
    if found is None:
        return None
    x, t = found
    value = op.Sub(*node.inputs)
    wrong = op.Not(op.And(op.GreaterOrEqual(x, 0), op.LessOrEqual(x, 1)))
    value = guarded_all(op, value, wrong, f"probabilities {x.name!r} are between 0 and 1")  # as torch demands
    value = sloped(op, value, x, (x - t) / op.Max(x * (1 - x), op.constant(1e-12, x.dtype)))
    return sloped(op, value, t, op.Log(1 - x) - op.Log(x))


def operands_of_cross_entropy(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Probabilities and targets, if this is the difference of the two terms."""
    first, second = (made_by(value, "Mul", "aten.mul.") for value in node.inputs)
    if first is None or second is None:
        return None
    logs = [made_by(product.inputs[1], "Max", "aten.maximum.") for product in (first, second)]
    if any(log is None or made_by(log.inputs[1], "Expand", "-100") is None for log in logs):
        return None
    assert logs[0] is not None
    assert logs[1] is not None
    log = made_by(logs[1].inputs[0], "Log", "aten.log.")
    complement = None if logs[0].inputs[0] is None else logs[0].inputs[0].producer()
    if log is None or complement is None or "aten.log1p." not in complement.metadata_props.get(OPERATION, ""):
        return None
    x, t = log.inputs[0], second.inputs[0]
    assert x is not None
    assert t is not None
    return x, t
