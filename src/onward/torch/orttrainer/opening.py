"""Opens the session of the newer ORTTrainer, and adds to its description what model and session have."""

from __future__ import annotations

from inspect import signature
from typing import Any

import onnx

from onward.errors import OnwardError, warn
from onward.torch.orttrainer import amp, engine, optim
from onward.torch.orttrainer._utils import dtype_onnx_to_torch
from onward.torch.orttrainer.model_desc_validation import _ORTTrainerModelDesc
from onward.torch.orttrainer.orttrainer_options import ORTTrainerOptions
from onward.torch.orttrainer.refusal import InvalidValueError, require
from onward.torch.orttrainer.weights import initializers

# The settings of optimizers that their graphs call otherwise.
_ATTRIBUTES = {"lambda_coef": "lambda"}
_ALONE = ("world_size", "data_parallel_size", "horizontal_parallel_size")


def check_arguments(model: Any, model_desc: Any, optim_config: Any, loss_fn: Any, options: Any) -> None:
    """Refuse what a trainer cannot be made of."""
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


def check(options: ORTTrainerOptions) -> None:
    """Refuse options that exclude each other, and several processes; mixed precision gets its scaler."""
    mixed, distributed = options.mixed_precision, options.distributed
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


def describe_types(description: _ORTTrainerModelDesc, model: onnx.ModelProto) -> None:
    """Add the types of an ONNX model to the description."""
    for kind, values, described, add in (
        ("input", model.graph.input, description.inputs, description.add_type_to_input_description),
        ("output", model.graph.output, description.outputs, description.add_type_to_output_description),
    ):
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        for index, one in enumerate(described):
            require(one.name in types, f"ONNX model with unknown {kind} type ({one.name})")
            add(index, dtype_onnx_to_torch(types[one.name]))


def open_session(
    model: onnx.ModelProto,
    description: _ORTTrainerModelDesc,
    config: optim._OptimizerConfig,
    options: ORTTrainerOptions,
) -> Any:
    """A session that trains the model for the loss of its description."""
    _warn_of_idle_groups(model, config)
    losses = [described.name for described in description.outputs if described.is_loss]
    require(len(losses) == 1, f"Only one loss output is supported ({len(losses)} were specified)")
    paths = {name: path for name, path in vars(options.debug.graph_save_paths).items() if path}
    optimized_path = paths.pop("model_with_training_graph_after_optimization_path", "")
    return engine.open_training_session(
        model,
        loss=losses[0],
        optimizer=config.name,
        rate=description.learning_rate.name,
        attributes=lambda name: _attributes(config, name),
        frozen=options.utils.frozen_weights,
        accumulate=options.batch.gradient_accumulation_steps,
        clip=options.utils.grad_norm_clip,
        finite=options.mixed_precision.enabled,
        device=options.device.id,
        paths=paths,
        optimized_path=optimized_path,
        session_options=options.session_options,
        provider_options=vars(options.provider_options),
    )


def describe_session(description: _ORTTrainerModelDesc, options: ORTTrainerOptions) -> None:
    """Add what the session has besides inputs and outputs of the model."""
    mixed = options.mixed_precision
    if mixed.enabled:
        description.loss_scale_input = mixed.loss_scaler.input_name = engine.LOSS_SCALE
        description.all_finite = engine.ALL_FINITE
    if options.batch.gradient_accumulation_steps > 1:
        description.gradient_accumulation = engine.ACCUMULATED


def _warn_of_idle_groups(model: onnx.ModelProto, config: optim._OptimizerConfig) -> None:
    known = initializers(model)
    idle = [name for group in config.params for name in group["params"] if name not in known]
    if idle:
        warn(f"groups of the optimizer name {idle}, which the model does not have; it has {list(known)}")


def _attributes(config: optim._OptimizerConfig, name: str) -> dict[str, float]:
    """The settings of the optimizer for a parameter."""
    group = next((group for group in config.params if name in group["params"]), config.defaults)
    return {_ATTRIBUTES.get(key, key): value for key, value in group.items() if key not in ("params", "lr")}
