"""Follow the axis of classes from a layer to the outputs, through all that does not care how many there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.constants import constant_array
from onward.graph.nodes import attribute, captured_values, describe, input_at
from onward.graph.shapes import Dim, dims
from onward.head.layer import Layer

# Axes are counted from the end, -1 and lower: ranks are not always known.
Axis = int
Place = tuple[ir.Node, int, int]  # a node, an input of it that is constant, and an element of that
_LABEL = 0  # a value that holds numbers of classes

_SAME = frozenset(
    "Abs Cast Ceil Celu Clip Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish Hardmax Identity IsInf IsNaN "
    "LeakyRelu Log LogSoftmax Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Softmax Softplus Softsign "
    "Sqrt Swish Tanh ThresholdedRelu".split()
)
_ELEMENTWISE = frozenset(
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or PRelu Pow Sub Sum Where "
    "Xor".split()
)
_POOLS = frozenset("AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool Resize Upsample".split())
_LABEL_KEEPING = frozenset("Cast Flatten Identity Reshape Squeeze Transpose Unsqueeze".split())


@dataclass
class Followed:
    """What depends on the number of classes.

    Attributes:
        axes: the values with an axis of classes, and which that is.
        reshapes: where the shape of a Reshape says the number of classes.
    """

    axes: dict[ir.Value, Axis]
    reshapes: list[Place]


class UnfitError(OnwardError):
    """A node behind a layer depends on the number of its results."""


def follow(graph: ir.Graph, layer: Layer, shapes: Mapping[str, tuple[Dim, ...]]) -> Followed:
    """All values behind a layer that have an axis of classes; a node that depends on their number raises UnfitError.

    `shapes` are those of the values, as far as they are known.
    """
    walk = _Walk(layer, shapes)
    walk.axes[layer.node.outputs[0]] = layer.class_axis
    for node in graph:
        if node is layer.node:
            continue
        captured = [value for value in captured_values(node) if value in walk.axes]
        if captured:
            raise walk.unfit(node, "its branches use the classes")
        if any(value in walk.axes for value in node.inputs if value is not None):
            walk.visit(node)
    return Followed({value: axis for value, axis in walk.axes.items() if axis != _LABEL}, walk.reshapes)


class _Walk:
    def __init__(self, layer: Layer, shapes: Mapping[str, tuple[Dim, ...]]) -> None:
        self._layer, self._shapes = layer, shapes
        self.axes: dict[ir.Value, Axis] = {}
        self.reshapes: list[Place] = []

    def unfit(self, node: ir.Node, why: str) -> UnfitError:
        return UnfitError(f"{describe(node)} comes behind {self._layer}, and depends on the number of classes: {why}")

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        if value is None:
            return None
        array = constant_array(value)
        return array.shape if array is not None else self._shapes.get(value.name or "", dims(value))

    def visit(self, node: ir.Node) -> None:
        """Find the axis of the outputs of a node from that of its inputs."""
        first = input_at(node, 0)
        if node.domain:
            raise self.unfit(
                node, "what it does is not known" if node.domain != "ai.onnx.ml" else "it has their labels"
            )
        if any(self.axes.get(value) == _LABEL for value in node.inputs if value is not None):
            if node.op_type not in _LABEL_KEEPING:
                raise self.unfit(node, "it takes the number of a class, maybe to look up its label")
            self.axes[node.outputs[0]] = _LABEL
            return
        if node.op_type in ("Shape", "Size"):
            return
        if node.op_type in _ELEMENTWISE:
            self.axes[node.outputs[0]] = self._elementwise(node)
            return
        if first is None or first not in self.axes:
            raise self.unfit(node, "they are one of its settings")
        rule = self._rule(node)
        axis = rule(node, self.axes[first])
        if axis is not None:
            for output in node.outputs[: 1 if node.op_type in ("Dropout", "MaxPool") else None]:
                self.axes[output] = axis

    def _rule(self, node: ir.Node) -> Callable[[ir.Node, Axis], Axis | None]:
        kind = node.op_type
        if kind in _SAME:
            return lambda node, axis: axis
        if kind in _POOLS:
            return self._pool
        if kind.startswith("Reduce"):
            return self._reduce
        rules: dict[str, Callable[[ir.Node, Axis], Axis | None]] = {
            "ArgMax": self._choose,
            "ArgMin": self._choose,
            "Flatten": self._flatten,
            "NegativeLogLikelihoodLoss": self._loss,
            "Reshape": self._reshape,
            "SoftmaxCrossEntropyLoss": self._loss,
            "Squeeze": self._squeeze,
            "Transpose": self._transpose,
            "Unsqueeze": self._unsqueeze,
        }
        if kind not in rules:
            raise self.unfit(node, "only nodes that treat all classes alike may come behind the new layer")
        return rules[kind]

    def _elementwise(self, node: ir.Node) -> Axis:
        axes = {self.axes[value] for value in node.inputs if value is not None and value in self.axes}
        if len(axes) > 1:
            raise self.unfit(node, "it has them on different axes")
        (axis,) = axes
        bias = self._layer.bias
        for index, value in enumerate(node.inputs):
            if value is None or value in self.axes or (bias is not None and bias == (node, index)):
                continue
            shape = self.shape(value)
            size = shape[axis] if shape is not None and len(shape) >= -axis else 1
            if isinstance(size, int) and size != 1:
                raise self.unfit(node, f"{value.name!r} has a number for each of {size}")
        return axis

    def _rank(self, node: ir.Node, value: ir.Value | None) -> int:
        shape = self.shape(value)
        if shape is None:
            raise self.unfit(node, "which axis they are on cannot be told, because the rank of its input is unknown")
        return len(shape)

    def _loss(self, node: ir.Node, axis: Axis) -> None:
        if input_at(node, 2) is not None:
            raise self.unfit(node, "it has a weight for each of them")
        if self._rank(node, node.inputs[0]) + axis != 1:
            raise self.unfit(node, "it has them on another axis")
        if len(node.outputs) > 1:
            self.axes[node.outputs[1]] = axis  # logarithms of probabilities

    def _pool(self, node: ir.Node, axis: Axis) -> Axis:
        if self._rank(node, node.inputs[0]) + axis != 1:
            raise self.unfit(node, "it pools over them")
        return axis

    def _axes(self, node: ir.Node, rank: int) -> list[Axis] | None:
        """The axes that a node names, from the end; None if it names none."""
        given = attribute(node, "axes", None)
        if given is None and input_at(node, 1) is not None:
            given = constant_array(node.inputs[1])
            if given is None:
                raise self.unfit(node, "its axes are computed")
        return None if given is None else [int(axis) % rank - rank for axis in given]

    def _reduce(self, node: ir.Node, axis: Axis) -> Axis | None:
        rank = self._rank(node, node.inputs[0])
        axes = self._axes(node, rank)
        if axes is None and attribute(node, "noop_with_empty_axes", 0):
            return axis
        if axes is None or axis in axes:
            return None  # it has no classes any more
        return axis if attribute(node, "keepdims", 1) else axis + sum(other > axis for other in axes)

    def _choose(self, node: ir.Node, axis: Axis) -> Axis | None:
        over = int(attribute(node, "axis", 0))
        over = over if over < 0 else over - self._rank(node, node.inputs[0])
        if over == axis:
            return _LABEL
        return axis if attribute(node, "keepdims", 1) or over < axis else axis + 1

    def _transpose(self, node: ir.Node, axis: Axis) -> Axis:
        permutation = attribute(node, "perm", None)
        if permutation is None:
            return -1 - (self._rank(node, node.inputs[0]) + axis)
        rank = len(permutation)
        return list(permutation).index(rank + axis) - rank

    def _flatten(self, node: ir.Node, axis: Axis) -> Axis:
        shape = self.shape(node.inputs[0])
        rank = self._rank(node, node.inputs[0])
        assert shape is not None
        split = int(attribute(node, "axis", 1)) % (rank + 1)
        part = range(split, rank) if rank + axis >= split else range(split)
        others = [shape[index] for index in part if index != rank + axis]
        if any(isinstance(size, int) and size != 1 for size in others):
            raise self.unfit(node, "it joins their axis with others")
        return -1 if rank + axis >= split else -2

    def _squeeze(self, node: ir.Node, axis: Axis) -> Axis:
        shape = self.shape(node.inputs[0])
        rank = self._rank(node, node.inputs[0])
        assert shape is not None
        axes = self._axes(node, rank)
        if axes is None:
            axes = [index - rank for index, size in enumerate(shape) if size == 1]
        if axis in axes:
            raise self.unfit(node, "it takes away their axis, because there is one only")
        return axis + sum(other > axis for other in axes)

    def _unsqueeze(self, node: ir.Node, axis: Axis) -> Axis:
        given = attribute(node, "axes", None)
        listed = constant_array(input_at(node, 1)) if given is None else np.asarray(given)
        if listed is None:
            raise self.unfit(node, "its axes are computed")
        rank = self._rank(node, node.inputs[0]) + listed.size
        added = {int(index) % rank for index in listed}
        kept = [index for index in range(rank) if index not in added]
        return kept[axis] - rank

    def _reshape(self, node: ir.Node, axis: Axis) -> Axis:
        """The axis of classes in the result: the one with their number, or the one that is left open."""
        sizes = self._target(node)
        wanted = [size for size, _ in sizes]
        rank, classes = len(wanted), self._layer.classes
        before = self.shape(node.inputs[0])
        place = None if before is None else len(before) + axis
        if place is not None and place < rank and wanted[place] == 0:
            return place - rank
        found = [index for index, size in enumerate(wanted) if size == classes and (index or not place)]
        if len(found) > 1 and rank + axis in found:
            found = [rank + axis]
        if found and classes > 1:
            self.reshapes.append(sizes[found[-1]][1])
            return found[-1] - rank
        open_axis = wanted.index(-1) if -1 in wanted else 0
        others = [size for index, size in enumerate(wanted) if index not in (0, open_axis)]
        if open_axis and _are_columns(before, axis) and all(size == 1 for size in others):
            return open_axis - rank
        if 0 < open_axis == rank - 1 and axis == -1 and all(size in (None, 1) for size in wanted[:-1]):
            return -1  # rows are laid out along axes whose sizes are computed
        raise self.unfit(node, f"the new shape {wanted} does not say which is their axis")

    def _target(self, node: ir.Node) -> list[tuple[int | None, Place]]:
        """The shape that a Reshape makes, None for sizes that are computed; and where each of them is."""
        target = input_at(node, 1)
        known = constant_array(target)
        if known is not None:
            return [(int(size), (node, 1, index)) for index, size in enumerate(known)]
        concat = _concat_behind(target)
        if concat is None:
            raise self.unfit(node, "the new shape is computed")
        sizes: list[tuple[int | None, Place]] = []
        for index, value in enumerate(concat.inputs):
            part, shape = constant_array(value), self.shape(value)
            length = shape[0] if shape is not None and len(shape) == 1 else None
            if not isinstance(length, int):
                raise self.unfit(node, "the new shape is computed")
            known_sizes: list[int | None] = [None] * length if part is None else [int(size) for size in part]
            sizes += [(size, (concat, index, element)) for element, size in enumerate(known_sizes)]
        return sizes


def _concat_behind(value: ir.Value | None) -> ir.Node | None:
    """The Concat that puts a shape together, be it in another type of integers."""
    node = None if value is None else value.producer()
    while (
        node is not None and node.domain == "" and node.op_type in ("Cast", "Identity") and node.inputs[0] is not None
    ):
        node = node.inputs[0].producer()
    return node if node is not None and node.domain == "" and node.op_type == "Concat" else None


def _are_columns(shape: tuple[Dim, ...] | None, axis: Axis) -> bool:
    """Whether there is nothing but rows, the axis of classes, and axes of size 1."""
    return shape is not None and all(
        size == 1 for index, size in enumerate(shape) if index not in (0, len(shape) + axis)
    )
