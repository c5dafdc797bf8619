"""Checks for authors of gradient rules, losses and optimizers."""

from onward.autodiff.registry import temporary_rules
from onward.testing.losses import check_loss, loss_model
from onward.testing.optimizers import check_optimizer
from onward.testing.rules import check_gradient, check_vjp, run_on_reference
from onward.testing.running import run_on_runtime
from onward.testing.training import check_training

__all__ = [
    "check_gradient",
    "check_loss",
    "check_optimizer",
    "check_training",
    "check_vjp",
    "loss_model",
    "run_on_reference",
    "run_on_runtime",
    "temporary_rules",
]
