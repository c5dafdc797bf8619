"""`Trainer`: trains a model, without a loop to write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onward import losses
from onward.callbacks import Callback
from onward.errors import OnwardError
from onward.graph.naming import listed
from onward.graph.prepare import ModelLike
from onward.losses import Loss
from onward.losses.base import loss_name
from onward.optim import GlobalNorm, Optimizer, Transformation
from onward.report.chart import require_library
from onward.report.page import page
from onward.runtime.files import write_bytes
from onward.trainer.comparison import comparisons
from onward.trainer.continuation import agreed_settings, require_repeatable, with_checkpoints
from onward.trainer.course import Course
from onward.trainer.data import Batch, Source
from onward.trainer.description import arguments_of
from onward.trainer.examination import Examination
from onward.trainer.finder import RateSearch, find_rate
from onward.trainer.history import History
from onward.trainer.learning import Step
from onward.trainer.likeness import SameOrder
from onward.trainer.loop import Loop
from onward.trainer.measuring import Measurement, TrainingMetrics
from onward.trainer.outcome import class_names, results_or_why_not
from onward.trainer.part import WHOLE
from onward.trainer.progress import progress_callback
from onward.trainer.rate import Rates, ScheduleLike
from onward.trainer.recipe import recipe as recipe_for
from onward.trainer.replica import join
from onward.trainer.reporting import recipe_of, training_of
from onward.trainer.strategy import Strategy, strategy_of
from onward.trainer.summary import summary
from onward.trainer.supply import Supply
from onward.trainer.team import Team
from onward.trainer.trained import TrainedModel
from onward.training.assembly import assemble


class Trainer:
    """Trains an ONNX model on onnxruntime.

    Args:
        model: the forward model: a file, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not changed.
        loss: a name of `onward.losses`, a function ``(op, prediction, *targets)``, or an ONNX model with a scalar
            output; None where the first output of the model is the loss.
        optimizer: a name or a value of `onward.optim`.
        learning_rate: that of the optimizer by default.
        schedule: the name of a schedule ("cosine", "linear", "one_cycle", "reduce_on_plateau" ...), which goes over
            each `fit`; a pair of such a name and its options; a value of `onward.optim.schedules`, or a function, of
            the number of updates so far.
        metrics: names of `onward.metrics`, or functions of (prediction, target): of the first value that the loss takes
            and its first target. A dict gives them other names, and other things to compare:
            ``{"name": (metric, output, target)}``; in the place of a target, inputs can be named as well.
        trainable: names and patterns ("classifier.*") of parameters; by default all that `onward.check` calls
            trainable.
        frozen: names and patterns of parameters that are not trained.
        loss_inputs: the outputs (or other values) that the loss takes, where the model has several outputs.
        clip: a bound of the norm of all gradients together, or a transformation of `onward.optim`.
        accumulate: how many batches make one update; it is that of one batch with all of their rows.
        sample_weight: whether rows have weights; see `onward.losses.weighted`.
        seed: decides the order of the rows and what Dropout draws.
        device: "cpu", "cuda" or "cuda:1".
        providers: execution providers as `onnxruntime.InferenceSession` takes them, instead of `device`.
        session_options: an `onnxruntime.SessionOptions` for all sessions.
        separate_shared: give parameters that torch's exporter merged, because they were equal, tensors of their own
            again, under their own names; `onward.check` says whether it did.
        strategy: how several processes train together: "distributed" (`onward.torch.Distributed`), "auto" for that
            where a launcher such as torchrun has started several, or an object. All of them make the same calls.

    Attributes:
        history: what happened so far, over all calls of `fit`.
        strategy: that in use; its `rank` and `size` are 0 and 1 where there is one process.
    """

    def __init__(
        self,
        model: ModelLike,
        loss: str | Loss | None,
        optimizer: str | Optimizer = "adamw",
        *,
        learning_rate: float | None = None,
        schedule: ScheduleLike | None = None,
        metrics: Any = (),
        trainable: str | Sequence[str] | None = None,
        frozen: str | Sequence[str] | None = None,
        loss_inputs: Sequence[str] | None = None,
        clip: float | GlobalNorm | Transformation | None = None,
        accumulate: int = 1,
        sample_weight: bool = False,
        seed: int = 0,
        device: str = "cpu",
        providers: Sequence[Any] | None = None,
        session_options: Any = None,
        separate_shared: bool = False,
        strategy: str | Strategy | None = None,
    ) -> None:
        self._arguments = arguments_of(Trainer, locals())
        self._team = Team(strategy_of(strategy))
        self.strategy = self._team.strategy
        with self._team.together():
            if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
                raise OnwardError(f"`accumulate` is a number of batches, at least 1, not {accumulate!r}")
            if not isinstance(seed, (int, np.integer)) or not -(2**63) <= seed < 2**63:
                raise OnwardError(f"`seed` is an integer of 64 bits, not {seed!r}")
            chosen = recipe_for(optimizer, learning_rate, clip)
            self._loss = None if loss is None else losses.get(loss)
            if sample_weight and self._loss is None:
                raise OnwardError("a model that is its own loss takes no weights of rows; give a loss")
            taken = losses.weighted(self._loss) if sample_weight and self._loss is not None else self._loss
            names = [loss_inputs] if isinstance(loss_inputs, str) else loss_inputs
            assembly = assemble(
                model,
                taken,
                chosen,
                trainable=trainable,
                frozen=frozen,
                loss_inputs=names,
                weighted=accumulate > 1,
                separate_shared=separate_shared,
            )
            self._model = TrainedModel(
                assembly, seed=int(seed), device=device, providers=providers, session_options=session_options
            )
            self._optimizer, self._accumulate = chosen, accumulate
            self._rates = Rates(schedule, chosen.learning_rate)
            self._comparisons = comparisons(self._model, self._loss, metrics)
            self._training = Measurement(self._model, self._loss, self._comparisons)
            self._step = Step(self._model, self._team, weighted=sample_weight)
            self._seed = join(self._model, self._team)
            self._supply = Supply(self._model.fields, self._team, self._seed)
            self._examination = Examination(self._model, self._loss, self._team)
            self._course = Course(self._model, self._rates, self._team, accumulate=accumulate, seed=self._seed)
        self.history = self._course.history
        self._validating: Source | None = None  # that of the last fit

    # Training ---------------------------------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        targets: Any = None,
        *,
        epochs: int = 1,
        batch_size: int = 32,
        validation: Any = None,
        callbacks: Sequence[Callback] = (),
        shuffle: bool | Callable[[int], np.ndarray] = True,
        sample_weight: Any = None,
        resume: bool = False,
        directory: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        prefetch: int = 2,
    ) -> History:
        """Train for some epochs more.

        Ctrl-C ends it after the step under way with a KeyboardInterrupt; so does an error of the data or of a callback,
        which arrives as it is. The trainer stays usable: its parameters are those of the last whole step, and
        ``fit(..., resume=True)``, with the same arguments, goes on from there and ends bit for bit where it would have
        ended. With a `directory`, also in a new process.

        Args:
            data: arrays, a dict or a table of them, a data set, or something that yields batches; see
                `onward.trainer.data`.
            targets: arrays, where they are not in `data`.
            epochs: how often to go through the data.
            batch_size: rows of a batch, where `data` does not come in batches.
            validation: more data, for a loss and metrics after each epoch; or the part of the rows, such as 0.2, that
                is kept from training for that.
            callbacks: see `onward.callbacks`.
            shuffle: whether rows come in another order in each epoch.
            sample_weight: the weight of each row.
            resume: continue a `fit` that was interrupted, from the newest checkpoint of `directory` if there is one.
            directory: where a checkpoint is written after each epoch, and when training ends early;
                `onward.callbacks.Checkpoints` has more to say.
            progress: whether to show a bar; by default on a terminal and in notebooks.
            prefetch: how many batches are prepared ahead, in a thread.
        """
        arguments = arguments_of(Trainer.fit, locals())
        with self._team.together():
            if isinstance(epochs, bool) or not isinstance(epochs, (int, np.integer)) or epochs < 0:
                raise OnwardError(f"`epochs` is a number, at least 0, not {epochs!r}")
            training, validating = self._supply.training_and_validation(
                data, targets, validation, batch_size=batch_size, shuffle=shuffle, sample_weight=sample_weight
            )
            require_repeatable({"data": training, "validation": validating}, epochs)
            given = with_checkpoints(callbacks, directory)
            described = self._course.describe(training, batch_size, shuffle, int(epochs))
            settings = agreed_settings(described, epochs, self._team)
            watching: list[Callback] = [TrainingMetrics(self._model, self._training, self._rates, self._team)]
            if callable(shuffle) and self._team.part != WHOLE:
                watching.append(SameOrder(training, self._team))
            self._validating = validating
            return self._course.fit(
                self,
                training,
                epochs=int(epochs),
                arguments=arguments,
                settings=settings,
                callbacks=[*watching, *given, progress_callback(progress)],
                resume=resume,
                validate=None if validating is None else lambda: self._validated(validating, prefetch),
                prefetch=prefetch,
            )

    def _validated(self, data: Source, prefetch: int) -> dict[str, float]:
        results = self._examination.measured(data, self._comparisons, prefetch).results()
        return {f"val_{name}": value for name, value in results.items()}

    def train_step(self, batch: Any) -> float:
        """One update from one batch, ``(inputs, targets)`` or a dict by name; returns the loss.

        Several processes give one batch each, and the update is that of all of them.
        """
        self._course.leave()
        with self._team.together():
            batches = list(self._supply.source(iter([batch]), part=WHOLE).epoch(0))
            return self._step(batches, self._rates.at(self.steps), Measurement(self._model, self._loss))[0]

    def learn(self, batches: Sequence[Batch]) -> tuple[float, float | None]:
        """One update, as the loop wants it: returns the loss of the batches, and its weight in the mean of an epoch."""
        return self._step(batches, self._rates.at(self.steps), self._training)

    @property
    def rate(self) -> float:
        """The learning rate of the last update."""
        return self._model.optimizer.state.learning_rate

    @property
    def gradient_norm(self) -> float | None:
        """The norm of all gradients of the last update together, before clipping; None where they are on a device."""
        return self._model.gradient_norm()

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update; what is set here is what schedules that are named start from."""
        return self._rates.at(self.steps)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self._rates.set_base(rate)

    @property
    def steps(self) -> int:
        """How many updates have been made."""
        return self._course.steps

    @property
    def epochs(self) -> int:
        """How many epochs are done."""
        return self._course.epochs

    def find_learning_rate(
        self,
        data: Any,
        targets: Any = None,
        *,
        lowest: float = 1e-7,
        highest: float = 10.0,
        steps: int = 100,
        batch_size: int = 32,
        sample_weight: Any = None,
        smoothing: float = 0.9,
        divergence: float = 4.0,
        prefetch: int = 2,
    ) -> RateSearch:
        """Train with a rate that rises from step to step, and say at which one the loss falls fastest.

        The trainer is afterwards as it was before, bit for bit. `suggestion` of the result is a rate to train with
        (``trainer.learning_rate = result.suggestion``); `plot` shows the search.

        Args:
            data: what to train on, as in `fit`; it is gone through as often as needed.
            targets: arrays, where they are not in `data`.
            lowest: the first rate.
            highest: the last rate, unless the loss explodes before.
            steps: how many rates are tried, each of them in one step.
            batch_size: rows of a batch, where `data` does not come in batches.
            sample_weight: the weight of each row.
            smoothing: how much the losses before a step count, from 0 to below 1.
            divergence: the search ends when the loss is so many times its lowest.
            prefetch: how many batches are prepared ahead, in a thread.
        """
        with self._team.together():
            made = self._supply.source(data, targets, batch_size=batch_size, sample_weight=sample_weight)
            measurement = Measurement(self._model, self._loss)
            return find_rate(
                self._model,
                lambda batches, rate: self._step(batches, rate, measurement),
                made,
                lowest=lowest,
                highest=highest,
                steps=steps,
                smoothing=smoothing,
                divergence=divergence,
                accumulate=self._accumulate,
                prefetch=prefetch,
                team=self._team,
            )

    # Evaluation and prediction ----------------------------------------------------------------------------------------

    def evaluate(
        self,
        data: Any,
        targets: Any = None,
        *,
        batch_size: int = 32,
        sample_weight: Any = None,
        metrics: Any = None,
        prefetch: int = 2,
    ) -> dict[str, float]:
        """The loss and the metrics of all rows together, with Dropout and BatchNormalization as in inference.

        The loss is what it would be for one batch with all rows: batches count by what their mean was divided by, be it
        rows, elements, class weights of labels that are not ignored, or weights of rows; a loss with
        ``reduction="sum"`` is the sum. A loss about which nothing is known (a function of your own without targets that
        look like the prediction, an ONNX model, the model's own) is taken for a mean over the rows.
        """
        with self._team.together():
            found = self._comparisons if metrics is None else comparisons(self._model, self._loss, metrics)
            options = {"batch_size": batch_size, "shuffle": False, "sample_weight": sample_weight}
            made = self._supply.source(data, targets, **options)
            return self._examination.measured(made, found, prefetch).results()

    def measure(self, data: Any, *, batch_size: int = 32) -> Measurement:
        """What `evaluate` finds out, and of how many rows."""
        with self._team.together():
            made = self._supply.source(data, batch_size=batch_size, shuffle=False)
            return self._examination.measured(made, self._comparisons)

    def predict(self, data: Any, *, batch_size: int = 32, prefetch: int = 2) -> Any:
        """What the model returns: an array for one output, a dict by name for several.

        Targets are not needed, and left out if `data` has them. Each process predicts all that it is given.
        """
        return self._examination.predicted(data, batch_size, prefetch)

    # Files ------------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: parameters, optimizer, schedule, history. `onward.api` reads it, too."""
        with self._team.together():
            self._course.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint, of this class or of `onward.api`: the next `fit` begins a new epoch."""
        with self._team.together():
            self._course.load(path)

    def save_run(self, path: str | os.PathLike[str], loop: Loop) -> None:
        """Write a checkpoint of a `fit` under way, if this is the first of several processes."""
        self._course.save_run(path, loop)

    def export(self, path: str | os.PathLike[str], outputs: Sequence[str] | None = None) -> None:
        """Write the model with its weights as they are now: the inputs and outputs of the file that it came from.

        Args:
            path: the file, which is replaced as a whole; models of more than 2 GB have a second one, ``<path>.data``.
            outputs: other values of the model to return instead.
        """
        with self._team.together():
            wanted = None if outputs is None else listed("outputs", outputs, one=True)
            self._team.first("export", lambda: self._model.export(path, wanted))

    def report(
        self,
        path: str | os.PathLike[str] = "report.html",
        data: Any = None,
        targets: Any = None,
        *,
        batch_size: int = 32,
        title: str = "Training report",
        recipe: str | None = None,
        classes: Sequence[Any] | Mapping[int, Any] = (),
        features: Sequence[Any] = (),
    ) -> Path:
        """Write a report of the training: one HTML file that needs nothing else. Returns its path.

        It needs ``pip install 'onward[report]'``.

        Args:
            path: the file, which is replaced as a whole.
            data: what to show results of, as `fit` takes it; by default the validation data of the last `fit`.
            targets: arrays, where they are not in `data`.
            batch_size: rows of a batch of `data`, where it does not come in batches.
            title: what stands above it.
            recipe: how to repeat the training, as text, if not by the calls of this class.
            classes: names of the classes, by their numbers.
            features: names of the numbers of a row, where rows are no pictures.
        """
        with self._team.together():
            require_library()
            given = None
            if data is not None:
                given = self._supply.source(data, targets, batch_size=batch_size, shuffle=False, part=WHOLE)
            text = recipe_of(self._arguments, self._course.fits) if recipe is None else recipe
            names = class_names(classes), [str(name) for name in features]

            def write() -> None:
                sources = given, self._validating
                results = results_or_why_not(
                    self._model, self._loss, self._comparisons, *sources, *names, processes=self._team.size
                )
                told = training_of(self._model, self.history, self._comparisons, results, title=title, recipe=text)
                write_bytes(path, page(told).encode("utf-8", "replace"))

            self._team.first("report", write)
        return Path(path)

    # What callbacks and other front-ends use --------------------------------------------------------------------------

    @property
    def trained(self) -> TrainedModel:
        """The model with its state and its optimizer, one step at a time."""
        return self._model

    @property
    def seed(self) -> int:
        """What it was made with."""
        return self._seed

    def snapshot(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and running statistics."""
        return self._model.snapshot()

    def restore(self, snapshot: Mapping[str, np.ndarray]) -> None:
        """Set parameters and running statistics."""
        self._model.restore(snapshot)

    # Descriptions -----------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """A table of what is trained, what is frozen, and how large it is."""
        return summary(self._model.parameters())

    def __repr__(self) -> str:
        state = self._model.state
        count = sum(state.trainable[name].size for name in state.trainable)
        loss = "its own" if self._loss is None else loss_name(self._loss)
        return (
            f"Trainer({len(state.trainable)} parameters with {count:,} numbers, loss={loss}, "
            f"optimizer={self._optimizer.name}, learning_rate={self.learning_rate:g}, steps={self.steps})"
        )
