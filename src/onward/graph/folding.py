"""Compute the arithmetic on shapes that exporters leave in a file, so that inference sees through it.

A branch that such arithmetic decides takes the place of its If: the older torch exporter asks in this way for the rank
of a tensor or for a dimension of 1. So does the one branch that returns the rank which what follows needs.

Only integer and boolean results are stored. They cannot come from a weight: the leaves are integers, known shapes and
scalars that an exporter baked in, so training never changes them, and no parameter is ever folded away.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onward.graph.changing import CHANGES
from onward.graph.nodes import attribute, constant_of, subgraphs
from onward.graph.parameters import is_baked_scalar
from onward.graph.shapes import dims, is_floating, static_shape, static_size

_FOLDABLE = frozenset(
    """Abs Add And Cast CastLike Ceil Clip Concat ConstantOfShape Div Equal Expand Flatten Floor Gather GatherElements
    GatherND Greater GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg NonZero Not Or Pow Range ReduceMax
    ReduceMin ReduceProd ReduceSum Reshape Round ScatterElements ScatterND Shape Size Slice Split Sqrt Squeeze Sub Sum
    Tile Transpose Unsqueeze Where Xor""".split()
)
# Their result can be much larger than what they are computed from.
_GROWING = frozenset({"ConstantOfShape", "Expand", "Range", "Tile"})
# Take elements of a shape as they are.
_SELECTIONS = ("Gather", "Slice")
_UNKNOWN = -(2**62)  # stands for a size that is not known; never that of a tensor
_LARGEST = 1024  # elements; shapes, axes, pads and splits are far smaller, masks and tables are not worth storing


def fold_shape_arithmetic(model: ir.Model) -> bool:
    """Replace integers that are known by initializers of the same name, in place; whether there were any."""
    opset = model.opset_imports.get("", 1)
    computed: dict[ir.Value, np.ndarray] = {}
    graphs, changed = [model.graph], False
    for graph in graphs:
        changed = _fold(graph, model.graph, opset, computed) or changed
        graphs.extend(body for node in graph for body in subgraphs(node))
    return changed


def _fold(graph: ir.Graph, main: ir.Graph, opset: int, computed: dict[ir.Value, np.ndarray]) -> bool:
    changed = False
    for node in list(graph):
        if node.op_type == "If" and node.domain == "":
            changed = _inline_decided(node, computed, graph) or changed
            continue
        results = _evaluate(node, opset, computed)
        if results is None:
            continue
        computed.update(zip(node.outputs, results, strict=True))
        if not any(is_floating(output) or output.is_graph_output() for output in node.outputs):
            for output in node.outputs:
                _replace(output, computed[output], main)
            graph.remove(node, safe=True)
            changed = True
    return changed


def _evaluate(node: ir.Node, opset: int, computed: dict[ir.Value, np.ndarray]) -> Sequence[np.ndarray] | None:
    if node.domain != "" or node.op_type not in _FOLDABLE or any(output.dtype is None for output in node.outputs):
        return None
    if node.op_type in ("Shape", "Size"):
        return _shape_or_size(node)
    if node.op_type in _GROWING and (static_size(node.outputs[0]) or _LARGEST + 1) > _LARGEST:
        return None
    arrays = [None if x is None else computed.get(x, _leaf(x)) for x in node.inputs]
    if node.op_type in _SELECTIONS and arrays[0] is None:
        arrays[0] = _partial_shape(node.inputs[0])
    if any(x is not None and array is None for x, array in zip(node.inputs, arrays, strict=True)):
        return None
    if node.op_type == "Div" and any(array is not None and np.any(array < 0) for array in arrays):
        return None  # the standard truncates a negative quotient, the evaluator rounds it down
    feeds = {x.name or "": array for x, array in zip(node.inputs, arrays, strict=True) if x is not None}
    try:
        results = ReferenceEvaluator(ir.to_proto(node), opsets={"": opset}).run(None, feeds)
    except Exception:
        return None  # not computable here; the node stays, and whoever runs the model decides
    arrays_out = [np.asarray(result) for result in results]
    pairs = zip(node.outputs, arrays_out, strict=True)
    fits = all(output.dtype.numpy() == array.dtype and array.size <= _LARGEST for output, array in pairs)  # type: ignore[union-attr]
    known = not any(array.dtype == np.int64 and np.any(array == _UNKNOWN) for array in arrays_out)
    return arrays_out if fits and known else None


def _partial_shape(value: ir.Value | None) -> np.ndarray | None:
    """What a Shape node returns, where some sizes are known: one of those may be all that is wanted."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Shape" or node.domain or node.inputs[0] is None:
        return None
    sizes = dims(node.inputs[0])
    if sizes is None:
        return None
    numbers = [size if isinstance(size, int) else _UNKNOWN for size in sizes]
    return np.array(numbers[attribute(node, "start", 0) : attribute(node, "end", len(numbers))], np.int64)


def _shape_or_size(node: ir.Node) -> list[np.ndarray] | None:
    if node.op_type == "Size":
        shape = None if node.inputs[0] is None else static_shape(node.inputs[0])
        return None if shape is None else [np.array(np.prod(shape, dtype=np.int64))]
    sizes = _partial_shape(node.outputs[0])
    return None if sizes is None or np.any(sizes == _UNKNOWN) else [sizes]


def _leaf(value: ir.Value) -> np.ndarray | None:
    if CHANGES in value.metadata_props or (is_floating(value) and not is_baked_scalar(value)):
        return None
    if (static_size(value) or 0) > _LARGEST:
        return None
    return constant_of(value)


def _inline_decided(node: ir.Node, computed: dict[ir.Value, np.ndarray], graph: ir.Graph) -> bool:
    branch = _decided_branch(node, computed)
    if branch is None:
        return False
    inner_nodes = list(branch)
    branch.remove(inner_nodes)
    # Two branches may use a name for different values; in one graph it has to be unique.
    for value in (value for inner in inner_nodes for value in inner.outputs):
        value.name = f"{node.outputs[0].name}/{value.name}"
    graph.insert_before(node, inner_nodes)
    for output, inner in zip(node.outputs, list(branch.outputs), strict=True):
        if output.is_graph_output():
            identity = ir.node("Identity", [inner], name=f"{output.name}/Identity")
            graph.insert_before(node, identity)
            name, inner = output.name, identity.outputs[0]
            output.name = None
            inner.name, inner.type, inner.shape = name, output.type, output.shape
        output.replace_all_uses_with(inner, replace_graph_outputs=True)
    branch.outputs.clear()
    graph.remove(node, safe=True)
    return True


def _decided_branch(node: ir.Node, computed: dict[ir.Value, np.ndarray]) -> ir.Graph | None:
    """The branch that is always taken: the condition is known, or the other one returns a rank that cannot be used."""
    condition = node.inputs[0]
    assert condition is not None
    then_branch, else_branch = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    decided = computed.get(condition, _leaf(condition))
    if decided is not None:
        return then_branch if decided.all() else else_branch
    possible = [branch for branch in (then_branch, else_branch) if _returns_ranks_of(branch, node)]
    return possible[0] if len(possible) == 1 else None


def _returns_ranks_of(branch: ir.Graph, node: ir.Node) -> bool:
    shapes = ((inner.shape, output.shape) for inner, output in zip(branch.outputs, node.outputs, strict=True))
    return all(a is None or b is None or len(a) == len(b) for a, b in shapes)


def _replace(output: ir.Value, array: np.ndarray, graph: ir.Graph) -> None:
    name = output.name
    if output.graph is not graph:
        # Two bodies may use a name for different values; among initializers it has to be unique.
        name = next(n for i in itertools.count() if (n := f"{output.name}/folded_{i}") not in graph.initializers)
    tensor = ir.tensor(array, dtype=output.dtype, name=name)
    shape = ir.Shape(array.shape)
    constant = ir.Value(name=name, type=output.type, shape=shape, const_value=tensor)
    output.replace_all_uses_with(constant)
    output.name = None
    graph.register_initializer(constant)
