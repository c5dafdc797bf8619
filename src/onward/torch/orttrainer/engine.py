"""What both trainers run: a TrainingSession over torch tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch.utils.dlpack import from_dlpack

from onward.errors import OnwardError
from onward.graph.kernels import computing_with_bfloat16, refusal_of_bfloat16
from onward.graph.proto import from_proto
from onward.runtime.device import choose
from onward.runtime.export import export_for_inference
from onward.runtime.options import RunOptions
from onward.runtime.session import InMemory, default_options
from onward.runtime.state import State
from onward.runtime.tensors import array_of
from onward.session.parameters import TrainingParameters
from onward.session.step import GROUP, NORM
from onward.session.training_session import TrainingSession
from onward.torch.orttrainer.refusal import InvalidValueError, require

Attributes = Mapping[str, float]
SHARED = "shared_optimizer_state"
# What the original calls them in its graphs.
LOSS_SCALE, ALL_FINITE, ACCUMULATED = "loss_scale", "all_gradients_finite", GROUP


def open_training_session(
    model: onnx.ModelProto,
    *,
    loss: str,
    optimizer: str,
    rate: str,
    attributes: Callable[[str], Attributes],
    frozen: Sequence[str],
    accumulate: int,
    clip: bool,
    finite: bool,
    device: str,
    paths: Mapping[str, str],
    optimized_path: str = "",
    session_options: Any = None,
    provider_options: Mapping[str, Any] | None = None,
) -> TrainingSession:
    """A session that trains all parameters of a model but the frozen ones.

    Args:
        loss: the output to make small.
        rate: what to call the input for the learning rate.
        attributes: settings of the optimizer for a parameter.
        clip: whether to clip gradients by their norm, for those optimizers that do.
        finite: whether `step` has to know if gradients are finite.
        paths: fields of TrainingParameters that say where to write graphs to.
        optimized_path: where onnxruntime writes the graph of a step as it has optimized it.
    """
    known = [initializer.name for initializer in model.graph.initializer]
    unknown = [name for name in frozen if name not in known]
    if unknown:
        raise OnwardError(f"{unknown} params from 'frozen_weights' not found in the ONNX model.")
    parameters = TrainingParameters(
        loss_output_name=loss,
        weights_not_to_train=set(frozen),
        training_optimizer_name=optimizer,
        lr_params_feed_name=rate,
        gradient_accumulation_steps=accumulate,
        enable_grad_norm_clip=clip or finite,
        **paths,  # type: ignore[arg-type]
    )
    for name in known:
        given = dict(attributes(name))
        wrong = [value for value in given.values() if not isinstance(value, (float, int))]
        if wrong:
            raise InvalidValueError("Optimizer attributes must be either float or int.")
        if finite and not clip and optimizer != "SGDOptimizer":
            given["max_norm_clip"] = float("inf")  # the norm is there to be looked at
        parameters.optimizer_attributes_map[name] = {k: v for k, v in given.items() if isinstance(v, float)}
        parameters.optimizer_int_attributes_map[name] = {
            k: int(v) for k, v in given.items() if not isinstance(v, float)
        }
    place, providers = choose(device)
    if place.is_host:
        _refuse_bfloat16(model)
    options = [dict(provider_options)] if provider_options else None
    session_options = session_options or default_options()
    with _written_to(session_options, optimized_path):
        session = TrainingSession(model.SerializeToString(), parameters, session_options, providers, options)
    session.seed = torch.initial_seed() % 2**63
    return session


@contextlib.contextmanager
def _written_to(options: Any, path: str) -> Iterator[None]:
    """Have the graph of a session written; options may be the caller's, who has other sessions."""
    before = options.optimized_model_filepath
    options.optimized_model_filepath = path or before
    try:
        yield
    finally:
        options.optimized_model_filepath = before


def _refuse_bfloat16(model: onnx.ModelProto) -> None:
    nodes = computing_with_bfloat16(from_proto(model))
    if nodes:
        raise OnwardError(
            f"{refusal_of_bfloat16(nodes)}: train the module in float32 (module.float(), and its inputs), or on "
            "another device"
        )


def step(
    session: TrainingSession, feeds: Mapping[str, Any], fetches: Sequence[str], *, update: bool, finite: bool
) -> tuple[dict[str, torch.Tensor], bool]:
    """One pass in training, with an update or to add gradients up; outputs, and whether the gradients were finite.

    With `finite`, an update by gradients that are not is taken back.
    """
    before = session.checkpointed() if finite and update else {}
    wanted = list(dict.fromkeys([*fetches, *([] if update else [GROUP]), *([NORM] if before else [])]))
    options = None
    if not update:
        options = RunOptions()
        options.only_execute_path_to_fetches = True
    values = session.run_with_ort_values(wanted, _arrays(session, feeds), options)
    found = dict(zip(wanted, values, strict=True))
    all_finite = not before or bool(np.isfinite(found[NORM].numpy()))
    if not all_finite:
        session.undo_update(before)
    return {name: _tensor(found[name]) for name in fetches}, all_finite


def evaluate(session: TrainingSession, feeds: Mapping[str, Any], fetches: Sequence[str]) -> dict[str, torch.Tensor]:
    """One pass as in inference."""
    options = RunOptions()
    options.only_execute_path_to_fetches, options.training_mode = True, False
    values = session.run_with_ort_values(list(fetches), _arrays(session, feeds), options)
    return {name: _tensor(value) for name, value in zip(fetches, values, strict=True)}


def export(session: TrainingSession, path: str | os.PathLike[str], outputs: Sequence[str]) -> None:
    """Write the part of the model that computes these outputs in inference, with the weights as they are now."""
    state = State({}, session.get_model_state()["full_precision"])
    evaluation = InMemory(session.evaluation_model, Path.cwd() / "evaluation graph")
    export_for_inference(evaluation, state, path, outputs)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """An array as a tensor; numpy lacks bfloat16, which is of another package."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_from(value: Any) -> np.ndarray:
    """A tensor, or what can be one, as an array."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    tensor = value.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _arrays(session: TrainingSession, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
    taken = session.input_names  # without a learning rate, where there is nothing to train
    arrays = {name: array_from(value) for name, value in feeds.items() if name in taken}
    for name, array in arrays.items():
        require(array.dtype.kind not in "OUS", f"the input {name!r} is a {type(feeds[name]).__name__}, not a tensor")
    return arrays


def _tensor(value: Any) -> torch.Tensor:
    """A tensor of onnxruntime as one of torch, in the same memory where onnxruntime can say so."""
    native = value._ortvalue
    if not hasattr(native, "to_dlpack"):
        return tensor_of(np.array(array_of(value)))
    tensor = from_dlpack(native.to_dlpack())
    return tensor.view(torch.bool) if value.data_type() == "tensor(bool)" else tensor
