"""manifest.json beside artifacts: what the models' metadata says, for languages that cannot read metadata."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx

from onward import plan
from onward.plan import UpdatePlan
from onward.runtime.refusal import labels_in
from onward.runtime.state import State
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.description import describe_file, describe_value, opset_of, versions

FORMAT, VERSION = "onward.artifacts", 1


def describe_artifacts(
    protos: Mapping[str, onnx.ModelProto], state: State, files: Mapping[str, Path]
) -> dict[str, Any]:
    """All that a program has to know of the models and the checkpoint, which are written already."""
    optimizer = protos.get("optimizer_model")
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_with": versions(),
        "opset": opset_of(protos["training_model"]),
        "files": {"optimizer_model": None, **{what: _file(path, what in protos) for what, path in files.items()}},
        "parameters": _parameters(protos["training_model"], state),
        "training": _border(protos["training_model"]),
        "evaluation": _border(protos["eval_model"]),
        "optimizer": None if optimizer is None else _optimizer(optimizer),
    }


def _file(path: Path, is_model: bool) -> dict[str, Any]:
    if not is_model:
        return describe_file(path)
    data = path.with_name(f"{path.name}.data")
    return describe_file(path, external=[data.name] if data.exists() else [])


def _parameters(training: onnx.ModelProto, state: State) -> list[dict[str, Any]]:
    """All of the checkpoint, in the order of the flat buffer that `Module.get_contiguous_parameters` gives."""
    described = []
    for name in Signature.from_json(_metadata(training)[METADATA_KEY]).parameters:
        tensors = state.trainable if name in state.trainable else state.frozen
        shape, dtype = tensors.layout[name]
        trainable = name in state.trainable
        described.append({"name": name, "type": dtype.name, "shape": list(shape), "trainable": trainable})
    return described


def _optimizer(model: onnx.ModelProto) -> dict[str, Any]:
    update = UpdatePlan.from_json(_metadata(model)[plan.METADATA_KEY])
    slots = {name: {"initial": slot.initial, "scale": slot.scale} for name, slot in update.slots.items()}
    return {"name": update.optimizer, "learning_rate": update.learning_rate, "slots": slots, **_border(model)}


def _border(model: onnx.ModelProto) -> dict[str, Any]:
    """The inputs and outputs of a graph in its order, what each is for, and what it belongs to."""
    signature = Signature.from_json(_metadata(model)[METADATA_KEY])
    labels = labels_in(node.name for node in model.graph.node)
    return {
        "inputs": [
            {
                **_described(value, signature, signature.inputs),
                **({"labels": labels[value.name]} if value.name in labels else {}),
            }
            for value in model.graph.input
        ],
        "outputs": [_described(value, signature, signature.outputs) for value in model.graph.output],
    }


def _described(value: onnx.ValueInfoProto, signature: Signature, roles: Mapping[str, Role]) -> dict[str, Any]:
    role, links = roles[value.name], signature.links
    described = {**describe_value(value), "role": role.value}
    if value.name not in links:
        return described
    owner = links[value.name]
    if role is not Role.SLOT:
        return {**described, "of": owner}
    # An output replaces a slot, which belongs to a parameter.
    slot, parameter = (owner, links[owner]) if owner in links else (value.name, owner)
    return {**described, "of": parameter, "slot": signature.kinds[slot]}


def _metadata(model: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in model.metadata_props}
