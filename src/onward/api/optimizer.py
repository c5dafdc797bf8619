"""`Optimizer`: updates the parameters of a module."""

from __future__ import annotations

import os

from onward.api.module import Module
from onward.rate import checked_rate
from onward.runtime.sequence_optimizer import open_optimizer


class Optimizer:
    """Updates all trainable parameters of a module from their gradients.

    Args:
        optimizer_uri: the optimizer model that `onward.artifacts.generate_artifacts` has written. That of a block of
            your own is run as it is: it takes the sequences `params` and `gradients`, one for each kind of state, and
            `learning_rate` and `step`, and returns `updated_params` and `updated_<state>`.
        module: whose parameters and gradients. If its state was loaded with optimizer state, training continues from
            there. Optimizers of modules that share a state share the learning rate, the number of steps and what they
            remember, because a checkpoint has one of each.
    """

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"Optimizer needs a Module, not {type(module).__name__}")
        model = module._model
        self._module = module
        self._optimizer = open_optimizer(optimizer_uri, model, options=model.options, providers=model.providers)

    def step(self) -> None:
        """Update the parameters. Gradients stay as they are until they are reset."""
        self._optimizer.step()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next step. A scheduler overwrites it when it steps."""
        self._optimizer.state.learning_rate = checked_rate(learning_rate)

    def get_learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._optimizer.state.learning_rate

    def __repr__(self) -> str:
        state = self._optimizer.state
        return f"Optimizer({self._optimizer.plan.optimizer}, step={state.step}, learning_rate={state.learning_rate})"
