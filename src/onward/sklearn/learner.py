"""A model that an estimator trains: the graphs of `onward.training`, and a step for the loop of `onward.trainer`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onward.graph.naming import quoted
from onward.losses.base import Loss
from onward.losses.weighted import SAMPLE_WEIGHT
from onward.sklearn.error import EstimatorError
from onward.sklearn.network import Network
from onward.sklearn.objective import objective
from onward.sklearn.rows import Batch
from onward.sklearn.solver import Solver
from onward.trainer.trained import TrainedModel
from onward.training.assembly import Assembly, assemble
from onward.training.objective import default_parameters
from onward.training.selection import selected

# Between fits of the same model, as searches and validation make them, graphs are built once.
_KEPT, _LARGEST_KEPT = 8, 2**24

Weights = Mapping[str, np.ndarray]
Names = tuple[str, ...] | None


def network(model: bytes) -> Network:
    """The model of these bytes."""
    return (_network if len(model) <= _LARGEST_KEPT else _network.__wrapped__)(model)


@functools.lru_cache(maxsize=_KEPT)
def _network(model: bytes) -> Network:
    return Network(model)


class Settings(NamedTuple):
    """What a training graph is made for."""

    loss: str | Loss
    solver: Solver
    alpha: float
    weighted: bool
    trainable: Names
    frozen: Names


def assembly(model: bytes, scores: str, settings: Settings) -> Assembly:
    """What trains the model of these bytes."""
    return (_assembly if len(model) <= _LARGEST_KEPT else _assembly.__wrapped__)(model, scores, settings)


@functools.lru_cache(maxsize=_KEPT)
def _assembly(model: bytes, scores: str, settings: Settings) -> Assembly:
    part = network(model).part([scores])
    names = selected(part, settings.trainable, settings.frozen, loss=part.graph.outputs[0])
    if names is None:
        names = default_parameters(part, argument="trainable", required=True)
    matrices = [name for name in names if _rank(part.graph.initializers[name]) > 1]
    whole = objective(settings.loss, alpha=settings.alpha, matrices=matrices, sample_weight=settings.weighted)
    return assemble(part, whole, settings.solver.optimizer(), trainable=names, loss_inputs=[scores])


def _rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


class Learner:
    """What the loop trains.

    Args:
        rate: the learning rate, which callbacks may change.
        report: what is added to the loss before it is reported, from scores, targets and weights.
    """

    def __init__(
        self,
        made: Assembly,
        weights: Weights,
        *,
        rate: float,
        seed: int = 0,
        device: str = "cpu",
        report: Callable[[np.ndarray, np.ndarray, np.ndarray | None], float] | None = None,
    ) -> None:
        self.model = TrainedModel(made, seed=seed, device=device)
        self.rate, self._report = rate, report
        self._scores = made.predictions[0]
        self.weight = made.targets.get(SAMPLE_WEIGHT)
        targets = [fed for name, fed in made.targets.items() if name != SAMPLE_WEIGHT]
        if len(targets) != 1:
            raise EstimatorError(f"the loss takes the targets {quoted(targets)}, but an estimator has y only")
        (self.target,) = targets
        known = {*self.model.state.trainable_names, *self.model.state.frozen_names}
        self.model.restore({name: array for name, array in weights.items() if name in known})

    def learn(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """One update; returns the loss and the number of rows."""
        (batch,) = batches
        (outputs,) = self.model.update([batch.feeds], [1.0], self.rate)
        loss = self.model.loss_of(outputs)
        if self._report is not None:
            scores = self.model.output_of(outputs, self._scores)
            weight = None if self.weight is None else batch.feeds[self.weight]
            loss += self._report(scores, batch.feeds[self.target], weight)
        return loss, float(batch.rows)

    def predict(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The scores of some rows, by their name, with the weights as they are."""
        return self.model.predict(feeds)

    def snapshot(self) -> dict[str, np.ndarray]:
        return self.model.snapshot()

    def restore(self, snapshot: Weights) -> None:
        self.model.restore(snapshot)

    @property
    def memory(self) -> dict[str, Any]:
        """What the optimizer remembers, as plain values and arrays."""
        state = self.model.state.optimizer
        assert state is not None
        slots = {name: {key: np.array(array) for key, array in slot.items()} for name, slot in state.slots.items()}
        return {"step": state.step, "rate": self.rate, "slots": slots, "passes": self.model.state.random.passes}

    @memory.setter
    def memory(self, kept: dict[str, Any]) -> None:
        state = self.model.state.optimizer
        assert state is not None
        if kept["slots"].keys() != state.slots.keys():
            return  # that of another solver
        state.step, self.rate = kept["step"], kept["rate"]
        self.model.state.random.passes = kept["passes"]
        for name, arrays in kept["slots"].items():
            for key, array in arrays.items():
                state.slots[name].assign(key, array)
