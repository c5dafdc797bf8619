"""`Module`: runs the training and the evaluation model over a state."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from onward.api.checkpoint_state import CheckpointState
from onward.runtime.module import TrainingModule, is_value
from onward.runtime.tensors import array_of


class Module:
    """A model that trains: call it with inputs and targets.

    Threads may share a module, and several modules a state. The results are those of some order, one call after the
    other, though evaluations run side by side. `train` and `eval` hold for the thread that calls them, and for threads
    that have called neither. Every module has gradients of its own; parameters and the seed are those of the state.

    Args:
        train_model_uri: the training model that `onward.artifacts.generate_artifacts` has written.
        state: its parameters; shared with the module, not copied.
        eval_model_uri: the evaluation model; needed for `eval` and for export.
        device: "cpu", "cuda" or "cuda:1"; parameters and gradients stay there.
        session_options: an `onnxruntime.SessionOptions` for all sessions.
        providers: execution providers as `onnxruntime.InferenceSession` takes them, instead of `device`.
        seed: what Dropout and other random operators draw from, any integer of 64 bits; None keeps that of the state, 0
            in a new one. Seed and position are saved in checkpoints, so that training continues exactly where it was.
    """

    def __init__(
        self,
        train_model_uri: str | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | os.PathLike[str] | None = None,
        device: str = "cpu",
        session_options: Any = None,
        *,
        providers: Sequence[Any] | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(state, CheckpointState):
            raise TypeError(f"Module needs a CheckpointState, not {type(state).__name__}")
        self._training = True
        self._own = threading.local()
        self._state = state
        self._model = TrainingModule(
            train_model_uri, state._state, eval_model_uri, device=device, options=session_options, providers=providers
        )
        if seed is not None:
            self._model.seed(seed)
        self._device = self._model.device
        self._device_type = self._model.device.kind
        self._session_options = session_options

    def __call__(self, *user_inputs: Any) -> Any:
        """Run a training step, or an evaluation step after `eval()`; returns the loss, and other outputs if there are.

        Inputs are in the order of `input_names()`. Numpy arrays (and lists) in, numpy arrays out; if all inputs are
        `onnxruntime.OrtValue`, so are the outputs. A training step adds to the gradients, unless it is the first or
        `lazy_reset_grad` was called since the last.
        """
        step = self._model.train_step if self.training else self._model.eval_step
        outputs = step(user_inputs)
        if not user_inputs or not all(map(is_value, user_inputs)):
            outputs = [array_of(output) for output in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @property
    def training(self) -> bool:
        """Whether calls from this thread train."""
        return getattr(self._own, "training", self._training)

    @training.setter
    def training(self, mode: bool) -> None:
        self._own.training = self._training = mode

    def train(self, mode: bool = True) -> Module:
        """Let calls train (or evaluate, if `mode` is False)."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Let calls evaluate."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """Let the next training step replace the gradients instead of adding to them."""
        self._model.reset()

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Any:
        """A copy of all parameters, one after the other, as an `onnxruntime.OrtValue` with `.numpy()` and `.shape()`.

        They are in the order of the training model.
        """
        return self._model.parameters_as_buffer(trainable_only)

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """How many elements the parameters have."""
        return self._model.parameter_count(trainable_only)

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Set all parameters from what `get_contiguous_parameters` returned, or from a numpy array.

        A nominal state gets its values this way, with `trainable_only=False`.
        """
        self._model.parameters_from_buffer(buffer, trainable_only)

    def export_model_for_inferencing(
        self, inference_model_uri: str | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Write a model that computes these values (any of the evaluation model) with the current parameters."""
        self._model.export(inference_model_uri, graph_output_names)

    def input_names(self) -> list[str]:
        """The inputs of the user, of the training or of the evaluation model."""
        graph = self._model.training if self.training else self._model.evaluation
        return [] if graph is None else list(graph.user_inputs)

    def output_names(self) -> list[str]:
        """The outputs of the user, of the training or of the evaluation model."""
        graph = self._model.training if self.training else self._model.evaluation
        return [] if graph is None else list(graph.user_outputs)

    def __repr__(self) -> str:
        return f"Module(training={self.training}, device={self._device}, parameters={self.get_parameters_size()})"
