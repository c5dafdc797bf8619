"""A model that predicts classes."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import onnx
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.metrics import accuracy_score
from sklearn.utils import compute_sample_weight
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.multiclass import (
    _check_partial_fit_first_call,
    check_classification_targets,
    type_of_target,
    unique_labels,
)
from sklearn.utils.validation import check_is_fitted, column_or_1d

from onward.head import new_head
from onward.head.ending import Head, as_probabilities, read_classes
from onward.losses.base import Loss, declared_signature
from onward.losses.registry import get
from onward.losses.target import class_indices
from onward.sklearn import perceptron
from onward.sklearn.error import EstimatorError
from onward.sklearn.estimator import OnnxEstimator, Task
from onward.sklearn.network import Network, dense
from onward.sklearn.objective import classification_loss
from onward.sklearn.parameters import Constraints
from onward.sklearn.scores import are_probabilities, choose, clearness, decision, log_probabilities

_OF_SIGNS = ("hinge", "hinge_embedding", "soft_margin")  # losses whose targets are -1 and 1


class OnnxClassifier(ClassifierMixin, OnnxEstimator):
    """Any ONNX model that predicts classes, as an estimator; without one, it makes a perceptron.

    Parameters are those of scikit-learn's MLPClassifier, and besides:

    Args:
        model: a file, bytes or a ModelProto: fine-tuned from the weights that it has.
        loss: a name of `onward.losses`, or a function ``(op, prediction, target)`` of the scores; the log loss by
            default.
        solver: "adam" and "sgd" as scikit-learn has them, or any other name of `onward.optim`.
        output: the output (or inner value) with the scores or probabilities, where the model has several.
        trainable: names and patterns of the parameters to train; `frozen` of those to leave as they are.
        dtype: of a model that is made; that of X by default.
        class_weight: a weight for each class, by class, or "balanced": rows / (classes * rows of the class).
        new_head: whether a model with another number of classes gets a new last layer (`onward.new_head`).
    """

    _parameter_constraints: ClassVar[Constraints] = {
        **OnnxEstimator._parameter_constraints,
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "new_head": ["boolean"],
    }

    def __init__(
        self,
        model: Any = None,
        hidden_layer_sizes: Any = (100,),
        activation: str = "relu",
        *,
        loss: Any = None,
        solver: str = "adam",
        alpha: float = 0.0001,
        batch_size: int | str = "auto",
        learning_rate: str = "constant",
        learning_rate_init: float = 0.001,
        power_t: float = 0.5,
        max_iter: int = 200,
        shuffle: bool = True,
        random_state: Any = None,
        tol: float = 1e-4,
        verbose: bool | int = False,
        warm_start: bool = False,
        momentum: float = 0.9,
        nesterovs_momentum: bool = True,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        n_iter_no_change: float = 10,
        output: str | None = None,
        trainable: Any = None,
        frozen: Any = None,
        dtype: str | None = None,
        class_weight: Any = None,
        new_head: bool = False,
    ) -> None:
        super().__init__(
            model,
            hidden_layer_sizes,
            activation,
            loss=loss,
            solver=solver,
            alpha=alpha,
            batch_size=batch_size,
            learning_rate=learning_rate,
            learning_rate_init=learning_rate_init,
            power_t=power_t,
            max_iter=max_iter,
            shuffle=shuffle,
            random_state=random_state,
            tol=tol,
            verbose=verbose,
            warm_start=warm_start,
            momentum=momentum,
            nesterovs_momentum=nesterovs_momentum,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            n_iter_no_change=n_iter_no_change,
            output=output,
            trainable=trainable,
            frozen=frozen,
            dtype=dtype,
        )
        self.class_weight = class_weight
        self.new_head = new_head

    def _read(self, model: Network) -> Head:
        return read_classes(model.prepared, self.output)

    def _make(self, layers: list[perceptron.Layer]) -> onnx.ModelProto:
        return perceptron.classifier(layers, self.activation, None if self._multilabel else self.classes_)

    # Targets --------------------------------------------------------------------------------------------------------

    def _understand(self, y: np.ndarray, head: Head | None, *, first: bool, incremental: bool) -> np.ndarray:
        """Numbers of classes `[N]`, or for several labels a row 0 and 1 `[N, labels]`."""
        if y.ndim == 2 and y.shape[1] == 1:
            y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        kind = type_of_target(y)
        if kind == "multiclass-multioutput":
            raise EstimatorError("y has several columns of classes; only columns of yes or no can be learned together")
        multilabel = kind == "multilabel-indicator"
        if first:
            self._multilabel = multilabel
            self.classes_ = np.arange(y.shape[1]) if multilabel else self._classes(y, head, incremental)
        if multilabel != self._multilabel or (multilabel and y.shape[1] != len(self.classes_)):
            raise EstimatorError(f"y is {kind} of shape {y.shape}, but the model was fitted to other targets")
        if multilabel:
            return dense(y)
        self._check_classes(unique_labels(y), first=first, incremental=incremental)
        order = np.argsort(self.classes_)
        return order[np.searchsorted(self.classes_, y, sorter=order)]

    def _classes(self, y: np.ndarray, head: Head | None, incremental: bool) -> np.ndarray:
        """The classes in the order of the scores: those of the file, if it knows them, or all that there are."""
        found = self.classes_ if incremental else unique_labels(y)
        if head is None or head.labels is None:
            if len(found) < 2:
                raise EstimatorError(f"y has one class only, {found.tolist()[0]!r}: there is nothing to tell it from")
            return found
        known = np.asarray(head.labels)
        alike = (known.dtype.kind in "iu") == (found.dtype.kind in "iufb")
        unknown = [label for label in found.tolist() if not alike or label not in head.labels]
        if unknown:
            raise EstimatorError(
                f"y has the class {unknown[0]!r}, but the model's classes are {list(head.labels)}, which its labels "
                "are taken from. Give y in these classes; onward.new_head(model, classes=...) is for other ones."
            )
        return known.astype(found.dtype) if known.dtype.kind in "iu" else known

    def _check_classes(self, found: np.ndarray, *, first: bool, incremental: bool) -> None:
        if self.warm_start and not first and not incremental and set(found) != set(self.classes_):
            raise EstimatorError(
                "warm_start can only be used where `y` has the same classes as in the previous call to fit. Previously "
                f"got {self.classes_}, `y` has {found}"
            )
        if not np.isin(found, self.classes_).all():
            raise EstimatorError(
                f"`y` has classes not in `self.classes_`. `self.classes_` has {self.classes_}. 'y' has {found}."
            )

    @property
    def _width(self) -> int:
        return 1 if len(self.classes_) == 2 and not self._multilabel else len(self.classes_)

    def _check_width(self) -> None:
        count, head = len(self.classes_), self._head
        fits = (None, count) if self._multilabel else (None, count, 1) if count == 2 else (None, count)
        if head.width in fits:
            return
        if self.new_head:
            self._replace_head(count)
            return
        raise EstimatorError(
            f"y has {count} {'labels' if self._multilabel else 'classes'}, but {head.scores!r} of the model has "
            f"{head.width} scores a row. onward.new_head(model, classes={count}) gives it a new last layer, as does "
            "new_head=True; partial_fit(X, y, classes=...) is for classes that are not in this y."
        )

    def _replace_head(self, count: int) -> None:
        replaced, _ = new_head(onnx.load_from_string(self._model), classes=count, seed=self._seed)
        self._model, self._live = replaced.SerializeToString(), None
        self._head = self._read(self._alive.network)

    def _checked_values(self) -> list[str]:
        """Scores, what they become, and labels."""
        return list(dict.fromkeys(filter(None, (self._head.scores, self._head.end, self._head.label))))

    def _check_values(self, values: dict[str, np.ndarray]) -> None:
        """Probabilities and labels of the file must follow from its scores: what is trained is what it will say."""
        head = self._head
        scores, end = self._rows(values[head.scores]), self._rows(values[head.end])
        if are_probabilities(end, exclusive=not self._multilabel):
            made = np.exp(log_probabilities(scores, head.link, multilabel=self._multilabel))
            made = made[:, -end.shape[1] :]  # a single one is that of the second class
            if not np.allclose(end, made, rtol=1e-3, atol=1e-4):
                self._head, scores = as_probabilities(self._alive.network.prepared, head), end
        if head.label is None or head.labels is None or self._multilabel:
            return
        labels, expected = values[head.label].reshape(-1), np.asarray(head.labels)[self._chosen(scores)]
        clear = clearness(scores, self._head.link) > 1e-4
        if not np.array_equal(labels[clear], expected[clear]):
            raise EstimatorError(
                f"the labels of the model, {head.label!r}, do not follow from its scores {self._head.scores!r}: the "
                "largest score of a row has another class. Training would change the one and not the other; name other "
                "scores: output='...'"
            )

    def _task(self, head: Head, y: np.ndarray) -> Task:
        exclusive, width = not self._multilabel, head.width or self._width
        loss: Loss = (
            classification_loss(head.link, width, exclusive=exclusive)
            if self.loss in (None, "log_loss")
            else get(self.loss)
        )
        stratify = y if exclusive and len(self.classes_) == 2 else None
        if _takes_labels(loss):
            return Task(loss, y.astype(np.int64, copy=False), stratify)
        target = y if self._multilabel or width == 1 else np.eye(len(self.classes_))[y]
        if self.loss in _OF_SIGNS:
            target = 2 * target - 1
        shape = (len(y),) if head.rank == 1 else (len(y), width, *[1] * (head.rank - 2))
        return Task(loss, target.reshape(shape).astype(head.dtype), stratify)

    def _weighted(self, y: np.ndarray, weight: np.ndarray | None) -> np.ndarray | None:
        if self.class_weight is None:
            return weight
        if self._multilabel:
            raise EstimatorError("class_weight is for classes that exclude each other, but a row of y has several")
        by_class = compute_sample_weight(self.class_weight, self.classes_[y])
        return by_class if weight is None else by_class * weight

    # Training and prediction ----------------------------------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        classes: Any = None,
        sample_weight: Any = None,
    ) -> OnnxClassifier:
        """Train for one pass over rows `X`; the next call goes on from there.

        The first call needs `classes`, all that there will be, unless y has several labels a row.
        """
        if self.class_weight == "balanced":
            raise EstimatorError(
                "class_weight 'balanced' is not supported for partial_fit, which does not see all rows. Give weights "
                "as a dict; compute_class_weight('balanced', classes=classes, y=y) of scikit-learn has them."
            )
        if classes is not None or not type_of_target(y).startswith("multilabel"):
            _check_partial_fit_first_call(self, classes)
        return self._fit(X, y, sample_weight, incremental=True)

    def _measure(self, scores: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> float:
        if not np.isfinite(scores).all():
            return np.nan
        return float(accuracy_score(y, self._chosen(self._rows(scores)), sample_weight=weight))

    @property
    def n_outputs_(self) -> int:
        """How many scores a row has."""
        check_is_fitted(self)
        return self._head.width or self._width

    def _rows(self, scores: np.ndarray) -> np.ndarray:
        return scores.reshape(len(scores), -1)

    def _chosen(self, scores: np.ndarray) -> np.ndarray:
        return choose(scores, self._head.link, multilabel=self._multilabel)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The class of each row `[N]`; 0 and 1 `[N, labels]` where rows have several labels."""
        chosen = self._chosen(self._rows(self._scores(X)))
        return chosen if self._multilabel else self.classes_[chosen]

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The probability of each class, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The logarithm of the probability of each class, in the order of `classes_`."""
        return log_probabilities(self._rows(self._scores(X)), self._head.link, multilabel=self._multilabel)

    def decision_function(self, X: Any) -> np.ndarray:  # noqa: N803
        """Scores `[N, classes]`; of two classes `[N]`, above 0 for the second."""
        return decision(self._rows(self._scores(X)), self._head.link, multilabel=self._multilabel)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


def _takes_labels(loss: Loss) -> bool:
    """Whether the target of a loss is the number of the class."""
    declared = declared_signature(loss)
    return declared is not None and next(iter(declared.targets.values()), None) is class_indices
