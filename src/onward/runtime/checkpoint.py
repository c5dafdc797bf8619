"""Checkpoints: one safetensors file with all of a state, and readable metadata.

Parameters are stored under their own names, optimizer slots as ``optimizer/<slot>/<parameter>``; the metadata says the
rest as JSON. Any program that reads safetensors can use the file. Checkpoints of onnxruntime-training are read too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from onward.errors import OnwardError
from onward.runtime import odtc
from onward.runtime.state import OptimizerState, RandomState, State, TensorType
from onward.runtime.tensorfile import Entry, NotATensorFileError, TensorFile, dtype_called, name_of, write
from onward.runtime.tensors import FlatTensors

FORMAT = "onward.checkpoint"
VERSION = 1
_SLOT = "optimizer/{slot}/{name}"


def save(state: State, path: str | os.PathLike[str], *, include_optimizer: bool = False, nominal: bool = False) -> None:
    """Write a checkpoint: whoever is killed meanwhile leaves the old file or the new one, whole.

    `nominal` leaves out all values.
    """
    nominal = nominal or state.nominal
    optimizer = state.optimizer if include_optimizer and not nominal else None
    metadata: dict[str, Any] = {
        "trainable": state.trainable_names,
        "frozen": state.frozen_names,
        "properties": state.properties,
    }
    if nominal:
        names = (*state.trainable_names, *state.frozen_names)
        metadata["nominal"] = {name: _describe(state.type_of(name)) for name in names}
    if state.random != RandomState():
        metadata["random"] = asdict(state.random)
    if optimizer is not None:
        metadata["optimizer"] = {
            "step": optimizer.step,
            "learning_rate": optimizer.learning_rate,
            "initial_learning_rate": optimizer.initial_learning_rate,
            "slots": list(optimizer.slots),
            "scales": optimizer.scales,
            "schedule": optimizer.schedule,
            "unnamed": optimizer.unnamed,
        }
    texts = {key: json.dumps(value, ensure_ascii=False) for key, value in metadata.items()}
    entries = [] if nominal else list(_entries(state, optimizer))
    write(path, entries, {"format": FORMAT, "version": str(VERSION), **texts})


def load(path: str | os.PathLike[str]) -> State:
    """Read a checkpoint of onward, or of onnxruntime-training 1.16 to 1.19."""
    file = Path(path)
    if file.is_dir():
        raise OnwardError(f"{str(file)!r} is a directory; a checkpoint is a single file")
    if not file.is_file():
        raise OnwardError(f"there is no checkpoint at {str(file)!r}")
    if odtc.recognises(file):
        return odtc.load(file)
    try:
        with TensorFile(file) as tensors:
            return _load(tensors)
    except NotATensorFileError as error:
        raise OnwardError(
            f"Checkpoint verification failed: {str(file)!r} is neither a checkpoint of onward nor one of "
            "onnxruntime-training 1.16 to 1.19"
        ) from error


def _load(file: TensorFile) -> State:
    metadata = file.metadata
    if metadata.get("format") != FORMAT:
        raise OnwardError(
            f"Checkpoint verification failed: {str(file.path)!r} is a safetensors file, but not a checkpoint of onward"
        )
    if int(metadata["version"]) > VERSION:
        raise OnwardError(
            f"Checkpoint version {metadata['version']} is not supported: {str(file.path)!r} was written by a newer "
            f"onward, this one reads version {VERSION}. Update onward."
        )
    content = {key: json.loads(text) for key, text in metadata.items() if key not in ("format", "version")}
    if "nominal" in content:
        types = {name: _undescribe(kind) for name, kind in content["nominal"].items()}
        return State.without_values(
            {name: types[name] for name in content["trainable"]},
            {name: types[name] for name in content["frozen"]},
            properties=content["properties"],
        )
    trainable = _read(file, {name: name for name in content["trainable"]})
    frozen = _read(file, {name: name for name in content["frozen"]})
    optimizer = None
    if "optimizer" in content:
        described = content["optimizer"]
        slots = {}
        for slot in described.pop("slots"):
            slots[slot] = _read(file, {name: _SLOT.format(slot=slot, name=name) for name in trainable})
        optimizer = OptimizerState(slots=slots, **described)
    random = RandomState(**content["random"]) if "random" in content else None
    return State(trainable, frozen, properties=content["properties"], optimizer=optimizer, random=random)


def _entries(state: State, optimizer: OptimizerState | None) -> Iterator[Entry]:
    for tensors in (state.trainable, state.frozen):
        yield from _entries_of(tensors, {name: name for name in tensors})
    for slot, tensors in optimizer.slots.items() if optimizer is not None else ():
        yield from _entries_of(tensors, {name: _SLOT.format(slot=slot, name=name) for name in tensors})


def _entries_of(tensors: FlatTensors, keys: Mapping[str, str]) -> Iterator[Entry]:
    for name, key in keys.items():
        shape, dtype = tensors.layout[name]
        yield Entry(key, shape, dtype, partial(tensors.__getitem__, name))


def _read(file: TensorFile, keys: Mapping[str, str]) -> FlatTensors:
    missing = [key for key in keys.values() if key not in file.types]
    if missing:
        raise OnwardError(f"{str(file.path)!r} is damaged: it lacks the tensor {missing[0]!r}")
    types = {name: file.types[key] for name, key in keys.items()}
    tensors = FlatTensors({name: (shape, dtype_called(kind)) for name, (shape, kind) in types.items()})
    for name, key in keys.items():
        tensors.assign(name, file.read(key))
    return tensors


def _describe(kind: TensorType) -> dict[str, Any]:
    return {"dtype": name_of(kind.dtype), "shape": None if kind.shape is None else list(kind.shape)}


def _undescribe(content: dict[str, Any]) -> TensorType:
    shape = content["shape"]
    return TensorType(dtype_called(content["dtype"]), None if shape is None else tuple(shape))
