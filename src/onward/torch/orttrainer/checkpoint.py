"""Checkpoints of several files as one, and the flat states of older versions."""

from __future__ import annotations

import copy
import os
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from onward.errors import OnwardError
from onward.runtime.files import replacing
from onward.torch.orttrainer import _checkpoint_storage
from onward.torch.orttrainer._utils import (
    FULL_PRECISION,
    GRADIENTS,
    MODEL,
    OPTIMIZER,
    OPTIONS,
    ORIGINAL_DIMENSION,
    PARTITION,
    SHARDED,
    STEP_INFO,
    USER_DICT,
)
from onward.torch.orttrainer.engine import array_from, tensor_of
from onward.torch.orttrainer.refusal import require

_EXTENSION = ".ort.pt"
_METADATA, _OWN = "_metadata", "onward"
_SAME = ("mixed_precision", "world_size", "zero_stage", "optimizer_name")

# Several files ----------------------------------------------------------------------------------------------------


def aggregate_checkpoints(paths: Sequence[str], pytorch_format: bool = True) -> dict[str, Any]:
    """The state of a model whose optimizer was split over several processes (ZeRO), from the checkpoints of all.

    Returns:
        What `ORTTrainer.state_dict` does: weights as tensors, or all of the state.
    """
    require(bool(paths), "aggregate_checkpoints needs the paths of the checkpoints of all processes")
    options = _checkpoint_storage.load(paths[0], key=OPTIONS)
    if options.get("horizontal_parallel_size", 1) > 1:
        raise OnwardError("the checkpoints are split by Megatron too, which cannot be put together here")
    ranks = {path: int(_checkpoint_storage.load(path, key=OPTIONS)["world_rank"]) for path in paths}
    ordered = sorted(paths, key=lambda path: ranks[path])
    found = [_checkpoint_storage.load(path) for path in ordered]
    for rank, (path, state) in enumerate(zip(ordered, found, strict=True)):
        for section in (PARTITION, OPTIONS):
            require(section in state, f"Missing information: {section}")
        got = state[OPTIONS]["world_rank"]
        require(rank == got, f"Unexpected rank in file at path {path}. Expected {rank}, got {got}")
        for name in _SAME:
            same = state[OPTIONS].get(name) == found[0][OPTIONS].get(name)
            require(same, f"{name} differs among checkpoint files. File: {path}")
    whole = _joined(found)
    if pytorch_format:
        return {name: tensor_of(np.array(array)) for name, array in whole[MODEL][FULL_PRECISION].items()}
    return whole


def _joined(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = states[0]
    # Weights are split together with the state of their optimizer only where there is another copy, in half precision.
    split_weights = bool(first[OPTIONS]["mixed_precision"])
    whole: dict[str, Any] = {}
    if MODEL in first:
        names = dict.fromkeys(name for state in states for name in state[MODEL][FULL_PRECISION])
        weights = {name: _gathered(states, (MODEL, FULL_PRECISION, name), name, split_weights) for name in names}
        whole[MODEL] = {FULL_PRECISION: weights}
    if OPTIMIZER in first:
        whole[OPTIMIZER] = {}
        for name in dict.fromkeys(name for state in states for name in state[OPTIMIZER]):
            kinds = dict.fromkeys(kind for state in states for kind in state[OPTIMIZER].get(name, {}))
            whole[OPTIMIZER][name] = {
                kind: _gathered(states, (OPTIMIZER, name, kind), name, kind in SHARDED) for kind in kinds
            }
    alone = {"zero_stage": 0, "world_rank": 0, "world_size": 1, "data_parallel_size": 1, "horizontal_parallel_size": 1}
    whole[OPTIONS] = {**first[OPTIONS], **alone}
    return whole | {key: first[key] for key in (STEP_INFO, GRADIENTS, USER_DICT) if key in first}


def _gathered(states: Sequence[Mapping[str, Any]], place: Sequence[str], weight: str, may_be_split: bool) -> np.ndarray:
    """The parts of a tensor one after the other, in its own shape; or the tensor that all of them have."""
    parts, shape = [], None
    for state in states:
        value: Any = state
        for key in place:
            value = value.get(key) if value is not None else None
        if value is not None:
            parts.append(np.asarray(value))
            if may_be_split and weight in state[PARTITION]:
                shape = np.asarray(state[PARTITION][weight][ORIGINAL_DIMENSION]).tolist()
    if shape is not None:
        return np.concatenate([part.reshape(-1) for part in parts]).reshape(shape)
    for part in parts[1:]:
        require(np.array_equal(part, parts[0]), f"Value mismatch for {'/'.join(place)}")
    return parts[0]


# Flat states ------------------------------------------------------------------------------------------------------


def experimental_state_dict(ort_trainer: Any, include_optimizer_state: bool = True) -> dict[str, torch.Tensor]:
    """All of the state of a trainer as one dictionary of tensors: ``w``, ``Moment_1_w`` and so on. Deprecated."""
    _deprecated("state_dict")
    if not ort_trainer._training_session:
        warnings.warn(
            "ONNX Runtime training session is not initialized yet. Please run train_step or eval_step at least once "
            "before calling state_dict().",
            stacklevel=2,
        )
        return copy.copy(ort_trainer._state_dict)
    return flat_state(
        ort_trainer._training_session, ort_trainer._onnx_model, ort_trainer._kept_weights(), include_optimizer_state
    )


def experimental_load_state_dict(ort_trainer: Any, state_dict: Mapping[str, Any], strict: bool = False) -> None:
    """Give a trainer such a state; before its first step, when it has been made. Deprecated."""
    _deprecated("load_state_dict")
    if not ort_trainer._training_session:
        ort_trainer._state_dict, ort_trainer._load_state_dict_strict = state_dict, strict
        return
    ort_trainer._load_flat_state(state_dict, strict)


def experimental_save_checkpoint(
    ort_trainer: Any,
    checkpoint_dir: str,
    checkpoint_prefix: str = "ORT_checkpoint",
    checkpoint_state_dict: dict[str, Any] | None = None,
    include_optimizer_state: bool = True,
) -> None:
    """Write such a state, and what the user adds, with torch.save. Deprecated."""
    _deprecated("save_checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        state = experimental_state_dict(ort_trainer, include_optimizer_state)
    write_flat(state, checkpoint_dir, checkpoint_prefix, checkpoint_state_dict)


def experimental_load_checkpoint(
    ort_trainer: Any, checkpoint_dir: str, checkpoint_prefix: str = "ORT_checkpoint", strict: bool = False
) -> dict[str, Any]:
    """Read it, and return what the user added. Deprecated."""
    _deprecated("load_checkpoint")
    state, rest = read_flat(checkpoint_dir, checkpoint_prefix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        experimental_load_state_dict(ort_trainer, state, strict)
    return rest


def flat_state(
    session: Any, model: onnx.ModelProto, untrained: Sequence[str], include_optimizer_state: bool
) -> dict[str, torch.Tensor]:
    """What a session holds, and the weights that it does not train."""
    state: dict[str, np.ndarray] = session.get_state()
    names = [initializer.name for initializer in model.graph.initializer]
    for initializer in model.graph.initializer:
        if initializer.name not in state and initializer.name in untrained:
            state[initializer.name] = np.array(onnx.numpy_helper.to_array(initializer))
    kept = state if include_optimizer_state else {name: state[name] for name in names if name in state}
    found = OrderedDict((name, tensor_of(array)) for name, array in kept.items())
    # Beside the tensors, where torch's states have the versions of modules: modules take the names of weights only.
    vars(found)[_METADATA] = {_OWN: {"passes": session.passes}}
    return found


def passes_of(state: Mapping[str, Any]) -> int | None:
    """After how many passes a flat state was taken, from which Dropout goes on; None in a user's own dictionary."""
    passes: int | None = getattr(state, _METADATA, {}).get(_OWN, {}).get("passes")
    return passes


def write_flat(state: Mapping[str, torch.Tensor], directory: str, prefix: str, extra: Mapping[str, Any] | None) -> None:
    """Write ``{**extra, "model": state}`` with torch.save, all of it or nothing."""
    require(os.path.exists(directory), f"checkpoint_dir ({directory}) directory doesn't exist")
    path = Path(directory) / _get_checkpoint_name(prefix, False)
    if path.exists():
        warnings.warn(f"{path} already exists, overwriting.", stacklevel=3)
    with replacing(path) as file:
        torch.save({**(extra or {}), MODEL: state}, file)


def read_flat(directory: str, prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state in such a file, or in the files of several processes, and what the user added."""
    files = _list_checkpoint_files(directory, prefix)
    single = os.path.join(directory, _get_checkpoint_name(prefix, False))
    if len(files) > 1 and single not in files:
        warnings.warn(
            f"Found more than one file with prefix {prefix} in directory {directory}. Attempting to load ZeRO "
            "checkpoint.",
            stacklevel=3,
        )
        found = [_read(file) for file in _ordered_shards(files)]
        rest = {key: value for content in found for key, value in content.items() if key != MODEL}
        return _joined_flat([content[MODEL] for content in found]), rest
    require(single in files, f"Couldn't find checkpoint file {single}.")
    content = _read(single)
    return content.pop(MODEL), content


def _read(file: str) -> dict[str, Any]:
    # Tensors and plain values only: whatever else a file asks to be made, torch refuses.
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(content, dict) or MODEL not in content:
        raise OnwardError(f"{file!r} is no checkpoint of ORTTrainer: it has no entry {MODEL!r}")
    return content


def _ordered_shards(files: Sequence[str]) -> list[str]:
    ranks = {int(file.rsplit(".ZeRO.", 1)[1].split(".")[0]): file for file in files if ".ZeRO." in file}
    count = int(next(iter(ranks.values())).rsplit(".ZeRO.", 1)[1].split(".")[1]) + 1 if ranks else 0
    require(count > 0 and sorted(ranks) == list(range(count)), f"Could not find {count} files")
    return [ranks[rank] for rank in range(count)]


def _joined_flat(states: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Parts of tensors are called ``<name>_view_<number>``; their shapes are those of whole weights."""
    parts: dict[str, list[torch.Tensor]] = {}
    whole: dict[str, torch.Tensor] = {}
    for state in states:
        for name, tensor in state.items():
            base, view, _ = name.partition("_view_")
            if view:
                parts.setdefault(base, []).append(tensor)
            else:
                same = name not in whole or torch.equal(whole[name], tensor)
                require(same, f"Unsharded params must have the same value in all files: {name}")
                whole[name] = tensor
    for name, pieces in parts.items():
        if name.startswith("Update_Count"):
            whole[name] = pieces[0]
            continue
        flat = torch.cat([piece.reshape(-1) for piece in pieces])
        weight = name.removeprefix("Moment_1_").removeprefix("Moment_2_")
        shape = whole[weight].shape if weight in whole else flat.shape
        whole[name] = flat.reshape(shape)
    return {name: tensor for name, tensor in whole.items() if not name.endswith("_fp16")}


def _list_checkpoint_files(checkpoint_dir: str, checkpoint_prefix: str, extension: str = _EXTENSION) -> list[str]:
    names = os.listdir(checkpoint_dir) if os.path.isdir(checkpoint_dir) else []
    found = [name for name in names if name.startswith(checkpoint_prefix) and name.endswith(extension)]
    require(bool(found), f"No checkpoint found with prefix '{checkpoint_prefix}' at '{checkpoint_dir}'")
    return [os.path.join(checkpoint_dir, name) for name in sorted(found)]


def _get_checkpoint_name(
    prefix: str, is_partitioned: bool, world_rank: int | None = None, world_size: int | None = None
) -> str:
    if not is_partitioned:
        return f"{prefix}{_EXTENSION}"
    return f"{prefix}.ZeRO.{world_rank}.{(world_size or 1) - 1}{_EXTENSION}"


def _split_state_dict(state_dict: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The optimizer's part of a flat state, and weights by their precision."""
    found: dict[str, dict[str, Any]] = {"optimizer": {}, "fp32_param": {}, "fp16_param": {}}
    for name, value in state_dict.items():
        own = name.startswith(("Moment_1_", "Moment_2_", "Update_Count_", "Step"))
        found["fp16_param" if name.endswith("_fp16") else "optimizer" if own else "fp32_param"][name] = value
    return found


def arrays_of(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A flat state as arrays."""
    return {name: array_from(value) for name, value in state.items()}


def _deprecated(instead: str) -> None:
    warnings.warn(
        f"experimental_{instead}() will be deprecated soon. Please use ORTTrainer.{instead}() instead.",
        DeprecationWarning,
        stacklevel=3,
    )
