"""Operations that torch's exporter writes in a form which is right for some numbers only.

Log(Sigmoid(x)) is -infinity from -104 on, Floor(x / y) one too many for 0.7 and 0.1. The comparison with torch does not
see that if there are no such numbers in the first call. Here they get a form that is torch's for all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.provenance.record import OPERATION, STACK
from onward.graph.replacement import replace_node
from onward.graph.shapes import is_floating
from onward.torch.ortmodule.marks import define_marks, detached, sloped

Form = Callable[[Builder, ir.Node], "ir.Value | None"]

_SMALL = 0.1  # below it, 1 + x has lost digits of x
# What a value may go through on its way out, and where it is still told from zero.
_MOVING = frozenset("Cast Concat Flatten Gather Identity Reshape Slice Split Squeeze Transpose Unsqueeze".split())
_ARITHMETIC = frozenset("Add Clip Max Min Mul Sub Where".split())
_SCALAR = re.compile(r"\(args = \(%\w+, (-?[\d.]+(?:e-?\d+)?)\)")
_NUMBER = re.compile(r"\(args = \((-?[\d.]+(?:e-?\d+)?),\)")


def choose_forms(model: ir.Model) -> None:
    """Give operations other forms, in place."""
    op = Builder(model.graph, model.opset_imports[""])
    for node in reversed(list(model.graph)):  # an operation that consists of others comes before them
        form = _form_of(node)
        if form is not None and node.graph is not None and input_at(node, 0) is not None:
            replace_node(op, node, _one_value(form))
    define_marks(model)


def _one_value(form: Form) -> Callable[[Builder, ir.Node], list[ir.Value] | None]:
    def replacement(op: Builder, node: ir.Node) -> list[ir.Value] | None:
        value = form(op, node)
        return None if value is None else [value]

    return replacement


def _form_of(node: ir.Node) -> Form | None:
    if node.domain != "" or not is_floating(node.outputs[0]):
        return None
    if node.op_type in _BY_OPERATOR:
        return _BY_OPERATOR[node.op_type]
    record = node.metadata_props.get(OPERATION, "")
    for (operation, op_type), form in _BY_OPERATION.items():
        if node.op_type == op_type and operation in record:
            return form
    return None


def _made_by(value: ir.Value | None, op_type: str, operation: str = "") -> ir.Node | None:
    """The node that a value is from, if it is of this kind."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != op_type or operation not in node.metadata_props.get(OPERATION, ""):
        return None
    return node


def _sigmoid(op: Builder, node: ir.Node) -> ir.Value | None:
    """1 / (1 + exp(-x)) where small numbers count; onnxruntime's kernel is exact to 1e-7, and 0 from -18 on."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or not _is_returned_or_in_a_log(y):
        return None
    value = op.Reciprocal(op.Exp(-x) + 1)
    return sloped(op, value, x, value * (1 - value))


def _is_returned_or_in_a_log(value: ir.Value) -> bool:
    """Whether a value, moved at most, is a result, or whether there is a logarithm of what follows from it."""
    todo, seen = [(value, True)], {value}
    while todo:
        current, is_moved = todo.pop()
        if is_moved and current.is_graph_output():
            return True
        for node, _ in current.uses():
            if node.op_type == "Log":
                return True
            if node.op_type in _MOVING or node.op_type in _ARITHMETIC:
                found = [(output, is_moved and node.op_type in _MOVING) for output in node.outputs]
                todo += [pair for pair in found if pair[0] not in seen]
                seen.update(node.outputs)
    return False


def _with_its_slope(op: Builder, node: ir.Node) -> ir.Value | None:
    """Softplus: dx = 1 / (1 + exp(-x)), which is not 0 for negative x: logarithms of standard deviations need it."""
    x = node.inputs[0]
    return None if x is None else sloped(op, op.Softplus(x), x, op.Reciprocal(op.Exp(-x) + 1))


def _double(op: Builder, node: ir.Node) -> ir.Value | None:
    """A number of the program, which the exporter has rounded to single precision."""
    number = _NUMBER.search(node.metadata_props.get(OPERATION, ""))
    is_double = node.outputs[0].dtype == ir.DataType.DOUBLE
    return op.constant(float(number[1]), ir.DataType.DOUBLE) if number is not None and is_double else None


def _log_sigmoid(op: Builder, node: ir.Node) -> ir.Value | None:
    """-log(1 + exp(-x))."""
    inner = _made_by(node.inputs[0], "Sigmoid")
    x = None if inner is None else inner.inputs[0]
    return None if x is None else -_softplus(op, -x)


def _softplus(op: Builder, x: ir.Value) -> ir.Value:
    """log(1 + exp(x))."""
    if x.dtype == ir.DataType.FLOAT:
        found: ir.Value = op.Softplus(x)
        return found
    # There is no kernel for others.
    return op.Max(x, op.constant(0, x.dtype)) + op.Log(op.Exp(-op.Abs(x)) + 1)


def _log_add_exp(op: Builder, node: ir.Node) -> ir.Value | None:
    """max(a, b) + log(1 + exp(-|a - b|)), where two infinities have no difference; da = sigmoid(a - b)."""
    total = _made_by(node.inputs[0], "Add")
    exps = [] if total is None else [_made_by(value, "Exp") for value in total.inputs]
    if len(exps) != 2 or exps[0] is None or exps[1] is None:
        return None
    a, b = exps[0].inputs[0], exps[1].inputs[0]
    assert a is not None
    assert b is not None
    y = op.Max(a, b) + _softplus(op, -op.Abs(op.Where(op.Equal(a, b), 0, a - b)))
    return sloped(op, sloped(op, y, a, op.Sigmoid(a - b)), b, op.Sigmoid(b - a))


def _log_sum_exp(op: Builder, node: ir.Node) -> ir.Value:
    """onnxruntime's kernel takes 0 for the largest element if the first one is infinite."""
    x, axes = node.inputs[0], input_at(node, 1)
    given = [] if axes is None else [axes]
    largest = op.ReduceMax(x, *given, keepdims=1)
    shift = detached(op, op.Where(op.IsInf(largest), 0, largest))
    y = op.Log(op.ReduceSum(op.Exp(x - shift), *given, keepdims=1)) + shift
    return y if attribute(node, "keepdims", 1) else op.Squeeze(y, *given)


def _log1p(op: Builder, node: ir.Node) -> ir.Value | None:
    """log(u) x / (u - 1) with u = 1 + x rounded: the same mistake in both cancels out."""
    total = _made_by(node.inputs[0], "Add")
    if total is None or total.inputs[0] is None:
        return None
    x, u = total.inputs[0], total.outputs[0]
    lost = op.Equal(u, 1)
    exact = op.Where(lost, x, op.Log(u) * (x / op.Where(lost, 1, u - 1)))
    return sloped(op, op.Where(op.Less(op.Abs(x), _SMALL), exact, op.Log(u)), x, op.Reciprocal(u))


def _expm1(op: Builder, node: ir.Node) -> ir.Value | None:
    """(u - 1) x / log(u) with u = exp(x) rounded."""
    exp = _made_by(node.inputs[0], "Exp")
    if exp is None or exp.inputs[0] is None:
        return None
    x, u = exp.inputs[0], exp.outputs[0]
    lost = op.Equal(u, 1)
    exact = op.Where(lost, x, (u - 1) * (x / op.Where(lost, 1, op.Log(u))))
    return sloped(op, op.Where(op.Less(op.Abs(x), _SMALL), exact, u - 1), x, u)


def _is_negative(op: Builder, x: ir.Value) -> ir.Value:
    """Whether there is a sign, zeros included."""
    return op.Less(op.Where(op.Equal(x, 0), op.Reciprocal(x), x), 0)


def _atan2(op: Builder, node: ir.Node) -> ir.Value | None:
    """The angle in the first quadrant, brought to its own; dy = x / (x^2 + y^2), dx = -y / (x^2 + y^2), 0 at 0."""
    ratio = _quotient_below(node)
    if ratio is None:
        return None
    y, x = ratio.inputs
    assert x is not None
    assert y is not None
    far, wide = op.Abs(y), op.Abs(x)
    angle = op.Where(op.Equal(far, wide), math.pi / 4, op.Atan(far / wide))
    angle = op.Where(op.And(op.Equal(x, 0), op.Equal(y, 0)), 0, angle)
    angle = op.Where(_is_negative(op, x), math.pi - angle, angle)
    angle = op.Where(_is_negative(op, y), -angle, angle)
    square = x * x + y * y
    scale = op.Where(op.Equal(square, 0), 0, op.Reciprocal(square))
    return sloped(op, sloped(op, angle, y, x * scale), x, -y * scale)


def _quotient_below(node: ir.Node) -> ir.Node | None:
    """The only division in an operation that ends with this node."""
    record, found, todo = node.metadata_props.get(OPERATION), set[ir.Node](), [node]
    if any(user.metadata_props.get(OPERATION) == record for user, _ in node.outputs[0].uses()):
        return None
    while todo:
        current = todo.pop()
        if current.op_type == "Div":
            found.add(current)
        for value in current.inputs:
            before = None if value is None else value.producer()
            if before is not None and before.metadata_props.get(OPERATION) == record:
                todo.append(before)
    return found.pop() if len(found) == 1 else None


def _sinc(op: Builder, node: ir.Node) -> ir.Value | None:
    """Without a division by zero, whose gradient would not be a number."""
    quotient = _made_by(input_at(node, 2), "Div")
    if quotient is None:
        return None
    x = quotient.inputs[1]
    is_zero = op.Equal(x, 0)
    inside = op.Where(is_zero, 1, x)
    return op.Where(is_zero, 1, op.Sin(inside) / inside)


def _power(op: Builder, node: ir.Node) -> ir.Value | None:
    """Of a norm: no gradient at 0."""
    x, exponent = node.inputs
    number = constant_of(exponent)
    while number is None and (cast := _made_by(exponent, "CastLike")) is not None:
        exponent = cast.inputs[0]
        number = constant_of(exponent)
    if x is None or number is None or not float(number.reshape(())) > 0:
        return None
    is_zero = op.Equal(x, 0)
    return op.Where(is_zero, 0, op.Pow(op.Where(is_zero, 1, x), node.inputs[1]))


def _remainder(op: Builder, node: ir.Node) -> ir.Value | None:
    """By fmod, which is exact, where x - floor(x / y) y loses digits."""
    quotient = _quotient_below(node)
    return None if quotient is None else _floored(op, node, *quotient.inputs)[1]


def _floor_divide(op: Builder, node: ir.Node) -> ir.Value | None:
    """(x - remainder) / y, which is a whole number but for rounding."""
    quotient = _made_by(node.inputs[0], "Div")
    if quotient is None:
        return None
    whole, _ = _floored(op, node, *quotient.inputs)
    return op.Where(op.Equal(quotient.inputs[1], 0), quotient.outputs[0], op.Floor(whole + 0.5))


def _floored(op: Builder, node: ir.Node, x: ir.Value | None, y: ir.Value | None) -> tuple[ir.Value, ir.Value]:
    """Quotient and remainder; that has the sign of y."""
    assert x is not None
    assert y is not None
    scalar = _SCALAR.search(node.metadata_props.get(OPERATION, ""))
    if scalar is not None:  # the exporter has rounded it to single precision
        y = op.constant(float(scalar[1]), x.dtype)
    rest = op.Mod(x, y, fmod=1)
    other = op.And(op.Not(op.Equal(rest, 0)), op.Xor(op.Less(rest, 0), op.Less(y, 0)))
    return (x - rest) / y - op.Where(other, op.constant(1, x.dtype), 0), rest + op.Where(other, y, 0)


def _clip(op: Builder, node: ir.Node) -> ir.Value | None:
    """onnxruntime takes the largest finite number for a bound that is left out."""
    low, high = input_at(node, 1), input_at(node, 2)
    if low is not None and high is not None:
        return None
    dtype = node.outputs[0].dtype
    bounds = [
        op.constant(end, dtype) if bound is None else bound for bound, end in ((low, -math.inf), (high, math.inf))
    ]
    return op.Clip(node.inputs[0], *bounds)


def _mean(op: Builder, node: ir.Node) -> ir.Value | None:
    """Of no elements, if data leave none: not a number, where onnxruntime's kernel gives 0."""
    x = node.inputs[0]
    if x is None or x.shape is None or not _follows_from_data(op.graph, x.shape):
        return None
    given = [value for value in node.inputs[1:] if value is not None]
    keepdims = attribute(node, "keepdims", 1)
    one = op.Expand(op.constant(1, x.dtype), op.Shape(x))
    return op.ReduceSum(x, *given, keepdims=keepdims) / op.ReduceSum(one, *given, keepdims=keepdims)


def _adaptive_pool(op: Builder, node: ir.Node) -> ir.Value | None:
    """A pool over the whole image: one element has the gradient, where ReduceMax divides it among equal ones."""
    x, axes = node.inputs[0], constant_of(input_at(node, 1))
    if x is None or x.shape is None or axes is None or "adaptive_max_pool" not in node.metadata_props.get(STACK, ""):
        return None
    first = len(x.shape) - axes.size
    flat = op.Reshape(x, [0] * first + [-1])
    y = op.GatherElements(flat, op.ArgMax(flat, axis=first, keepdims=1), axis=first)
    return op.Unsqueeze(y, list(range(first + 1, len(x.shape)))) if axes.size > 1 else y


def _follows_from_data(graph: ir.Graph, shape: ir.Shape) -> bool:
    """Whether there is a size that those of inputs do not lead to."""
    symbols = {name for value in graph.inputs for name in _symbols(value.shape)}
    return not _symbols(shape) <= symbols


def _symbols(shape: ir.Shape | None) -> set[str]:
    sizes = [] if shape is None else [size for size in shape if not isinstance(size, int)]
    return {name for size in sizes for name in re.findall(r"[a-z]\w*", str(size.value))}


def _binary_cross_entropy(op: Builder, node: ir.Node) -> ir.Value | None:
    """(t - 1) max(log(1 - x), -100) - t max(log(x), -100), with torch's gradient at 0 and 1.

    dx = (x - t) / max(x (1 - x), 1e-12); dt = log(1 - x) - log(x).
    """
    first, second = (_made_by(value, "Mul", "aten.mul.") for value in node.inputs)
    if first is None or second is None:
        return None
    logs = [_made_by(product.inputs[1], "Max", "aten.maximum.") for product in (first, second)]
    if any(log is None or _made_by(log.inputs[1], "Expand", "-100") is None for log in logs):
        return None
    assert logs[0] is not None
    assert logs[1] is not None
    log = _made_by(logs[1].inputs[0], "Log", "aten.log.")
    complement = None if logs[0].inputs[0] is None else logs[0].inputs[0].producer()
    if log is None or complement is None or "aten.log1p." not in complement.metadata_props.get(OPERATION, ""):
        return None
    x, t = log.inputs[0], second.inputs[0]
    assert x is not None
    assert t is not None
    value = op.Sub(*(product.outputs[0] for product in (first, second)))
    value = sloped(op, value, x, (x - t) / op.Max(x * (1 - x), op.constant(1e-12, x.dtype)))
    return sloped(op, value, t, op.Log(1 - x) - op.Log(x))


# Operation of torch, and the last operator that it is written by.
_BY_OPERATION: dict[tuple[str, str], Form] = {
    ("aten.log_sigmoid.", "Log"): _log_sigmoid,
    ("aten.logaddexp.", "Log"): _log_add_exp,
    ("aten.log1p.", "Log"): _log1p,
    ("aten.expm1.", "Sub"): _expm1,
    ("aten.atan2.", "Where"): _atan2,
    ("aten.sinc.", "Where"): _sinc,
    ("aten.linalg_vector_norm.", "Pow"): _power,
    ("aten.remainder.", "Sub"): _remainder,
    ("aten.floor_divide.", "Floor"): _floor_divide,
    ("rounding_mode: floor", "Floor"): _floor_divide,
    ("aten.sub.", "Sub"): _binary_cross_entropy,
    ("aten.mean.", "ReduceMean"): _mean,
    ("prims.var.", "ReduceMean"): _mean,
    ("aten.scalar_tensor.", "Cast"): _double,
    ("aten.amax.", "ReduceMax"): _adaptive_pool,
}
_BY_OPERATOR: dict[str, Form] = {
    "Clip": _clip,
    "ReduceLogSumExp": _log_sum_exp,
    "Sigmoid": _sigmoid,
    "Softplus": _with_its_slope,
}
