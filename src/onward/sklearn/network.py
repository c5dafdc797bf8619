"""A model as an estimator sees it: rows of features go in, values of each row come out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.errors import InvalidModelError, OnwardError, UnknownNameError
from onward.graph.cleanup import remove_unused
from onward.graph.finish import finish
from onward.graph.naming import quoted
from onward.graph.nodes import outer_values
from onward.graph.prepare import prepare
from onward.graph.shapes import Dim, dims
from onward.head.logistic import name_logistic
from onward.runtime.session import open_session
from onward.sklearn.error import EstimatorError
from onward.training.modes import switch_to_evaluation, trains_batch_statistics

_ROWS_AT_ONCE = 4096  # in prediction

Model = str | os.PathLike[str] | bytes | onnx.ModelProto


def load(model: Model) -> onnx.ModelProto:
    """A model from a file, from bytes or as it is, with all of its weights inside."""
    try:
        if isinstance(model, (bytes, bytearray)):
            return onnx.load_from_string(bytes(model))
        if isinstance(model, (str, os.PathLike)):
            return onnx.load(os.fspath(model))
    except Exception as error:
        shown = "the bytes are" if isinstance(model, (bytes, bytearray)) else f"{os.fspath(model)!r} is"
        raise InvalidModelError(f"{shown} not a readable ONNX model: {error}") from error
    if isinstance(model, onnx.ModelProto):
        return model
    raise OnwardError(f"`model` is the path of an ONNX file, its bytes or a ModelProto, not {type(model).__name__}")


@dataclass(frozen=True)
class Entrance:
    """An input of a model that takes some of the features."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[Dim, ...]

    @property
    def width(self) -> int | None:
        """How many features it takes; None if that is not known."""
        sizes = self.shape[1:]
        return math.prod(size for size in sizes if isinstance(size, int)) if _all_known(sizes) else None

    @property
    def rows(self) -> int | None:
        """The number of rows that it insists on."""
        return self.shape[0] if self.shape and isinstance(self.shape[0], int) else None

    def take(self, features: np.ndarray) -> np.ndarray:
        """Rows of features as this input has them."""
        array = features.astype(self.dtype, copy=False)
        if self.dtype.kind in "iub" and not np.array_equal(array, features):
            raise EstimatorError(f"input {self.name!r} of the model takes {self.dtype}, but X has other numbers")
        if len(self.shape) == array.ndim and array.ndim == 2:
            return array
        return array.reshape(len(array), *(size for size in self.shape[1:] if isinstance(size, int)))


def _all_known(sizes: Sequence[Dim]) -> bool:
    return all(isinstance(size, int) for size in sizes)


class Network:
    """A model, prepared, and how X becomes its inputs."""

    def __init__(self, model: Model) -> None:
        self.proto = load(model)
        self.prepared = prepare(self.proto, keep=custom_operators())
        name_logistic(self.prepared)
        self.entrances = [_entrance(value) for value in self.prepared.graph.inputs if not value.is_initializer()]
        if not self.entrances:
            raise OnwardError("the model has no input, so there is nothing to give X to")
        if len(self.entrances) > 1 and any(entrance.width is None for entrance in self.entrances):
            raise OnwardError(
                f"the model has the inputs {quoted(entrance.name for entrance in self.entrances)}, and it is not known "
                "how many features each of them takes; declare their shapes"
            )

    @property
    def features(self) -> int | None:
        """How many features the model takes; None if any number."""
        widths = [entrance.width for entrance in self.entrances]
        return None if None in widths else sum(width for width in widths if width is not None)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What X is converted to first."""
        return np.result_type(*(entrance.dtype for entrance in self.entrances))

    @property
    def fixed_rows(self) -> int | None:
        """The number of rows that the model insists on."""
        return next((entrance.rows for entrance in self.entrances if entrance.rows is not None), None)

    def flat(self, X: Any) -> Any:  # noqa: N803  scikit-learn's name
        """Rows `[N, features]` of rows that have the shape of the input already; anything else as it is."""
        sizes = [entrance.shape[1:] for entrance in self.entrances]
        if len(sizes) == 1 and getattr(X, "ndim", 2) > 2 and X.shape[1:] == sizes[0]:
            return np.asarray(X).reshape(len(X), -1)
        return X

    def feeds(self, X: np.ndarray) -> dict[str, np.ndarray]:  # noqa: N803  scikit-learn's name
        """What the inputs are fed for rows `X` `[N, features]`; inputs take columns from left to right."""
        features = self.features
        if features is not None and X.shape[1] != features:
            raise EstimatorError(f"X has {X.shape[1]} features, but the model takes {features}")
        if len(self.entrances) == 1:
            return {self.entrances[0].name: self.entrances[0].take(X)}
        ends = np.cumsum([entrance.width for entrance in self.entrances])
        parts = np.split(X, ends[:-1], axis=1)
        return {entrance.name: entrance.take(part) for entrance, part in zip(self.entrances, parts, strict=True)}

    def part(self, outputs: Sequence[str]) -> ir.Model:
        """The part of the model that computes these values, in standard operators."""
        part = self.prepared.clone()
        known = outer_values(part.graph)
        unknown = [name for name in outputs if name not in known]
        if unknown:
            raise UnknownNameError(f"the model has no value {quoted(unknown)}; it has {quoted(known)}")
        part.graph.outputs.clear()
        part.graph.outputs.extend(known[name] for name in outputs)
        remove_unused(part)
        return part

    def predictor(self, outputs: Sequence[str], weights: Mapping[str, np.ndarray]) -> Predictor:
        """What computes these values, with other weights."""
        part = self.part(outputs)
        switch_to_evaluation(part)
        proto = finish(part)
        _set_weights(proto, weights)
        session, names = open_session(proto.SerializeToString()), list(outputs)
        return Predictor(self, lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)))

    def with_weights(self, weights: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """The model as it was given, with other weights.

        Where they are not initializers in the file (but attributes of a LinearClassifier, say), or where the file is
        made for training, it is the model in standard operators for inference, with the same inputs and outputs.
        """
        plain = {tensor.name for tensor in self.proto.graph.initializer}
        if plain >= weights.keys() and not self._trains():
            model = onnx.ModelProto()
            model.CopyFrom(self.proto)
        else:
            inference = self.prepared.clone()
            switch_to_evaluation(inference)
            model = finish(inference)
        _set_weights(model, weights)
        return model

    def _trains(self) -> bool:
        """Whether the file has layers that do something else in training than in inference, and do that."""
        opset = self.prepared.opset_imports[""]
        return any(
            trains_batch_statistics(node, opset) or (node.op_type == "Dropout" and len(node.inputs) > 2)
            for node in self.prepared.graph.all_nodes()
        )


class Predictor:
    """Computes values of a model for rows of features, some rows at a time.

    Args:
        run: from what the inputs are fed to the values by name.
    """

    def __init__(self, network: Network, run: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]]) -> None:
        self._network, self._run = network, run

    def __call__(self, X: Any) -> dict[str, np.ndarray]:  # noqa: N803  scikit-learn's name
        size = self._network.fixed_rows or _ROWS_AT_ONCE
        parts = [self._part(dense(X[first : first + size])) for first in range(0, X.shape[0], size)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _part(self, X: np.ndarray) -> dict[str, np.ndarray]:  # noqa: N803
        rows, fixed = len(X), self._network.fixed_rows
        if fixed is not None and rows < fixed:
            X = np.concatenate([X, np.repeat(X[-1:], fixed - rows, axis=0)])  # noqa: N806
        values = self._run(self._network.feeds(X))
        for name, value in values.items():
            if value.ndim == 0 or len(value) != len(X):
                raise EstimatorError(
                    f"{name!r} of the model has shape {list(value.shape)} for {len(X)} rows, which is not one value, "
                    "or list of values, for each. Name another one: output='...'"
                )
        return {name: value[:rows] for name, value in values.items()}


def dense(X: Any) -> np.ndarray:  # noqa: N803
    """An array of what may be a sparse matrix."""
    return X.toarray() if hasattr(X, "toarray") else X


def _set_weights(model: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            array = np.asarray(weights[tensor.name]).astype(dtype, copy=False)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def _entrance(value: ir.Value) -> Entrance:
    known = dims(value)
    if value.dtype is None or known is None or value.dtype == ir.DataType.STRING:
        what = "text" if value.dtype == ir.DataType.STRING else "an unknown type or shape"
        raise OnwardError(f"input {value.name!r} of the model has {what}; X is an array of numbers")
    inner = [size for size in known[1:] if not isinstance(size, int)]
    if not known or len(known) == 1 or (inner and len(known) > 2):
        shown = str(list(known)).replace("'", "")
        raise OnwardError(
            f"input {value.name!r} of the model has shape {shown}; rows of X become shape [N, features], or any other "
            "shape [N, ...] whose sizes are known, such as [N, 1, 8, 8]"
        )
    return Entrance(value.name or "", np.dtype(value.dtype.numpy()), known)
