"""Checkpoints: one safetensors file with all of a state, and readable metadata.

Parameters are stored under their own names, optimizer slots as ``optimizer/<slot>/<parameter>``, and arrays that belong
to neither as ``attachment/<name>``; the metadata says the rest as JSON. Any program that reads safetensors can use the
file. Checkpoints of onnxruntime-training are read too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onward.document import Document, parse_value
from onward.errors import OnwardError
from onward.runtime import odtc
from onward.runtime.state import OptimizerState, Property, RandomState, State, TensorType
from onward.runtime.tensorfile import Entry, NotATensorFileError, TensorFile, dtype_called, name_of, write
from onward.runtime.tensors import FlatTensors

FORMAT = "onward.checkpoint"
VERSION = 1
_SLOT = "optimizer/{slot}/{name}"
_ATTACHMENT = "attachment/{name}"


def save(
    state: State,
    path: str | os.PathLike[str],
    *,
    include_optimizer: bool = False,
    nominal: bool = False,
    properties: Mapping[str, Property] | None = None,
    attachments: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write a checkpoint: whoever is killed meanwhile leaves the old file or the new one, whole.

    `nominal` leaves out all values. `properties` and `attachments` are saved besides those of the state.
    """
    nominal = nominal or state.nominal
    optimizer = state.optimizer if include_optimizer and not nominal else None
    metadata: dict[str, Any] = {
        "trainable": state.trainable_names,
        "frozen": state.frozen_names,
        "properties": {**state.properties, **(properties or {})},
    }
    attached = {} if nominal else {**state.attachments, **(attachments or {})}
    if attached:
        metadata["attachments"] = list(attached)
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
    for name, array in attached.items():
        entries.append(Entry(_ATTACHMENT.format(name=name), array.shape, array.dtype, partial(np.asarray, array)))
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
    title = repr(str(file.path))
    texts = {key: parse_value(text, f"{key!r} in {title}") for key, text in metadata.items() if key != "format"}
    content = Document(texts, title)
    if content.integer("version") > VERSION:
        raise OnwardError(
            f"Checkpoint version {metadata['version']} is not supported: {title} was written by a newer "
            f"onward, this one reads version {VERSION}. Update onward."
        )
    properties = content.mapping("properties", Document.scalar)
    if "nominal" in content:
        types = content.mapping("nominal", _undescribe)
        names = [content.texts(key) for key in ("trainable", "frozen")]
        if not types.keys() >= {*names[0], *names[1]}:
            raise content.damaged("it does not say what all of its parameters are")
        groups = ({name: types[name] for name in group} for group in names)
        return State.without_values(*groups, properties=properties)
    optimizer = content.inside("optimizer") if "optimizer" in content else None
    trainable = _read(file, {name: name for name in content.texts("trainable")})
    return State(
        trainable,
        _read(file, {name: name for name in content.texts("frozen")}),
        properties=properties,
        optimizer=None if optimizer is None else _read_optimizer(file, optimizer, trainable),
        random=_random(content.inside("random")) if "random" in content else None,
        attachments=_read_attachments(file, content.texts("attachments")) if "attachments" in content else None,
    )


def _read_optimizer(file: TensorFile, content: Document, parameters: Iterable[str]) -> OptimizerState:
    slots = content.texts("slots")
    return OptimizerState(
        step=content.count("step"),
        learning_rate=content.number("learning_rate"),
        initial_learning_rate=content.number("initial_learning_rate"),
        slots={slot: _read(file, {name: _SLOT.format(slot=slot, name=name) for name in parameters}) for slot in slots},
        scales=content.mapping("scales", Document.number),
        schedule=_schedule(content.inside("schedule")) if content.has("schedule") else None,
        unnamed=content.flag("unnamed"),
    )


def _schedule(content: Document) -> dict[str, Any]:
    return {**content.plain(), "state": content.mapping("state", Document.number) if content.has("state") else {}}


def _random(content: Document) -> RandomState:
    return RandomState(seed=content.integer("seed"), passes=content.count("passes"))


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


def _read_attachments(file: TensorFile, names: Iterable[str]) -> dict[str, np.ndarray]:
    keys = {name: _ATTACHMENT.format(name=name) for name in names}
    missing = [key for key in keys.values() if key not in file.types]
    if missing:
        raise OnwardError(f"{str(file.path)!r} is damaged: it lacks the tensor {missing[0]!r}")
    return {name: file.read(key) for name, key in keys.items()}


def _describe(kind: TensorType) -> dict[str, Any]:
    return {"dtype": name_of(kind.dtype), "shape": None if kind.shape is None else list(kind.shape)}


def _undescribe(content: Document, name: str) -> TensorType:
    described = content.inside(name)
    return TensorType(
        dtype_called(described.text("dtype")), described.shape("shape") if described.has("shape") else None
    )
