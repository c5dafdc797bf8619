"""A weight as a node takes it: where it is stored, and what only moves its numbers on the way."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.graph.constants import constant_array, is_constant
from onward.graph.nodes import attribute, input_at

Shape = tuple[int, ...]

_MOVING = frozenset({"Cast", "Identity", "Reshape", "Transpose"})


@dataclass(frozen=True)
class Weight:
    """A constant operand.

    Attributes:
        origin: where it is stored: an initializer, or the output of a Constant node.
        moves: the nodes between the origin and the one that takes it.
        shapes: that of the origin, and after each of the moves.
        dtype: as the node takes it.
        quantised: whether it is stored as integers.
    """

    origin: ir.Value
    moves: tuple[ir.Node, ...]
    shapes: tuple[Shape, ...]
    dtype: ir.DataType
    quantised: bool = False

    @property
    def shape(self) -> Shape:
        return self.shapes[-1]

    @property
    def form(self) -> tuple[object, ...]:
        """What is equal where a weight is taken in the same form."""
        return self.origin, tuple((node.op_type, _permutation(node)) for node in self.moves), self.shapes

    def stored(self) -> np.ndarray:
        """The numbers as they are stored."""
        array = constant_array(self.origin)
        assert array is not None
        return array

    def taken(self) -> np.ndarray:
        """The numbers as the node takes them."""
        array = self.stored()
        for node, shape in zip(self.moves, self.shapes[1:], strict=True):
            array = array.transpose(_permutation(node)) if node.op_type == "Transpose" else array.reshape(shape)
        return array.astype(self.dtype.numpy(), copy=False)

    def put_back(self, array: np.ndarray) -> np.ndarray:
        """Numbers in the places of those that the node takes, in the places of those that are stored."""
        for node, shape in zip(reversed(self.moves), reversed(self.shapes[:-1]), strict=True):
            if node.op_type == "Transpose":
                array = array.transpose(np.argsort(_permutation(node) or range(array.ndim)[::-1]))
            else:
                array = array.reshape(shape)
        return array


def weight_of(value: ir.Value | None) -> Weight | None:
    """The weight that an operand is; None for what is computed."""
    if value is None:
        return None
    if is_constant(value):
        return _stored(value)
    node = value.producer()
    if node is None or node.domain not in ("", "com.microsoft") or not node.inputs:
        return None
    before = weight_of(node.inputs[0])
    if before is None:
        return None
    if node.op_type == "DequantizeLinear":
        return _moved(before, node, before.shape, _dequantised_type(node), quantised=True)
    if not is_moving(node):
        return None
    if node.op_type == "Cast":
        return _moved(before, node, before.shape, ir.DataType(attribute(node, "to", 1)), before.quantised)
    shape = _shape_after(node, before.shape)
    return None if shape is None else _moved(before, node, shape, before.dtype, before.quantised)


def is_moving(node: ir.Node) -> bool:
    """Whether a node only puts numbers elsewhere, or into another type."""
    return node.domain == "" and node.op_type in _MOVING


def _moved(before: Weight, node: ir.Node, shape: Shape, dtype: ir.DataType, quantised: bool) -> Weight:
    return Weight(before.origin, (*before.moves, node), (*before.shapes, shape), dtype, quantised)


def _stored(value: ir.Value) -> Weight | None:
    tensor = value.const_value
    if value.producer() is None and tensor is not None:
        return Weight(value, (), (tuple(tensor.shape.numpy()),), tensor.dtype)
    array = constant_array(value)
    return None if array is None else Weight(value, (), (array.shape,), _type_of(value, array))


def _type_of(value: ir.Value, array: np.ndarray) -> ir.DataType:
    producer = value.producer()
    content = None if producer is None else producer.attributes.get("value")
    return ir.DataType.from_numpy(array.dtype) if content is None else content.as_tensor().dtype


def _dequantised_type(node: ir.Node) -> ir.DataType:
    """That of the scale, unless the node says otherwise, as it can from opset 23 on."""
    wanted = attribute(node, "output_dtype", 0)
    if wanted:
        return ir.DataType(wanted)
    scale = node.inputs[1]
    known = None if scale is None else weight_of(scale)
    return ir.DataType.FLOAT if known is None else known.dtype


def _permutation(node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a Transpose; None reverses them."""
    return attribute(node, "perm", None) if node.op_type == "Transpose" else None


def _shape_after(node: ir.Node, shape: Shape) -> Shape | None:
    if node.op_type == "Transpose":
        return tuple(shape[axis] for axis in _permutation(node) or range(len(shape))[::-1])
    if node.op_type == "Identity":
        return shape
    wanted = constant_array(input_at(node, 1))
    if wanted is None or 0 in shape or np.any(wanted[len(shape) :] == 0):
        return None
    sizes = [shape[index] if size == 0 else int(size) for index, size in enumerate(wanted)]
    rest = math.prod(shape) // max(math.prod(size for size in sizes if size > 0), 1)
    result = tuple(rest if size < 0 else size for size in sizes)
    return result if math.prod(result) == math.prod(shape) else None
