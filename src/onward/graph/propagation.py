"""The shapes of values as they are emitted, for the operators that gradients are mostly made of.

A light stand-in for shape inference, which needs a whole model: rules that know a shape write fewer nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from onward.graph.guard import is_guard
from onward.graph.nodes import all_values, attribute, input_at, integers
from onward.graph.shapes import Dim, dims, is_placeholder
from onward.graph.size_values import SizeValues
from onward.graph.sizes import product, quotient

_ELEMENTWISE = frozenset(
    "Abs Add And Cast Ceil Clip Cos Div Equal Erf Exp Floor Greater GreaterOrEqual HardSigmoid Identity IsInf IsNaN "
    "Less LessOrEqual Log Max Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Sin Softplus Sqrt Sub Sum "
    "Tanh Where Xor".split()
)
_REDUCTIONS = frozenset(
    "ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare ReduceLogSumExp".split()
)
# Operators whose first result has the shape of their first input.
_LIKE_FIRST = frozenset(
    "BatchNormalization CumSum Dropout LayerNormalization LogSoftmax ScatterElements ScatterND Softmax".split()
)
Shape = list[Dim]


def propagate_shape(node: ir.Node) -> None:
    """Give the output of a node its shape, if that follows from those of its inputs."""
    shape = result_shape(node, SizeValues())
    if shape is not None:
        node.outputs[0].shape = ir.Shape(shape)


def result_shape(node: ir.Node, values: SizeValues) -> Shape | None:
    """The shape of the first output of a node, if it follows from those of its inputs, and from `values`."""
    if node.domain != "":
        return None
    if node.op_type == "Size":
        return []
    if node.op_type == "ConstantOfShape":
        sizes = values.of(node.inputs[0])
        return None if sizes is None else list(sizes)
    shapes = [None if value is None else dims(value) for value in node.inputs]
    if not shapes or shapes[0] is None:
        return _target(node, values) if node.op_type == "Reshape" and not is_guard(node) else None
    if node.op_type in _ELEMENTWISE:
        return _broadcast(shapes)
    if node.op_type in _LIKE_FIRST:
        return list(shapes[0])
    rule = _RULES.get("Reduce" if node.op_type in _REDUCTIONS else node.op_type)
    try:
        return None if rule is None else rule(node, list(shapes[0]), values)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return None  # a node that is not valid: of a shape that it does not take; inference says so


def name_sizes(graph: ir.Graph) -> None:
    """Replace sizes that inference could not name by those that follow from the sizes of inputs."""
    names: dict[str, Dim] = {}
    values = SizeValues()
    for node in graph:
        for output in node.outputs:
            _rename(output, names)
        if node.outputs:
            _name(node.outputs[0], result_shape(node, values), names)
        if node.op_type == "LayerNormalization" and node.domain == "":
            for statistic in node.outputs[1:]:
                _name(statistic, _statistics(node), names)
        values.learn(node)
    for value in all_values(graph):
        _rename(value, names)


def _name(result: ir.Value, shape: Shape | None, names: dict[str, Dim]) -> None:
    """Name the sizes of a result that has this shape, and note what placeholders stand for."""
    known = dims(result)
    if shape is None or known is None or len(shape) != len(known):
        return
    for old, new in zip(known, shape, strict=True):
        if isinstance(old, str) and is_placeholder(old) and new is not None and not is_placeholder(new):
            names[old] = new
    pairs = zip(known, shape, strict=True)
    result.shape = ir.Shape([new if old is None or is_placeholder(old) else old for old, new in pairs])


def _rename(value: ir.Value, names: Mapping[str, Dim]) -> None:
    known = dims(value)
    if known is not None and any(size in names for size in known):
        value.shape = ir.Shape([names.get(size, size) if isinstance(size, str) else size for size in known])


def _broadcast(shapes: Sequence[Sequence[Dim] | None]) -> Shape | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    padded: list[list[Dim]] = [[*[1] * (rank - len(shape)), *shape] for shape in known]
    return [_broadcast_dim(sizes) for sizes in zip(*padded, strict=True)]


def _broadcast_dim(sizes: Sequence[Dim]) -> Dim:
    """The size that others fit: a number above 1 if there is one, else the name that all agree on."""
    large = {size for size in sizes if size != 1}
    numbers = [size for size in large if isinstance(size, int)]
    if numbers:
        return numbers[0]
    return (large.pop() if large else 1) if len(large) <= 1 else None


def _axes(node: ir.Node, rank: int) -> set[int] | None:
    listed = integers(node, 1, "axes")
    return {axis % rank for axis in listed} if isinstance(listed, tuple) else None


def _transpose(node: ir.Node, shape: Shape, values: SizeValues) -> Shape:
    return [shape[axis] for axis in attribute(node, "perm", tuple(reversed(range(len(shape)))))]


def _squeeze(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    axes = _axes(node, len(shape))
    return None if axes is None else [size for axis, size in enumerate(shape) if axis not in axes]


def _unsqueeze(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    listed = integers(node, 1, "axes")
    if not isinstance(listed, tuple):
        return None
    rank, old = len(shape) + len(listed), iter(shape)
    return [1 if axis in {a % rank for a in listed} else next(old) for axis in range(rank)]


def _reduce(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    listed = integers(node, 1, "axes") or ()
    if isinstance(listed, ir.Value):
        return None
    if not listed and attribute(node, "noop_with_empty_axes", 0):
        return shape
    axes = {axis % len(shape) for axis in listed or range(len(shape))}
    if attribute(node, "keepdims", 1):
        return [1 if axis in axes else size for axis, size in enumerate(shape)]
    return [size for axis, size in enumerate(shape) if axis not in axes]


def _gather(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    indices = None if node.inputs[1] is None else dims(node.inputs[1])
    axis = attribute(node, "axis", 0) % len(shape)
    return None if indices is None else [*shape[:axis], *indices, *shape[axis + 1 :]]


def _reshape(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    if is_guard(node):
        return shape
    target = values.of(input_at(node, 1))
    if target is None or (0 in target and attribute(node, "allowzero", 0)):
        return None
    sizes: Shape = [shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    rest = quotient(shape, [size for size in sizes if size != -1])
    return [rest if size == -1 else size for size in sizes]


def _target(node: ir.Node, values: SizeValues) -> Shape | None:
    """What a Reshape says of its result, whatever it reshapes."""
    target = values.of(input_at(node, 1))
    return None if target is None else [None if size in (0, -1) else size for size in target]


def _flatten(node: ir.Node, shape: Shape, values: SizeValues) -> Shape:
    axis = attribute(node, "axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [product(shape[:axis]), product(shape[axis:])]


def _expand(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    return _broadcast([shape, values.of(node.inputs[1])])


def _slice(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    """Other axes than those that parts are taken of stay as they are."""
    starts, axes = integers(node, 1, "starts"), integers(node, 3, "axes")
    if axes is None:
        count = len(starts) if isinstance(starts, tuple) else len(values.of(input_at(node, 1)) or shape)
        axes = tuple(range(count))
    if not isinstance(axes, tuple):
        return None
    cut = {axis % len(shape) for axis in axes}
    return [None if axis in cut else size for axis, size in enumerate(shape)]


def _gemm(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    other = None if node.inputs[1] is None else dims(node.inputs[1])
    if other is None:
        return None
    return [shape[attribute(node, "transA", 0)], other[1 - attribute(node, "transB", 0)]]


def _matmul(node: ir.Node, shape: Shape, values: SizeValues) -> Shape | None:
    other = None if node.inputs[1] is None else dims(node.inputs[1])
    if other is None or min(len(shape), len(other)) < 2:
        return None
    batch = _broadcast([shape[:-2], other[:-2]])
    return None if batch is None else [*batch, shape[-2], other[-1]]


def _shape(node: ir.Node, shape: Shape, values: SizeValues) -> Shape:
    axes = range(len(shape))[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
    return [len(axes)]


def _statistics(node: ir.Node) -> Shape | None:
    """The shape of a mean or a deviation that LayerNormalization returns."""
    x = node.inputs[0]
    known = None if x is None else dims(x)
    if known is None:
        return None
    axis = attribute(node, "axis", -1) % len(known)
    return [size if place < axis else 1 for place, size in enumerate(known)]


_RULES: dict[str, Callable[[ir.Node, Shape, SizeValues], Shape | None]] = {
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Reduce": _reduce,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
