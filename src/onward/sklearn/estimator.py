"""What estimators have in common: parameters, and the way from data to a model that was trained on it."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import onnx
from sklearn.base import _fit_context
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from onward.errors import NonFiniteError
from onward.head.ending import Head
from onward.losses.base import Loss
from onward.sklearn.error import EstimatorError
from onward.sklearn.fitted import Fitted
from onward.sklearn.learner import Learner, Settings, assembly, network
from onward.sklearn.network import Network, Predictor, load
from onward.sklearn.perceptron import Layer, hidden_sizes, initial_layers
from onward.sklearn.progress import Progress, Record
from onward.sklearn.rows import Rows
from onward.sklearn.solver import solver
from onward.trainer.loop import Loop

_LARGEST_BATCH = 200  # where the size is not given
_SAMPLE = 100  # rows that a model is tried on


@dataclass
class Task:
    """Data as a training graph takes it.

    Attributes:
        loss: what the scores and the target go into.
        target: of each row, in the type and shape that the loss takes.
        stratify: classes that a validation set has in the same shares.
    """

    loss: str | Loss
    target: np.ndarray
    stratify: np.ndarray | None = None


class OnnxEstimator(Fitted, ABC):
    """A model that learns from rows of features."""

    # What the kinds of estimators differ in -------------------------------------------------------------------------

    @abstractmethod
    def _read(self, model: Network) -> Head:
        """The end of a model."""

    @abstractmethod
    def _make(self, layers: list[Layer]) -> onnx.ModelProto:
        """A model of these layers."""

    @abstractmethod
    def _understand(self, y: np.ndarray, head: Head | None, *, first: bool, incremental: bool) -> np.ndarray:
        """Learn from targets what they are, if this is the `first` time, and return them as numbers.

        `head` is the end of the model that was given, if this is the first time.
        """

    @abstractmethod
    def _task(self, head: Head, y: np.ndarray) -> Task:
        """What is to be minimised for targets that were understood."""

    @property
    @abstractmethod
    def _width(self) -> int:
        """How many scores a model needs for the targets that were understood."""

    @abstractmethod
    def _measure(self, scores: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
        """How good scores are, as `score` has it."""

    def _correction(self, head: Head) -> Any:
        """What is added to the loss before it is reported."""
        return None

    # Training -------------------------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:  # noqa: N803
        """Train on rows `X` with targets `y`.

        Args:
            X: `[N, features]`, dense or sparse; for a model that takes images `[N, ...]` of their sizes too.
            y: the target of each row.
            sample_weight: the weight of each row: a batch has the loss sum(w l) / sum(w).
        """
        return self._fit(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any, *, incremental: bool = False) -> Any:  # noqa: N803
        if self.early_stopping and incremental:
            raise EstimatorError("partial_fit does not support early_stopping=True")
        first = not self.__sklearn_is_fitted__() or not (self.warm_start or incremental)
        given = load(self.model).SerializeToString() if first and self.model is not None else None
        X, y = self._validated(X, y, given, first)  # noqa: N806
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X, dtype=X.dtype)
        random = check_random_state(self.random_state)
        head = None if given is None else self._read(network(given))
        y = self._understand(y, head, first=first, incremental=incremental)
        weight = self._weighted(y, weight)
        if weight is not None and not weight.any():
            raise EstimatorError("Sample weights must contain at least one non-zero number.")
        if first:
            self._begin(given, X, random)
        task = self._task(self._head, y)
        self._train(X, y, task, weight, random, incremental=incremental)
        return self

    def _validated(self, X: Any, y: Any, given: bytes | None, first: bool) -> tuple[Any, Any]:  # noqa: N803
        model = network(given) if given is not None else None if first else self._alive.network
        return validate_data(
            self,
            X if model is None else model.flat(X),
            y,
            accept_sparse=["csr", "csc"],
            multi_output=True,
            dtype=(np.float64, np.float32),
            reset=first,
        )

    def _weighted(self, y: np.ndarray, weight: np.ndarray | None) -> np.ndarray | None:
        """The weights of rows."""
        return weight

    def _begin(self, given: bytes | None, X: Any, random: np.random.RandomState) -> None:  # noqa: N803
        """Start anew: from the model that was given, or from one that is drawn."""
        self.__dict__.pop("n_iter_", None)  # not fitted, until it is again
        if given is None:
            sizes = [X.shape[1], *hidden_sizes(self.hidden_layer_sizes), self._width]
            dtype = np.dtype(self.dtype or X.dtype)
            layers = initial_layers(sizes, self.activation, random, dtype)
            # Graphs are the same whatever the weights are, so those that are kept have none.
            blank = [Layer(np.zeros_like(layer.weight), np.zeros_like(layer.bias)) for layer in layers]
            self._model = self._make(blank).SerializeToString()
            self._weights = {
                f"layer{index}.{kind}": array
                for index, layer in enumerate(layers)
                for kind, array in layer._asdict().items()
            }
        else:
            self._model, self._weights = given, {}
        self._live = None
        self._head = self._read(self._alive.network)
        if given is not None:
            self._check_model(X)
        self._record = Record(self.early_stopping)
        self._memory = None
        self.t_ = 0

    def _check_model(self, X: Any) -> None:  # noqa: N803
        """See that a model that was given takes these rows and has a score for each target."""
        features = self._alive.network.features
        if features not in (None, self.n_features_in_):
            raise EstimatorError(f"X has {self.n_features_in_} features, but the model takes {features}")
        self._check_width()
        self._check_values(self._alive.network.predictor(self._checked_values(), {})(X[:_SAMPLE]))

    def _check_width(self) -> None:
        if self._head.width not in (None, self._width):
            raise EstimatorError(
                f"y has {self._width} numbers a row, but {self._head.scores!r} of the model has {self._head.width}; "
                "onward.new_head gives it a last layer of another size"
            )

    def _checked_values(self) -> list[str]:
        """The values of a model that are looked at before it is trained."""
        return [self._head.scores]

    def _check_values(self, values: dict[str, np.ndarray]) -> None:
        """See that they are what they seem."""

    def _train(
        self,
        X: Any,  # noqa: N803
        y: np.ndarray,
        task: Task,
        weight: np.ndarray | None,
        random: np.random.RandomState,
        *,
        incremental: bool,
    ) -> None:
        learner = self._learner(task, weight is not None, incremental)
        score = None
        chosen: Any = slice(None)
        if self.early_stopping:
            chosen, held = self._held_back(X.shape[0], task, random)
            score = self._score_of(learner, X[held], y[held], None if weight is None else weight[held])
        targets = {learner.target: task.target[chosen]}
        if weight is not None and learner.weight is not None:
            targets[learner.weight] = weight[chosen].astype(self._head.dtype, copy=False)
        rows = X[chosen]
        size, shuffled = self._batch_size(rows.shape[0]), random if self.shuffle else None
        source = Rows(self._alive.network, rows, targets, batch_size=size, random=shuffled)
        progress = Progress(self._record, self.get_params(deep=False), rows.shape[0], score)
        epochs = 1 if incremental else self.max_iter
        self._run(Loop(learner, source, epochs=epochs, callbacks=[progress], prefetch=source.ahead))
        if progress.epochs == self.max_iter and not progress.converged and not incremental:
            warnings.warn(
                f"Stochastic Optimizer: Maximum iterations ({self.max_iter}) reached and the optimization hasn't "
                "converged yet.",
                ConvergenceWarning,
                stacklevel=4,
            )
        if self.early_stopping and self._record.best_weights is not None:
            learner.restore(self._record.best_weights)
        self._finish(learner, progress)

    def _score_of(
        self,
        learner: Learner,
        X: Any,  # noqa: N803
        y: np.ndarray,
        weight: np.ndarray | None,
    ) -> Callable[[], float]:
        """How good the model is on rows that are held back, at any time."""
        predictor = Predictor(self._alive.network, learner.predict)
        return lambda: self._measure(predictor(X)[self._head.scores], y, weight)

    def _run(self, loop: Loop) -> None:
        try:
            loop.run()
        except KeyboardInterrupt:
            warnings.warn("Training interrupted by user.", stacklevel=5)
        except BaseException as error:
            self._alive.learner = None  # what is kept is what was before
            if isinstance(error, NonFiniteError):
                raise EstimatorError(str(error)) from error
            raise

    def _finish(self, learner: Learner, progress: Progress) -> None:
        record = self._record
        self._weights, self._memory = learner.snapshot(), learner.memory
        self._alive.predictor = None
        self.n_iter_, self.t_ = progress.epochs, record.seen
        self.loss_curve_, self.loss_ = record.losses, record.losses[-1] if record.losses else np.nan
        self.best_loss_ = None if record.early_stopping else record.best_loss
        self.validation_scores_ = record.scores if record.early_stopping else None
        self.best_validation_score_ = record.best_score if record.early_stopping else None

    def _learner(self, task: Task, weighted: bool, incremental: bool) -> Learner:
        """What is trained, with the optimizer as it was left if this is a `partial_fit`."""
        live = self._alive
        settings = Settings(
            task.loss,
            solver(self.get_params(deep=False)),
            float(self.alpha),
            weighted,
            _names(self.trainable),
            _names(self.frozen),
        )
        if not incremental or live.learner is None or live.settings != settings:
            made = assembly(self._model, self._head.scores, settings)
            live.learner = Learner(
                made,
                self._weights,
                rate=float(self.learning_rate_init),
                seed=self._seed,
                report=self._correction(self._head),
            )
            live.settings = settings
            if incremental and self._memory is not None:
                live.learner.memory = self._memory
        return live.learner

    @property
    def _seed(self) -> int:
        """What Dropout and new layers draw from."""
        return int(self.random_state) % 2**63 if isinstance(self.random_state, Integral) else 0

    def _held_back(self, count: int, task: Task, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """The rows to train on, and those to measure progress with."""
        chosen, held = train_test_split(
            np.arange(count), random_state=random, test_size=self.validation_fraction, stratify=task.stratify
        )
        if len(held) < 2:
            raise EstimatorError(
                "The validation set is too small. Increase 'validation_fraction' or the size of your dataset."
            )
        return chosen, held

    def _batch_size(self, rows: int) -> int:
        if isinstance(self.batch_size, str):  # "auto"
            return min(_LARGEST_BATCH, rows)
        if self.batch_size > rows:
            warnings.warn(
                "Got `batch_size` less than 1 or larger than sample size. It is going to be clipped", stacklevel=5
            )
        return min(int(self.batch_size), rows)


def _names(given: Any) -> tuple[str, ...] | None:
    return None if given is None else (given,) if isinstance(given, str) else tuple(given)
