"""Read and change graphs that are protos. Private, but users' own blocks import it from the original."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx

from onward.errors import OnwardError, UnknownValueError
from onward.graph.naming import listed
from onward.onnxblock import model_accessor

_outside_of_models = itertools.count(1)


def get_output_from_output_name(model: onnx.ModelProto, output_name: str) -> onnx.ValueInfoProto:
    """The graph output of that name."""
    return _find(model.graph.output, output_name, "output")


def get_input_from_input_name(model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """The graph input of that name."""
    return _find(model.graph.input, input_name, "input")


def get_value_info_for_name(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    """What the graph says about the type and shape of a value."""
    found = model_accessor.find_value_info(model.graph, name)
    if found is None:
        raise UnknownValueError(f"The model has no output, input or value info called {name!r}.")
    return found


def generate_graph_name(token: str) -> str:
    """A new name ``onnx::<token>::<n>``, counted in the model that is being built."""
    accessor = model_accessor.active()
    return f"onnx::{token}::{next(_outside_of_models)}" if accessor is None else accessor.numbered_name(token)


def register_graph_outputs(model: onnx.ModelProto, output_names: str | Sequence[str]) -> None:
    """Make these values the outputs of the graph, in place of those it has."""
    names = listed("what a block returns", output_names, one=True)
    if not names:
        raise OnwardError("a block returns the names of the outputs of the model; this one returned none")
    typed = {value.name for value in model.graph.value_info}
    # An output that becomes an inner value keeps its type, which inference may not find behind custom operators.
    model.graph.value_info.extend(value for value in model.graph.output if value.name not in typed)
    known = {value.name: value for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    outputs = []
    for name in dict.fromkeys(names):
        if name not in known:
            raise UnknownValueError(f"The provided name {name} is not a graph value info or a graph output.")
        output = onnx.ValueInfoProto()
        output.CopyFrom(known[name])
        outputs.append(output)
    del model.graph.output[:]
    model.graph.output.extend(outputs)


def node_arg_exists(model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Whether a node of the graph takes or returns a value of that name."""
    return any(node_arg_name in node.input or node_arg_name in node.output for node in model.graph.node)


def _find(values: Sequence[onnx.ValueInfoProto], name: str, what: str) -> onnx.ValueInfoProto:
    for value in values:
        if value.name == name:
            return value
    raise UnknownValueError(f"The model has no {what} called {name!r}.")
