"""Operations that torch's newer exporter writes in a form which is right for some numbers only.

Log(Sigmoid(x)) is -infinity from -104 on, and the angle of (-1, 0) is -pi there. Here they get forms of standard
operators that are torch's for all numbers, and so are their gradients, those at kinks too. ORTModule has more of them,
which need functions with gradients of their own (`ortmodule/forms`): a file could not bring those along.
"""

from __future__ import annotations

import math
import re

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.cleanup import remove_unused
from onward.graph.inference import infer_shapes
from onward.graph.provenance.record import KIND, OPERATION
from onward.graph.shapes import is_floating
from onward.torch.ortmodule.forms.bound import double
from onward.torch.ortmodule.forms.choice import Form, Forms, form_of, replace_by
from onward.torch.ortmodule.forms.logarithm import (
    is_in_a_log,
    log_sigmoid,
    operands_of_cross_entropy,
    operands_of_log_add_exp,
    softplus,
)
from onward.torch.ortmodule.forms.origin import made_by, operands_of_quotient
from onward.torch.ortmodule.forms.quotient import floor_divide, is_negative, power, remainder
from onward.torch.ortmodule.marks import is_variance, pick_elements, picks, rectifies

_SMALL = 0.1  # below it, 1 + x has lost digits of x
_MOST_SUMS = 1024
_AXIS = re.compile(r"\(args = \(%\w+, (-?\d+)")


def choose_plain_forms(model: ir.Model) -> ir.Model:
    """The model with other forms; itself, if there are none for what it has."""
    if not any(_form_of(node) or picks(node) for node in model.graph):
        return model
    model = model.clone()  # the exporter's values have arithmetic of their own
    # The exporter says nothing of what is inside of an operation, and of some values the sizes of the example.
    infer_shapes(model)
    pick_elements(model)
    known = set(model.graph.initializers)
    op = Builder(model.graph, model.opset_imports[""])
    for node in reversed(list(model.graph)):  # an operation that consists of others comes before them
        form = _form_of(node)
        if form is not None and node.graph is not None and is_floating(node.outputs[0]):
            replace_by(op, node, form)
    remove_unused(model)
    for name, value in model.graph.initializers.items():
        if name not in known:
            value.metadata_props[KIND] = "CONSTANT_TENSOR"  # a number, which is not trained
    return model


def _form_of(node: ir.Node) -> Form | None:
    if node.domain != "":
        return None
    if node.op_type == "Sigmoid":
        is_sigmoid = "aten.sigmoid." in node.metadata_props.get(OPERATION, "")  # and not a part of another operation
        return sigmoid if is_sigmoid and is_in_a_log(node.outputs[0]) else None
    return form_of(node, _FORMS)


def sigmoid(op: Builder, node: ir.Node) -> ir.Value | None:
    """exp(-log(1 + exp(-x))) where there is a logarithm of it; onnxruntime's kernel is 0 from -18 on."""
    x = node.inputs[0]
    return None if x is None else op.Exp(-softplus(op, -x))


def log_add_exp(op: Builder, node: ir.Node) -> ir.Value | None:
    """max(a, b) + log(1 + exp(-|a - b|)), where two infinities have no difference."""
    exponents = operands_of_log_add_exp(node)
    if exponents is None:
        return None
    a, b = exponents
    return op.Max(a, b) + softplus(op, -op.Abs(op.Where(op.Equal(a, b), 0, a - b)))


def log1p(op: Builder, node: ir.Node) -> ir.Value | None:
    total = made_by(node.inputs[0], "Add")
    return None if total is None or total.inputs[0] is None else _log1p(op, total.inputs[0])


def _log1p(op: Builder, x: ir.Value) -> ir.Value:
    """log(u) x / (u - 1) with u = 1 + x rounded: the same mistake in both cancels out, in gradients too."""
    is_small = op.Less(op.Abs(x), _SMALL)
    inside = op.Where(is_small, x, _SMALL)
    rounded = inside + 1
    lost = op.Equal(rounded, 1)
    exact = op.Where(lost, inside, op.Log(rounded) * (inside / op.Where(lost, 1, rounded - 1)))
    return op.Where(is_small, exact, op.Log(op.Where(is_small, 1, x + 1)))


def expm1(op: Builder, node: ir.Node) -> ir.Value | None:
    """(u - 1) x / log(u) with u = exp(x) rounded."""
    exp = made_by(node.inputs[0], "Exp")
    if exp is None or exp.inputs[0] is None:
        return None
    x, u = exp.inputs[0], exp.outputs[0]
    is_small = op.Less(op.Abs(x), _SMALL)
    inside = op.Where(is_small, x, _SMALL)
    rounded = op.Exp(inside)
    lost = op.Equal(rounded, 1)
    exact = op.Where(lost, inside, (rounded - 1) * (inside / op.Where(lost, 1, op.Log(rounded))))
    return op.Where(is_small, exact, u - 1)


def atan2(op: Builder, node: ir.Node) -> ir.Value | None:
    """The angle from the nearer axis, whose slope is finite, and where that axis points; no gradient at 0."""
    operands = operands_of_quotient(node)
    if operands is None:
        return None
    y, x = operands
    far, wide = op.Abs(y), op.Abs(x)
    is_steep, is_nothing = op.Greater(far, wide), op.And(op.Equal(far, 0), op.Equal(wide, 0))
    above, below = op.Where(is_steep, x, y), op.Where(is_steep, y, x)
    angle = op.Atan(op.Where(is_nothing, 0, above) / op.Where(is_nothing, 1, below))
    side = op.Where(is_negative(op, y), op.constant(-1, y.dtype), op.constant(1, y.dtype))
    flat = angle + op.Where(is_negative(op, x), side * math.pi, 0)
    return op.Where(is_steep, side * (math.pi / 2) - angle, flat)


def log_cum_sum_exp(op: Builder, node: ir.Node) -> ir.Value | None:
    """Each sum by itself: what is far below the largest of all elements would be lost."""
    log = made_by(node.inputs[0], "Log")
    sums = None if log is None else made_by(log.inputs[0], "CumSum")
    exp = None if sums is None else made_by(sums.inputs[0], "Exp")
    shifted = None if exp is None else made_by(exp.inputs[0], "Sub")
    if sums is None or shifted is None:
        return None
    x, given = shifted.inputs[0], _AXIS.search(node.metadata_props.get(OPERATION, ""))
    if x is None or x.shape is None or given is None or not x.shape:
        return None
    axis = int(given[1]) % len(x.shape)
    size = x.shape[axis]
    if not isinstance(size, int) or size > _MOST_SUMS:
        return None
    shape = [1] * (len(x.shape) + 1)
    shape[axis] = shape[axis + 1] = size
    is_later = np.triu(np.ones((size, size), bool), 1).reshape(shape)  # [..., sum, element, ...]
    each = op.Where(op.constant(is_later), op.constant(-math.inf, x.dtype), op.Unsqueeze(x, [axis]))
    return op.ReduceLogSumExp(each, [axis + 1], keepdims=0)


def binary_cross_entropy(op: Builder, node: ir.Node) -> ir.Value | None:
    """(t - 1) max(log(1 - x), -100) - t max(log(x), -100), without the infinite slopes at 0 and 1.

    torch has (x - t) 1e12 for the slope below 1e-12, which the sigmoid in front of it takes back to nothing.
    """
    found = operands_of_cross_entropy(node)
    if found is None:
        return None
    x, t = found

    def limited(logarithm: ir.Value, is_zero: ir.Value) -> ir.Value:
        return op.Where(is_zero, -100, op.Max(logarithm, op.constant(-100, x.dtype)))

    is_zero, is_one = op.LessOrEqual(x, 0), op.GreaterOrEqual(x, 1)
    log = limited(op.Log(op.Where(is_zero, 1, x)), is_zero)
    return (t - 1) * limited(_log1p(op, op.Where(is_one, 0, -x)), is_one) - t * log


def deviation(op: Builder, node: ir.Node) -> ir.Value | None:
    """std of numbers that are all the same: no gradient, where the root of a variance has infinity times nothing."""
    x = node.inputs[0]
    if not is_variance(x):
        return None
    is_zero = op.Equal(x, 0)
    return op.Where(is_zero, 0, op.Sqrt(op.Where(is_zero, 1, x)))


def at_least(op: Builder, node: ir.Node) -> ir.Value | None:
    """clamp: x has the gradient at the bound, where Max gives each of two that are equal a half."""
    x, bound = node.inputs
    return op.Where(op.Less(x, bound), bound, x)


def at_most(op: Builder, node: ir.Node) -> ir.Value | None:
    x, bound = node.inputs
    return op.Where(op.Greater(x, bound), bound, x)


def between(op: Builder, node: ir.Node) -> ir.Value | None:
    """hardtanh: no gradient at the bounds, where Clip has one."""
    if rectifies(node):
        return None
    x, low, high = node.inputs
    return op.Where(op.LessOrEqual(x, low), low, op.Where(op.GreaterOrEqual(x, high), high, x))


_FORMS: Forms = {
    ("aten.log_sigmoid.", "Log"): log_sigmoid,
    ("aten.logaddexp.", "Log"): log_add_exp,
    ("aten.log1p.", "Log"): log1p,
    ("aten.expm1.", "Sub"): expm1,
    ("aten.logcumsumexp.", "Add"): log_cum_sum_exp,
    ("aten.atan2.", "Where"): atan2,
    ("aten.linalg_vector_norm.", "Pow"): power,
    ("aten.sqrt.", "Sqrt"): deviation,
    ("aten.remainder.", "Sub"): remainder,
    ("aten.floor_divide.", "Floor"): floor_divide,
    ("rounding_mode: floor", "Floor"): floor_divide,
    ("aten.sub.", "Sub"): binary_cross_entropy,
    ("aten.scalar_tensor.", "Cast"): double,
    ("aten.clamp.Tensor", "Max"): at_least,
    ("aten.clamp_min.Tensor", "Max"): at_least,
    ("aten.clamp.Tensor", "Min"): at_most,
    ("aten.clamp_max.Tensor", "Min"): at_most,
    ("aten.hardtanh.", "Clip"): between,
    ("aten.relu6.", "Clip"): between,
}
