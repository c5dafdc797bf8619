"""`recipe.toml`: all that decides a training, so that it can be repeated."""

from __future__ import annotations

import dataclasses
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from onward import __version__
from onward.cli import toml
from onward.cli.files import digest, existing, near
from onward.document import parse
from onward.errors import OnwardError
from onward.runtime.files import write_bytes

NAME = "recipe.toml"
_PATHS = (("model", "path"), ("data", "path"), ("data", "validation"), ("data", "tokenizer"))
BYTES = "bytes"  # a tokenizer that is no file
_CARRIED = ("label", "classes", "missing", "broken", "tokenizer", "window", "inputs")
Class = str | int
T = TypeVar("T")


@dataclass
class Model:
    """The file that is trained, the last layer that replaces its own, and low-rank pairs beside its weights."""

    path: str = ""
    sha256: str = ""
    new_head: int | str | None = None  # "auto" until the classes are known
    layer: str | None = None
    lora: int | None = None
    lora_layers: list[str] | None = None
    lora_alpha: float | None = None


@dataclass
class Data:
    """What is learned from, and what each input of the model gets of it."""

    path: str = ""
    sha256: str = ""
    label: list[str] = field(default_factory=list)
    classes: list[Class] | None = None
    missing: str = "error"
    broken: str = "error"
    tokenizer: str | None = None
    tokenizer_sha256: str = ""
    window: int | None = None
    validation: str | float | None = None
    validation_sha256: str = ""
    inputs: dict[str, str] = field(default_factory=dict)


@dataclass
class Image:
    """How pictures become numbers."""

    size: list[int] | None = None
    scale: float | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    grey: bool | None = None
    bgr: bool | None = None
    fit: str | None = None


@dataclass
class Audio:
    """How sounds become numbers."""

    rate: int | None = None
    seconds: float | None = None
    features: str | None = None
    mels: int | None = None
    window_ms: float | None = None
    hop_ms: float | None = None


@dataclass
class Training:
    """What the model is trained for, and how."""

    loss: str | None = None
    outputs: list[str] | None = None
    class_axis: int | None = None
    ignore_label: int | None = None
    metrics: list[str] | None = None
    optimizer: str | None = None
    learning_rate: float | str = "auto"
    schedule: str | None = None
    epochs: int = 10
    batch_size: int = 32
    accumulate: int = 1
    clip: float | None = None
    patience: int | None = None
    train: list[str] | None = None
    freeze: list[str] | None = None
    separate_shared: bool = False
    seed: int = 0


@dataclass
class Recipe:
    """All of it. Paths are relative to the current folder here, and to that of the recipe in the file."""

    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    image: Image = field(default_factory=Image)
    audio: Audio = field(default_factory=Audio)
    training: Training = field(default_factory=Training)

    def dumps(self, folder: Path) -> str:
        """The text of the file, if it is in `folder`."""
        content: dict[str, Any] = {"onward": {"version": __version__, **_versions()}}
        for part in dataclasses.fields(self):
            entries = dataclasses.asdict(getattr(self, part.name))
            content[part.name] = {key: value for key, value in entries.items() if value not in (None, "", [], {})}
        for section, key in _PATHS:
            path = content[section].get(key)
            if isinstance(path, str) and path != BYTES:
                content[section][key] = _relative(path, folder)
        if not content["training"].get("loss"):
            content["training"]["loss"] = "none"
        comment = "All that decides this training. Repeat it with: onward train --recipe recipe.toml --out DIR"
        return toml.dumps({name: entries for name, entries in content.items() if entries}, comment)

    def write(self, folder: Path) -> None:
        write_bytes(folder / NAME, self.dumps(folder).encode())

    def carried(self) -> str:
        """What a trained model says about itself: how data becomes what it takes, and what it was trained for."""
        content = {part.name: dataclasses.asdict(getattr(self, part.name)) for part in dataclasses.fields(self)}
        del content["model"]
        content["data"] = {key: content["data"][key] for key in _CARRIED}
        kept = ("loss", "outputs", "class_axis", "ignore_label", "metrics")
        content["training"] = {key: content["training"][key] for key in kept}
        return json.dumps(content, allow_nan=False)

    def record_digests(self) -> None:
        """Note what the files are, so that a change is seen."""
        self.model.sha256 = digest(Path(self.model.path))
        self.data.sha256 = digest(Path(self.data.path))
        if isinstance(self.data.validation, str):
            self.data.validation_sha256 = digest(Path(self.data.validation))
        if self.data.tokenizer not in (None, BYTES):
            self.data.tokenizer_sha256 = digest(Path(self.data.tokenizer))

    def changed(self) -> list[str]:
        """Files that are not what they were."""
        recorded = {self.model.path: self.model.sha256, self.data.path: self.data.sha256}
        if isinstance(self.data.validation, str):
            recorded[self.data.validation] = self.data.validation_sha256
        if self.data.tokenizer not in (None, BYTES):
            recorded[self.data.tokenizer] = self.data.tokenizer_sha256
        return [path for path, known in recorded.items() if known and digest(existing(Path(path), "file")) != known]


def read(path: Path) -> Recipe:
    """A recipe from a file, or from the folder of a training."""
    file = existing(path / NAME if path.is_dir() else path, "recipe")
    content = toml.loads(file.read_text("utf-8"), repr(str(file)))
    recipe = Recipe()
    parts = {part.name: getattr(recipe, part.name) for part in dataclasses.fields(recipe)}
    for section, entries in content.items():
        if section == "onward":
            continue
        if section not in parts or not isinstance(entries, Mapping):
            raise OnwardError(f"{str(file)!r} has a part [{section}], which is not known{near(section, parts)}")
        _fill(parts[section], entries, f"[{section}] of {str(file)!r}")
    for section, key in _PATHS:
        value = getattr(parts[section], key)
        if isinstance(value, str) and value not in ("", BYTES):
            setattr(parts[section], key, _shortest(file.parent / value))
    if recipe.training.loss is None:
        raise OnwardError(f'[training] of {str(file)!r} says no loss; write one, or "none"')
    return recipe


def from_metadata(text: str, where: str) -> Recipe:
    """A recipe of what `Recipe.carried` wrote into a model."""
    recipe = Recipe()
    for section, entries in parse(text, f"what {where} says about its data").plain().items():
        part = getattr(recipe, section, None)
        if part is None or not isinstance(entries, Mapping):
            raise OnwardError(f"what {where} says about its data is damaged; give options instead")
        _fill(part, {key: value for key, value in entries.items() if value is not None}, f"[{section}] in {where}")
    return recipe


def _fill(part: Any, entries: Mapping[str, Any], where: str) -> None:
    kinds = typing.get_type_hints(type(part))
    for key, value in entries.items():
        if key not in kinds:
            raise OnwardError(f"{where} has {key!r}, which is not known{near(key, kinds)}")
        if isinstance(value, int) and not isinstance(value, bool) and _is(1.0, kinds[key]) and not _is(1, kinds[key]):
            value = float(value)
        if not _is(value, kinds[key]):
            raise OnwardError(f"{where} has {key} = {value!r}, which is not of the kind {_shown(kinds[key])}")
        setattr(part, key, value)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a type as dataclasses write it."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return any(_is(value, each) for each in inner)
    if origin is list:
        return isinstance(value, list) and all(_is(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_is(item, inner[1]) for item in value.values())
    return type(value) is kind


def _shown(kind: Any) -> str:
    return str(kind).replace(" | None", "").replace("<class '", "").replace("'>", "")


def _relative(path: str, folder: Path) -> str:
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # another drive
        return Path(path).resolve().as_posix()


def _shortest(path: Path) -> str:
    """A path as seen from here."""
    absolute = os.path.abspath(path)
    try:
        relative = os.path.relpath(absolute)
    except ValueError:
        return absolute
    return absolute if relative.startswith("..") else relative


def _versions() -> dict[str, str]:
    """What else may change numbers."""
    from importlib import metadata

    found = {}
    for package in ("onnxruntime", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # under another name, as onnxruntime-gpu is
            continue
    return found
