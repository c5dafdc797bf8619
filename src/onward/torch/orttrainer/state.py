"""The state of the newer ORTTrainer: what it consists of, whether another fits, and how it is taken over."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch

from onward.errors import OnwardError
from onward.torch.orttrainer import checkpoint
from onward.torch.orttrainer._utils import FULL_PRECISION, GRADIENTS, MODEL, OPTIMIZER, OPTIONS, PARTITION, STEP_INFO
from onward.torch.orttrainer.engine import array_from, tensor_of
from onward.torch.orttrainer.refusal import require
from onward.torch.orttrainer.weights import initializers, update_initializers

if TYPE_CHECKING:
    from onward.torch.orttrainer.orttrainer import ORTTrainer


def whole_state(trainer: ORTTrainer) -> dict[str, Any]:
    """The model, its optimizer, the steps, and what has to be the same to load it."""
    info, options = trainer._train_step_info, trainer.options
    distributed, zero = options.distributed, options.distributed.deepspeed_zero_optimization.stage
    state = {
        MODEL: _model_state(trainer),
        OPTIMIZER: trainer._training_session.get_optimizer_state(),
        STEP_INFO: {"optimization_step": info.optimization_step, "step": info.step},
        OPTIONS: {
            "mixed_precision": options.mixed_precision.enabled,
            "zero_stage": zero,
            "world_rank": distributed.world_rank,
            "world_size": distributed.world_size,
            "optimizer_name": trainer.optim_config.name,
            "data_parallel_size": distributed.data_parallel_size,
            "horizontal_parallel_size": distributed.horizontal_parallel_size,
        },
    }
    if options.batch.gradient_accumulation_steps > 1 and trainer._training_session.added:
        state[GRADIENTS] = {"steps": trainer._training_session.added, "sums": trainer._training_session.get_sums()}
    if zero > 0:
        state[PARTITION] = trainer._training_session.get_partition_info_map()
    return state


def pytorch_state(trainer: ORTTrainer) -> dict[str, torch.Tensor]:
    """The weights alone, as `load_state_dict` of the module takes them: without those of a loss that is a module.

    With all names of weights that are tied, and what the module has besides and does not use.
    """
    loss = trainer.loss_fn
    others = {f"loss_fn.{name}" for name in loss.state_dict()} if isinstance(loss, torch.nn.Module) else set()
    weights = _model_state(trainer).get(FULL_PRECISION, {})
    state = {name: tensor_of(array) for name, array in weights.items() if name not in others}
    module = {} if trainer._torch_model is None else trainer._torch_model.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in module.items() if name in state}
    for name, tensor in module.items():
        if name not in state and isinstance(tensor, torch.Tensor):
            first = names.get(id(tensor))
            state[name] = tensor.detach().clone() if first is None else state[first]
    return state


def _model_state(trainer: ORTTrainer) -> dict[str, dict[str, Any]]:
    model = {precision: dict(own) for precision, own in trainer._training_session.get_model_state().items()}
    untrained = trainer._kept_weights()
    assert trainer._onnx_model is not None
    for initializer in trainer._onnx_model.graph.initializer if untrained else ():
        weights = model.setdefault(FULL_PRECISION, {})
        if initializer.name in untrained and initializer.name not in weights:
            weights[initializer.name] = np.array(onnx.numpy_helper.to_array(initializer))
    return model


def load(trainer: ORTTrainer, state: Mapping[str, Any], strict: bool) -> None:
    """Become what `whole_state` has returned."""
    current = trainer.state_dict()
    if strict:
        _check_names(current, state)
    if state.get(OPTIMIZER):
        _check_optimizer(trainer, state)
    added, sums = _gradients(trainer, state)
    optimizer = _merged(current.get(OPTIMIZER, {}), state.get(OPTIMIZER, {}))
    assert trainer._onnx_model is not None
    before = initializers(trainer._onnx_model)
    try:
        _load_weights(trainer, state, strict)
        trainer._init_session(optimizer)
    except BaseException:
        update_initializers(trainer._onnx_model, before)
        raise
    if STEP_INFO in state:
        info = trainer._train_step_info
        info.optimization_step = int(state[STEP_INFO]["optimization_step"])
        info.step = int(state[STEP_INFO]["step"])
        trainer._training_session.passes = info.step
        if trainer.options.batch.gradient_accumulation_steps > 1:
            trainer._training_session.load_sums(added, sums)


def load_flat(trainer: ORTTrainer, state: Mapping[str, Any], strict: bool) -> None:
    """Become what a flat state says; see `checkpoint`."""
    assert trainer._onnx_model is not None
    session, arrays = trainer._training_session, checkpoint.arrays_of(state)
    session.check_sizes(arrays)
    known = {*initializers(trainer._onnx_model), *session.get_state()}
    for name in arrays:
        if strict and name not in known:
            raise OnwardError(f"Checkpoint tensor: {name} is not present in the model.")
    whole = {**session.get_state(), **arrays}
    trainer._update_onnx_model_initializers(whole)
    trainer._init_session()
    trainer._training_session.load_state(whole)
    trainer._training_session.load_sums(0, {})
    passes = checkpoint.passes_of(state)
    if passes is not None:
        trainer._train_step_info.step = trainer._training_session.passes = passes


def _load_weights(trainer: ORTTrainer, state: Mapping[str, Any], strict: bool) -> None:
    assert trainer._onnx_model is not None
    names = {initializer.name for initializer in trainer._onnx_model.graph.initializer}
    # First those of the session: what is not in the state stays as it was trained.
    trained = trainer._training_session.get_model_state().get(FULL_PRECISION, {})
    loaded = {name: array for name, array in trained.items() if name in names}
    for precision, own in state.get(MODEL, {}).items():
        unknown = [name for name in own if name not in names]
        if unknown and strict:
            raise OnwardError(f"Unexpected key: {unknown[0]} in state_dict[model][{precision}]")
        loaded |= {name: array_from(value) for name, value in own.items() if name in names}
    trainer._update_onnx_model_initializers(loaded)


def _gradients(trainer: ORTTrainer, state: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """How many steps there were since the last update, and the sums of their gradients."""
    given, wanted = state.get(GRADIENTS, {}), trainer.options.batch.gradient_accumulation_steps
    added = int(given.get("steps", 0))
    if added >= wanted:
        raise OnwardError(
            f"the state has gradients of {added} steps that were to be followed by others before an update, but "
            f"gradient_accumulation_steps is {wanted}; use the one it was saved with"
        )
    return added, {name: array_from(value) for name, value in given.get("sums", {}).items()}


def _check_optimizer(trainer: ORTTrainer, state: Mapping[str, Any]) -> None:
    name = trainer.optim_config.name
    given = state.get(OPTIONS, {}).get("optimizer_name", name)
    given = given.decode() if isinstance(given, bytes) else given
    require(given == name, f"Optimizer mismatch: expected {name}, got {given}")


def _check_names(current: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse other names than those of the current state; warn of sections that are missing."""
    for section, depth in ((MODEL, 2), (OPTIMIZER, 2), (STEP_INFO, 0)):
        if section not in given:
            warnings.warn(f"Missing key: {section} in state_dict", stacklevel=4)
        elif depth:
            _compare(current.get(section, {}), given[section], f"state_dict[{section}]")
            for key, own in current.get(section, {}).items():
                _compare(own, given[section][key], f"state_dict[{section}][{key}]")


def _compare(current: Mapping[str, Any], given: Mapping[str, Any], place: str) -> None:
    missing = sorted(current.keys() - given.keys())
    unexpected = sorted(given.keys() - current.keys())
    if missing:
        raise OnwardError(f"Missing keys: {missing} in {place}")
    if unexpected:
        raise OnwardError(f"Unexpected keys: {unexpected} in {place}")


def _merged(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: {**current.get(name, {}), **given.get(name, {})} for name in {**current, **given}}
