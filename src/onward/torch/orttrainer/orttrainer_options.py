"""ORTTrainerOptions: all that can be said about training besides the model and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.torch.orttrainer import schema
from onward.torch.orttrainer.amp.loss_scaler import LossScaler
from onward.torch.orttrainer.optim.lr_scheduler import _LRScheduler
from onward.torch.orttrainer.refusal import InvalidValueError
from onward.torch.orttrainer.schema import boolean, elements, integer, section, text


class ORTTrainerOptions:
    """Options as nested dictionaries, which are checked, filled with defaults, and become attributes.

        options = ORTTrainerOptions({"batch": {"gradient_accumulation_steps": 4}})
        options.batch.gradient_accumulation_steps

    docs/orttrainer.md lists them. Those about how the original saved memory or time have no effect here.
    """

    def __init__(self, options: Mapping[str, Any] = {}) -> None:
        self._original_opts = dict(options)
        self._main_class_name = type(self).__name__
        self._validated_opts, errors = schema.validated(options, _SCHEMA)
        if errors:
            raise InvalidValueError(f"Invalid options: {errors}")
        for key, value in self._validated_opts.items():
            setattr(self, key, _wrapped(value))

    def __repr__(self) -> str:
        return repr({key: value for key, value in vars(self).items() if key not in _PRIVATE})

    # Which attributes there are follows from the schema, whose sections are nested.
    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


class _Section(ORTTrainerOptions):
    """A section of options, with its fields as attributes."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        for key, value in options.items():
            setattr(self, str(key), _wrapped(value))


_PRIVATE = ("_original_opts", "_main_class_name", "_validated_opts")


def _wrapped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _Section(value)
    # Lists are the trainer's own: it adds names of buffers to those of frozen weights.
    return [_wrapped(item) for item in value] if isinstance(value, (list, tuple)) else value


def _callable_or_none(value: Any) -> list[str]:
    return [] if callable(value) else ["Must be callable or None"]


def _strategy() -> Any:
    from onward.session.configuration import PropagateCastOpsStrategy

    return PropagateCastOpsStrategy


_PROVIDER_OPTIONS = schema.Rule("dict", (Mapping,), default=dict)

_SCHEMA: dict[str, schema.Rule] = {
    "batch": section(gradient_accumulation_steps=integer(1, 1)),
    # The original's default is "cuda".
    "device": section(id=text("cpu"), mem_limit=integer(0, 0)),
    "distributed": section(
        world_rank=integer(0, 0),
        world_size=integer(1, 1),
        local_rank=integer(0, 0),
        data_parallel_size=integer(1, 1),
        horizontal_parallel_size=integer(1, 1),
        pipeline_parallel=section(
            pipeline_parallel_size=integer(1, 1),
            num_pipeline_micro_batches=integer(1, 1),
            pipeline_cut_info_string=text(""),
            sliced_schema=schema.mapping(elements(integer(0))),
            sliced_axes=schema.mapping(integer(0)),
            sliced_tensor_names=elements(text("")),
        ),
        allreduce_post_accumulation=boolean(False),
        deepspeed_zero_optimization=section(stage=integer(0, 0, 1)),
        enable_adasum=boolean(False),
    ),
    "lr_scheduler": schema.instance("lr_scheduler", lambda: _LRScheduler),
    "mixed_precision": section(enabled=boolean(False), loss_scaler=schema.instance("loss_scaler", lambda: LossScaler)),
    "graph_transformer": section(
        attn_dropout_recompute=boolean(False),
        gelu_recompute=boolean(False),
        transformer_layer_recompute=boolean(False),
        number_recompute_layers=integer(0, 0),
        allow_layer_norm_mod_precision=boolean(False),
        propagate_cast_ops_config=section(
            strategy=schema.Rule(
                default=lambda: _strategy().NONE,
                check=lambda value: (
                    [] if isinstance(value, _strategy()) else ["must be of propagate_cast_ops_strategy type"]
                ),
            ),
            level=integer(-1, -1),
            allow=elements(text("")),
        ),
    ),
    "utils": section(
        frozen_weights=elements(),
        grad_norm_clip=boolean(True),
        memory_efficient_gradient=boolean(False),
        run_symbolic_shape_infer=boolean(False),
    ),
    "debug": section(
        deterministic_compute=boolean(False),
        check_model_export=boolean(False),
        graph_save_paths=section(
            model_after_graph_transforms_path=text(""),
            model_with_gradient_graph_path=text(""),
            model_with_training_graph_path=text(""),
            model_with_training_graph_after_optimization_path=text(""),
        ),
    ),
    "_internal_use": section(
        enable_internal_postprocess=boolean(True),
        extra_postprocess=schema.Rule(default=lambda: None, nullable=True, check=_callable_or_none),
        onnx_opset_version=integer(12, 12, 13),
        enable_onnx_contrib_ops=boolean(True),
    ),
    "provider_options": _PROVIDER_OPTIONS,
    "session_options": schema.Rule(default=lambda: None, nullable=True),
}
