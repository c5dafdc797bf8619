"""Read checkpoints of onnxruntime-training, of versions 1 (onnxruntime-training 1.16, 1.17) and 2 (1.18, 1.19).

The classes of flatbuffers follow whatever offsets a file has. In a file that was not made by a builder, many tables may
be one and the same, so that a few bytes describe any number of tensors: what is read is paid for out of a budget that
the size of the file sets.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.runtime.odtc_schema import VERSIONS, external_path, load_table
from onward.runtime.state import OptimizerState, Property, State, TensorType
from onward.runtime.tensorfile import numpy_dtype
from onward.runtime.tensorproto import TENSOR_TYPES
from onward.runtime.tensors import FlatTensors

_DTYPES = {number: name for name, number in TENSOR_TYPES.items()}
_STRING = 8
_OFFSET, _DIM = 4, 8  # bytes
_HIGHEST_RANK = 64
# Tables are not shared by those who write this format, but texts may be.
_SHARED_TEXTS = 16


def load(path: Path) -> State:
    """Read a checkpoint."""
    try:
        return _Reader(path).read()
    except (struct.error, IndexError, ValueError, TypeError, OverflowError, MemoryError) as error:
        # What flatbuffers and numpy raise for offsets, lengths and texts that are none.
        raise OnwardError(
            f"Checkpoint verification failed: {str(path)!r} was written by onnxruntime-training, but it is damaged "
            f"or truncated ({error})"
        ) from error


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = path.read_bytes()
        self._bytes = len(self._content)
        self._letters = len(self._content) * _SHARED_TEXTS
        self._external_bytes = 0

    def read(self) -> State:
        root = load_table("Checkpoint").Checkpoint.GetRootAs(self._content, 0)
        if root.Version() not in VERSIONS:
            raise OnwardError(
                f"Checkpoint version {root.Version()} is not supported: {str(self._path)!r} was written by another "
                "onnxruntime-training than 1.16 to 1.19"
            )
        module = root.ModuleState()
        if module is None:
            raise ValueError("it has no parameters")
        properties = self._properties(root.PropertyBag())
        groups = (
            self._all(module.RequiresGradParams, module.RequiresGradParamsLength()),
            self._all(module.FrozenParams, module.FrozenParamsLength()),
        )
        if module.IsNominalState():
            types = [self._named(group, lambda tensor: TensorType(self._dtype(tensor))) for group in groups]
            return State.without_values(types[0], types[1], properties=properties)
        data = self._external_file() if module.HasExternalData() else None
        numbers = [[tensor for tensor in group if tensor.DataType() != _STRING] for group in groups]
        trainable, frozen = (self._named(group, lambda tensor: self._array(tensor, data)) for group in numbers)
        optimizer = self._optimizer(self._all(root.OptimizerGroups, root.OptimizerGroupsLength()))
        return State(trainable, frozen, properties=properties, optimizer=optimizer)

    def _optimizer(self, groups: Sequence[Any]) -> OptimizerState | None:
        if not groups:
            return None
        slots: dict[str, dict[str, np.ndarray]] = {}
        for group in groups:
            for state in self._all(group.OptimizerStates, group.OptimizerStatesLength()):
                parameter = self._text(state.ParamName())
                for momentum in self._all(state.Momentums, state.MomentumsLength()):
                    slot = slots.setdefault(self._text(momentum.Name()), {})
                    if parameter in slot:
                        raise ValueError(f"it has two optimizer states of {parameter!r}")
                    slot[parameter] = self._array(momentum, None)
        rate = float(groups[0].InitialLearningRate())
        if groups[0].Step() < 0 or math.isnan(rate):
            raise ValueError(f"its optimizer has made {groups[0].Step()} steps with the learning rate {rate}")
        tensors = {name: FlatTensors.holding(slots[name]) for name in sorted(slots)}
        return OptimizerState(groups[0].Step(), rate, rate, tensors, unnamed=True)

    def _properties(self, bag: Any) -> dict[str, Property]:
        if bag is None:
            return {}
        found: dict[str, Property] = {}
        for items, count in ((bag.Ints, bag.IntsLength()), (bag.Floats, bag.FloatsLength())):
            found.update((self._text(item.Name()), item.Value()) for item in self._all(items, count))
        for item in self._all(bag.Strings, bag.StringsLength()):
            found[self._text(item.Name())] = self._text(item.Value())
        return found

    def _named(self, tensors: Sequence[Any], read: Callable[[Any], Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for tensor in tensors:
            name = self._text(tensor.Name())
            if name in found:
                raise ValueError(f"two of its parameters are called {name!r}")
            found[name] = read(tensor)
        return found

    def _dtype(self, tensor: Any) -> np.dtype:
        if tensor.DataType() not in _DTYPES:
            raise OnwardError(
                f"tensor {self._text(tensor.Name())!r} has the type {tensor.DataType()}, which is not supported"
            )
        return numpy_dtype(_DTYPES[tensor.DataType()])

    def _array(self, tensor: Any, data: Path | None) -> np.ndarray:
        dtype = self._dtype(tensor)
        rank = tensor.DimsLength()
        if rank > _HIGHEST_RANK:
            raise ValueError(f"tensor {self._text(tensor.Name())!r} has {rank} dimensions")
        shape = tuple(self._all(tensor.Dims, rank, _DIM))
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0:
            raise ValueError(f"tensor {self._text(tensor.Name())!r} has the shape {list(shape)}")
        if data is not None and tensor.ExternalDataOffset() >= 0:
            raw = self._external(data, tensor.ExternalDataOffset(), size)
        else:
            self._pay(tensor.RawDataLength())
            raw = tensor.RawDataAsNumpy().tobytes() if tensor.RawDataLength() else b""
        if len(raw) != size:
            raise ValueError(f"tensor {self._text(tensor.Name())!r} has {len(raw)} bytes, not {size}")
        return np.frombuffer(raw, dtype).reshape(shape)

    def _external_file(self) -> Path:
        data = external_path(self._path)
        if not data.is_file():
            raise OnwardError(f"the tensors of {str(self._path)!r} are in {data.name!r}, which is not beside it")
        self._external_bytes = data.stat().st_size
        return data

    def _external(self, data: Path, offset: int, size: int) -> bytes:
        self._external_bytes -= size
        if self._external_bytes < 0:
            raise ValueError(f"{data.name!r} has not as many bytes as its tensors")
        with open(data, "rb") as file:
            if offset + size > os.fstat(file.fileno()).st_size:
                raise ValueError(f"{data.name!r} ends too early")
            file.seek(offset)
            return file.read(size)

    def _all(self, item: Callable[[int], Any], count: int, width: int = _OFFSET) -> list[Any]:
        self._pay(count * width)
        return [item(index) for index in range(count)]

    def _pay(self, size: int) -> None:
        self._bytes -= size
        if self._bytes < 0:
            raise ValueError("it describes more than it has room for")

    def _text(self, name: bytes | None) -> str:
        if name is None:
            return ""
        self._letters -= len(name)
        if self._letters < 0:
            raise ValueError("its names are longer than it has room for")
        return name.decode()
