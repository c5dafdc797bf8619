"""Turn a graph that was built here into a model that others can load."""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.cleanup import remove_unused
from onward.graph.guard import keep_guards
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values
from onward.graph.opsets import accepted_by_runtime
from onward.graph.parameters import forget_constant_nodes
from onward.graph.promise import check_promises
from onward.graph.propagation import name_sizes
from onward.graph.proto import to_proto
from onward.graph.statistics import own_statistics
from onward.graph.vectors import turn_products

# Protobuf cannot serialize more; larger models keep their weights in external files.
LARGEST_PROTO = 2**31 - 2**20


def finish(model: ir.Model) -> onnx.ModelProto:
    """Remove what nobody uses, verify all types and shapes, and serialize."""
    remove_unused(model)
    infer_shapes(model)
    if turn_products(model):
        remove_unused(model)
    own_statistics(model)
    check_promises(model.graph)
    name_sizes(model.graph)
    forget_constant_nodes(model)
    for graph in model.graphs():
        keep_guards(graph)
    opset = model.opset_imports.get("", 1)
    lowest = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)], ignore_unknown=True)
    # 4 is the first IR version whose initializers need not be inputs too.
    model.ir_version = min(max(model.ir_version, lowest, 4), accepted_by_runtime()[1])
    weights = [value.const_value for value in model.graph.initializers.values()]
    if sum(tensor.nbytes for tensor in weights if tensor is not None) < LARGEST_PROTO:
        ir.external_data.load_to_model(model)
    return to_proto(model)


def publish(value: ir.Value, name: str, graph: ir.Graph) -> ir.Value:
    """Make `value` the last output of `graph` under `name`, through an Identity where it already has a public name."""
    if value.producer() is None or value.is_graph_output() or value.graph is not graph:
        node = ir.node("Identity", [value], name=f"{name}/Identity")
        graph.append(node)
        node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
        value = node.outputs[0]
    value.name = name
    graph.outputs.append(value)
    return value


def make_way(op: Builder, names: Collection[str]) -> None:
    """Rename inner values that happen to have names which are about to be published."""
    taken = set(names)
    for value in all_values(op.graph):
        if value.name in taken:
            value.name = op.unique_name(f"{value.name}/inner")


def to_input(value: ir.Value) -> None:
    """Turn an initializer into a graph input without a default."""
    graph = value.graph
    assert graph is not None
    graph.initializers.pop(value.name or "")
    if not value.is_graph_input():
        graph.inputs.append(value)
    value.const_value = None


def fix_defaults(graph: ir.Graph) -> None:
    """Make inputs with a default value plain initializers: the graph may change them, the caller does not."""
    for value in list(graph.inputs):
        if value.is_initializer():
            graph.inputs.remove(value)
