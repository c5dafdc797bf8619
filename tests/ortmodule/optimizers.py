"""The optimizers that models are trained with, on either side."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class Lamb(torch.optim.Optimizer):
    """You et al., 2020: Adam's direction, scaled for each tensor by the norm of the weights over its own."""

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float, eps: float, weight_decay: float = 0.01) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state.setdefault(p, {}) or {"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)}
                self.state[p] = state
                state["t"] += 1
                state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
                direction = m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p
                weights, length = p.norm(), direction.norm()
                ratio = weights / length if weights > 0 and length > 0 else 1.0
                p.sub_(group["lr"] * ratio * direction)


# Gradients that are zero but for rounding, of a bias before a normalisation for instance, must not make steps: with the
# usual 1e-8 both divide noise by itself. They are below 1e-6 here.
_EPS = 1e-3
OPTIMIZERS: dict[str, Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "Adam": lambda parameters: torch.optim.Adam(parameters, lr=0.002, eps=_EPS),
    "LAMB": lambda parameters: Lamb(parameters, lr=0.002, eps=_EPS),
}
