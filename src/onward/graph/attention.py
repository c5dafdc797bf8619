"""What onnx's inference sees in place of Attention: products and reshapes of which it gets the sizes right.

Of Attention itself, onnx 1.23 takes sizes that have no number for 0: the widths of queries, keys and values of rank 3,
and the number of keys.
"""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
from onnx import helper

from onward.graph.nodes import input_at, is_used
from onward.graph.shapes import dims

_RANK = "onward.attention.rank"  # in the metadata of nodes, while inference runs


def is_misjudged(node: ir.Node) -> bool:
    """Whether a node is an Attention of which onnxruntime, with onnx's inference, believes a result to be empty."""
    if node.op_type != "Attention" or node.domain != "":
        return False
    shapes = [dims(output) if is_used(output) else None for output in node.outputs]
    flat = [shape for shape in shapes[:1] if shape is not None and len(shape) == 3]
    scores = [shape for shape in shapes[3:] if shape is not None]
    return any(not isinstance(shape[-1], int) for shape in (*flat, *scores))


class Attentions:
    """The Attention nodes of a model, and the ranks of their queries: the operator does not say which it takes."""

    def __init__(self, model: ir.Model) -> None:
        self._nodes = [node for node in model.graph.all_nodes() if node.op_type == "Attention" and node.domain == ""]
        self._ranks: dict[ir.Node, int] = {}

    def learn(self) -> bool:
        """After an inference: take the ranks over that are known now; whether there are more of them."""
        before = len(self._ranks)
        for node in self._nodes:
            query = input_at(node, 0)
            shape = None if query is None else dims(query)
            if shape is not None and len(shape) in (3, 4):
                self._ranks[node] = len(shape)
        return len(self._ranks) > before

    def mark(self) -> None:
        """Write the ranks into the metadata of the nodes, for `show_attentions`."""
        for node, rank in self._ranks.items():
            node.metadata_props[_RANK] = str(rank)

    def unmark(self) -> None:
        for node in self._ranks:
            node.metadata_props.pop(_RANK, None)


def show_attentions(graph: onnx.GraphProto, unknown: str) -> bool:
    """Replace Attention nodes, in place; `unknown` is an input of which nothing is known. Whether there were any."""
    found = [i for i, node in enumerate(graph.node) if node.op_type == "Attention" and node.domain == ""]
    for index in reversed(found):
        node = graph.node[index]
        rank = next((int(entry.value) for entry in node.metadata_props if entry.key == _RANK), None)
        stand_ins = _StandIns(node)
        if rank is None:
            stand_ins.of_any_rank(unknown)
        else:
            stand_ins.of_rank(rank)
        del graph.node[index]
        for number, made in enumerate(stand_ins.nodes):
            graph.node.insert(index + number, made)
    return bool(found)


class _StandIns:
    """Nodes whose results have the names, types and sizes of those of an Attention node."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self._inputs = (*node.input, *[""] * 6)
        self._outputs = (*node.output, *[""] * 4)
        self._attributes = {attribute.name: attribute.i for attribute in node.attribute}
        self._prefix = next((name for name in node.output if name), "")
        self.nodes: list[onnx.NodeProto] = []

    def of_any_rank(self, unknown: str) -> None:
        """Only ranks and types."""
        query, key, value = self._inputs[:3]
        y, *others = self._outputs[:4]
        if y:
            self._add("Tile", [query, unknown], y)
        for x, output in zip((key, value, query), others, strict=True):
            if output:
                row = self._add("Reshape", [x, self._constant([1, 1, 1, -1])])
                self._add("Tile", [row, unknown], output)

    def of_rank(self, rank: int) -> None:
        """Keys and values behind those of the past; a sum over keys for each query and head."""
        query, key, value, _, past_key, past_value = self._inputs[:6]
        y, present_key, present_value, scores = self._outputs[:4]
        if rank == 3:
            query = self._heads(query, "q_num_heads")
            key, value = self._heads(key, "kv_num_heads"), self._heads(value, "kv_num_heads")
        key = self._add("Concat", [x for x in (past_key, key) if x], present_key, axis=2)
        value = self._add("Concat", [x for x in (past_value, value) if x], present_value, axis=2)
        if scores:
            self._product("bhsd,bgtd->bhst", query, key, scores)
        if y and rank == 4:
            self._product("bhsd,bgte->bhse", query, value, y)
        elif y:
            mean = self._product("bhsd,bgte->bhse", query, value)
            rows = self._add("Transpose", [mean], perm=[0, 2, 1, 3])
            self._add("Reshape", [rows, self._constant([0, 0, -1])], y)

    def _product(self, equation: str, a: str, b: str, output: str = "") -> str:
        """Of the type of `a`; Einsum does not take all that Attention does, nor two types."""
        floats = [self._add("Cast", [x], to=onnx.TensorProto.FLOAT) for x in (a, b)]
        product = self._add("Einsum", floats, equation=equation)
        return self._add("CastLike", [product, a], output)

    def _heads(self, x: str, count: str) -> str:
        """[batch, length, heads * width] as [batch, heads, length, width]."""
        parted = self._constant([0, 0, self._attributes.get(count, 1), -1])
        rows = self._add("Reshape", [x, parted])
        return self._add("Transpose", [rows], perm=[0, 2, 1, 3])

    def _constant(self, integers: list[int]) -> str:
        return self._add("Constant", [], value_ints=integers)

    def _add(self, op_type: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        output = output or f"{self._prefix}/attention_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output
