"""`onward export`: the model of a training, as it was at a checkpoint."""

from __future__ import annotations

from pathlib import Path

from onward.callbacks.checkpoints import checkpoints_in
from onward.cli import recipe as recipes
from onward.cli import session
from onward.cli.files import existing
from onward.cli.model import ModelView
from onward.cli.objective import resolved
from onward.errors import OnwardError
from onward.runtime import checkpoint as state_files
from onward.runtime.export import export_for_inference
from onward.runtime.session import open_session

ADAPTER = ".onnx_adapter"
_EVALUATION, _CHECKPOINT = "eval_model.onnx", "checkpoint"


def export(source: Path, out: Path, checkpoint: Path | None) -> str:
    """Write a model for inference from the folder of a training, or of artifacts; returns what was exported."""
    existing(source, "folder of a training")
    if source.is_file():
        raise OnwardError(f"{str(source)!r} is a file; give the folder that `onward train` or `onward artifacts` wrote")
    out.parent.mkdir(parents=True, exist_ok=True)
    if (source / recipes.NAME).is_file():
        return _of_training(source, out, checkpoint)
    if (source / _EVALUATION).is_file():
        return _of_artifacts(source, out, checkpoint)
    raise OnwardError(f"{str(source)!r} has neither {recipes.NAME} nor {_EVALUATION}: no training was written there")


def _of_training(source: Path, out: Path, checkpoint: Path | None) -> str:
    recipe = recipes.read(source)
    if checkpoint is None:
        found = checkpoints_in(source / session.CHECKPOINTS)
        if not found:
            raise OnwardError(f"{str(source)!r} has no checkpoint yet")
        checkpoint = found[max(found)]
    view = ModelView(Path(recipe.model.path), recipe.model, seed=recipe.training.seed)
    trainer = session.make_trainer(view, resolved(recipe), recipe.training)
    trainer.load(existing(checkpoint, "checkpoint"))
    said = f"{checkpoint}, step {trainer.steps}"
    if out.suffix != ADAPTER:
        session.export(trainer, view, out, recipe)
        return said
    if view.adapted is None:
        raise OnwardError(f"{str(source)!r} has no low-rank pairs, which {ADAPTER} files are for: train with --lora")
    base = out.with_suffix(".base.onnx")
    view.adapted.save_adapter(trainer, out)
    view.adapted.save_base(base)
    return f"{said}; onnxruntime loads it beside {base}"


def _of_artifacts(source: Path, out: Path, checkpoint: Path | None) -> str:
    path = existing(checkpoint or source / _CHECKPOINT, "checkpoint")
    evaluation = source / _EVALUATION
    outputs = [value.name for value in open_session(evaluation.read_bytes(), folder=source).get_outputs()]
    export_for_inference(evaluation, state_files.load(path), out, outputs[1:] or outputs)
    return str(path)
