"""The files of artifacts: where they go, and how they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

from onward.artifacts.manifest import describe_artifacts
from onward.errors import OnwardError
from onward.graph.saving import save_model
from onward.runtime import checkpoint
from onward.runtime.files import replacing_together
from onward.runtime.ort_format import convert_to_ort_format
from onward.runtime.state import State


def require_prefix(given: Any) -> None:
    """Refuse what names of files cannot begin with."""
    if not isinstance(given, str) or Path(f"{given}x").name != f"{given}x":
        raise OnwardError(
            f"`prefix` is what the names of the files begin with, not {given!r}; folders go into `artifact_directory`"
        )


def directory_of(given: Any) -> Path:
    """The folder that was given, or else the current one."""
    if given is not None and not isinstance(given, (str, bytes, os.PathLike)):
        raise OnwardError(f"`artifact_directory` is a path, not {given!r}")
    return Path.cwd() if given is None else Path(os.fsdecode(given))


def paths_of(
    models: Iterable[str], directory: Path, prefix: str, *, nominal_checkpoint: bool, manifest: bool
) -> dict[str, Path]:
    """The files, by what they are."""
    names = {what: f"{what}.onnx" for what in models}
    names["checkpoint"] = "checkpoint"
    if nominal_checkpoint:
        names["nominal_checkpoint"] = "nominal_checkpoint"
    if manifest:
        names["manifest"] = "manifest.json"
    return {what: directory / f"{prefix}{name}" for what, name in names.items()}


def write(
    protos: Mapping[str, onnx.ModelProto],
    state: State,
    paths: Mapping[str, Path],
    *,
    directory: Path,
    external_data_folder: Path | None,
    library: Path | None,
    ort_format: bool,
) -> None:
    """Write all files into their folder, or none; the manifest, which describes the others, last."""
    with replacing_together(directory) as drafts:
        files = {what: drafts / path.name for what, path in paths.items()}
        for what, made in protos.items():
            save_model(made, files[what], external_data_folder=external_data_folder)
            if ort_format:
                convert_to_ort_format(files[what], library)
        checkpoint.save(state, files["checkpoint"])
        if "nominal_checkpoint" in files:
            checkpoint.save(state, files["nominal_checkpoint"], nominal=True)
        if "manifest" in files:
            described = {what: file for what, file in files.items() if what != "manifest"}
            files["manifest"].write_text(json.dumps(describe_artifacts(protos, state, described), indent=1), "utf-8")
