"""All that a program has to know of an exported folder, as plain JSON: nothing of it needs a library to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir

from onward.edge.folder import FORMAT, VERSION
from onward.edge.models import Models
from onward.edge.placement import kernels, placement, require_narrow
from onward.edge.weights import Place
from onward.optim.schedules import Schedule
from onward.runtime.refusal import labels_in
from onward.signature import Role, Signature
from onward.training.description import describe_value, opset_of, type_name, versions

_STATE = (Role.PARAMETER, Role.SLOT, Role.BUFFER)


def describe(
    models: Models,
    optimizer: str,
    *,
    target: str,
    learning_rate: float,
    schedule: Schedule | None,
    classes: list[str] | None,
    seed: int,
) -> dict[str, Any]:
    """All but the files, which are written later."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "target": target,
        "made_with": versions(),
        "opset": opset_of(models.step),
        "optimizer": {"name": optimizer, "learning_rate": learning_rate},
        "schedule": None if schedule is None else schedule.describe(),
        "classes": classes,
        **_interface(models, seed),
        "webgpu": _placement(models) if target == "webgpu" else None,
    }


def _interface(models: Models, seed: int) -> dict[str, Any]:
    """The inputs and outputs of the graphs, what each is for, and what the state begins with."""
    signature, step = models.signature, models.step.graph
    values = {value.name: value for value in (*step.input, *step.output)}

    def tensors(names: Iterable[str]) -> list[dict[str, Any]]:
        return [describe_value(values[name]) for name in names]

    seeds = signature.input_names(Role.SEED)
    labels = labels_in(node.name for node in step.node)
    return {
        "inputs": tensors(signature.input_names(Role.INPUT)),
        "targets": [
            {**target, **({"labels": labels[target["name"]]} if target["name"] in labels else {})}
            for target in tensors(models.targets)
        ],
        "outputs": tensors(signature.output_names(Role.OUTPUT)),
        "loss": tensors(signature.output_names(Role.LOSS))[0],
        "predictions": models.predictions,
        "activation": models.activation,
        "learning_rate": tensors(signature.input_names(Role.LEARNING_RATE))[0],
        "step": tensors(signature.input_names(Role.STEP))[0],
        "seed": {**tensors(seeds)[0], "initial": seed} if seeds else None,
        "state": [_state(signature, name, values[name]) for name in signature.input_names(*_STATE)],
        "evaluation": _borders(models.evaluation),
        "inference": _borders(models.inference),
    }


def _placement(models: Models) -> dict[str, Any]:
    """What WebGPU leaves to the processor; OnwardError where it refuses a graph."""
    graphs = {"step": models.step, "eval": models.evaluation, "inference": models.inference}
    for name, graph in graphs.items():
        require_narrow(graph, name)
    return {
        "measured_with": kernels()["measured_with"],
        "graphs": {name: placement(graph) for name, graph in graphs.items()},
    }


def describe_frozen(places: Mapping[str, tuple[ir.Value, Place]]) -> list[dict[str, Any]]:
    """The weights in the shared file."""
    described = []
    for name, (value, place) in places.items():
        tensor = value.const_value
        assert tensor is not None
        kind = {"type": type_name(tensor.dtype), "shape": list(tensor.shape.numpy())}
        described.append({"name": name, **kind, "offset": place.offset, "bytes": place.length})
    return described


def _state(signature: Signature, name: str, value: onnx.ValueInfoProto) -> dict[str, Any]:
    role = signature.inputs[name]
    following = [output for output in signature.outputs if signature.links.get(output) == name]
    described = {**describe_value(value), "role": role.value, "next": following[0]}
    if role is not Role.SLOT:
        return described
    parameter = signature.links[name]
    return {**described, "parameter": parameter, "slot": signature.kinds[name], "initial": signature.initial[name]}


def _borders(model: onnx.ModelProto) -> dict[str, Any]:
    graph = model.graph
    outputs = [describe_value(value) for value in graph.output]
    return {"inputs": [value.name for value in graph.input], "outputs": outputs}
