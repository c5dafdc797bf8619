"""`FusedAdam`: Adam with three ways to decay weights, as an optimizer of torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

import torch
from torch.optim import Optimizer


class AdamWMode(IntEnum):
    """How weights decay."""

    ADAM_L2_REGULARIZATION = 0  # as part of the gradient
    ADAMW_TRANSFORMERS = 1  # after the step, as in transformers
    ADAMW_TORCH = 2  # before the step, as in torch


class FusedAdam(Optimizer):
    """Adam over all parameters of a group at once, each with a number of steps of its own.

    Args:
        params: parameters, or groups of them.
        lr: learning rate.
        bias_correction: whether the moments are divided by what they lack at the beginning.
        betas: decay of the two moments.
        eps: added to the root of the second moment; before that is corrected, where weights decay as in transformers.
        adam_w_mode: how weights decay.
        weight_decay: by how much.
        set_grad_none: whether `zero_grad` forgets gradients in place of writing zeros.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        adam_w_mode: AdamWMode = AdamWMode.ADAMW_TRANSFORMERS,
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        self._adam_w_mode, self._set_grad_none = AdamWMode(adam_w_mode), set_grad_none
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        super().__init__(params, defaults)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        super().zero_grad(set_to_none=set_to_none and self._set_grad_none)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` computes the loss again and returns it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if any(p.grad.is_sparse for p in parameters):
                raise RuntimeError("FusedAdam does not take sparse gradients; torch.optim.SparseAdam does")
            counted: dict[int, list[torch.Tensor]] = {}
            for p in parameters:
                counted.setdefault(self._count(p, group), []).append(p)
            for step, together in counted.items():
                self._update(group, together, step)
        return loss

    def _count(self, p: torch.Tensor, group: dict[str, Any]) -> int:
        """The number of the step of a parameter; the state of its first one begins with zeros."""
        state = self.state[p]
        # Older states, as those of the original, count the steps of groups.
        before = state.get("step", group.get("step", 0) if state else 0)
        if not state:
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        state["step"] = int(before) + 1
        return state["step"]

    def _update(self, group: dict[str, Any], parameters: list[torch.Tensor], step: int) -> None:
        lr, decay, mode = group["lr"], group["weight_decay"], self._adam_w_mode
        first, second = group["betas"]
        gradients = [p.grad for p in parameters]
        m, v = ([self.state[p][name] for p in parameters] for name in ("exp_avg", "exp_avg_sq"))
        if decay and mode is AdamWMode.ADAM_L2_REGULARIZATION:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))  # type: ignore[arg-type]
        elif decay and mode is AdamWMode.ADAMW_TORCH:
            torch._foreach_mul_(parameters, 1 - lr * decay)
        torch._foreach_lerp_(m, gradients, 1 - first)  # type: ignore[arg-type]
        torch._foreach_mul_(v, second)
        torch._foreach_addcmul_(v, gradients, gradients, 1 - second)  # type: ignore[arg-type]
        corrections = (1 - first**step, 1 - second**step) if group["bias_correction"] else (1.0, 1.0)
        roots = torch._foreach_sqrt(v)
        rate = lr / corrections[0]
        if mode is AdamWMode.ADAMW_TRANSFORMERS:
            rate *= math.sqrt(corrections[1])
        else:
            torch._foreach_div_(roots, math.sqrt(corrections[1]))
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, m, roots, -rate)
        if decay and mode is AdamWMode.ADAMW_TRANSFORMERS:
            torch._foreach_mul_(parameters, 1 - lr * decay)
