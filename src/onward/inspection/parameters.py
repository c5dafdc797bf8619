"""The constants of a model, which of them training changes, and why not the others."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.autodiff.registry import is_nondifferentiable
from onward.autodiff.sweep import differentiable_path
from onward.graph.nodes import subgraphs
from onward.graph.parameters import parameters as judged
from onward.graph.parameters import was_constant_node
from onward.graph.proto import map_type
from onward.graph.shapes import is_floating, static_shape
from onward.inspection.content import Parameter


def parameters_of(
    prepared: ir.Model, loaded: ir.Model, wrt: Collection[str] | None, outputs: Sequence[ir.Value]
) -> list[Parameter]:
    """Every constant that the file has; trainable are those in `wrt`, or by default, that a gradient can reach."""
    inner = {name for graph in loaded.graphs() if graph is not loaded.graph for name in graph.initializers}
    constants = {value.name for value in prepared.graph.initializers.values() if was_constant_node(value)}
    in_file = inner | constants | set(loaded.graph.initializers)
    floating = [value for value in prepared.graph.initializers.values() if is_floating(value)]
    _, carrying = differentiable_path(prepared.graph, floating, outputs)
    others = [output for output in prepared.graph.outputs if is_floating(output) and output not in outputs]
    reaching = {end.name or "?": differentiable_path(prepared.graph, floating, [end])[1] for end in others}
    found = []
    owners = {body: node for node in prepared.graph.all_nodes() for body in subgraphs(node)}
    for candidate in judged(prepared):
        value = candidate.value
        if candidate.name.startswith("const/") or not (is_floating(value) or value.name in in_file):
            continue  # onward made it, from shapes and other integers
        trainable, reason = candidate.trainable, candidate.reason
        if wrt is not None:
            trainable = candidate.name in wrt
            reason = "named in `wrt`" if trainable else "not named in `wrt`"
        if trainable and value not in carrying:
            elsewhere = [name for name, reached in reaching.items() if value in reached]
            trainable, reason = False, _why_unreached(value, elsewhere, prepared.graph, owners)
        found.append(_described(value, trainable, reason, inner))
    return found


def _described(value: ir.Value, trainable: bool, reason: str, inner: Collection[str]) -> Parameter:
    shape = list(static_shape(value) or ())
    size = math.prod(shape)
    tensor = value.const_value
    nbytes = tensor.nbytes if tensor is not None else _nbytes(value.dtype, size)
    return Parameter(
        name=value.name or "?",
        dtype=dtype_name(value),
        shape=shape,
        size=size,
        nbytes=nbytes,
        trainable=trainable,
        reason=reason,
        source=_source(value, inner),
        used_by=sorted({node.op_type for node, _ in value.uses()}),
    )


def dtype_name(value: ir.Value) -> str:
    """`float32` for a tensor, the whole type for what is none."""
    if isinstance(value.type, ir.TensorType):
        return {"FLOAT": "float32", "DOUBLE": "float64"}.get(value.type.dtype.name, value.type.dtype.name.lower())
    return map_type(value) or ("unknown type" if value.type is None else str(value.type))


def _nbytes(dtype: ir.DataType | None, size: int) -> int:
    try:
        return 0 if dtype is None else math.ceil(size * dtype.itemsize)
    except TypeError:
        return 0  # strings have no size of their own


def _source(value: ir.Value, inner: Collection[str]) -> str:
    if value.is_graph_input():
        return "input with default"
    if was_constant_node(value):
        return "Constant node"
    if value.name in inner:
        return "initializer of a subgraph"
    if value.const_value is None or isinstance(value.const_value, ir.ExternalTensor):
        return "external data"
    return "initializer"


def _why_unreached(value: ir.Value, elsewhere: Sequence[str], graph: ir.Graph, owners: dict[ir.Graph, ir.Node]) -> str:
    """Follow a value to the outputs: it has no way there, or none that a derivative takes."""
    if not value.uses() and not value.is_graph_output():
        return "nothing uses it"
    if elsewhere:
        return f"influences {', '.join(map(repr, elsewhere))} only; name that output in `of`"
    seen, waiting, stopping = {value}, [value], []
    while waiting:
        for node, _ in waiting.pop().uses():
            if is_nondifferentiable(node) and node.op_type not in stopping:
                stopping.append(node.op_type)
            outer: ir.Node | None = node
            while outer is not None:
                new = [output for output in outer.outputs if output not in seen]
                seen.update(new)
                waiting.extend(new)
                outer = owners.get(outer.graph) if isinstance(outer.graph, ir.Graph) else None
    if not any(output in seen for output in graph.outputs):
        return "no output depends on it"
    through = f" ({', '.join(stopping)})" if stopping else ""
    return f"every way to the outputs goes through what has no derivative{through}"
