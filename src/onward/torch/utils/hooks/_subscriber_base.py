"""What subscribers may do, and what they are told."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class GlobalStates:
    """Modules by their numbers, in the order in which they are first seen from the outside, and the current step."""

    module_index_to_depth: dict[int, int] = field(default_factory=dict)
    module_to_module_index: dict[nn.Module, int] = field(default_factory=dict)
    subscribers: list[SubscriberBase] = field(default_factory=list)
    execution_step: int = 0


@dataclass
class RuntimeStates:
    """What subscribers are told."""

    global_states: GlobalStates = field(default_factory=GlobalStates)


class SubscriberBase:
    """Does something at the layers of a module; a method that is not overridden does nothing.

    Methods called ``..._tensor_apply_impl`` see each tensor of a layer's arguments or results,
    ``..._module_apply_impl`` a layer, ``..._outmost_module_apply_impl`` the whole module; they return what takes the
    place of what they were given.

    Args:
        start_step: the first step that it runs in; 0 by default.
        end_step: the first one that it does not run in any more.
    """

    def __init__(self, start_step: int | None = None, end_step: int | None = None) -> None:
        self._start_step = 0 if start_step is None else start_step
        self._end_step = sys.maxsize if end_step is None else end_step

    def runs(self, run_ctx: RuntimeStates) -> bool:
        """Whether it runs in this step."""
        return self._start_step <= run_ctx.global_states.execution_step < self._end_step

    def pre_forward_tensor_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        """What a layer gets in place of one of the tensors among its arguments."""
        return tensor

    def post_forward_tensor_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        """What a layer returns in place of one of its tensors."""
        return tensor

    def pre_forward_module_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """What a layer gets in place of its arguments."""
        return args, kwargs

    def post_forward_module_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, args: Sequence[Any], outputs: Any
    ) -> tuple[Sequence[Any], Any]:
        """Its arguments, and what a layer returns in place of its results."""
        return args, outputs

    def pre_forward_outmost_module_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """What the whole module gets in place of its arguments."""
        return args, kwargs

    def post_forward_outmost_module_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, args: Sequence[Any], outputs: Any
    ) -> tuple[Sequence[Any], Any]:
        """Its arguments, and what the whole module returns in place of its results."""
        return args, outputs
