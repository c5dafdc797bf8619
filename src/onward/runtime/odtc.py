"""Checkpoints of onnxruntime-training ("ODTC"): flatbuffers, whose Python classes come with every onnxruntime.

Versions 1 (onnxruntime-training 1.16, 1.17) and 2 (1.18, 1.19) are read; version 2 is written. The format has no place
for the learning rate and for schedules; what is read continues with the initial learning rate.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from onward.errors import OnwardError
from onward.runtime.files import replacing, write_bytes
from onward.runtime.state import OptimizerState, Property, State, TensorType
from onward.runtime.tensorfile import numpy_dtype
from onward.runtime.tensors import FlatTensors
from onward.runtime.wire import TENSOR_TYPES

_IDENTIFIER = b"ODTC"
_SCHEMA = "ort_flatbuffers_py"
_VERSIONS = (1, 2)
_GROUP = "group0"  # the original knows only this one
_MOMENTUM = "momentum{}"
_DTYPES = {number: name for name, number in TENSOR_TYPES.items()}
_STRING = 8

# As the original: from this size on, tensors of 64 bytes and more go to a second file.
_EXTERNAL_FROM = 1800 * 2**20
_SMALLEST_EXTERNAL = 64


def recognises(path: Path) -> bool:
    """Whether this is a file of this format."""
    with open(path, "rb") as file:
        return file.read(8)[4:] == _IDENTIFIER


def external_path(path: Path) -> Path:
    """Where the tensors of a large checkpoint are."""
    return path.with_name(f"{path.name}.data")


def load(path: Path) -> State:
    """Read a checkpoint."""
    try:
        return _load(path)
    except (struct.error, IndexError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        raise OnwardError(
            f"Checkpoint verification failed: {str(path)!r} was written by onnxruntime-training, but it is damaged "
            f"or truncated ({error})"
        ) from error


def _load(path: Path) -> State:
    root = _table("Checkpoint").Checkpoint.GetRootAs(path.read_bytes(), 0)
    if root.Version() not in _VERSIONS:
        raise OnwardError(
            f"Checkpoint version {root.Version()} is not supported: {str(path)!r} was written by another "
            "onnxruntime-training than 1.16 to 1.19"
        )
    module = root.ModuleState()
    if module is None:
        raise ValueError("it has no parameters")
    properties = _load_properties(root.PropertyBag())
    groups = (
        _all(module.RequiresGradParams, module.RequiresGradParamsLength()),
        _all(module.FrozenParams, module.FrozenParamsLength()),
    )
    if module.IsNominalState():
        types = [{_text(t.Name()): TensorType(_dtype(t)) for t in group} for group in groups]
        return State.without_values(types[0], types[1], properties=properties)
    data = external_path(path) if module.HasExternalData() else None
    if data is not None and not data.is_file():
        raise OnwardError(f"the tensors of {str(path)!r} are in {data.name!r}, which is not beside it")
    trainable, frozen = ({_text(t.Name()): _array(t, data) for t in group if not _is_text(t)} for group in groups)
    optimizer = _load_optimizer(_all(root.OptimizerGroups, root.OptimizerGroupsLength()))
    return State(trainable, frozen, properties=properties, optimizer=optimizer)


def _load_optimizer(groups: Sequence[Any]) -> OptimizerState | None:
    if not groups:
        return None
    slots: dict[str, dict[str, np.ndarray]] = {}
    for group in groups:
        for state in _all(group.OptimizerStates, group.OptimizerStatesLength()):
            for momentum in _all(state.Momentums, state.MomentumsLength()):
                slots.setdefault(_text(momentum.Name()), {})[_text(state.ParamName())] = _array(momentum, None)
    rate = float(groups[0].InitialLearningRate())
    tensors = {name: FlatTensors.holding(slots[name]) for name in sorted(slots)}
    return OptimizerState(groups[0].Step(), rate, rate, tensors, unnamed=True)


def _load_properties(bag: Any) -> dict[str, Property]:
    if bag is None:
        return {}
    found: dict[str, Property] = {}
    for item in _all(bag.Ints, bag.IntsLength()):
        found[_text(item.Name())] = item.Value()
    for item in _all(bag.Floats, bag.FloatsLength()):
        found[_text(item.Name())] = item.Value()
    for item in _all(bag.Strings, bag.StringsLength()):
        found[_text(item.Name())] = _text(item.Value())
    return found


def _is_text(tensor: Any) -> bool:
    return bool(tensor.DataType() == _STRING)


def _dtype(tensor: Any) -> np.dtype:
    if tensor.DataType() not in _DTYPES:
        raise OnwardError(f"tensor {_text(tensor.Name())!r} has the type {tensor.DataType()}, which is not supported")
    return numpy_dtype(_DTYPES[tensor.DataType()])


def _array(tensor: Any, data: Path | None) -> np.ndarray:
    dtype = _dtype(tensor)
    shape = tuple(tensor.Dims(i) for i in range(tensor.DimsLength()))
    size = math.prod(shape) * dtype.itemsize
    if data is not None and tensor.ExternalDataOffset() >= 0:
        with open(data, "rb") as file:
            file.seek(tensor.ExternalDataOffset())
            raw: Any = np.frombuffer(file.read(size), np.uint8)
    else:
        raw = tensor.RawDataAsNumpy() if tensor.RawDataLength() else np.zeros(0, np.uint8)
    if raw.nbytes != size:
        raise ValueError(f"tensor {_text(tensor.Name())!r} has {raw.nbytes} bytes, not {size}")
    return np.frombuffer(raw.tobytes(), dtype).reshape(shape)


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
    table = _table("Checkpoint")
    table.CheckpointStart(builder)
    table.CheckpointAddVersion(builder, _VERSIONS[-1])
    table.CheckpointAddModuleState(builder, module)
    table.CheckpointAddOptimizerGroups(builder, group_vector)
    if bag is not None:
        table.CheckpointAddPropertyBag(builder, bag)
    builder.Finish(table.CheckpointEnd(builder), file_identifier=_IDENTIFIER)
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
    table = _table("ModuleState")
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
    table = _table("Tensor")
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
    table = _table("ParameterOptimizerState")
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
    group = _table("OptimizerGroup")
    group.OptimizerGroupStart(builder)
    group.OptimizerGroupAddGroupName(builder, title)
    group.OptimizerGroupAddStep(builder, optimizer.step)
    group.OptimizerGroupAddInitialLearningRate(builder, optimizer.initial_learning_rate)
    group.OptimizerGroupAddOptimizerStates(builder, vector)
    return int(group.OptimizerGroupEnd(builder))


def _save_properties(builder: Any, properties: dict[str, Property]) -> int:
    vectors = []
    for kind, title in ((int, "Int"), (float, "Float"), (str, "String")):
        table = _table(f"{title}Property")
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
    bag = _table("PropertyBag")
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


def _all(item: Callable[[int], Any], count: int) -> list[Any]:
    return [item(index) for index in range(count)]


def _text(name: bytes | None) -> str:
    return "" if name is None else name.decode()


def _table(name: str) -> Any:
    """The generated module of one table of the schema; loaded when needed: few checkpoints are of this format."""
    try:
        _import_schema()
        return importlib.import_module(f"{_SCHEMA}.fbs.{name}")
    except ImportError as error:
        raise OnwardError(
            "checkpoints of onnxruntime-training need flatbuffers and onnxruntime.tools, which come with the "
            "onnxruntime package from PyPI"
        ) from error


def _import_schema() -> None:
    """Make the generated modules importable by the name that they call each other by.

    Importing onnxruntime.tools would do that too, but needs onnx.
    """
    if _SCHEMA in sys.modules:
        return
    folder = Path(onnxruntime.__file__).parent / "tools" / "ort_format_model" / _SCHEMA
    spec = importlib.util.spec_from_file_location(
        _SCHEMA, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not folder.is_dir():
        raise ImportError(f"{folder} does not exist")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[_SCHEMA] = module
