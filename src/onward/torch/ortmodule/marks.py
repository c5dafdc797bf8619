"""Where gradients are others than an exported graph says: what was detached, padding, and kinks.

To the exporter these are plain operations. Most become a function that computes the same, with the gradient of torch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onward.autodiff.custom import nondifferentiable, vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, take_over
from onward.graph.provenance.program import padding_of
from onward.graph.provenance.record import OPERATION
from onward.graph.shapes import is_floating
from onward.torch.ortmodule._fallback import ORTModuleTorchModelException

_DOMAIN, _DETACHED, _PADDED, _INDEX = "onward.torch", "Detached", "Padded", "padding_idx"
_AT_LEAST, _AT_MOST, _BETWEEN, _DEVIATION = "AtLeast", "AtMost", "Between", "Deviation"
_SLOPED = "Sloped"
_PICKED = re.compile(r"aten\.(?:max|min)\.dim\]\(args = \(%\w+, (-?\d+)")
_KEEPING_AXES = ("Expand", "Reshape", "Unsqueeze")  # how exporters write keepdim
# Operator of the graph -> operation of torch -> the function that takes its place.
_MARKS: dict[str, dict[str, str]] = {
    "Identity": {"aten.detach.": _DETACHED},
    "Max": {"aten.clamp.Tensor": _AT_LEAST, "aten.clamp_min.Tensor": _AT_LEAST},
    "Min": {"aten.clamp.Tensor": _AT_MOST, "aten.clamp_max.Tensor": _AT_MOST},
    "Clip": {"aten.hardtanh.": _BETWEEN, "aten.relu6.": _BETWEEN},
}

nondifferentiable(_DETACHED, domain=_DOMAIN)


@vjp(_PADDED, domain=_DOMAIN)
def _padded(op: Builder, node: ir.Node, dy: ir.Value) -> tuple[ir.Value, None]:
    """Rows that were looked up for padding: their gradient does not count."""
    ids = node.inputs[1]
    assert ids is not None
    padding = op.constant(attribute(node, _INDEX, 0), ids.dtype)
    return op.Where(op.Unsqueeze(op.Equal(ids, padding), [-1]), 0, dy), None


@vjp(_AT_LEAST, domain=_DOMAIN, broadcast=True)
def _at_least(op: Builder, node: ir.Node, dy: ir.Value) -> tuple[ir.Value, ir.Value]:
    """clamp: x has the gradient at the bound, where Max gives each of two that are equal a half."""
    x, bound = node.inputs
    below = op.Less(x, bound)
    return op.Where(below, 0, dy), op.Where(below, dy, 0)


@vjp(_AT_MOST, domain=_DOMAIN, broadcast=True)
def _at_most(op: Builder, node: ir.Node, dy: ir.Value) -> tuple[ir.Value, ir.Value]:
    x, bound = node.inputs
    above = op.Greater(x, bound)
    return op.Where(above, 0, dy), op.Where(above, dy, 0)


@vjp(_BETWEEN, domain=_DOMAIN)
def _between(op: Builder, node: ir.Node, dy: ir.Value) -> tuple[ir.Value, None, None]:
    """hardtanh: no gradient at the bounds, where Clip has one."""
    x, low, high = node.inputs
    return op.Where(op.And(op.Less(low, x), op.Less(x, high)), dy, 0), None, None


@vjp(_SLOPED, domain=_DOMAIN, broadcast=True)
def _slope(op: Builder, node: ir.Node, dy: ir.Value) -> tuple[ir.Value, ir.Value, None]:
    """A value of which it is said how it changes with x; what else it is computed from, others have said."""
    slope = node.inputs[2]
    assert slope is not None
    return dy, dy * slope, None


@vjp(_DEVIATION, domain=_DOMAIN)
def _deviation(op: Builder, node: ir.Node, dy: ir.Value) -> ir.Value:
    """std of numbers that are all the same: no gradient, where the root of a variance has infinity times nothing."""
    y = node.outputs[0]
    is_zero = op.Equal(y, 0)
    return op.Where(is_zero, 0, dy / (2 * op.Where(is_zero, 1, y)))


def detached(op: Builder, x: ir.Value) -> ir.Value:
    """The same without a gradient."""
    value: ir.Value = op.custom(_DOMAIN, _DETACHED, x, like=x)
    return value


def sloped(op: Builder, y: ir.Value, x: ir.Value, slope: ir.Value) -> ir.Value:
    """y, whose gradient with respect to x is `slope`, and which has no other than those that are given so."""
    node = y.producer()
    inner = y if node is not None and node.op_type == _SLOPED else detached(op, y)
    value: ir.Value = op.custom(_DOMAIN, _SLOPED, inner, x, detached(op, slope), like=y)
    return value


def define_marks(model: ir.Model) -> None:
    """Bring along the functions behind `detached` and `sloped`, where they are used."""
    used = {node.op_type for node in model.graph if node.domain == _DOMAIN}
    for name, inputs in {_DETACHED: ["x"], _SLOPED: ["value", "x", "slope"]}.items():
        if name in used:
            _define(model, name, "Identity", inputs)


def mark_gradients(model: ir.Model) -> None:
    """Mark, in place, what `torch.export` has recorded."""
    pick_elements(model)
    for node in list(model.graph.all_nodes()):
        record = node.metadata_props.get(OPERATION, "")
        if node.domain != "":
            continue
        for operation, name in _MARKS.get(node.op_type, {}).items():
            if operation in record and not rectifies(node):
                _mark(model, node, name)
                break
        if (row := padding_of(node)) is not None:
            _mark_padding(model, node, row)
        elif node.op_type == "Sqrt" and "aten.sqrt." in record and is_variance(node.inputs[0]):
            _mark(model, node, _DEVIATION)


def pick_elements(model: ir.Model) -> None:
    """Let max and min along an axis have the gradient of the element at the index, in place."""
    for node in list(model.graph.all_nodes()):
        axis = picks(node)
        if axis is not None:
            _pick(node, int(axis))


def picks(node: ir.Node) -> str | None:
    """The axis along which an element is picked, as it is printed, if one is."""
    is_reduction = node.domain == "" and node.op_type in ("ReduceMax", "ReduceMin")
    found = _PICKED.search(node.metadata_props.get(OPERATION, "")) if is_reduction else None
    return None if found is None else found[1]


def rectifies(node: ir.Node) -> bool:
    """Whether a node is ReLU6 or its like, which gets plain numbers for bounds, in place.

    Clip's own rule has torch's gradient for these, and training graphs have faster forms.
    """
    x = node.inputs[0]
    if node.op_type != "Clip" or len(node.inputs) < 3 or x is None or not is_floating(x) or node.graph is None:
        return False
    low, high = (_number(bound) for bound in node.inputs[1:])
    if low != 0 or high is None or high <= 0:
        return False
    assert x.dtype is not None
    for place, number in ((1, low), (2, high)):
        tensor = ir.tensor(np.array(number, x.dtype.numpy()), dtype=x.dtype)
        constant = ir.node("Constant", [], {"value": tensor})
        bound = constant.outputs[0]
        bound.name, bound.type, bound.shape = f"{node.name}/bound_{place}", ir.TensorType(x.dtype), ir.Shape([])
        node.graph.insert_before(node, constant)
        node.replace_input_with(place, bound)
    return True


def _number(value: ir.Value | None) -> float | None:
    """A number that the exporter has written down, and has cast to the type of something."""
    node = None if value is None else value.producer()
    if node is not None and node.op_type == "CastLike":
        value = node.inputs[0]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().reshape(())) if tensor is not None and tensor.size == 1 else None


def is_variance(value: ir.Value | None) -> bool:
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _KEEPING_AXES:
        node = None if node.inputs[0] is None else node.inputs[0].producer()
    return node is not None and "prims.var." in node.metadata_props.get(OPERATION, "")


def _mark(model: ir.Model, node: ir.Node, name: str) -> None:
    """Make a function of what a node computes."""
    _define(model, name, node.op_type, [f"x{index}" for index in range(len(node.inputs))])
    node.domain, node.op_type = _DOMAIN, name


def _mark_padding(model: ir.Model, node: ir.Node, number: str) -> None:
    if not number.isdigit():
        raise ORTModuleTorchModelException("the padding of an embedding is a row that follows from sizes")
    index = int(number)
    rows, graph = node.outputs[0], node.graph
    assert graph is not None
    marked = ir.node(_PADDED, [rows, node.inputs[1]], {_INDEX: index}, domain=_DOMAIN)
    output = marked.outputs[0]
    output.type, output.shape, output.name = rows.type, rows.shape, f"{rows.name}/padded"
    ir.convenience.replace_all_uses_with(rows, output, replace_graph_outputs=True)
    marked.replace_input_with(0, rows)
    graph.insert_after(node, marked)
    _define(model, _PADDED, "Identity", ["x", "ids"], [_INDEX])


def _pick(node: ir.Node, axis: int) -> None:
    """max along an axis: the element at the index has the gradient, where ReduceMax divides it among equal ones."""
    x, result, graph = node.inputs[0], node.outputs[0], node.graph
    if x is None or not is_floating(x) or x.shape is None or len(x.shape) == 0:
        return
    assert graph is not None
    index = ir.node(node.op_type.replace("Reduce", "Arg"), [x], {"axis": axis, "keepdims": 1})
    picked = ir.node("GatherElements", [x, index.outputs[0]], {"axis": axis})
    nodes = [index, picked]
    if not attribute(node, "keepdims", 1):
        axes = ir.node("Constant", [], {"value_ints": [axis]})
        nodes += [axes, ir.node("Squeeze", [picked.outputs[0], axes.outputs[0]])]
    for number, new in enumerate(nodes):
        new.name = f"{node.name}/{new.op_type}"
        new.outputs[0].name = f"{result.name}/{number}"
    graph.insert_before(node, nodes)
    take_over(result, nodes[-1].outputs[0])
    graph.remove(node, safe=True)


def _define(
    model: ir.Model, name: str, op_type: str, inputs: Sequence[str], attributes: Sequence[str] | None = None
) -> None:
    """A function that computes what an operator does; Identity: of its first input."""
    values = [ir.Value(name=given) for given in inputs]
    node = ir.node(op_type, values[:1] if op_type == "Identity" else values)
    node.outputs[0].name = "y"
    body = ir.Graph(values, node.outputs, nodes=[node], opset_imports={"": model.opset_imports[""]})
    declared = [ir.Attr(given, ir.AttributeType.INT, None) for given in attributes or ()]
    function = ir.Function(_DOMAIN, name, graph=body, attributes=declared)
    model.functions[function.identifier()] = function
    model.opset_imports[_DOMAIN] = 1
