"""What recipes say, as options of the command: each is declared here, once, for all commands that take it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from onward.cli import words
from onward.cli.recipe import Recipe

_DATA, _PICTURES, _SOUNDS, _LOSS, _MODEL, _TRAINING = "Data", "Pictures", "Sounds", "Loss", "Model", "Training"

Said = dict[str, dict[str, Any]]  # entries of a recipe by part and name


@dataclass(frozen=True)
class Setting:
    """An option that sets an entry of a recipe.

    Attributes:
        part, entry: where it belongs.
        kind: the type that typer reads.
        option: what typer shows.
        read: makes the entry of what was written; a dict has several of the part.
    """

    part: str
    entry: str
    kind: Any
    option: Any
    read: Callable[[Any], Any] | None = None

    @property
    def parameter(self) -> inspect.Parameter:
        name, optional = f"{self.part}_{self.entry}", self.kind | None
        annotation: Any = Annotated[optional, self.option]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)

    def entries(self, given: Any) -> dict[str, Any]:
        """What a user has given, as entries of the part; nothing, if nothing was."""
        if given is None:
            return {}
        value = given if self.read is None else self.read(given)
        return value if isinstance(value, dict) and self.entry in value else {self.entry: value}


def takes(*settings: Setting) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command these options; what users say with them is its argument `said`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**given: Any) -> Any:
            said: Said = {}
            for setting in settings:
                found = setting.entries(given.pop(setting.parameter.name))
                said.setdefault(setting.part, {}).update(found)
            return command(**given, said=said)

        own = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            taken = [setting.parameter for setting in settings] if parameter.name == "said" else [parameter]
            parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in taken]
        run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def apply(recipe: Recipe, said: Mapping[str, Mapping[str, Any]]) -> Recipe:
    """Put what options say into a recipe; what they leave open stays."""
    for part, entries in said.items():
        for name, value in entries.items():
            setattr(getattr(recipe, part), name, value)
    return recipe


def _option(panel: str | None, *flags: str, **shown: Any) -> Any:
    return typer.Option(*flags, rich_help_panel=panel, show_default=False, **shown)


# What decides what the inputs of a model get.
FEEDING: Sequence[Setting] = (
    Setting(
        "data", "inputs", list[str],
        _option(
            _DATA, "--input", metavar="NAME=WHAT",
            help="What an input gets: x=cols:0-9, x=cols:a,b,c, x=pixels, mask=const:1; may be repeated.",
        ),
        words.inputs,
    ),
    Setting(
        "data", "missing", str,
        _option(_DATA, "--missing", metavar="error|drop|mean|zero|keep", help="What becomes of missing values."),
        words.one_of("missing", "error", "drop", "mean", "zero", "keep"),
    ),
    Setting("data", "window", int, _option(_DATA, "--window", min=1, help="Tokens of a row, where data is one text.")),
    Setting(
        "data", "tokenizer", str,
        _option(_DATA, "--tokenizer", metavar="FILE", help="What makes tokens of texts: a tokenizer.json, or bytes."),
        words.tokenizer,
    ),
    Setting(
        "data", "broken", str,
        _option(_DATA, "--broken", metavar="error|skip", help="What becomes of files that cannot be read."),
        words.one_of("broken", "error", "skip"),
    ),
    Setting(
        "image", "size", str,
        _option(_PICTURES, "--size", metavar="HEIGHTxWIDTH", help="The size of pictures."), words.size,
    ),
    Setting(
        "image", "scale", str,
        _option(_PICTURES, "--scale", metavar="NUMBER", help="What pixels are multiplied by (1/255)."), words.fraction,
    ),
    Setting(
        "image", "mean", str,
        _option(_PICTURES, "--mean", metavar="A,B,C", help="What is taken off then; imagenet stands for its own."),
        words.mean,
    ),
    Setting(
        "image", "std", str, _option(_PICTURES, "--std", metavar="A,B,C", help="What is divided by then."), words.std
    ),
    Setting("image", "grey", bool, _option(_PICTURES, "--grey", help="Grey instead of colours, where both fit.")),
    Setting("image", "bgr", bool, _option(_PICTURES, "--bgr", help="Blue first, as OpenCV has it.")),
    Setting(
        "image", "fit", str,
        _option(_PICTURES, "--fit", metavar="stretch|crop|pad", help="How pictures get their size (stretch)."),
        words.one_of("fit", "stretch", "crop", "pad"),
    ),
    Setting(
        "audio", "rate", int, _option(_SOUNDS, "--rate", help="Samples a second of sounds."), words.positive("rate")
    ),
    Setting(
        "audio", "seconds", float, _option(_SOUNDS, "--seconds", help="The length of sounds."),
        words.positive("seconds"),
    ),
    Setting(
        "audio", "features", str,
        _option(_SOUNDS, "--features", metavar="raw|mel", help="Samples, or a spectrogram."),
        words.one_of("features", "raw", "mel"),
    ),
    Setting("audio", "mels", int, _option(_SOUNDS, "--mels", help="Bands of the spectrogram."), words.positive("mels")),
    Setting(
        "audio", "window_ms", float, _option(_SOUNDS, "--window-ms", help="Its windows (25)."),
        words.positive("window-ms"),
    ),
    Setting(
        "audio", "hop_ms", float, _option(_SOUNDS, "--hop-ms", help="From one to the next (10)."),
        words.positive("hop-ms"),
    ),
)  # fmt: skip

_BATCH = Setting("training", "batch_size", int, _option(None, "--batch-size", min=1, help="Rows of a batch (32)."))
_CLASSES = Setting(
    "data", "classes", str,
    _option(_DATA, "--classes", metavar="A,B,...", help="The classes in the order of the outputs."), words.listed,
)  # fmt: skip

PREDICTION: Sequence[Setting] = (*FEEDING, _CLASSES, _BATCH)

EVALUATION: Sequence[Setting] = (
    Setting(
        "data", "label", list[str],
        _option(
            _DATA, "--label", metavar="COLUMN", help="What is learned: a column, several (a,b), or next:tokens."
        ),
    ),
    *PREDICTION,
    Setting(
        "training", "loss", str,
        _option(
            _LOSS, "--loss",
            help="A loss by name (cross_entropy, mse, huber:delta=0.5 ...), or none: the first output is the loss.",
        ),
    ),
    Setting(
        "training", "outputs", list[str],
        _option(
            _LOSS, "--output", metavar="NAME",
            help="The output (or another value) that the loss takes; may be repeated.",
        ),
    ),
    Setting(
        "training", "class_axis", int,
        _option(_LOSS, "--class-axis", help="Where scores have the classes: 1, or -1 for the last axis."),
    ),
    Setting(
        "training", "ignore_label", int,
        _option(_LOSS, "--ignore-label", help="Labels of this number do not count."),
    ),
    Setting(
        "training", "metrics", list[str],
        _option(_LOSS, "--metric", metavar="NAME", help="accuracy, f1_macro, mae, r2 ...; may be repeated."),
    ),
)  # fmt: skip

TRAINING: Sequence[Setting] = (
    *EVALUATION,
    Setting(
        "data", "validation", str,
        _option(
            _DATA, "--validation", metavar="SHARE|PATH",
            help="The share of the rows that is kept for validation (0.2; 0 for none), or other data.",
        ),
        words.validation,
    ),
    Setting(
        "model", "new_head", str,
        _option(
            _MODEL, "--new-head", metavar="CLASSES|auto",
            help="Replace the last layer by one for so many classes; auto: as many as the label has.",
        ),
        words.classes,
    ),
    Setting(
        "model", "layer", str,
        _option(_MODEL, "--layer", help="The layer that --new-head replaces, if it cannot be told."),
    ),
    Setting(
        "model", "lora", int,
        _option(
            _MODEL, "--lora", metavar="RANK", min=1,
            help="Train low-rank pairs beside the weights instead of these, and merge them at the end.",
        ),
    ),
    Setting(
        "model", "lora_layers", list[str],
        _option(
            _MODEL, "--lora-layers", metavar="PATTERN",
            help="The weights or nodes that get pairs, such as '*.attn.*'; may be repeated. Default: all.",
        ),
    ),
    Setting(
        "model", "lora_alpha", float,
        _option(_MODEL, "--lora-alpha", help="How much pairs count; RANK by default."), words.positive("lora-alpha"),
    ),
    Setting(
        "training", "train", list[str],
        _option(
            _MODEL, "--train", metavar="PATTERN", help="Train these parameters only, such as 'head.*'; may be repeated."
        ),
    ),
    Setting(
        "training", "freeze", list[str],
        _option(_MODEL, "--freeze", metavar="PATTERN", help="Leave these as they are; may be repeated."),
    ),
    Setting(
        "training", "separate_shared", bool,
        _option(
            _MODEL, "--separate-shared",
            help="Give parameters that torch's exporter merged, since they were equal, tensors of their own again.",
        ),
    ),
    Setting(
        "training", "epochs", int,
        _option(_TRAINING, "--epochs", min=0, help="How often to go through the data (10)."),
    ),
    Setting(
        "training", "learning_rate", str,
        _option(_TRAINING, "--lr", metavar="RATE|auto", help="The learning rate; auto (default) finds one."),
        words.learning_rate,
    ),
    Setting(
        "training", "optimizer", str,
        _option(_TRAINING, "--optimizer", help="adamw (adam for numbers), sgd:momentum=0.9, lamb ..."),
    ),
    Setting(
        "training", "schedule", str,
        _option(
            _TRAINING, "--schedule",
            help="constant, one_cycle, cosine:warmup_step_count=0.1 ... Default: cosine after --lr auto.",
        ),
    ),
    Setting(
        "training", "accumulate", int,
        _option(_TRAINING, "--accumulate", min=1, help="So many batches make one update (1)."),
    ),
    Setting(
        "training", "clip", float,
        _option(_TRAINING, "--clip", help="A bound of the norm of all gradients together."),
    ),
    Setting(
        "training", "patience", int,
        _option(_TRAINING, "--patience", min=0, help="Stop after so many epochs without a better loss; keep the best."),
    ),
    Setting(
        "training", "seed", int,
        _option(_TRAINING, "--seed", help="Decides the order of rows, what is validated, and what Dropout draws."),
    ),
)  # fmt: skip
