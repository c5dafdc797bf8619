"""What the graph builder takes, and what it says about the graphs: the fields and defaults of the original."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any


class Severity(IntEnum):
    """Levels of logging."""

    VERBOSE = 0
    INFO = 1
    WARNING = 2
    ERROR = 3
    FATAL = 4


class PropagateCastOpsStrategy(Enum):
    """Where the original moved Casts to."""

    NONE = 0
    INSERT_AND_REDUCE = 1
    FLOOD_FILL = 2


@dataclass(slots=True)
class PropagateCastOpsConfiguration:
    """Accepted for compatibility: onward leaves Casts where they are."""

    strategy: PropagateCastOpsStrategy = PropagateCastOpsStrategy.FLOOD_FILL
    level: int = 1
    allow: list[str] = field(default_factory=list)


@dataclass(slots=True)
class TrainingGraphTransformerConfiguration:
    """How the original rewrote graphs to be faster or smaller.

    Results do not depend on it. Of all fields, onward honours `optimized_pre_grad_filepath`, where the forward model is
    written to; what is worth to be computed again instead of kept, it finds out by itself.
    """

    enable_gelu_approximation: bool = False
    attn_dropout_recompute: bool = False
    gelu_recompute: bool = False
    transformer_layer_recompute: bool = False
    number_recompute_layers: int = 0
    enable_compute_optimizer: bool = False
    print_input_density: bool = False
    optimized_pre_grad_filepath: str = ""
    propagate_cast_ops_config: PropagateCastOpsConfiguration = field(default_factory=PropagateCastOpsConfiguration)


@dataclass(slots=True)
class OrtModuleGraphBuilderConfiguration:
    """What to differentiate.

    Attributes:
        initializer_names: initializers that become inputs of the graphs, in this order; the others stay constants.
        initializer_names_to_train: those whose gradient is computed, in this order.
        input_names_require_grad: inputs whose gradient is computed.
        build_gradient_graph: whether there is a gradient model at all.
        use_memory_efficient_gradient, enable_caching, loglevel: accepted, without effect.
        graph_transformer_config: what older versions have here instead of giving it to `build`.
    """

    initializer_names: list[str] = field(default_factory=list)
    initializer_names_to_train: list[str] = field(default_factory=list)
    input_names_require_grad: list[str] = field(default_factory=list)
    use_memory_efficient_gradient: bool = False
    build_gradient_graph: bool = True
    enable_caching: bool = False
    loglevel: Any = Severity.WARNING
    graph_transformer_config: TrainingGraphTransformerConfiguration = field(
        default_factory=TrainingGraphTransformerConfiguration
    )


@dataclass(slots=True)
class GraphInfo:
    """The names at the borders of the graphs."""

    user_input_names: list[str] = field(default_factory=list)
    user_input_grad_names: dict[str, str] = field(default_factory=dict)  # input -> gradient
    initializer_names: list[str] = field(default_factory=list)
    initializer_names_to_train: list[str] = field(default_factory=list)
    initializer_grad_names_to_train: list[str] = field(default_factory=list)
    user_output_names: list[str] = field(default_factory=list)
    # Places of outputs: that have no gradient; whose gradient must be a tensor of their size even if it is zero; that
    # the backward pass reads, so that nobody may change them before.
    output_grad_indices_non_differentiable: list[int] = field(default_factory=list)
    output_grad_indices_require_full_shape: list[int] = field(default_factory=list)
    module_output_indices_requires_save_for_backward: list[int] = field(default_factory=list)
    frontier_node_arg_map: dict[str, str] = field(default_factory=dict)  # always empty
    cached_node_arg_names: list[str] = field(default_factory=list)  # always empty
    module_output_gradient_name: list[str] = field(default_factory=list)
