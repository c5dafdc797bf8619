"""`onward train`, from what was asked for to the files that it leaves."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from onward.callbacks import Callback, EarlyStopping, Run
from onward.callbacks.checkpoints import checkpoints_in
from onward.cli import console, recipe, session
from onward.cli.data.table import Kind, Table
from onward.cli.model import shown
from onward.cli.objective import described
from onward.cli.preparation import Preparation, prepare
from onward.cli.recipe import Recipe
from onward.errors import OnwardError
from onward.trainer.trainer import Trainer

_WORSE = 1e-3  # relative: what counts as worse than before
_MOST_COLUMNS = 30  # in the table of the data


def train(wanted: Recipe, out: Path, *, resume: bool = False, dry_run: bool = False) -> dict[str, Any]:
    """Train by a recipe; returns what came out, for programs."""
    began = time.perf_counter()
    made = prepare(wanted)
    show(made)
    if dry_run:
        return {"recipe": made.recipe.dumps(out)}
    trainer = session.trainer_of(made)
    training, validation = made.parts()
    console.say(_sizes(made, trainer))
    if made.recipe.training.learning_rate == "auto":
        console.say("looking for a learning rate ... (--lr 0.001 says one)")
    said = session.find_rate(trainer, training, made.recipe)
    if said:
        console.say(said)
    made.recipe.record_digests()
    out.mkdir(parents=True, exist_ok=True)
    made.recipe.write(out)
    before = None if resume or validation is None else trainer.evaluate(*validation, batch_size=_batch(made))
    try:
        _fit(trainer, made, training, validation, out, resume)
    except KeyboardInterrupt:
        console.say(_continuation(trainer, made, out))
        raise
    after = None if validation is None else trainer.evaluate(*validation, batch_size=_batch(made))
    written = _write(trainer, made, out)
    _conclude(made, trainer, before, after, written, time.perf_counter() - began)
    return _result(trainer, made, before, after, written)


def _batch(made: Preparation) -> int:
    return made.recipe.training.batch_size


def _fit(trainer: Trainer, made: Preparation, training: Any, validation: Any, out: Path, resume: bool) -> None:
    wanted = made.recipe.training
    callbacks: list[Callback] = [] if console.is_quiet() else [Lines()]
    if wanted.patience is not None:
        monitored = "loss" if validation is None else "val_loss"
        callbacks.append(EarlyStopping(monitored, patience=wanted.patience, restore_best=True))
    trainer.fit(
        *training,
        epochs=wanted.epochs,
        batch_size=wanted.batch_size,
        validation=validation if validation is None or validation[1] is not None else validation[0],
        callbacks=callbacks,
        directory=out / session.CHECKPOINTS,
        resume=resume,
        progress=False if console.is_quiet() else None,
    )


class Lines(Callback):
    """A line for each epoch, where no bar is shown."""

    def on_epoch_end(self, run: Run) -> None:
        import sys

        from onward.trainer.progress import line

        if not sys.stderr.isatty():
            console.say(line(run))


def _write(trainer: Trainer, made: Preparation, out: Path) -> dict[str, Path]:
    paths = {name: out / file for name, file in (("model", session.TRAINED), ("history", session.HISTORY))}
    session.export(trainer, made.view, paths["model"], made.recipe)
    trainer.history.to_csv(paths["history"])
    paths["recipe"] = out / recipe.NAME
    try:
        paths["report"] = trainer.report(
            out / session.REPORT,
            title=f"{Path(made.recipe.model.path).name} trained on {Path(made.recipe.data.path).name}",
            recipe=made.recipe.dumps(out),
            classes=made.recipe.data.classes or (),
            features=_features(made),
        )
    except OnwardError as error:
        console.note(f"there is no report: {error}")
    newest = checkpoints_in(out / session.CHECKPOINTS)
    if newest:
        paths["checkpoint"] = newest[max(newest)]
    return paths


def _features(made: Preparation) -> Sequence[str]:
    """The columns of the input that takes most of them."""
    return max((feed.spec.columns for feed in made.feeds), key=len, default=())


# What is shown --------------------------------------------------------------------------------------------------------


def show(made: Preparation) -> None:
    """The data, what each input gets, and what was guessed."""
    table = made.table
    columns = list(table.columns.values())
    rows = [
        (c.name, c.type_name, c.range, _missing(c.missing.sum()), _use(made, c.name)) for c in columns[:_MOST_COLUMNS]
    ]
    if len(columns) > _MOST_COLUMNS:
        rows.append((f"... and {len(columns) - _MOST_COLUMNS} more", "", "", "", ""))
    title = f"{table.path}: {table.what}, {table.rows:,} rows"
    console.table(title, ["column", "type", "values", "missing", "used as"], rows, right=["missing"])
    console.table(
        f"{made.view.path}",
        ["input", "takes", "gets"],
        [
            (f.field.name, f"{_type(f.field.dtype)} {shown(f.field.shape)}", f.said(table, made.recipe))
            for f in made.feeds
        ],
    )
    if made.objective is not None:
        console.say(f"loss: {described(made.objective, made.view)}")
    if made.objective is not None and made.objective.classes is not None and made.labels:
        console.say(f"classes: {_counts(made, table)}")
    for text in made.notes:
        console.note(text)


def _type(dtype: Any) -> str:
    return "text" if dtype is None or dtype.kind == "O" else str(dtype)


def _missing(count: int) -> str:
    return str(count) if count else ""


def _use(made: Preparation, name: str) -> str:
    if name in made.labels:
        return "label"
    return ", ".join(feed.field.name for feed in made.feeds if name in feed.spec.columns)


def _counts(made: Preparation, table: Table) -> str:
    label = table.column(made.labels[0])
    values = label.values.astype(int) if label.kind is Kind.NUMBER else label.values
    found = Counter(values.tolist())
    shown_ = [f"{name} ({found[name]})" for name in sorted(found, key=str)[:12]]
    return ", ".join(shown_) + (f" and {len(found) - 12} more" if len(found) > 12 else "")


def _sizes(made: Preparation, trainer: Trainer) -> str:
    training, validation = made.tables()
    tested = "no validation" if validation is None else f"{validation.rows:,} to validate"
    trained = trainer.summary().splitlines()[-1]
    wanted = made.recipe.training
    return (
        f"{training.rows:,} rows to train, {tested}; {trained}; {wanted.epochs} epochs, batches of {wanted.batch_size}"
    )


def _continuation(trainer: Trainer, made: Preparation, out: Path) -> str:
    if not checkpoints_in(out / session.CHECKPOINTS):
        return f"\nstopped before the first step; begin again with: {console.command('train', '--resume', out)}"
    done = f"epoch {trainer.epochs + 1} of {made.recipe.training.epochs}, step {trainer.steps}"
    return f"\nstopped in {done}, nothing is lost; go on with: {console.command('train', '--resume', out)}"


def _conclude(
    made: Preparation, trainer: Trainer, before: Any, after: Any, written: dict[str, Path], seconds: float
) -> None:
    if after is not None:
        names = list(after)
        head = ["", *names]
        rows = [["after training", *(f"{after[name]:.4g}" for name in names)]]
        if before is not None:
            rows.insert(0, ["before training", *(f"{before[name]:.4g}" for name in names)])
        console.say()
        console.table("validation", head, rows, right=names)
        if before is not None and after["loss"] - before["loss"] > _WORSE * abs(before["loss"]):
            console.note(
                "it has become worse at the rows that it did not learn from; try a smaller --lr, or --patience 3, "
                "which keeps the best epoch"
            )
    console.say(f"{trainer.steps} steps in {seconds:.1f} s; wrote {', '.join(str(path) for path in written.values())}")
    if "report" in written:
        console.say(f"what happened is shown in {written['report']}; open it in a browser")
    console.say("try next:")
    for words in _next_commands(made, written):
        console.say(f"  {console.command(*words)}")


def _next_commands(made: Preparation, written: dict[str, Path]) -> list[list[object]]:
    model, found = written["model"], made.recipe
    return [
        ["predict", model, "--data", found.data.path, "-o", "predictions.csv"],
        ["inspect", found.model.path, model],
        ["train", "--recipe", written["recipe"], "--epochs", found.training.epochs * 2, "--out", _unused("again")],
    ]


def _unused(name: str) -> str:
    """A folder that is not there yet, called so or with a number behind it."""
    return next(each for each in chain([name], (f"{name}-{number}" for number in count(2))) if not Path(each).exists())


def _result(trainer: Trainer, made: Preparation, before: Any, after: Any, written: dict[str, Path]) -> dict[str, Any]:
    return {
        "steps": trainer.steps,
        "epochs": trainer.epochs,
        "learning_rate": made.recipe.training.learning_rate,
        "loss": made.recipe.training.loss,
        "classes": made.recipe.data.classes,
        "inputs": made.recipe.data.inputs,
        "label": made.recipe.data.label,
        "before": before,
        "validation": after,
        "history": trainer.history.epochs,
        "files": {name: str(path) for name, path in written.items()},
        "notes": made.notes,
    }


def require_free(out: Path, overwrite: bool) -> None:
    """Refuse to write over a training."""
    if not out.exists():
        return
    if not out.is_dir():
        raise OnwardError(f"--out {str(out)!r} is a file; name a folder")
    found = checkpoints_in(out / session.CHECKPOINTS)
    if not found and not (out / recipe.NAME).exists():
        return
    if not overwrite:
        raise OnwardError(
            f"{str(out)!r} has a training already: --resume {out} goes on with it, --overwrite replaces it, --out DIR "
            "writes elsewhere"
        )
    for path in found.values():
        path.unlink()
