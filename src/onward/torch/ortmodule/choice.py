"""Choices by probabilities, `torch.multinomial`, from the numbers that torch draws for them.

Exporters write Multinomial, which draws other numbers, and always with replacement.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from onward.graph.nodes import attribute
from onward.graph.provenance.program import Operation, operations_of
from onward.graph.sequences import constant, insert
from onward.torch.ortmodule.dropout import DRAWS, EXPONENTIAL, UNIFORM

_CALL = re.compile(r"aten\.multinomial\.default\]\(args = \(%\w+, \d+(?P<again>, True)?(, False)?\), kwargs = {}\)")


def write_choices(model: ir.Model) -> None:
    """Write what `torch.multinomial` does, in place, as long as each node says which operation it belongs to."""
    for operation in operations_of(model):
        called = _CALL.search(operation.record)
        drawing = [node for node in operation.nodes if node.op_type == "Multinomial"]
        if called is None or len(drawing) != 1 or operation.nodes[0].graph is not model.graph:
            continue
        # A constant for the axis may come before the first node that takes the probabilities.
        first = next(node for node in operation.nodes if node.inputs)
        p, old = first.inputs[0], operation.nodes[-1].outputs[0]
        count: int = attribute(drawing[0], "sample_size", 1)
        if p is None or p.shape is None or p.dtype is None:
            continue
        repeated = called["again"] is not None and count > 1
        new = (_with_replacement if repeated else _without_replacement)(p, count, operation.nodes[0], old.name or "")
        new.type, new.shape = old.type, old.shape
        _take_over(new, old, operation)


def _without_replacement(p: ir.Value, count: int, place: ir.Node, name: str) -> ir.Value:
    """The largest of p / e, where all e are drawn from the exponential distribution."""
    weighed = insert(place, "Div", [p, _noise(p, EXPONENTIAL, place, name, p.dtype)], f"{name}/weighed")
    if count == 1:
        return insert(place, "ArgMax", [weighed], f"{name}/chosen", axis=-1, keepdims=1)
    assert isinstance(place.graph, ir.Graph)
    number = constant(f"{name}/count", np.array([count]), place.graph)
    largest = ir.node("TopK", [weighed, number], {"axis": -1}, num_outputs=2, name=f"{name}/largest")
    values, chosen = largest.outputs
    values.name, chosen.name = f"{name}/largest", f"{name}/chosen"
    place.graph.insert_before(place, largest)
    return chosen


def _with_replacement(p: ir.Value, count: int, place: ir.Node, name: str) -> ir.Value:
    """How many of the sums p[0], p[0] + p[1], ... are below u, a part of their last that is drawn in [0, 1)."""
    graph = place.graph
    assert isinstance(graph, ir.Graph)
    assert p.shape is not None
    zero, one, last, before = (
        constant(f"{name}/{word}", np.array(number), graph)
        for word, number in {"zero": [0], "one": [1], "last": [-1], "before": [-2]}.items()
    )
    axis = constant(f"{name}/axis", np.array(-1), graph)
    places = constant(f"{name}/places", np.zeros(count), graph)
    like = insert(place, "Gather", [p, places], f"{name}/like", axis=-1)  # only for its shape
    like.type, like.shape = p.type, ir.Shape([*p.shape[:-1], count])
    drawn = _noise(like, UNIFORM, place, name, ir.DataType.DOUBLE)
    sums = insert(place, "CumSum", [p, axis], f"{name}/sums")
    parts = insert(place, "Div", [sums, insert(place, "Gather", [sums, last], f"{name}/sum", axis=-1)], f"{name}/parts")
    # The last part is 1, and nothing that is drawn lies above it, whatever rounding makes of it.
    limits = insert(place, "Slice", [parts, zero, last, last, one], f"{name}/limits")
    limits = insert(place, "Cast", [limits], f"{name}/wide", to=ir.DataType.DOUBLE.value)
    limits = insert(place, "Unsqueeze", [limits, before], f"{name}/rows")
    drawn = insert(place, "Unsqueeze", [drawn, last], f"{name}/columns")
    below = insert(place, "Less", [limits, drawn], f"{name}/below")
    below = insert(place, "Cast", [below], f"{name}/ones", to=ir.DataType.INT64.value)
    return insert(place, "ReduceSum", [below, last], f"{name}/chosen", keepdims=0)


def _noise(like: ir.Value, kind: str, place: ir.Node, name: str, dtype: ir.DataType | None) -> ir.Value:
    """A node in place of what torch draws, of the shape of `like`; which distribution, its metadata says."""
    assert dtype is not None
    noise = insert(place, "RandomUniformLike", [like], f"{name}/drawn", dtype=dtype.value)
    noise.type, noise.shape = ir.TensorType(dtype), like.shape
    producer = noise.producer()
    assert producer is not None
    producer.metadata_props[DRAWS] = kind
    return noise


def _take_over(new: ir.Value, old: ir.Value, operation: Operation) -> None:
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    name, old.name = old.name, None
    new.name = name
    for node in reversed(operation.nodes):
        assert node.graph is not None
        node.graph.remove(node, safe=True)
