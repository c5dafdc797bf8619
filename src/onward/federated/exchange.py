"""What a server and its clients exchange: the parameters of a Trainer as one flat buffer, and running statistics."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onward.errors import OnwardError
from onward.trainer.trainer import Trainer


class Exchange:
    """The parameters and running statistics of one trainer, as flat buffers.

    Parameters come one after the other in the order of the training graph, as `onward.api.Module` has them in
    `get_contiguous_parameters`. All are of one type that holds each of them exactly: float32, or float64 where one is.

    A running variance is exchanged as the second moment, variance + mean², in float64: means of moments are the moments
    of all rows together, while the mean of variances leaves out how far the clients are from each other.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._trained = trainer.trained
        self._layout = {
            name: (kind, dtype, shape) for name, kind, dtype, shape in self._trained.parameters() if kind != "frozen"
        }
        self._parameters = self._trained.module.parameter_names(trainable_only=True)
        self._statistics = [name for name, (kind, *_) in self._layout.items() if kind == "statistic"]
        self._mean_of = self._trained.variances() if self.has_statistics else {}
        doubles = any(self._layout[name][1] == "float64" for name in self._parameters)
        self.dtype = np.dtype(np.float64 if doubles else np.float32)
        self.size = self._size(self._parameters)

    @property
    def has_statistics(self) -> bool:
        return bool(self._statistics)

    @property
    def identity(self) -> str:
        """Tells this model, its loss and its frozen weights from others."""
        return self._trained.identity

    def layout(self) -> str:
        """What the buffers consist of, to be compared with that of another: JSON."""
        order = [*self._parameters, *self._statistics]
        return json.dumps([[name, *self._layout[name]] for name in order], ensure_ascii=False)

    def require_same(self, layout: str, identity: str) -> None:
        """Refuse to exchange anything with another model."""
        theirs = {name: (kind, dtype, tuple(shape)) for name, kind, dtype, shape in json.loads(layout)}
        for name, (kind, dtype, shape) in self._layout.items():
            if name not in theirs:
                raise _other_model(f"{name!r} ({kind}) is a parameter of the client's model, but not of the server's")
            if theirs[name] != (kind, dtype, shape):
                ours, other = _described(kind, dtype, shape), _described(*theirs[name])
                raise _other_model(f"{name!r} is {ours} on the client, but {other} on the server")
        for name, described in theirs.items():
            if name not in self._layout:
                raise _other_model(
                    f"{name!r} ({described[0]}) is a parameter of the server's model, not of the client's"
                )
        if json.loads(layout) != json.loads(self.layout()):
            raise _other_model("their parameters come in another order")
        if identity != self.identity:
            raise _other_model(
                "their parameters have the same names and sizes, but graph, loss or frozen weights differ (or the "
                "versions of onward, which may write graphs differently)"
            )

    # Parameters ---------------------------------------------------------------------------------------------------

    def parameters(self) -> np.ndarray:
        """A copy of all that is trained."""
        return self._joined(self._parameters, self.trainer.snapshot(), self.dtype)

    def take_parameters(self, buffer: np.ndarray) -> None:
        """Set all that is trained."""
        if buffer.shape != (self.size,) or buffer.dtype.kind != "f":
            raise OnwardError(
                f"the parameters are {self.size} numbers, but what came for them is {buffer.dtype} {list(buffer.shape)}"
            )
        if not np.isfinite(buffer).all():
            raise OnwardError("parameters came that are NaN or infinite")
        self._assign(self._divided(self._parameters, buffer))

    # Running statistics -------------------------------------------------------------------------------------------

    def statistics(self) -> np.ndarray:
        """Means and second moments, in float64."""
        arrays = {name: array.astype(np.float64) for name, array in self.trainer.snapshot().items()}
        moments = {name: arrays[name] + arrays[mean] ** 2 for name, mean in self._mean_of.items()}
        return self._joined(self._statistics, {**arrays, **moments}, np.dtype(np.float64))

    def take_statistics(self, buffer: np.ndarray) -> None:
        """Set running statistics from what `statistics` returned, or from a mean of several such."""
        if buffer.shape != (self._size(self._statistics),) or not np.isfinite(buffer).all():
            raise OnwardError(f"these are no running statistics of the model: {buffer.dtype} {list(buffer.shape)}")
        wide = self._divided(self._statistics, buffer)
        # Rounding may leave a variance of nothing a little below zero.
        central = {name: np.maximum(wide[name] - wide[mean] ** 2, 0) for name, mean in self._mean_of.items()}
        self._assign({**wide, **central})

    def _joined(self, names: Sequence[str], arrays: dict[str, np.ndarray], dtype: np.dtype[Any]) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(arrays[name].astype(dtype).reshape(-1) for name in names)])

    def _divided(self, names: Sequence[str], buffer: np.ndarray) -> dict[str, np.ndarray]:
        arrays, start = {}, 0
        for name in names:
            shape = self._layout[name][2]
            end = start + math.prod(shape)
            arrays[name] = buffer[start:end].reshape(shape)
            start = end
        return arrays

    def _assign(self, arrays: dict[str, np.ndarray]) -> None:
        state = self._trained.state
        self.trainer.restore({name: array.astype(state.type_of(name).dtype) for name, array in arrays.items()})

    def _size(self, names: Sequence[str]) -> int:
        return sum(math.prod(self._layout[name][2]) for name in names)


def _described(kind: str, dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype} {list(shape)} ({kind})"


def _other_model(reason: str) -> OnwardError:
    return OnwardError(
        f"client and server have different models: {reason}. All of them need the same file, loss, `trainable` and "
        "`frozen`: only what is trained is exchanged"
    )
