"""The forward and the backward graph as parts of one, and what is at their borders."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onward.graph.finish import finish
from onward.graph.naming import free_name
from onward.graph.nodes import all_values, is_used, outer_values
from onward.graph.shapes import Dim, dims, is_placeholder
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.order import write_in_order_of_use


@dataclass(frozen=True)
class PhaseInfo:
    """The names at the borders of both graphs; their roles are in the signatures of the graphs, too."""

    inputs: list[str]  # of the model, in its order
    parameters: list[str]  # initializers that are inputs of the graphs, in the order asked for
    outputs: list[str]  # of the model, in its order
    output_gradients: dict[str, str]  # output that has a gradient -> input of the backward graph
    gradients: dict[str, str]  # input or parameter -> output of the backward graph
    kept: list[str]  # outputs of the forward and inputs of the backward graph; some may be outputs of the model, too
    statistics: dict[str, str] = field(default_factory=dict)  # new value -> running statistic, an input
    random: dict[str, Role] = field(default_factory=dict)  # inputs for what the forward graph draws


def forward_part(whole: ir.Model, info: PhaseInfo, packed: Mapping[str, str]) -> onnx.ModelProto:
    """`packed` are masks, which are kept as booleans, and what these are called."""
    model = whole.clone()
    graph = model.graph
    for name, title in packed.items():
        graph.append(_cast(outer_values(graph)[name], ir.DataType.BOOL, title))
    roles = _input_roles(info)
    outputs = dict.fromkeys(info.outputs, Role.OUTPUT) | dict.fromkeys(info.statistics, Role.BUFFER)
    outputs = dict.fromkeys(info.kept, Role.ACTIVATION) | outputs  # what is both has the role of an output
    names = [*info.outputs, *info.statistics, *(name for name in info.kept if outputs[name] is Role.ACTIVATION)]
    values = outer_values(graph)
    _set(graph.outputs, [values[name] for name in names])
    _set(graph.inputs, [values[name] for name in roles])
    signature = Signature(
        "forward",
        inputs=roles,
        outputs={name: outputs[name] for name in names},
        links=info.statistics,
        initial={name: 0 for name, role in info.random.items() if role is Role.SEED},
        parameters=list(dict.fromkeys([*info.parameters, *info.statistics.values()])),
    )
    return _finished(model, signature)


def backward_part(whole: ir.Model, info: PhaseInfo, packed: Mapping[str, str]) -> onnx.ModelProto:
    model = whole.clone()
    graph = model.graph
    values = outer_values(graph)
    _set(graph.outputs, [values[name] for name in info.gradients.values()])
    sizes = _Sizes(graph)
    originals = {title: name for name, title in packed.items()}
    first = graph[0]
    for name in info.kept:
        old = values[originals.get(name, name)]
        new = values[name] = ir.Value(name=name, type=old.type, shape=sizes.named(old))
        if name in originals:
            assert old.dtype is not None
            new.type = ir.TensorType(ir.DataType.BOOL)
            unpack = _cast(new, old.dtype, originals[name])
            graph.insert_before(first, unpack)
            new = unpack.outputs[0]
        old.name = None
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    seeds = list(info.output_gradients.values())
    roles = dict.fromkeys(seeds, Role.GRADIENT) | dict.fromkeys(info.kept, Role.ACTIVATION)
    others = _input_roles(info)
    inputs = [values[name] for name in (*roles, *others)]
    _set(graph.inputs, inputs)
    write_in_order_of_use(model)
    used = [value for value in inputs if value.name in roles or is_used(value)]
    _set(graph.inputs, used)
    signature = Signature(
        "backward",
        inputs={value.name or "": (roles | others)[value.name or ""] for value in used},
        outputs=dict.fromkeys(info.gradients.values(), Role.GRADIENT),
        links=_gradient_links(info),
    )
    return _finished(model, signature)


def gradient_part(whole: ir.Model, info: PhaseInfo) -> onnx.ModelProto:
    """Both at once: all inputs and the gradients of outputs go in, gradients come out."""
    model = whole.clone()
    values = outer_values(model.graph)
    roles = _input_roles(info) | dict.fromkeys(info.output_gradients.values(), Role.GRADIENT)
    _set(model.graph.inputs, [values[name] for name in roles])
    _set(model.graph.outputs, [values[name] for name in info.gradients.values()])
    outputs = dict.fromkeys(info.gradients.values(), Role.GRADIENT)
    return _finished(model, Signature("gradient", roles, outputs, links=_gradient_links(info)))


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    node = ir.node("Cast", [value], {"to": int(dtype)}, name=name)
    result = node.outputs[0]
    result.name, result.type = name, ir.TensorType(dtype)
    result.shape = None if value.shape is None else value.shape.copy()
    return node


class _Sizes:
    """Names for sizes that inference has only numbered: each run of it counts anew, and must not meet the old ones."""

    def __init__(self, graph: ir.Graph) -> None:
        self._taken: set[str | None] = {
            dim for value in all_values(graph) for dim in dims(value) or () if isinstance(dim, str)
        }
        self._names: dict[str, str] = {}

    def named(self, value: ir.Value) -> ir.Shape | None:
        """The shape of a value; sizes that were equal still are."""
        known = dims(value)
        return None if known is None else ir.Shape([self._name(dim) for dim in known])

    def _name(self, dim: Dim) -> Dim:
        if not isinstance(dim, str) or not is_placeholder(dim):
            return dim
        if dim not in self._names:
            self._names[dim] = free_name("kept", self._taken)
        return self._names[dim]


def _input_roles(info: PhaseInfo) -> dict[str, Role]:
    """The inputs of the forward graph, in order."""
    trained = {name: Role.PARAMETER if name in info.gradients else Role.FROZEN for name in info.parameters}
    statistics = dict.fromkeys(info.statistics.values(), Role.BUFFER)
    return dict.fromkeys(info.inputs, Role.INPUT) | trained | statistics | info.random


def _gradient_links(info: PhaseInfo) -> dict[str, str]:
    given = {gradient: output for output, gradient in info.output_gradients.items()}
    return given | {gradient: name for name, gradient in info.gradients.items()}


def _finished(model: ir.Model, signature: Signature) -> onnx.ModelProto:
    model.metadata_props[METADATA_KEY] = signature.to_json()
    write_in_order_of_use(model)
    return finish(model)


def _set(border: MutableSequence[ir.Value], values: Sequence[ir.Value]) -> None:
    border.clear()
    border.extend(values)
