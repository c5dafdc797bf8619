"""Sequences and optionals: the cotangent of a sequence is a sequence, that of an optional what is in it.

Most sequences in files have a known length or are stacked tensors, and are gone by now (see `onward.graph.sequences`).
"""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at

Row = list[ir.Value | None]


@vjp("Optional", "OptionalGetElement")
def optional(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [dy]


@vjp("SequenceConstruct")
def construct(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    return [_at(op, dy, index) for index in range(len(node.inputs))]


@vjp("SequenceAt")
def at(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Zeros but for the element that was taken."""
    sequence, position = node.inputs
    zeros = op.map_sequences(lambda inner, x: inner.zeros_like(x), sequence)
    place = _from_start(op, position, sequence)
    return [_sequence(op.SequenceInsert(_sequence(op.SequenceErase(zeros, place), dy), dy, place), dy)]


@vjp("SequenceInsert")
def insert(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Without a position, the element is the last."""
    position = input_at(node, 2)
    if position is None:
        return [_sequence(op.SequenceErase(dy), dy), _at(op, dy, -1)]
    place = _from_start(op, position, node.inputs[0])
    return [_sequence(op.SequenceErase(dy, place), dy), _at(op, dy, place)]


@vjp("SequenceErase")
def erase(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """What was erased gets zeros."""
    sequence, position = node.inputs[0], input_at(node, 1)
    if position is None:
        return [_sequence(op.SequenceInsert(dy, op.zeros_like(_at(op, sequence, -1))), dy)]
    place = _from_start(op, position, sequence)
    return [_sequence(op.SequenceInsert(dy, op.zeros_like(_at(op, sequence, place)), place), dy)]


@vjp("SplitToSequence")
def split(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    dropped = input_at(node, 1) is None and not attribute(node, "keepdims", 1)
    joined = op.ConcatFromSequence(dy, axis=attribute(node, "axis", 0), new_axis=int(dropped))
    joined.type = node.inputs[0].type
    return [joined]


@vjp("ConcatFromSequence")
def concat(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """dy cut into pieces as long as the elements were."""
    sequence, axis = node.inputs[0], attribute(node, "axis", 0)
    if attribute(node, "new_axis", 0):
        return [_sequence(op.SplitToSequence(dy, axis=axis, keepdims=0), dy)]
    sizes = op.map_sequences(lambda inner, x: inner.Gather(inner.Shape(x), [axis], axis=0), sequence)
    lengths = op.ConcatFromSequence(sizes, axis=0)
    lengths.type = ir.TensorType(ir.DataType.INT64)
    return [_sequence(op.SplitToSequence(dy, lengths, axis=axis), dy)]


def _at(op: Builder, sequence: ir.Value, position: ir.Value | int) -> ir.Value:
    element = op.SequenceAt(sequence, position)
    element.type = _tensor(sequence)
    return element


def _sequence(value: ir.Value, like: ir.Value) -> ir.Value:
    """With the type of a sequence of the elements of `like`."""
    value.type = ir.SequenceType(_tensor(like))
    return value


def _tensor(like: ir.Value) -> ir.TensorType:
    assert like.dtype is not None
    return ir.TensorType(like.dtype)


def _from_start(op: Builder, position: ir.Value, sequence: ir.Value) -> ir.Value:
    """Positions count from the end where they are negative, and sequences change their length."""
    place = op.cast(position, ir.DataType.INT64)
    return op.Where(op.Less(place, 0), place + op.SequenceLength(sequence), place)
