"""What is known of a value's shape."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from onward.errors import UnknownShapeError
from onward.graph.nodes import describe

Dim = int | str | None  # a size, a symbol (equal symbols are equal sizes), or unknown

_PLACEHOLDER = re.compile(r"\bunk__")

FLOATING = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def is_floating(value: ir.Value | None) -> bool:
    """Whether a value is a tensor of a type that has derivatives."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype in FLOATING


def floating_origin(value: ir.Value) -> ir.Value | None:
    """The value of floating point that a label is chosen by, or a map is made of: the nearest one before `value`."""
    current: ir.Value | None = value
    while current is not None and not is_floating(current):
        producer = current.producer()
        inputs = [] if producer is None else [x for x in producer.inputs if x is not None and not x.is_initializer()]
        current = next((x for x in inputs if is_floating(x)), inputs[0] if inputs else None)
    return current


def dims(value: ir.Value) -> tuple[Dim, ...] | None:
    """The dimensions of a value, or None when not even its rank is known."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def rank(value: ir.Value) -> int:
    """The rank of a value; a clear error when inference could not find it."""
    if value.shape is None:
        producer = value.producer()
        origin = f", an output of {describe(producer)}," if producer is not None else ""
        raise UnknownShapeError(
            f"the rank of {value.name!r}{origin} is unknown, and a gradient rule needs it. Give the value a shape, "
            "for instance by adding a value_info for it or by exporting the model with shapes on its inputs."
        )
    return len(value.shape)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape as integers, or None when any dimension is symbolic or unknown."""
    known = dims(value)
    if known is None or not all(isinstance(dim, int) for dim in known):
        return None
    return tuple(dim for dim in known if isinstance(dim, int))


def static_size(value: ir.Value) -> int | None:
    """The number of elements, or None when it is not known."""
    shape = static_shape(value)
    return None if shape is None else math.prod(shape)


def same_dims(a: Iterable[Dim] | None, b: Iterable[Dim] | None) -> bool:
    """Whether two shapes are certainly equal (an unknown dimension equals nothing)."""
    if a is None or b is None:
        return False
    a, b = tuple(a), tuple(b)
    return a == b and None not in a


def target_in_numbers(x: Sequence[Dim] | None, y: Sequence[Dim] | None) -> list[int] | None:
    """What Reshape takes to make a tensor of shape y of one of shape x: 0 is a size that has the same place in x.

    There is no -1, which an empty x has no answer to, unless for the only size that is no number.
    """
    if y is None or 0 in y:
        return None
    x = x or ()
    target = []
    for axis, size in enumerate(y):
        if isinstance(size, int):
            target.append(size)
        else:
            target.append(0 if size is not None and axis < len(x) and x[axis] == size else -1)
    free = target.count(-1)
    return target if not free or (free == 1 and 0 not in target) else None


def is_placeholder(dim: Dim) -> bool:
    """Inference calls dimensions it does not know `unk__<n>`, counting anew in each run: equal names of two runs
    mean nothing, nor do products of them."""
    return isinstance(dim, str) and _PLACEHOLDER.search(dim) is not None
