"""Train with an exported folder in Python, as other languages do; no onnx is needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onward.edge.folder import STATE_FORMAT, Folder, StateEntry
from onward.errors import OnwardError, UnknownNameError
from onward.optim import schedules
from onward.rate import checked_rate
from onward.runtime import tensorproto, wire
from onward.runtime.files import write_bytes
from onward.runtime.inputs import checked_input
from onward.runtime.protobuf import encode_bytes
from onward.runtime.refusal import explain
from onward.runtime.session import open_session
from onward.runtime.tensorfile import Entry, TensorFile, numpy_dtype, write
from onward.signature import CHECK

# Field numbers of onnx.proto: the graph of a model, and the initializers of a graph.
_GRAPH, _INITIALIZER = 7, 5
_KEPT = ("parameter", "buffer")  # what the weights of the model are, while slots belong to the optimizer


class Result(NamedTuple):
    """The loss of a batch, and the outputs of the model."""

    loss: float
    outputs: dict[str, np.ndarray]


class Training:
    """The training that a folder of `onward.edge.export` describes, in the middle of it or at its beginning.

    Args:
        directory: the folder.
        checkpoint: what `save` wrote, here or in another language; None begins anew.
    """

    def __init__(self, directory: str | os.PathLike[str], checkpoint: str | os.PathLike[str] | None = None) -> None:
        self._folder = Folder(Path(directory))
        self._sessions: dict[str, Any] = {}
        self._state: dict[str, np.ndarray] = {}
        described = self._folder.schedule()
        self._schedule = None if described is None else schedules.described(described)
        self.step_count = 0
        self.seed = self._folder.manifest.inside("seed").integer("initial") if self._draws else None
        self.load(self._folder.path("checkpoint") if checkpoint is None else checkpoint)

    @property
    def _draws(self) -> bool:
        return self._folder.manifest.has("seed")

    @property
    def learning_rate(self) -> float:
        """The rate of the next step, by the schedule of the folder if it has one."""
        if self._schedule is not None:
            return self._schedule(self.step_count)
        return self._folder.manifest.inside("optimizer").number("learning_rate")

    @property
    def state(self) -> Mapping[str, np.ndarray]:
        """Parameters, running statistics and slots, by name."""
        return self._state

    def step(self, batch: Mapping[str, Any], learning_rate: float | None = None) -> Result:
        """One update by a batch: the model's inputs and the targets of the loss, by name."""
        rate = self.learning_rate if learning_rate is None else checked_rate(learning_rate, "learning_rate")
        folder = self._folder
        numbers = {folder.name_of("learning_rate"): rate, folder.name_of("step"): self.step_count + 1}
        if self.seed is not None:
            numbers[folder.name_of("seed")] = self.seed
        results = self._run(
            "step", batch, {**self._state, **numbers}, [*folder.names("inputs"), *folder.names("targets")]
        )
        self._state = {entry.name: results.pop(entry.following) for entry in folder.state}
        self.step_count += 1
        return self._result(results)

    def evaluate(self, batch: Mapping[str, Any]) -> Result:
        """Loss and outputs of a batch; nothing changes."""
        folder = self._folder
        return self._result(self._run("eval", batch, self._state, [*folder.names("inputs"), *folder.names("targets")]))

    def predict(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs of the model."""
        return self._run("inference", inputs, self._state, self._folder.names("inputs"))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, slots included, to a safetensors file that every language continues from."""
        texts = {"format": STATE_FORMAT, "step": str(self.step_count)}
        if self.seed is not None:
            texts["seed"] = str(self.seed)
        read = self._state.__getitem__
        entries = [Entry(x.name, x.shape, x.dtype, partial(read, x.name)) for x in self._folder.state]
        write(path, entries, texts)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint."""
        with TensorFile(path) as file:
            if file.metadata.get("format") != STATE_FORMAT:
                raise OnwardError(f"{os.fspath(path)!r} is no checkpoint of an exported folder")
            step = _integer(file.metadata.get("step", "0"), path)
            state = {entry.name: _read(file, entry, begins=step == 0) for entry in self._folder.state}
            seed = file.metadata.get("seed")
        self._state, self.step_count = state, step
        if seed is not None and self.seed is not None:
            self.seed = _integer(seed, path)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the model with its weights as they are now: an ordinary .onnx file."""
        folder = self._folder
        entry = folder.manifest.inside("files").inside("inference")
        structure = folder.read("inference")[: entry.inside("parts").count("structure")]
        used = set(folder.manifest.inside("inference").texts("inputs"))
        weights = {x.name: self._state[x.name] for x in folder.state if x.role in _KEPT and x.name in used}
        tensors = [
            tensorproto.encode(name, array)
            for name, array in {**weights, **self._frozen(entry.texts("frozen"))}.items()
        ]
        graph = b"".join(part for tensor in tensors for part in encode_bytes(_INITIALIZER, tensor))
        write_bytes(path, structure, *encode_bytes(_GRAPH, graph))

    def parameters(self) -> np.ndarray:
        """All parameters, one after the other in the order of the manifest, as one vector."""
        arrays = [self._state[entry.name].reshape(-1) for entry in self._folder.state if entry.role == "parameter"]
        return np.concatenate(arrays)

    def set_parameters(self, vector: np.ndarray) -> None:
        """The inverse of `parameters`."""
        entries = [entry for entry in self._folder.state if entry.role == "parameter"]
        sizes = [int(np.prod(entry.shape, dtype=np.int64)) for entry in entries]
        if vector.shape != (sum(sizes),):
            raise OnwardError(f"the parameters are a vector of {sum(sizes)} numbers, not of shape {list(vector.shape)}")
        parts = np.split(vector, np.cumsum(sizes)[:-1])
        for entry, part in zip(entries, parts, strict=True):
            self._state[entry.name] = part.astype(entry.dtype).reshape(entry.shape)

    def _frozen(self, names: list[str]) -> dict[str, np.ndarray]:
        content = self._folder.read("frozen") if names else b""
        return {item.text("name"): _part(content, item) for item in self._folder.frozen() if item.text("name") in names}

    def _run(
        self, what: str, given: Mapping[str, Any], rest: Mapping[str, Any], names: list[str]
    ) -> dict[str, np.ndarray]:
        session = self._session(what)
        unknown, missing = sorted(set(given) - set(names)), [name for name in names if name not in given]
        if unknown or missing:
            wrong = f"there is no input {unknown[0]!r}" if unknown else f"the input {missing[0]!r} is missing"
            raise UnknownNameError(f"{wrong}; a batch has {', '.join(names)}")
        values = {**rest, **given}
        feeds = {x.name: checked_input(x, x.shape, _narrowed(x, values[x.name])) for x in session.get_inputs()}
        outputs = [output.name for output in session.get_outputs()]
        try:
            return dict(zip(outputs, session.run(outputs, feeds), strict=True))
        except Exception as error:  # onnxruntime's exceptions have no common base but this
            fed = {name: feeds[name] for name in given}
            targets, rules = self._folder.names("targets"), self._rules(what)
            raise OnwardError(explain(str(error).strip(), f"{what}.onnx", fed, targets, rules)) from error

    def _session(self, what: str) -> Any:
        if what not in self._sessions:
            self._sessions[what] = open_session(self._folder.read(what), folder=self._folder.directory)
        return self._sessions[what]

    def _rules(self, what: str) -> list[str]:
        """The names of nodes that refuse something, and say what it must be."""
        return [node.name for node in wire.parse(self._folder.read(what)).nodes if node.name.startswith(CHECK)]

    def _result(self, results: dict[str, np.ndarray]) -> Result:
        return Result(float(results.pop(self._folder.name_of("loss"))), results)


def _narrowed(expected: Any, value: Any) -> Any:
    """Whole numbers as the int32 that graphs for WebGPU take in the place of int64, which numpy makes of them."""
    array = np.asarray(value)
    if expected.type != "tensor(int32)" or array.dtype.kind not in "iu" or array.dtype.itemsize < 4:
        return value
    limits = np.iinfo(np.int32)
    if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
        raise OnwardError(f"input {expected.name!r} takes whole numbers of 32 bits, and some of these are larger")
    return array.astype(np.int32)


def _read(file: TensorFile, entry: StateEntry, *, begins: bool) -> np.ndarray:
    if entry.name not in file.types:
        if entry.initial is not None and begins:
            return np.full(entry.shape, entry.initial, entry.dtype)
        raise OnwardError(f"{str(file.path)!r} has no {entry.name!r}: it belongs to another model or optimizer")
    array = file.read(entry.name)
    if (array.shape, array.dtype) != (entry.shape, entry.dtype):
        raise OnwardError(
            f"{entry.name!r} in {str(file.path)!r} is {array.dtype} {list(array.shape)}, but the folder has "
            f"{entry.dtype} {list(entry.shape)}: it belongs to another model"
        )
    return array


def _integer(text: str, path: str | os.PathLike[str]) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise OnwardError(f"{os.fspath(path)!r} is damaged: {text[:40]!r} should be a whole number") from error


def _part(content: bytes, item: Any) -> np.ndarray:
    dtype, start = numpy_dtype(item.text("type")), item.count("offset")
    shape = item.shape("shape")
    return np.frombuffer(content[start : start + item.count("bytes")], dtype).reshape(shape)
