"""The model that blocks are working on: one for each thread or task, so that they do not get into each other's way."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.errors import InvalidModelError, NotDifferentiableError, OnwardError, UnknownValueError
from onward.graph.blame import blaming_model
from onward.graph.nodes import all_values
from onward.graph.opsets import accepted_by_runtime
from onward.graph.prepare import prepare
from onward.graph.proto import has_map, map_refusal, spelled, to_proto
from onward.graph.shapes import dims, is_placeholder
from onward.graph.skeleton import proto_skeleton
from onward.graph.upgrade import upgrade
from onward.losses.activation import remember_origin
from onward.onnxblock.names import Names
from onward.onnxblock.working_copy import to_ir, working_copy

_current: ContextVar[ModelAccessor | None] = ContextVar("onward_model_accessor", default=None)
_library: ContextVar[os.PathLike[str] | None] = ContextVar("onward_custom_op_library", default=None)


def __getattr__(name: str) -> Any:
    # The original keeps these two in module globals, and people read them.
    if name == "_GLOBAL_ACCESSOR":
        return _current.get()
    if name == "_GLOBAL_CUSTOM_OP_LIBRARY":
        return _library.get()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ModelAccessor:
    """The model being built, the names taken in it, and what it was before any block changed it."""

    def __init__(self, model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> None:
        self._model = model
        self._path = None if model_path is None else os.fspath(model_path)
        self._names = Names()
        self._counter = 0
        self._prepared: dict[str | None, ir.Value] = {}
        self._prepared_key = b""
        self.constants: set[str] = set()  # initializers that take the type of the value they meet
        self._first_inputs = {value.name for value in model.graph.input}
        self._first_initializers = {tensor.name for tensor in model.graph.initializer}

    @property
    def model(self) -> onnx.ModelProto:
        if self._model is None:
            raise OnwardError("The onnx model has not been initialized yet.")
        return self._model

    @model.setter
    def model(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._names = Names()

    @property
    def path(self) -> str:
        """The file that the model came from; its external data lies beside it."""
        if self._path is None:
            raise OnwardError("The path of the onnx model is not known: it was given as a ModelProto.")
        return self._path

    @property
    def has_path(self) -> bool:
        return self._path is not None

    @property
    def opset(self) -> int:
        """The version of the default domain."""
        for imported in self.model.opset_import:
            if imported.domain in ("", "ai.onnx"):
                return imported.version
        raise InvalidModelError("the model does not say which opset of the default domain it uses")

    def added_inputs(self) -> list[str]:
        """Graph inputs that blocks created: the targets of losses."""
        return [value.name for value in self.model.graph.input if value.name not in self._first_inputs]

    def added_initializers(self) -> list[str]:
        """Initializers that blocks created."""
        return [tensor.name for tensor in self.model.graph.initializer if tensor.name not in self._first_initializers]

    # Names --------------------------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether a value or a node is called so."""
        return self._names.has(name, self.model.graph)

    def numbered_name(self, token: str) -> str:
        """``onnx::<token>::<n>`` with the next free number of this model."""
        while True:
            self._counter += 1
            name = f"onnx::{token}::{self._counter}"
            if self._names.take(name, self.model.graph):
                return name

    def unique_name(self, wanted: str) -> str:
        """`wanted`, or ``<wanted>_<n>`` with the smallest free n."""
        name, count = wanted, 0
        while not self._names.take(name, self.model.graph):
            count += 1
            name = f"{wanted}_{count}"
        return name

    # Values -------------------------------------------------------------------------------------------------------

    def value_info(self, name: str) -> onnx.ValueInfoProto:
        """Type and shape of a value; found by inference where no list of the graph has it."""
        found = find_value_info(self.model.graph, name)
        if found is None and self.has(name):
            found = find_value_info(self.inferred().graph, name)
        if found is None:
            raise UnknownValueError(f"Could not find {name!r} among the inputs, outputs and typed values of the model.")
        return found

    def value(self, name: str) -> ir.Value:
        """A value of that name, type and shape, in no graph."""
        described = self.value_info(name)
        if has_map(described.type):
            origins = [node.input[0] for node in self.model.graph.node if name in node.output]
            raise NotDifferentiableError(map_refusal(name, spelled(described.type), origins))
        info = ir.serde.deserialize_value_info_proto(described, None)
        return ir.Value(name=name, type=info.type, shape=info.shape)

    def prepared_value(self, name: str) -> ir.Value:
        """The same as the training graph will have it, where ranks that operators imply are known.

        What a file says of its values may be wrong: numbers of the example that was traced, or nothing at all.
        """
        found = self._prepared_values().get(name)
        if found is None or found.type is None:
            return self.value(name)
        known = dims(found)
        shape = None if known is None else ir.Shape([None if is_placeholder(size) else size for size in known])
        value = ir.Value(name=name, type=found.type, shape=shape)
        remember_origin(value, found)
        return value

    def _prepared_values(self) -> dict[str | None, ir.Value]:
        key = hashlib.sha256(proto_skeleton(self.model).SerializeToString(deterministic=True)).digest()
        if key != self._prepared_key:
            try:
                model = prepare(self.to_ir(), keep=custom_operators())
                self._prepared = {value.name: value for value in all_values(model.graph)}
            except OnwardError:
                self._prepared = {}  # whoever trains the model says what is wrong with it
            self._prepared_key = key
        return self._prepared

    def inferred(self) -> onnx.ModelProto:
        """The model without its weights, and with all types and shapes that can be inferred."""
        with blaming_model("inferring the shapes of the model"):
            return onnx.shape_inference.infer_shapes(proto_skeleton(self.model))

    # The whole model ----------------------------------------------------------------------------------------------

    def to_ir(self) -> ir.Model:
        """The model as the rest of onward takes it, external data found."""
        with blaming_model("reading the model"):
            return to_ir(self.model, self._path)

    def upgrade(self, opset: int) -> None:
        """Move the model to a newer opset, which some block needs."""
        added = set(self.added_initializers())
        # In place: blocks that are running hold the proto.
        self._model.CopyFrom(to_proto(upgrade(prepare(self.to_ir(), keep=custom_operators()), opset)))
        self._names = Names()
        # Constant nodes of the model are initializers now.
        self._first_initializers = {tensor.name for tensor in self.model.graph.initializer} - added


def find_value_info(graph: onnx.GraphProto, name: str) -> onnx.ValueInfoProto | None:
    """What the lists of a graph say about a value, initializers included."""
    for values in (graph.output, graph.input, graph.value_info):
        for value in values:
            if value.name == name and value.HasField("type"):
                return value
    for tensor in graph.initializer:
        if tensor.name == name:
            return onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    return None


def active() -> ModelAccessor | None:
    """The accessor of this thread or task, if there is one."""
    return _current.get()


def current() -> ModelAccessor:
    """The accessor of this thread or task."""
    accessor = _current.get()
    if accessor is None:
        raise OnwardError(
            "a block was called outside of a model: call it inside `with onnxblock.base(model):` or "
            "`with onnxblock.empty_base():`"
        )
    return accessor


def current_library() -> os.PathLike[str] | None:
    """The custom operator library of this thread or task, if there is one."""
    return _library.get()


@contextlib.contextmanager
def base(model: onnx.ModelProto, model_path: str | os.PathLike[str] | None = None) -> Iterator[ModelAccessor]:
    """Let the blocks called inside work on a copy of `model`; `model_path` says where its external data lies."""
    if model is None:
        raise OnwardError("Base onnx model cannot be None. Please use onnxblock.empty_base() to start without one.")
    if not isinstance(model, onnx.ModelProto):
        raise OnwardError(f"onnxblock.base takes an onnx.ModelProto, not {type(model).__name__}; onnx.load reads files")
    with _working_on(lambda: ModelAccessor(working_copy(model, model_path), model_path)) as accessor:
        yield accessor


@contextlib.contextmanager
def empty_base(opset_version: int | None = None) -> Iterator[ModelAccessor]:
    """Let the blocks called inside build a model from nothing, by default in the newest opset that can run."""
    if opset_version is not None and (not isinstance(opset_version, int) or opset_version < 1):
        raise OnwardError(f"`opset_version` is the number of an opset, not {opset_version!r}")
    opset, ir_version = accepted_by_runtime()
    known = onnx.defs.onnx_opset_version()
    model = onnx.ModelProto(ir_version=min(ir_version, onnx.IR_VERSION), producer_name="onward")
    model.graph.name = "graph"
    model.opset_import.extend(
        [onnx.helper.make_opsetid("com.microsoft", 1), onnx.helper.make_opsetid("", opset_version or min(opset, known))]
    )
    with _working_on(lambda: ModelAccessor(model)) as accessor:
        yield accessor


@contextlib.contextmanager
def _working_on(make: Any) -> Iterator[ModelAccessor]:
    if _current.get() is not None:
        raise OnwardError("Base onnx model already exists. Cannot create multiple ModelAccessors.")
    accessor = make()
    token = _current.set(accessor)
    try:
        yield accessor
    finally:
        _current.reset(token)


@contextlib.contextmanager
def custom_op_library(custom_op_library_path: os.PathLike[str]) -> Iterator[os.PathLike[str]]:
    """Name the library of the custom operators that the model uses."""
    if _library.get() is not None:
        raise OnwardError("Custom op library already exists. Cannot create multiple custom op libraries.")
    if not Path(custom_op_library_path).exists():
        raise OnwardError(f"Custom op library path {custom_op_library_path} does not exist.")
    token = _library.set(custom_op_library_path)
    try:
        yield custom_op_library_path
    finally:
        _library.reset(token)
