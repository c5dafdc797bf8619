"""Checkpoints of onnxruntime-training ("ODTC"): flatbuffers, whose Python classes come with every onnxruntime.

Versions 1 (onnxruntime-training 1.16, 1.17) and 2 (1.18, 1.19) are read; version 2 is written. The format has no place
for the learning rate and for schedules; what is read continues with the initial learning rate.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.runtime.files import replacing, write_bytes
from onward.runtime.odtc_reader import load
from onward.runtime.odtc_schema import IDENTIFIER, VERSIONS, external_path, load_table
from onward.runtime.state import OptimizerState, Property, State
from onward.runtime.tensorproto import TENSOR_TYPES
from onward.runtime.tensors import FlatTensors

_GROUP = "group0"  # the original knows only this one
_MOMENTUM = "momentum{}"

__all__ = ["external_path", "load", "recognises", "save"]

# As the original: from this size on, tensors of 64 bytes and more go to a second file.
_EXTERNAL_FROM = 1800 * 2**20
_SMALLEST_EXTERNAL = 64


def recognises(path: Path) -> bool:
    """Whether this is a file of this format."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == IDENTIFIER


def save(state: State, path: str | os.PathLike[str], *, include_optimizer: bool = False, nominal: bool = False) -> None:
    """Write a checkpoint that onnxruntime-training 1.18 and 1.19 read.

    Properties of type float lose precision, because they are float32 there. A checkpoint of 1.8 GB and more is two
    files, which are not replaced at one moment.
    """
    builder = importlib.import_module("flatbuffers").Builder(2**16)
    nominal = nominal or state.nominal
    sizes = [_size(layout) for tensors in (state.trainable, state.frozen) for layout in tensors.layout.values()]
    external = not nominal and sum(sizes) >= _EXTERNAL_FROM
    optimizer = state.optimizer if include_optimizer and not nominal else None
    if optimizer is not None and sum(map(_size, state.trainable.layout.values())) * 2 >= 2**31:
        raise OnwardError("the format of onnxruntime-training has no room for this much optimizer state")
    module = _save_module(builder, state, nominal, external_path(Path(path)) if external else None)
    groups = [] if optimizer is None else [_save_group(builder, optimizer, state.trainable)]
    group_vector = _vector(builder, groups)
    bag = _save_properties(builder, state.properties) if state.properties else None
    table = load_table("Checkpoint")
    table.CheckpointStart(builder)
    table.CheckpointAddVersion(builder, VERSIONS[-1])
    table.CheckpointAddModuleState(builder, module)
    table.CheckpointAddOptimizerGroups(builder, group_vector)
    if bag is not None:
        table.CheckpointAddPropertyBag(builder, bag)
    builder.Finish(table.CheckpointEnd(builder), file_identifier=IDENTIFIER)
    start = builder.Head()
    write_bytes(path, memoryview(builder.Bytes)[start:])


def _save_module(builder: Any, state: State, nominal: bool, data: Path | None) -> int:
    vectors = []
    if nominal:
        for names in (state.trainable_names, state.frozen_names):
            tensors = [_save_tensor(builder, name, state.type_of(name).dtype) for name in sorted(names)]
            vectors.append(_vector(builder, tensors))
    elif data is None:
        for group in (state.trainable, state.frozen):
            tensors = [_save_tensor(builder, name, group[name].dtype, group[name]) for name in sorted(group)]
            vectors.append(_vector(builder, tensors))
    else:
        vectors = _save_external(builder, (state.trainable, state.frozen), data)
    table = load_table("ModuleState")
    table.ModuleStateStart(builder)
    table.ModuleStateAddRequiresGradParams(builder, vectors[0])
    table.ModuleStateAddFrozenParams(builder, vectors[1])
    table.ModuleStateAddIsNominalState(builder, nominal)
    table.ModuleStateAddHasExternalData(builder, data is not None)
    return int(table.ModuleStateEnd(builder))


def _save_external(builder: Any, groups: Iterable[FlatTensors], path: Path) -> list[int]:
    """Write large tensors to a second file, each at a multiple of its element size (of 4 at least)."""
    vectors = []
    with replacing(path) as file:
        for group in groups:
            tensors = []
            for name in sorted(group):
                array = group[name]
                if array.nbytes < _SMALLEST_EXTERNAL:
                    tensors.append(_save_tensor(builder, name, array.dtype, array))
                    continue
                file.write(bytes(-file.tell() % (8 if array.dtype.itemsize == 8 else 4)))
                tensors.append(_save_tensor(builder, name, array.dtype, array, offset=file.tell()))
                file.write(_bytes(array).data)
            vectors.append(_vector(builder, tensors))
    return vectors


def _save_tensor(
    builder: Any, name: str, dtype: np.dtype, array: np.ndarray | None = None, *, offset: int | None = None
) -> int:
    table = load_table("Tensor")
    title = builder.CreateString(name)
    # A tensor without values has empty vectors, not none: the original insists on them.
    shape = () if array is None else array.shape
    table.TensorStartDimsVector(builder, len(shape))
    for size in reversed(shape):
        builder.PrependInt64(size)
    dims = builder.EndVector()
    raw = None
    if offset is None:
        raw = builder.CreateNumpyVector(np.zeros(0, np.uint8) if array is None else _bytes(array))
    table.TensorStart(builder)
    table.TensorAddName(builder, title)
    table.TensorAddDataType(builder, TENSOR_TYPES[dtype.name])
    table.TensorAddDims(builder, dims)
    if raw is not None:
        table.TensorAddRawData(builder, raw)
    if offset is not None:
        table.TensorAddExternalDataOffset(builder, offset)
    return int(table.TensorEnd(builder))


def _save_group(builder: Any, optimizer: OptimizerState, parameters: FlatTensors) -> int:
    table = load_table("ParameterOptimizerState")
    # The original wants at least one momentum for each parameter, even if its optimizer has none.
    slots = optimizer.slots or {"unused": parameters.zeros_like()}
    states = []
    for name in sorted(parameters):
        momentums = []
        for index, (slot, tensors) in enumerate(slots.items()):
            scale = optimizer.scales.get(slot, 1.0)
            array = tensors[name] * tensors[name].dtype.type(scale)
            momentums.append(_save_tensor(builder, _MOMENTUM.format(index), array.dtype, array))
        title, vector = builder.CreateString(name), _vector(builder, momentums)
        table.ParameterOptimizerStateStart(builder)
        table.ParameterOptimizerStateAddParamName(builder, title)
        table.ParameterOptimizerStateAddMomentums(builder, vector)
        states.append(int(table.ParameterOptimizerStateEnd(builder)))
    title, vector = builder.CreateString(_GROUP), _vector(builder, states)
    group = load_table("OptimizerGroup")
    group.OptimizerGroupStart(builder)
    group.OptimizerGroupAddGroupName(builder, title)
    group.OptimizerGroupAddStep(builder, optimizer.step)
    group.OptimizerGroupAddInitialLearningRate(builder, optimizer.initial_learning_rate)
    group.OptimizerGroupAddOptimizerStates(builder, vector)
    return int(group.OptimizerGroupEnd(builder))


def _save_properties(builder: Any, properties: dict[str, Property]) -> int:
    vectors = []
    for kind, title in ((int, "Int"), (float, "Float"), (str, "String")):
        table = load_table(f"{title}Property")
        items = []
        for name in sorted(name for name, value in properties.items() if type(value) is kind):
            value: Any = properties[name]
            label = builder.CreateString(name)
            if kind is str:
                value = builder.CreateString(value)
            table.Start(builder)
            table.AddName(builder, label)
            table.AddValue(builder, value)
            items.append(int(table.End(builder)))
        vectors.append(_vector(builder, items))
    bag = load_table("PropertyBag")
    bag.PropertyBagStart(builder)
    bag.PropertyBagAddInts(builder, vectors[0])
    bag.PropertyBagAddFloats(builder, vectors[1])
    bag.PropertyBagAddStrings(builder, vectors[2])
    return int(bag.PropertyBagEnd(builder))


def _vector(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _size(layout: tuple[tuple[int, ...], np.dtype]) -> int:
    shape, dtype = layout
    return math.prod(shape) * dtype.itemsize


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
