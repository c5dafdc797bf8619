"""What nodes compute that compute with shapes: sizes, which may be names or products of names.

Exporters write what a program says: take the shape of one tensor apart, put it together again, and reshape another one
to it. Inference follows that as long as there are numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, integers
from onward.graph.shapes import Dim, dims
from onward.graph.sizes import product, quotient

_LONGEST = 64  # vectors that hold shapes are short
_INTEGERS = frozenset({ir.DataType.INT64, ir.DataType.INT32})
# The elements stay the same, only axes come or go.
_SAME = frozenset("Cast CastLike Identity Reshape Squeeze Unsqueeze".split())
Sizes = tuple[Dim, ...]  # the elements of a scalar or of a vector; booleans are 0 and 1


class SizeValues:
    """The elements of integer scalars and vectors, learned node by node in the order of the graph."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Sizes] = {}

    def of(self, value: ir.Value | None) -> Sizes | None:
        """The elements of a value, None for each that is not known; None if nothing is known of them."""
        if value is None:
            return None
        found = self._known.get(value)
        if found is not None:
            return found
        constant = constant_of(value)
        if constant is None or constant.dtype.kind not in "iub" or constant.ndim > 1 or constant.size > _LONGEST:
            return None
        return tuple(int(element) for element in constant.reshape(-1))

    def learn(self, node: ir.Node) -> None:
        """Find out what a node computes, whose inputs are known as far as they ever will be."""
        rule = None if node.domain else _RULES.get("Same" if node.op_type in _SAME else node.op_type)
        if rule is None or len(node.outputs) != 1:
            return
        result = node.outputs[0]
        if result.dtype not in _INTEGERS | {ir.DataType.BOOL} or result.shape is None or len(result.shape) > 1:
            return
        found = rule(self, node)
        size = result.shape[0] if len(result.shape) else 1
        if found is not None and size in (len(found), None) and any(element is not None for element in found):
            self._known[result] = found


Rule = Callable[[SizeValues, ir.Node], "Sizes | None"]


def _same(values: SizeValues, node: ir.Node) -> Sizes | None:
    x = node.inputs[0]
    if x is None or x.dtype not in _INTEGERS | {ir.DataType.BOOL}:
        return None
    known = values.of(x)
    if known is not None and node.outputs[0].dtype == ir.DataType.BOOL:
        return tuple(int(size != 0) if isinstance(size, int) else None for size in known)
    return known


def _shape(values: SizeValues, node: ir.Node) -> Sizes | None:
    x = node.inputs[0]
    known = None if x is None else dims(x)
    return None if known is None else known[attribute(node, "start", 0) : attribute(node, "end", len(known))]


def _size(values: SizeValues, node: ir.Node) -> Sizes | None:
    x = node.inputs[0]
    known = None if x is None else dims(x)
    return None if known is None else (product(known),)


def _gather(values: SizeValues, node: ir.Node) -> Sizes | None:
    x, indices = values.of(node.inputs[0]), constant_of(node.inputs[1])
    if x is None or indices is None or any(not -len(x) <= index < len(x) for index in indices.reshape(-1)):
        return None
    return tuple(x[index] for index in indices.reshape(-1))


def _slice(values: SizeValues, node: ir.Node) -> Sizes | None:
    x = values.of(node.inputs[0])
    starts, ends, steps = (integers(node, place, name) for place, name in ((1, "starts"), (2, "ends"), (4, "steps")))
    if x is None or not isinstance(starts, tuple) or not isinstance(ends, tuple) or len(starts) != 1 != len(ends):
        return None
    step = 1 if steps is None else steps[0] if isinstance(steps, tuple) else 0
    return x[starts[0] : ends[0] : step] if step > 0 else None


def _concat(values: SizeValues, node: ir.Node) -> Sizes | None:
    parts = []
    for value in node.inputs:
        known = None if value is None else dims(value)
        if known is None or not isinstance(known[0], int) or known[0] > _LONGEST:
            return None
        parts.append(values.of(value) or (None,) * known[0])
    return tuple(itertools.chain(*parts))


def _constant_of_shape(values: SizeValues, node: ir.Node) -> Sizes | None:
    count, filling = values.of(node.inputs[0]), node.attributes.get("value")
    if count is None or len(count) != 1 or not isinstance(count[0], int) or not 0 <= count[0] <= _LONGEST:
        return None
    return (0 if filling is None else int(filling.as_tensor().numpy().reshape(())),) * count[0]


def _reduce_prod(values: SizeValues, node: ir.Node) -> Sizes | None:
    x = values.of(node.inputs[0])
    return None if x is None else (product(x),)


def _by_element(compute: Callable[..., Dim]) -> Rule:
    def rule(values: SizeValues, node: ir.Node) -> Sizes | None:
        operands = [values.of(value) for value in node.inputs]
        known = [operand for operand in operands if operand is not None]
        if len(known) < len(operands):
            return None
        length = max(map(len, known))
        if any(len(operand) not in (1, length) for operand in known):
            return None
        wide: list[Sequence[Dim]] = [operand * length if len(operand) == 1 else operand for operand in known]
        return tuple(compute(*elements) for elements in zip(*wide, strict=True))

    return rule


def _of_numbers(compute: Callable[[int, int], int]) -> Rule:
    def computed(a: Dim, b: Dim) -> Dim:
        return compute(a, b) if isinstance(a, int) and isinstance(b, int) else None

    return _by_element(computed)


def _multiply(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    numbers = [size for size in (a, b) if isinstance(size, int)]
    return product([a, b]) if all(number > 0 for number in numbers) else None


def _divide(a: Dim, b: Dim) -> Dim:
    """Only what is whole for all values of names; onnx rounds towards zero."""
    numbers = [size for size in (a, b) if isinstance(size, int)]
    return quotient([a], [b]) if all(number > 0 for number in numbers) and isinstance(b, int) else None


def _equal(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    numbers = [size for size in (a, b) if isinstance(size, int)]
    # A size is not negative, whatever its name stands for.
    return 0 if None not in (a, b) and numbers and numbers[0] < 0 else None


def _where(condition: Dim, a: Dim, b: Dim) -> Dim:
    return None if not isinstance(condition, int) else a if condition else b


_RULES: dict[str, Rule] = {
    "Add": _of_numbers(lambda a, b: a + b),
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _by_element(_divide),
    "Equal": _by_element(_equal),
    "Gather": _gather,
    "Mul": _by_element(_multiply),
    "ReduceProd": _reduce_prod,
    "Same": _same,
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Sub": _of_numbers(lambda a, b: a - b),
    "Where": _by_element(_where),
}
