"""Which nodes of a graph WebGPU's providers leave to the processor, and why.

webgpu_kernels.json says which operators, in which version and for which types, the two providers of onnxruntime-web
have: "native" is that of `onnxruntime-web/webgpu`, "jsep" the older one of `onnxruntime-web`. It was measured: sessions
of single nodes, which may not fall back to the processor, could be made or not.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import onnx

from onward.errors import OnwardError
from onward.training.description import opset_of, type_name

PROVIDERS = ("native", "jsep")
_UNKNOWN = ("float64", "bfloat16", "complex64", "complex128")


@functools.cache
def kernels() -> dict[str, Any]:
    """The table."""
    return json.loads(resources.files("onward.edge").joinpath("webgpu_kernels.json").read_text("utf-8"))


def placement(model: onnx.ModelProto) -> dict[str, Any]:
    """For each provider: what stays on the processor, by operator and reason, with the names of the nodes (or of
    their first outputs).

    Nodes inside of loops and branches are not looked at: these run on the processor as a whole.
    """
    types, opset = _types(model), opset_of(model)
    found: dict[str, dict[tuple[str, str], list[str]]] = {provider: {} for provider in PROVIDERS}
    for node in model.graph.node:
        for provider, reasons in found.items():
            why = _refusal(node, opset, types, kernels()[provider])
            if why is not None:
                reasons.setdefault((node.op_type, why), []).append(node.name or node.output[0])
    return {
        "nodes": len(model.graph.node),
        **{
            provider: [{"operator": key[0], "why": key[1], "nodes": names} for key, names in sorted(reasons.items())]
            for provider, reasons in found.items()
        },
    }


def _refusal(node: onnx.NodeProto, opset: int, types: Mapping[str, str], table: Mapping[str, Any]) -> str | None:
    """Why a node runs on the processor; None where it need not."""
    versions = table.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if versions is None:
        return f"WebGPU has no {node.op_type}"
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    kernel = versions.get(str(_measured(node.op_type, schema.since_version)))
    if kernel is None:
        return f"WebGPU has no {node.op_type} of opset {schema.since_version}"
    for variable, name in _variables(node, schema):
        supported, found = kernel.get(variable), types.get(name)
        if supported is not None and found is not None and found not in supported:
            return f"WebGPU has no {node.op_type} of {found}"
    return None


def _measured(op_type: str, version: int) -> int:
    """The version of an operator that was measured, and is the nearest to this one."""
    known: list[int] = kernels()["measured"][op_type]
    return min(known, key=lambda other: (abs(other - version), other))


def _variables(node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> Iterator[tuple[str, str]]:
    """The variables of types in the declaration of an operator, and the values that they belong to."""
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for index, name in enumerate(names):
            if name and formals:
                yield formals[min(index, len(formals) - 1)].type_str, name


def _types(model: onnx.ModelProto) -> dict[str, str]:
    graph = model.graph
    values = [*graph.input, *graph.output, *graph.value_info]
    types = {x.name: x.type.tensor_type.elem_type for x in values if x.type.HasField("tensor_type")}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    return {name: type_name(element) for name, element in types.items() if element}


def require_narrow(model: onnx.ModelProto, title: str) -> None:
    """Refuse types that WebGPU's builds of onnxruntime have no kernels for, not even on the processor."""
    wide = {name: kind for name, kind in _types(model).items() if kind in _UNKNOWN}
    node = next((node for node in model.graph.node if wide.keys() & {*node.input, *node.output}), None)
    if node is not None:
        kind = next(wide[name] for name in (*node.input, *node.output) if name in wide)
        raise OnwardError(
            f"WebGPU has no {kind}, which node {node.name!r} ({node.op_type}) of the {title} graph computes with: "
            "convert the model to float32, or export it with target='wasm'"
        )


def in_words(report: Mapping[str, Any], provider: str) -> str:
    """The report of one graph in words."""
    lines = [f"{row['why']}: {len(row['nodes'])} ({', '.join(row['nodes'][:3])} ...)" for row in report[provider]]
    count = sum(len(row["nodes"]) for row in report[provider])
    return "\n".join([f"{count} of {report['nodes']} nodes run on the processor", *lines])
