"""What the forward pass keeps for the backward pass: few bytes, from which the rest is cheap to compute again.

Each value that the backward pass uses is either kept, which costs its bytes, or computed once more, which costs time
and needs the inputs of its node in turn. The best choice for all of them together is a minimum cut: a value is two
places, whether it is there in the backward pass, and whether it is computed there.

    source -- time --> computed(v) -- bytes --> there(v) -- no limit --> computed(w) of each w that v is an input of
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import onnx_ir as ir

from onward.graph.nodes import attribute, subgraphs, used_values
from onward.graph.shapes import Dim, dims, static_size
from onward.training.mask import is_mask
from onward.training.phases.flow import SINK, SOURCE, UNLIMITED, Network

# An element more or less does not matter, but each tensor costs a little, whatever its size.
_TENSOR = 256
_SMALL = 4096  # bytes
_ANY_SIZE = 64  # what a dimension without a number counts for
_ANY_RANK = 4096  # elements of a tensor of unknown rank

# What onnxruntime does without touching the elements, or fuses with what follows.
_VIEWS = frozenset("Flatten Identity Reshape Shape Size Squeeze Unsqueeze".split())
# One pass over memory: worth it where half as many bytes need not be kept.
_PASSES = frozenset(
    "Abs Add And Cast CastLike Ceil Clip ConstantOfShape Div Equal Expand Floor Greater GreaterOrEqual HardSigmoid "
    "LeakyRelu Less LessOrEqual Max Min Mul Neg Not Or PRelu Reciprocal Relu Sign Sqrt Sub Sum ThresholdedRelu "
    "Transpose Where Xor".split()
)
_PASS = 2
# Arithmetic with shapes: nothing, as long as it is small.
_ARITHMETIC = _PASSES | frozenset(
    "Concat Gather GatherElements Mod NonZero Range ReduceMax ReduceMin ReduceProd ReduceSum Slice Split Tile".split()
)


def values_to_keep(
    graph: ir.Graph, cotangents: Collection[ir.Value], results: Collection[ir.Value], gradients: Iterable[ir.Value]
) -> list[ir.Value]:
    """What the forward pass has to return besides its results, in the order of the graph.

    The result may contain some of `results`. Inputs of the graph and initializers are there in both passes.
    """
    late = _depending_on(graph, cotangents)
    wanted = {value for node in graph if node in late for value in used_values(node)} | set(gradients)
    needed = [value for value in wanted if value.producer() not in late and _is_computed(value, graph)]
    early = _needed_by(graph, results)
    network = Network()
    there: dict[ir.Value, int] = {}
    computed: dict[ir.Value, int] = {}
    waiting = list(needed)
    while waiting:
        value = waiting.pop()
        if value in there:
            continue
        node = value.producer()
        assert node is not None
        there[value], computed[value] = network.place(), network.place()
        network.connect(computed[value], there[value], _cost_of_keeping(value, results, node in early))
        time = _cost_of_computing(node, value) if node in early else 0  # what the results do not need, nobody computes
        if time:
            network.connect(SOURCE, computed[value], time)
        if time < UNLIMITED:
            waiting.extend(before for before in used_values(node) if _is_computed(before, graph))
    for value, place in computed.items():
        for before in used_values(_producer(value)):
            if before in there:
                network.connect(there[before], place, UNLIMITED)
    for value in needed:
        network.connect(there[value], SINK, UNLIMITED)
    behind = network.cut()
    kept = {value for value in there if there[value] in behind and computed[value] not in behind}
    return [output for node in graph for output in node.outputs if output in kept]


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _is_computed(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether a value of the graph itself is the output of a node."""
    node = value.producer()
    return node is not None and node.graph is graph


def _depending_on(graph: ir.Graph, values: Collection[ir.Value]) -> set[ir.Node]:
    found, changed = set(), set(values)
    for node in graph:
        if any(value in changed for value in used_values(node)):
            found.add(node)
            changed.update(node.outputs)
    return found


def _needed_by(graph: ir.Graph, results: Collection[ir.Value]) -> set[ir.Node]:
    found, wanted = set(), set(results)
    for node in reversed(graph):
        if any(output in wanted for output in node.outputs):
            found.add(node)
            wanted.update(used_values(node))
    return found


def _cost_of_keeping(value: ir.Value, results: Collection[ir.Value], early: bool) -> int:
    if value.type is None:
        return UNLIMITED  # an input of a graph has a type
    if value in results:
        return _TENSOR  # it is returned anyway
    size = math.prod(map(_size, dims(value) or ())) if is_mask(value) else _bytes(value)
    # Of equal ones, rather the original than a view, and what the model itself computes.
    return _TENSOR + size + (1 if _is_view(_producer(value)) or not early else 0)


def _cost_of_computing(node: ir.Node, value: ir.Value) -> int:
    """What it costs to compute a value a second time, in bytes that may be kept instead."""
    if node.domain != "" or subgraphs(node):
        return UNLIMITED
    if _is_view(node):
        return 0
    if node.op_type in _ARITHMETIC and all(map(_is_small, (value, *used_values(node)))):
        return 0
    return _bytes(value) // _PASS + 1 if node.op_type in _PASSES else UNLIMITED


def _is_view(node: ir.Node) -> bool:
    if node.domain == "" and node.op_type == "Transpose":
        order: list[int] = list(attribute(node, "perm", ()))
        first = list(range(len(order)))
        # Products take operands whose last two axes are exchanged as they are.
        return len(order) > 1 and order == [*first[:-2], first[-1], first[-2]]
    return node.domain == "" and node.op_type in _VIEWS


def _is_small(value: ir.Value) -> bool:
    return static_size(value) is not None and _bytes(value) <= _SMALL


def _bytes(value: ir.Value) -> int:
    """How large a value is likely to be."""
    known = dims(value)
    elements = _ANY_RANK if known is None else math.prod(_size(dim) for dim in known)
    return math.ceil(elements * (8 if value.dtype is None or value.dtype.is_string() else value.dtype.itemsize))


def _size(dim: Dim) -> int:
    """A dimension as a number; names may be products, as `batch*36`."""
    if isinstance(dim, int):
        return dim
    factors = (dim or "?").split("*")
    return math.prod(int(factor) if factor.isdigit() else _ANY_SIZE for factor in factors)
