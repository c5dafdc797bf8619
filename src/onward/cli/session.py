"""Trainers that are made of recipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onward import optim
from onward.cli import named
from onward.cli.model import CLASSES, ModelView
from onward.cli.objective import Objective
from onward.cli.preparation import FALLING, OPTIMIZER, Part, Preparation
from onward.cli.rate import search
from onward.cli.recipe import Recipe, Training
from onward.errors import OnwardError
from onward.runtime import wire
from onward.runtime.files import write_bytes
from onward.trainer.trainer import Trainer

TRAINED, CHECKPOINTS, HISTORY, REPORT = "trained.onnx", "checkpoints", "history.csv", "report.html"
RECIPE = "onward.recipe"  # metadata: how data becomes what the inputs take


def trainer_of(made: Preparation) -> Trainer:
    """The trainer of a recipe; its learning rate is set if it is known."""
    assert made.objective is not None
    return make_trainer(made.view, made.objective, made.recipe.training)


def make_trainer(view: ModelView, objective: Objective, wanted: Training) -> Trainer:
    name, options = named.parse(wanted.optimizer or OPTIMIZER)
    trainer = Trainer(
        view.source,
        objective.loss(),
        optim.get(name, **options),
        schedule=_schedule(wanted.schedule),
        metrics=objective.metrics(wanted.metrics),
        trainable=view.trained(wanted.train),
        frozen=wanted.freeze,
        loss_inputs=objective.outputs,
        clip=wanted.clip,
        accumulate=wanted.accumulate,
        separate_shared=wanted.separate_shared,
        seed=wanted.seed,
    )
    if not isinstance(wanted.learning_rate, str):
        trainer.learning_rate = wanted.learning_rate
    return trainer


def _schedule(text: str | None) -> Any:
    if text is None:
        return None
    name, options = named.parse(text)
    return (name, options) if options else name


def find_rate(trainer: Trainer, part: Part, recipe: Recipe) -> str:
    """Find a learning rate, and say how."""
    wanted = recipe.training
    if wanted.learning_rate != "auto":
        if isinstance(wanted.learning_rate, str):
            raise OnwardError(f"--lr is a number or auto, not {wanted.learning_rate!r}")
        return ""
    batches = -(-_rows(part) // (wanted.batch_size * wanted.accumulate))
    found = search(trainer, part, batch_size=wanted.batch_size, total=batches * wanted.epochs)
    if found.rate is None:
        wanted.learning_rate = trainer.learning_rate
        return f"learning rate {trainer.learning_rate:g}, the usual one: the loss fell at none of those that were tried"
    trainer.learning_rate = wanted.learning_rate = found.rate
    falling = f", and falls ({wanted.schedule})" if wanted.schedule == FALLING else ""
    return (
        f"learning rate {found.rate:g}, which served best in {found.steps} steps of trial{falling} "
        f"(--lr{' and --schedule' if falling else ''} say otherwise)"
    )


def _rows(part: Part) -> int:
    return max(x.shape[0] for x in part[0].values() if len(x.shape))


def export(trainer: Trainer, view: ModelView, path: Path, recipe: Recipe) -> None:
    """Write the trained model, with its pairs merged; it says what its classes are, and what its inputs take."""
    if view.adapted is None:
        trainer.export(path)
    else:
        view.adapted.save_merged(trainer, path)
    model = wire.parse(path.read_bytes())
    model.metadata[RECIPE] = recipe.carried()
    if recipe.data.classes is not None:
        model.metadata[CLASSES] = json.dumps(recipe.data.classes)
    write_bytes(path, *model.parts())
