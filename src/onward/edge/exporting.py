"""`onward.edge.export`: a folder with all that another runtime needs to train a model."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.edge.folder import MANIFEST, STATE_FORMAT
from onward.edge.manifest import describe, describe_frozen
from onward.edge.models import Models, build
from onward.edge.parts import parts_of
from onward.edge.placement import PROVIDERS, in_words
from onward.edge.weights import SharedWeights
from onward.errors import OnwardError
from onward.graph import provenance
from onward.graph.naming import listed
from onward.graph.prepare import ModelLike, load, prepare
from onward.graph.width import narrow_numbers
from onward.losses import Loss
from onward.optim import Optimizer
from onward.optim import get as get_optimizer
from onward.optim.schedules import Schedule
from onward.rate import checked_rate
from onward.runtime.files import replacing_together
from onward.runtime.ort_format import convert_to_ort_format
from onward.runtime.tensorfile import Entry, write
from onward.signature import Role
from onward.training.description import describe_file
from onward.training.initial import initial_tensors

TARGETS = ("wasm", "webgpu", "native")
STEP, EVALUATION, INFERENCE = "step.onnx", "eval.onnx", "inference.onnx"
WEIGHTS, CHECKPOINT = "frozen.data", "checkpoint.safetensors"


@dataclass(frozen=True)
class Exported:
    """What `export` wrote.

    Attributes:
        directory: the folder.
        manifest: what manifest.json says.
        trainable: the names of the parameters that are trained.
    """

    directory: Path
    manifest: dict[str, Any]
    trainable: list[str]

    def __repr__(self) -> str:
        sizes = {entry["file"]: entry["bytes"] for entry in self.manifest["files"].values() if entry is not None}
        return f"Exported(directory={str(self.directory)!r}, trainable={self.trainable}, bytes={sizes})"

    def on_processor(self, graph: str = "step", provider: str = "native") -> str:
        """What a graph ("step", "eval" or "inference") for WebGPU leaves to the processor, in words.

        `provider` is "native", that of `onnxruntime-web/webgpu`, or "jsep", the older one of `onnxruntime-web`.
        """
        report = self.manifest["webgpu"]
        if report is None:
            raise OnwardError(f"the folder was made for target={self.manifest['target']!r}, not for WebGPU")
        if graph not in report["graphs"] or provider not in PROVIDERS:
            known = f"{', '.join(report['graphs'])}, and of {', '.join(PROVIDERS)}"
            raise OnwardError(f"there is no report of {graph!r} for {provider!r}; there are those of {known}")
        return in_words(report["graphs"][graph], provider)


def export(
    model: ModelLike,
    directory: str | os.PathLike[str],
    loss: str | Loss | None,
    optimizer: str | Optimizer = "adamw",
    *,
    trainable: str | Sequence[str] | None = None,
    frozen: str | Sequence[str] | None = None,
    target: str = "wasm",
    learning_rate: float | None = None,
    schedule: Schedule | None = None,
    classes: Sequence[str] | None = None,
    loss_inputs: Sequence[str] | None = None,
    seed: int = 0,
    ort_format: bool = False,
    separate_shared: bool = False,
) -> Exported:
    """Write a folder with which browsers, Node and other runtimes train a model; the package `onward-web` takes it.

    ``step.onnx`` makes one step: state in, state out. ``eval.onnx`` gives the loss and the outputs without changing
    anything, ``inference.onnx`` the outputs alone; both take parameters and running statistics as inputs. Weights that
    do not change are in ``frozen.data``, once for all three. ``checkpoint.safetensors`` has what the parameters begin
    with, and ``manifest.json`` describes all of it.

    Args:
        model: the forward model; None as `loss` means that its first output is the loss.
        directory: the folder, which is made if missing. Nothing is written before everything has been built.
        loss: a name of `onward.losses`, or a function ``(op, prediction, *targets)``.
        optimizer: a name or a value of `onward.optim`.
        trainable: names and patterns of the parameters to train; None means all that `onward.gradient` calls trainable.
        frozen: names and patterns of parameters that are not trained.
        target: what will run it: "wasm" (browsers and Node, on their processors), "webgpu" (numbers of 32 bits, no
            operators that its providers refuse) or "native".
        learning_rate: the one to begin with; None means that of the optimizer.
        schedule: of `onward.optim.schedules`, for programs that follow it.
        classes: the names of the classes, in the order of the model's scores.
        loss_inputs: the outputs (or other values) that the loss takes, where the model has several outputs.
        seed: what Dropout and other random operators draw from, together with the number of the step.
        ort_format: write the models in onnxruntime's own format too, and the operators that a reduced build needs.
        separate_shared: give parameters that torch's exporter merged, because they were equal, tensors of their own.
    """
    _check(target, schedule)
    recipe, named = get_optimizer(optimizer), _classes(classes)
    rate = recipe.learning_rate if learning_rate is None else checked_rate(learning_rate, "learning_rate")
    forward = _prepared(model, trainable, separate_shared)
    with narrow_numbers(target == "webgpu"):
        models = build(forward, loss, recipe, trainable=trainable, frozen=frozen, loss_inputs=loss_inputs, seed=seed)
    described = describe(
        models, recipe.name, target=target, learning_rate=rate, schedule=schedule, classes=named, seed=seed
    )
    source = Path(model).resolve().parent if isinstance(model, (str, os.PathLike)) else Path.cwd()
    folder = Path(directory)
    with replacing_together(folder) as drafts:
        manifest = {**described, "files": _write(models, forward, drafts, source)}
        if ort_format:
            for name in (STEP, EVALUATION, INFERENCE):
                convert_to_ort_format(drafts / name)
        (drafts / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
    return Exported(folder, manifest, models.signature.input_names(Role.PARAMETER))


def _check(target: str, schedule: Schedule | None) -> None:
    if target not in TARGETS:
        raise OnwardError(f"`target` is one of {', '.join(TARGETS)}, not {target!r}")
    if schedule is not None and not isinstance(schedule, Schedule):
        raise OnwardError(
            f"`schedule` is a value of onward.optim.schedules, which other languages know too, not {schedule!r}"
        )


def _prepared(model: ModelLike, trainable: str | Sequence[str] | None, separate_shared: bool) -> ir.Model:
    loaded = load(model)
    if separate_shared:
        provenance.separate_shared(loaded)
    provenance.warn_of_changes(
        provenance.changes_of(loaded), None if trainable is None else listed("trainable", trainable, one=True)
    )
    return prepare(loaded, keep=custom_operators())


def _classes(classes: Sequence[str] | None) -> list[str] | None:
    if classes is None:
        return None
    names = [str(name) for name in classes]
    if isinstance(classes, str) or len(set(names)) < len(names):
        raise OnwardError(f"`classes` is a list with a name for each class, all different, not {classes!r}")
    return names


def _write(models: Models, forward: ir.Model, drafts: Path, source: Path) -> dict[str, Any]:
    """Write graphs, weights and checkpoint; what the manifest says of these files."""
    state = models.signature.input_names(Role.PARAMETER, Role.BUFFER)
    graphs = {STEP: models.step, EVALUATION: models.evaluation, INFERENCE: models.inference}
    with open(drafts / WEIGHTS, "wb") as file:
        weights = SharedWeights(file, WEIGHTS)
        own = set(forward.graph.initializers)  # constants that belong to a graph alone stay in it
        moved = {name: weights.move_from(graph, own, source) for name, graph in graphs.items()}
    files: dict[str, Any] = {}
    for name, graph in moved.items():
        parts = parts_of(graph, state if name == INFERENCE else (), weights.places)
        (drafts / name).write_bytes(parts.content)
        frozen = [tensor.name for tensor in graph.graph.initializer if tensor.name in weights.places]
        files[Path(name).stem] = describe_file(drafts / name, parts=parts.sizes(), frozen=frozen)
    tensors = initial_tensors(models.signature, forward)
    write(drafts / CHECKPOINT, [_entry(name, tensors[name]) for name in state], {"format": STATE_FORMAT, "step": "0"})
    files["checkpoint"] = describe_file(drafts / CHECKPOINT)
    if weights.places:
        places = {name: (forward.graph.initializers[name], place) for name, place in weights.places.items()}
        files["frozen"] = describe_file(drafts / WEIGHTS, tensors=describe_frozen(places))
    else:
        (drafts / WEIGHTS).unlink()
        files["frozen"] = None
    return files


def _entry(name: str, tensor: ir.TensorProtocol) -> Entry:
    return Entry(name, tuple(tensor.shape.numpy()), tensor.dtype.numpy(), tensor.numpy)
