"""What the attributes of a node hold, as initializers, and its input as the kernels read it."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.parameters import mark_table, mark_weight
from onward.graph.rewriting.registry import RefusedError
from onward.graph.shapes import dims


def numbers(node: ir.Node, name: str) -> np.ndarray:
    """The floats of an attribute, none where it is missing."""
    values: tuple[float, ...] = attribute(node, name, ())
    return np.array(values, np.float32)


def weight(op: Builder, node: ir.Node, name: str, values: np.ndarray) -> ir.Value:
    """A parameter ``<node>.<name>`` that is trained by default."""
    value = _initializer(op, node, name, ir.tensor(values))
    mark_weight(value)
    return value


def setting(op: Builder, node: ir.Node, name: str, values: np.ndarray) -> ir.Value:
    """A parameter ``<node>.<name>`` that is not trained by default."""
    value = _initializer(op, node, name, ir.tensor(values))
    mark_table(value, f"{name} of {node.op_type}")
    return value


def _initializer(op: Builder, node: ir.Node, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    return op.initializer(f"{node.name or node.outputs[0].name}.{name}", tensor)


def class_labels(node: ir.Node) -> list[str] | list[int]:
    """The labels of a classifier, strings or integers."""
    strings: tuple[str, ...] = attribute(node, "classlabels_strings", ())
    integers: tuple[int, ...] = attribute(node, "classlabels_ints", ())
    return list(strings) or list(integers)


def labelled(op: Builder, node: ir.Node, labels: list[str] | list[int], indices: ir.Value) -> ir.Value:
    """The label at each index."""
    return op.Gather(_initializer(op, node, "classlabels", ir.tensor(labels)), indices, axis=0)


def scores(op: Builder, node: ir.Node, value: ir.Value) -> ir.Value:
    """`value` under the name ``<node>.scores``, by which a loss finds what comes before any transformation."""
    value.name = op.unique_name(f"{node.name or node.outputs[0].name}.scores")
    return value


def rows(op: Builder, node: ir.Node, features: int) -> ir.Value:
    """The input as float [N, features], as kernels read it: numbers of any type, and a vector for one row."""
    x = node.inputs[0]
    assert x is not None
    known = dims(x)
    if known is not None and len(known) > 2:
        raise RefusedError(f"its input has rank {len(known)}, and a matrix of rows is expected")
    x = op.cast(x, ir.DataType.FLOAT)
    if known is None or len(known) < 2:
        return op.Reshape(x, [-1, features])
    if isinstance(known[1], int) and known[1] != features:
        raise RefusedError(f"its input has {known[1]} features, but it was made for {features}")
    return x


def table(values: np.ndarray, height: int, name: str) -> np.ndarray:
    """The numbers of an attribute as rows, which must come out even."""
    if height < 1 or not values.size or values.size % height:
        raise RefusedError(f"its attribute {name} has {values.size} numbers, which do not make {height} rows")
    return values.reshape(height, -1)
