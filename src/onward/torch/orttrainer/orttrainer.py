"""The newer ORTTrainer: a module or a model, its description, an optimizer and options."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import onnx
import torch

from onward.errors import OnwardError, warn
from onward.runtime.files import write_bytes
from onward.torch.orttrainer import _checkpoint_storage, amp, checkpoint, engine, optim
from onward.torch.orttrainer._utils import (
    FULL_PRECISION,
    MODEL,
    OPTIMIZER,
    OPTIONS,
    PARTITION,
    STEP_INFO,
    USER_DICT,
    dtype_onnx_to_torch,
)
from onward.torch.orttrainer.combination import LossFunction, combine
from onward.torch.orttrainer.engine import array_from, tensor_of
from onward.torch.orttrainer.model_desc_validation import _ORTTrainerModelDesc
from onward.torch.orttrainer.orttrainer_options import ORTTrainerOptions
from onward.torch.orttrainer.refusal import InvalidValueError, require
from onward.torch.orttrainer.step_info import TrainStepInfo

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"]

# The settings of optimizers that their graphs call otherwise.
_ATTRIBUTES = {"lambda_coef": "lambda"}
_ALONE = ("world_size", "data_parallel_size", "horizontal_parallel_size")


class ORTTrainer:
    """Trains a torch module or an ONNX model on onnxruntime.

    Args:
        model: a `torch.nn.Module`, which is exported at the first step, or an `onnx.ModelProto` that computes its loss.
        model_desc: ``{"inputs": [(name, shape)], "outputs": [(name, shape, is_loss)]}``. Names of inputs are those of
            the arguments of `forward`, then that of the label; texts in shapes name sizes that may change.
        optim_config: one of `optim.SGDConfig`, `optim.AdamConfig` and `optim.LambConfig`.
        loss_fn: a function of torch of the prediction and the label; None where the model computes its loss.
        options: an `ORTTrainerOptions`.
    """

    def __init__(
        self,
        model: torch.nn.Module | onnx.ModelProto,
        model_desc: Mapping[str, Any],
        optim_config: optim._OptimizerConfig,
        loss_fn: LossFunction | None = None,
        options: ORTTrainerOptions | None = None,
    ) -> None:
        require(model is not None, "'model' is required and must be either a 'torch.nn.Module' or ONNX model")
        require(isinstance(model_desc, dict), "'model_desc' must be a 'dict'")
        require(
            isinstance(optim_config, optim._OptimizerConfig),
            "'optim_config' is required and must be any of 'AdamConfig', 'LambConfig' or 'SGDConfig'",
        )
        require(
            loss_fn is None or (callable(loss_fn) and len(signature(loss_fn).parameters) == 2),
            "'loss_fn' must be either 'None' or a callable with two parameters",
        )
        require(
            options is None or isinstance(options, ORTTrainerOptions),
            "'options' must be either 'None' or 'ORTTrainerOptions'",
        )
        self._torch_model: torch.nn.Module | None = None
        self._onnx_model: onnx.ModelProto | None = None
        self.loss_fn = loss_fn
        if isinstance(model, torch.nn.Module):
            self._torch_model = model
        elif isinstance(model, onnx.ModelProto):
            require(loss_fn is None, "'loss_fn' must not be specified when 'model' is an ONNX model")
            self._onnx_model = copy.deepcopy(model)
        else:
            raise InvalidValueError("'model' must be either 'torch.nn.Module' or 'onnx.ModelProto'")
        self.model_desc = _ORTTrainerModelDesc(model_desc)
        self.optim_config = optim_config
        self.options = ORTTrainerOptions() if options is None else options
        self._check_options()
        self._train_step_info = TrainStepInfo(optim_config)
        self._training_session: Any = None
        self._untrained: list[str] = []
        self._load_state_dict: Any = None  # what is to be loaded when there is a session
        self._state_dict: Mapping[str, Any] = {}  # the same, of a flat state
        self._load_state_dict_strict = False
        if self._onnx_model is not None:
            self._postprocess()
            self._describe_types()
            self._init_session()

    def _check_options(self) -> None:
        mixed, distributed = self.options.mixed_precision, self.options.distributed
        if mixed.loss_scaler and not mixed.enabled:
            raise InvalidValueError("Loss Scaler cannot be specified when Mixed Precision is not enabled")
        if mixed.enabled and not mixed.loss_scaler:
            mixed.loss_scaler = amp.DynamicLossScaler()
        sizes = {name: getattr(distributed, name) for name in _ALONE}
        sizes["pipeline_parallel.pipeline_parallel_size"] = distributed.pipeline_parallel.pipeline_parallel_size
        several = [f"distributed.{name}={size}" for name, size in sizes.items() if size > 1]
        if several:
            raise OnwardError(
                f"{', '.join(several)}: ORTTrainer trains in one process. For several, use ORTModule inside torch's "
                "DistributedDataParallel."
            )

    # Steps ------------------------------------------------------------------------------------------------------------

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch: inputs of the model, then the label, in the order of the description or by name.

        Returns:
            The outputs of the description, or those of `_train_step_info.fetches`; a single one as it is.
        """
        feeds = self._feeds(args, kwargs)
        self._init_onnx_model(feeds)
        info, options = self._train_step_info, self.options
        fetches = self._fetches()
        update = (info.step + 1) % options.batch.gradient_accumulation_steps == 0
        scheduler, mixed = options.lr_scheduler, options.mixed_precision
        rate = scheduler._step(info)[0] if scheduler else self.optim_config.lr
        feeds[self.model_desc.learning_rate.name] = torch.tensor([float(rate)])
        results, finite = engine.step(self._training_session, feeds, fetches, update=update, finite=mixed.enabled)
        info.step += 1
        if update:
            info.all_finite = finite
            if mixed.enabled:
                _update_scale(mixed.loss_scaler, info)
            info.optimization_step += finite
        return _returned(results, fetches)

    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of one batch as in inference; a label that no output needs may be left out."""
        feeds = self._feeds(args, kwargs, complete=False)
        self._init_onnx_model(feeds)
        fetches = self._fetches()
        return _returned(engine.evaluate(self._training_session, feeds, fetches), fetches)

    def _feeds(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, complete: bool = True) -> dict[str, Any]:
        names = [described.name for described in self.model_desc.inputs]
        shapes = {described.name: described.shape for described in self.model_desc.inputs}
        feeds = fed(names, args, kwargs)
        given = complete and not self._train_step_info.fetches
        if not complete and self._onnx_model is None:
            given = True
        missing = [name for name in names if name not in feeds]
        require(not given or not missing, f"the model takes {names}, but {missing} were not given")
        check_sizes(feeds, shapes)
        return feeds

    def _fetches(self) -> list[str]:
        names = [described.name for described in self.model_desc.outputs]
        wanted = self._train_step_info.fetches
        if any(name not in names for name in wanted):
            raise OnwardError(
                f"The specified fetches list contains invalid output names: {wanted}; the outputs are {names}"
            )
        return list(wanted) or names

    # The model and its session ----------------------------------------------------------------------------------------

    def _init_onnx_model(self, feeds: Mapping[str, Any]) -> None:
        """Export the module, once."""
        if self._onnx_model is not None:
            return
        assert self._torch_model is not None
        self._torch_model.cpu()
        samples = [torch.as_tensor(feeds[described.name]).cpu() for described in self.model_desc.inputs]
        made = combine(
            self._torch_model,
            self.loss_fn,
            samples,
            {described.name: described.shape for described in self.model_desc.inputs},
            [described.name for described in self.model_desc.outputs],
            prefer_names=True,
        )
        self._onnx_model = made.model
        try:
            self._postprocess()
            for index, dtype in enumerate(made.inputs):
                self.model_desc.add_type_to_input_description(index, dtype)
            for index, dtype in enumerate(made.outputs[: len(self.model_desc.outputs)]):
                self.model_desc.add_type_to_output_description(index, dtype)
            self._init_session()
        except BaseException:
            self._onnx_model = self._training_session = None
            raise

    def _postprocess(self) -> None:
        extra = self.options._internal_use.extra_postprocess
        if extra is not None:
            self._onnx_model = extra(self._onnx_model)
            require(isinstance(self._onnx_model, onnx.ModelProto), "'extra_postprocess' must return a ONNX model")

    def _describe_types(self) -> None:
        """Add the types of an ONNX model to the description."""
        assert self._onnx_model is not None
        graph = self._onnx_model.graph
        for kind, values, described, add in (
            ("input", graph.input, self.model_desc.inputs, self.model_desc.add_type_to_input_description),
            ("output", graph.output, self.model_desc.outputs, self.model_desc.add_type_to_output_description),
        ):
            types = {value.name: value.type.tensor_type.elem_type for value in values}
            for index, one in enumerate(described):
                require(one.name in types, f"ONNX model with unknown {kind} type ({one.name})")
                add(index, dtype_onnx_to_torch(types[one.name]))

    def _init_session(self, optimizer_states: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Make the session, or give it the weights of the model and the state of its optimizer."""
        if self._onnx_model is None:
            return
        if self._training_session is None or self._constants_changed():
            self._training_session = self._new_session()
            trained = set(self._training_session.get_state())
            self._untrained = [one.name for one in self._onnx_model.graph.initializer if one.name not in trained]
        else:
            self._training_session.load_state(self._initializers())
        self._constants = {name: array for name, array in self._initializers().items() if name in self._untrained}
        if optimizer_states:
            flat = {
                kind if weight == engine.SHARED else f"{kind}_{weight}": array_from(value)
                for weight, own in optimizer_states.items()
                for kind, value in own.items()
            }
            self._training_session.load_state(flat)
        self._describe_session()
        pending, self._load_state_dict = self._load_state_dict, None
        if pending is not None:
            pending()
        flat_state, self._state_dict = self._state_dict, {}
        if flat_state:
            self._load_flat_state(flat_state, self._load_state_dict_strict)

    def _new_session(self) -> Any:
        assert self._onnx_model is not None
        self._warn_of_idle_groups()
        losses = [described.name for described in self.model_desc.outputs if described.is_loss]
        require(len(losses) == 1, f"Only one loss output is supported ({len(losses)} were specified)")
        options = self.options
        paths = {
            name: path
            for name, path in vars(options.debug.graph_save_paths).items()
            if path and name != "model_with_training_graph_after_optimization_path"
        }
        return engine.open_training_session(
            self._onnx_model,
            loss=losses[0],
            optimizer=self.optim_config.name,
            rate=self.model_desc.learning_rate.name,
            attributes=self._attributes,
            frozen=options.utils.frozen_weights,
            accumulate=options.batch.gradient_accumulation_steps,
            clip=options.utils.grad_norm_clip,
            finite=options.mixed_precision.enabled,
            device=options.device.id,
            paths=paths,
            session_options=options.session_options,
            provider_options=vars(options.provider_options),
        )

    def _warn_of_idle_groups(self) -> None:
        known = self._initializers()
        idle = [name for group in self.optim_config.params for name in group["params"] if name not in known]
        if idle:
            warn(f"groups of the optimizer name {idle}, which the model does not have; it has {list(known)}")

    def _attributes(self, name: str) -> dict[str, float]:
        """The settings of the optimizer for a parameter."""
        group = next(
            (group for group in self.optim_config.params if name in group["params"]), self.optim_config.defaults
        )
        return {_ATTRIBUTES.get(key, key): value for key, value in group.items() if key not in ("params", "lr")}

    def _describe_session(self) -> None:
        self._model_desc_inputs_with_lr = [*self.model_desc.inputs, self.model_desc.learning_rate]
        mixed = self.options.mixed_precision
        if mixed.enabled:
            self.model_desc.loss_scale_input = mixed.loss_scaler.input_name = engine.LOSS_SCALE
            self.model_desc.all_finite = engine.ALL_FINITE
        if self.options.batch.gradient_accumulation_steps > 1:
            self.model_desc.gradient_accumulation = engine.ACCUMULATED

    def _initializers(self) -> dict[str, np.ndarray]:
        assert self._onnx_model is not None
        return {one.name: onnx.numpy_helper.to_array(one) for one in self._onnx_model.graph.initializer}

    def _constants_changed(self) -> bool:
        """Whether a weight that the session does not train, and so has as a constant, is another than before."""
        current = self._initializers()
        return any(not np.array_equal(current[name], array) for name, array in self._constants.items())

    def _update_onnx_model_initializers(self, state_tensors: Mapping[str, Any]) -> None:
        """Write weights into the model; names that it does not have are left out."""
        require(isinstance(state_tensors, dict), "state_tensors must be a dict")
        assert self._onnx_model is not None
        update_initializers(self._onnx_model, state_tensors)

    # Files ------------------------------------------------------------------------------------------------------------

    def save_as_onnx(self, path: str) -> None:
        """Write the model, with its loss and in training mode, with the weights as they are now."""
        if not self._training_session:
            warnings.warn(
                "Training session is not initialized yet. 'train_step' or 'eval_step' methods must be executed at "
                "least once before calling 'save_as_onnx()'.",
                stacklevel=2,
            )
            return
        require(isinstance(path, str), "'path' must be a valid path string")
        self._update_onnx_model_initializers(self._training_session.get_state())
        folder, name = os.path.split(path)
        if (folder and not os.path.exists(folder)) or not name:
            warnings.warn("'path' is not valid or does not exist", stacklevel=2)
            return
        assert self._onnx_model is not None
        write_bytes(path, self._onnx_model.SerializeToString())

    def export_model_for_inferencing(self, path: str | os.PathLike[str], outputs: Sequence[str] | None = None) -> None:
        """Write a model for inference, without the loss: all outputs of the description but the loss, or these."""
        if not self._training_session:
            raise OnwardError("there is no model yet: call train_step or eval_step first")
        given = [one.name for one in self.model_desc.outputs if not one.is_loss] if outputs is None else outputs
        engine.export(self._training_session, path, given)

    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """The state of the model and its optimizer, and what has to be the same to load it.

        Args:
            pytorch_format: return the weights alone, as tensors: what `load_state_dict` of the module takes.
        """
        if not self._training_session:
            warnings.warn(
                "ONNX Runtime training session is not initialized yet. Please run train_step or eval_step at least "
                "once before calling ORTTrainer.state_dict().",
                stacklevel=2,
            )
            return self._load_state_dict.args[0] if self._load_state_dict else {}
        model = {precision: dict(own) for precision, own in self._training_session.get_model_state().items()}
        untrained = self._kept_weights()
        assert self._onnx_model is not None
        for initializer in self._onnx_model.graph.initializer if untrained else ():
            weights = model.setdefault(FULL_PRECISION, {})
            if initializer.name in untrained and initializer.name not in weights:
                weights[initializer.name] = np.array(onnx.numpy_helper.to_array(initializer))
        zero = self.options.distributed.deepspeed_zero_optimization.stage
        if pytorch_format:
            return {name: tensor_of(array) for name, array in model.get(FULL_PRECISION, {}).items()}
        info, distributed = self._train_step_info, self.options.distributed
        state = {
            MODEL: model,
            OPTIMIZER: self._training_session.get_optimizer_state(),
            STEP_INFO: {"optimization_step": info.optimization_step, "step": info.step},
            OPTIONS: {
                "mixed_precision": self.options.mixed_precision.enabled,
                "zero_stage": zero,
                "world_rank": distributed.world_rank,
                "world_size": distributed.world_size,
                "optimizer_name": self.optim_config.name,
                "data_parallel_size": distributed.data_parallel_size,
                "horizontal_parallel_size": distributed.horizontal_parallel_size,
            },
        }
        if zero > 0:
            state[PARTITION] = self._training_session.get_partition_info_map()
        return state

    def _kept_weights(self) -> list[str]:
        """Weights that are not trained, and belong to the state nevertheless."""
        return [*self._untrained, *self.options.utils.frozen_weights]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Continue from what `state_dict` returned; before the first step, when the model has been exported.

        Args:
            strict: refuse a state that has other names than that of this trainer. Sections that are missing altogether
                stay as they are, with a warning.
        """
        if not self._training_session:
            self._load_state_dict = partial(self.load_state_dict, state_dict, strict=strict)
            return
        current = self.state_dict()
        if strict:
            _check_names(current, state_dict)
        self._load_weights(state_dict, strict)
        optimizer = _merged(current.get(OPTIMIZER, {}), state_dict.get(OPTIMIZER, {}))
        if state_dict.get(OPTIMIZER):
            self._check_optimizer(state_dict)
        self._init_session(optimizer)
        if STEP_INFO in state_dict:
            info = self._train_step_info
            info.optimization_step = int(state_dict[STEP_INFO]["optimization_step"])
            info.step = int(state_dict[STEP_INFO]["step"])
            self._training_session.passes = info.step

    def _load_weights(self, state_dict: Mapping[str, Any], strict: bool) -> None:
        assert self._onnx_model is not None
        names = {initializer.name for initializer in self._onnx_model.graph.initializer}
        # First those of the session: what is not in the state stays as it was trained.
        trained = self._training_session.get_model_state().get(FULL_PRECISION, {})
        loaded = {name: array for name, array in trained.items() if name in names}
        for precision, own in state_dict.get(MODEL, {}).items():
            unknown = [name for name in own if name not in names]
            if unknown and strict:
                raise OnwardError(f"Unexpected key: {unknown[0]} in state_dict[model][{precision}]")
            loaded |= {name: array_from(value) for name, value in own.items() if name in names}
        self._update_onnx_model_initializers(loaded)

    def _check_optimizer(self, state_dict: Mapping[str, Any]) -> None:
        given = state_dict.get(OPTIONS, {}).get("optimizer_name", self.optim_config.name)
        given = given.decode() if isinstance(given, bytes) else given
        require(
            given == self.optim_config.name,
            f"Optimizer mismatch: expected {self.optim_config.name}, got {given}",
        )

    def _load_flat_state(self, state_dict: Mapping[str, Any], strict: bool) -> None:
        """Continue from a flat state; see `checkpoint`."""
        assert self._onnx_model is not None
        arrays = checkpoint.arrays_of(state_dict)
        known = {*self._initializers(), *self._training_session.get_state()}
        for name in arrays:
            if strict and name not in known:
                raise OnwardError(f"Checkpoint tensor: {name} is not present in the model.")
        self._update_onnx_model_initializers({**self._training_session.get_state(), **arrays})
        self._init_session()
        self._training_session.load_state(arrays)

    def save_checkpoint(
        self, path: str, user_dict: Mapping[str, Any] | None = None, include_optimizer_states: bool = True
    ) -> None:
        """Write the state to a new file, and what the user wants to be kept: numbers, texts, arrays, tensors."""
        state = dict(self.state_dict())
        if not include_optimizer_states:
            state.pop(OPTIMIZER, None)
        if user_dict:
            state[USER_DICT] = _checkpoint_storage.to_serialized_hex(user_dict)
        _checkpoint_storage.save(state, path)

    def load_checkpoint(self, *paths: str, strict: bool = True) -> Any:
        """Continue from a file, or from those of several processes; returns what the user wanted to be kept."""
        options = _checkpoint_storage.load(paths[0], key=OPTIONS)
        if len(paths) > 1 or options["zero_stage"] > 0 or options["world_size"] > 1:
            state = checkpoint.aggregate_checkpoints(paths, pytorch_format=False)
        else:
            state = _checkpoint_storage.load(paths[0])
        self.load_state_dict(state, strict=strict)
        return _checkpoint_storage.from_serialized_hex(state[USER_DICT]) if USER_DICT in state else {}


def fed(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name: those in a row first, which may be in a list, then those that are named."""
    given = args[0] if len(args) == 1 and isinstance(args[0], list) else args
    require(len(given) <= len(names), f"the model takes {list(names)}, but {len(given)} inputs were given")
    feeds = dict(zip(names, given, strict=False))
    for name, value in kwargs.items():
        require(name in names, f"there is no input {name!r}; the model takes {list(names)}")
        require(name not in feeds, f"the input {name!r} was given twice")
        feeds[name] = value
    return feeds


def check_sizes(feeds: Mapping[str, Any], shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Sizes that have one name have to be equal."""
    sizes: dict[str, int] = {}
    for name, value in feeds.items():
        for size, axis in zip(np.shape(value), shapes.get(name, ()), strict=False):
            if isinstance(axis, str):
                require(sizes.setdefault(axis, size) == size, f"Mismatch in dynamic shape {axis}")


def update_initializers(model: onnx.ModelProto, arrays: Mapping[str, Any]) -> None:
    """Write weights into a model."""
    for initializer in model.graph.initializer:
        if initializer.name not in arrays:
            continue
        array = np.asarray(array_from(arrays[initializer.name]))
        if array.shape != tuple(initializer.dims):
            raise OnwardError(
                f"{initializer.name!r} has shape {list(array.shape)} in the state, but {list(initializer.dims)} in the "
                "model"
            )
        wanted = onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type)
        made = onnx.numpy_helper.from_array(array.astype(wanted, copy=False), initializer.name)
        initializer.CopyFrom(made)


def _update_scale(scaler: Any, info: TrainStepInfo) -> None:
    if getattr(scaler, "automatic_update", True):
        scaler.update(info)


def _returned(results: Mapping[str, torch.Tensor], fetches: Sequence[str]) -> Any:
    values = [results[name] for name in fetches]
    return values[0] if len(values) == 1 else values


def _check_names(current: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse other names than those of the current state; warn of sections that are missing."""
    for section, depth in ((MODEL, 2), (OPTIMIZER, 2), (STEP_INFO, 0)):
        if section not in given:
            warnings.warn(f"Missing key: {section} in state_dict", stacklevel=3)
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
