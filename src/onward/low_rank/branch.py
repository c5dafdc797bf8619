"""Write the branch of a low-rank pair beside a layer: y + (x A) B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.graph.constants import is_constant
from onward.graph.naming import free_name
from onward.graph.nodes import take_over
from onward.low_rank.layer import Layer


class Branches:
    """Adds branches to the layers of one model; nodes and values get names that are free in it."""

    def __init__(self, taken: set[str | None]) -> None:
        self._taken = taken

    def add(self, layer: Layer, a: ir.Value, b: ir.Value, *, scaling: float, dropout: float) -> None:
        """Let the result of a layer be y + scaling * (dropout(x) A) B, where it was y.

        The sum comes behind the bias, also behind one that an Add puts in: that is the order of additions in peft, and
        what onnxruntime fuses of the layer stays together.
        """
        scope = f"{a.name}/branch"
        last = _with_bias(layer.node)
        graph = last.graph
        assert graph is not None
        nodes: list[ir.Node] = []

        def emit(operator: str, inputs: Sequence[ir.Value], attributes: dict[str, Any] | None = None) -> ir.Value:
            node = ir.node(operator, inputs, attributes or {}, name=free_name(f"{scope}/{operator}", self._taken))
            node.outputs[0].name = free_name(f"{scope}/{operator}/result", self._taken)
            nodes.append(node)
            return node.outputs[0]

        def constant(number: float | bool, dtype: ir.DataType) -> ir.Value:
            return emit("Constant", [], {"value": ir.tensor(np.array(number).astype(dtype.numpy()), dtype=dtype)})

        x = layer.x
        if dropout:
            x = emit("Dropout", [x, constant(dropout, ir.DataType.FLOAT), constant(True, ir.DataType.BOOL)])
        if layer.transposes_input:
            x = emit("Transpose", [x], {"perm": [1, 0]})
        is_conv = layer.node.op_type == "Conv"
        if is_conv:
            inner = emit("Conv", [x, a], _like(layer.node, skip=("kernel_shape",)))
        else:
            inner = emit("MatMul", [x, a] if layer.side else [a, x])
        factor = scaling * layer.factor
        if factor != 1:  # here, where there are few numbers
            inner = emit("Mul", [inner, constant(factor, layer.weight.dtype)])
        if is_conv:
            outer = emit("Conv", [inner, b], {"group": layer.group} if layer.group > 1 else {})
        else:
            outer = emit("MatMul", [inner, b] if layer.side else [b, inner])

        y = last.outputs[0]
        title, metadata = y.name, dict(y.metadata_props)
        total = emit("Add", [outer, outer])
        take_over(y, total)
        y.name = free_name(f"{title}/without_pair", self._taken)
        y.metadata_props.update(metadata)
        nodes[-1].replace_input_with(0, y)
        graph.insert_after(last, nodes)


def _with_bias(node: ir.Node) -> ir.Node:
    """A node, or the Add behind a MatMul that brings its bias."""
    y = node.outputs[0]
    if node.op_type != "MatMul" or len(y.uses()) != 1 or y.is_graph_output():
        return node
    ((user, index),) = y.uses()
    if user.op_type != "Add" or user.domain or user.graph is not node.graph:
        return node
    return user if is_constant(user.inputs[1 - index]) and _is_vector(user.inputs[1 - index]) else node


def _is_vector(value: ir.Value | None) -> bool:
    """Whether a bias cannot give the sum more axes than the product has."""
    return value is not None and value.shape is not None and len(value.shape) <= 1


def _like(node: ir.Node, skip: Sequence[str]) -> dict[str, Any]:
    """The attributes of a node: where a convolution looks."""
    return {name: attribute.value for name, attribute in node.attributes.items() if name not in skip}
