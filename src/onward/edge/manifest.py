"""All that a program has to know of an exported folder, as plain JSON: nothing of it needs a library to read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.edge.models import Models
from onward.edge.weights import Place
from onward.optim import Optimizer
from onward.signature import Role, Signature

_STATE = (Role.PARAMETER, Role.SLOT, Role.BUFFER)


def describe_interface(models: Models, optimizer: Optimizer, seed: int) -> dict[str, Any]:
    """The inputs and outputs of the graphs, what each is for, and what the state begins with."""
    signature, step = models.signature, models.step.graph
    values = {value.name: value for value in (*step.input, *step.output)}

    def tensors(names: Iterable[str]) -> list[dict[str, Any]]:
        return [{"name": name, **_type(values[name])} for name in names]

    seeds = signature.input_names(Role.SEED)
    return {
        "inputs": tensors(signature.input_names(Role.INPUT)),
        "targets": tensors(models.targets),
        "outputs": tensors(signature.output_names(Role.OUTPUT)),
        "loss": tensors(signature.output_names(Role.LOSS))[0],
        "predictions": models.predictions,
        "activation": models.activation,
        "learning_rate": tensors(signature.input_names(Role.LEARNING_RATE))[0],
        "step": tensors(signature.input_names(Role.STEP))[0],
        "seed": {**tensors(seeds)[0], "initial": seed} if seeds else None,
        "state": [_state(signature, name, values[name], optimizer) for name in signature.input_names(*_STATE)],
        "evaluation": _borders(models.evaluation),
        "inference": _borders(models.inference),
    }


def describe_file(path: Path, **more: Any) -> dict[str, Any]:
    """A file, with its hash, so that a program can tell whether it has the right one."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest.hexdigest(), **more}


def describe_frozen(places: Mapping[str, tuple[ir.Value, Place]]) -> list[dict[str, Any]]:
    """The weights in the shared file."""
    described = []
    for name, (value, place) in places.items():
        tensor = value.const_value
        assert tensor is not None
        kind = {"type": _type_name(tensor.dtype), "shape": list(tensor.shape.numpy())}
        described.append({"name": name, **kind, "offset": place.offset, "bytes": place.length})
    return described


def versions() -> dict[str, str]:
    """What the folder was made with."""
    return {package: metadata.version(package) for package in ("onward", "onnx", "onnxruntime")}


def _state(signature: Signature, name: str, value: onnx.ValueInfoProto, optimizer: Optimizer) -> dict[str, Any]:
    role = signature.inputs[name]
    following = [output for output in signature.outputs if signature.links.get(output) == name]
    described = {"name": name, "role": role.value, **_type(value), "next": following[0]}
    if role is not Role.SLOT:
        return described
    parameter = signature.links[name]
    slot = next(slot for slot in optimizer.slots if name == f"{parameter}.{slot}")
    return {**described, "parameter": parameter, "slot": slot, "initial": signature.initial[name]}


def _borders(model: onnx.ModelProto) -> dict[str, Any]:
    graph = model.graph
    outputs = [{"name": value.name, **_type(value)} for value in graph.output]
    return {"inputs": [value.name for value in graph.input], "outputs": outputs}


def _type(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    return {"type": _type_name(tensor.elem_type), "shape": _shape(tensor) if tensor.HasField("shape") else None}


def _shape(tensor: Any) -> Sequence[int | str | None]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim]


def _type_name(element: int) -> str:
    """What JavaScript and numpy call a type of ONNX."""
    dtype = ir.DataType(element)
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name
