"""TrainingParameters: what a TrainingSession trains, and how; every field of the original, with its default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from onward.errors import OnwardError

# What has no meaning on one machine, or in one precision: refused unless it is as it was.
_REFUSED = {
    "use_mixed_precision": "mixed precision",
    "use_fp16_moments": "mixed precision",
    "loss_scale": "mixed precision",
    "allreduce_post_accumulation": "distributed training",
    "world_rank": "distributed training",
    "world_size": "distributed training",
    "data_parallel_size": "distributed training",
    "horizontal_parallel_size": "distributed training",
    "pipeline_parallel_size": "distributed training",
    "num_pipeline_micro_batches": "distributed training",
    "pipeline_cut_info_string": "distributed training",
    "sliced_schema": "distributed training",
    "sliced_axes": "distributed training",
    "sliced_tensor_names": "distributed training",
    "deepspeed_zero_stage": "distributed training",
    "enable_adasum": "distributed training",
}


@dataclass(slots=True)
class TrainingParameters:
    """See docs/session.md for what each field does."""

    loss_output_name: str = ""
    weights_to_train: set[str] = field(default_factory=set)
    weights_not_to_train: set[str] = field(default_factory=set)
    immutable_weights: dict[str, dict[int, float]] = field(default_factory=dict)
    training_optimizer_name: str = ""
    lr_params_feed_name: str = "Learning_Rate"
    optimizer_attributes_map: dict[str, dict[str, float]] = field(default_factory=dict)
    optimizer_int_attributes_map: dict[str, dict[str, int]] = field(default_factory=dict)
    enable_grad_norm_clip: bool = True
    gradient_accumulation_steps: int = 1
    set_gradients_as_graph_outputs: bool = False
    # Where to write graphs to: the model as it is trained, with gradients, and with the update.
    model_after_graph_transforms_path: str = ""
    model_with_gradient_graph_path: str = ""
    model_with_training_graph_path: str = ""
    # How the original saved memory or time; results do not depend on it, and nothing here does.
    use_memory_efficient_gradient: bool = False
    use_invertible_layernorm_grad: bool = False
    attn_dropout_recompute: bool = False
    gelu_recompute: bool = False
    transformer_layer_recompute: bool = False
    number_recompute_layers: int = 0
    propagate_cast_ops_level: int = 1
    propagate_cast_ops_allow: list[str] = field(default_factory=list)
    # Refused if they are changed.
    use_fp16_moments: bool = False
    use_mixed_precision: bool = False
    loss_scale: float = 0.0
    allreduce_post_accumulation: bool = False
    world_rank: int = 0
    world_size: int = 1
    data_parallel_size: int = 1
    horizontal_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    num_pipeline_micro_batches: int = 1
    pipeline_cut_info_string: str = ""
    sliced_schema: dict[str, Any] = field(default_factory=dict)
    sliced_axes: dict[str, Any] = field(default_factory=dict)
    sliced_tensor_names: list[str] = field(default_factory=list)
    deepspeed_zero_stage: int = 0
    enable_adasum: bool = False
    _initial: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def set_optimizer_initial_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Begin with this state of the optimizer.

        ``{weight: {"Moment_1": ..., "Moment_2": ..., "Update_Count": ...}, "shared_optimizer_state": {"Step": ...}}``
        """
        self._initial = {name: {key: np.asarray(value) for key, value in own.items()} for name, own in state.items()}

    def optimizer_initial_state(self) -> dict[str, dict[str, np.ndarray]]:
        """What was set."""
        return self._initial

    def check(self) -> None:
        """Refuse what a TrainingSession on one machine cannot do."""
        fresh = TrainingParameters()
        for item in fields(self):
            given, default = getattr(self, item.name), getattr(fresh, item.name)
            if item.name in _REFUSED and given != default:
                raise OnwardError(
                    f"TrainingParameters.{item.name} is {given!r}, which belongs to {_REFUSED[item.name]}: a session "
                    f"of onward trains on one machine, in the precision of the model. Leave it at {default!r}."
                )
        steps = self.gradient_accumulation_steps
        if not isinstance(steps, int) or steps < 1:
            raise OnwardError(f"TrainingParameters.gradient_accumulation_steps is {steps!r}; it is at least 1")
        if not self.loss_output_name:
            raise OnwardError("TrainingParameters.loss_output_name is empty: name the output that is the loss")
