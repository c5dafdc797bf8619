"""The newer ORTTrainer: a module or a model, its description, an optimizer and options."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import torch

from onward.errors import OnwardError
from onward.runtime.files import write_bytes
from onward.torch.orttrainer import _checkpoint_storage, checkpoint, engine, opening, optim, state
from onward.torch.orttrainer._utils import OPTIMIZER, OPTIONS, USER_DICT
from onward.torch.orttrainer.combination import LossFunction, combine
from onward.torch.orttrainer.engine import array_from
from onward.torch.orttrainer.feeding import check_sizes, fed, returned
from onward.torch.orttrainer.model_desc_validation import _ORTTrainerModelDesc
from onward.torch.orttrainer.orttrainer_options import ORTTrainerOptions
from onward.torch.orttrainer.refusal import InvalidValueError, require
from onward.torch.orttrainer.step_info import TrainStepInfo
from onward.torch.orttrainer.weights import initializers, update_initializers

__all__ = ["ORTTrainer", "ORTTrainerOptions", "TrainStepInfo"]


class ORTTrainer:
    """Trains a torch module or an ONNX model on onnxruntime.

    Args:
        model: a `torch.nn.Module`, which is exported at the first step, or an `onnx.ModelProto` that computes its loss.
        model_desc: ``{"inputs": [(name, shape)], "outputs": [(name, shape, is_loss)]}``. Names of inputs are those of
            the arguments of `forward`, then that of the label; texts in shapes name sizes that may change.
        optim_config: one of `optim.SGDConfig`, `optim.AdamConfig` and `optim.LambConfig`.
        loss_fn: a function of torch of the prediction and the label; None where the model computes its loss.
        options: an `ORTTrainerOptions`.
    """

    def __init__(
        self,
        model: torch.nn.Module | onnx.ModelProto,
        model_desc: Mapping[str, Any],
        optim_config: optim._OptimizerConfig,
        loss_fn: LossFunction | None = None,
        options: ORTTrainerOptions | None = None,
    ) -> None:
        opening.check_arguments(model, model_desc, optim_config, loss_fn, options)
        self._torch_model: torch.nn.Module | None = None
        self._onnx_model: onnx.ModelProto | None = None
        self.loss_fn = loss_fn
        if isinstance(model, torch.nn.Module):
            self._torch_model = model
        elif isinstance(model, onnx.ModelProto):
            require(loss_fn is None, "'loss_fn' must not be specified when 'model' is an ONNX model")
            self._onnx_model = copy.deepcopy(model)
        else:
            raise InvalidValueError("'model' must be either 'torch.nn.Module' or 'onnx.ModelProto'")
        self.model_desc = _ORTTrainerModelDesc(model_desc)
        self.optim_config = optim_config
        self.options = ORTTrainerOptions() if options is None else options
        opening.check(self.options)
        self._train_step_info = TrainStepInfo(optim_config)
        self._training_session: Any = None
        self._untrained: list[str] = []
        self._load_state_dict: Any = None  # what is to be loaded when there is a session
        self._state_dict: Mapping[str, Any] = {}  # the same, of a flat state
        self._load_state_dict_strict = False
        if self._onnx_model is not None:
            self._postprocess()
            opening.describe_types(self.model_desc, self._onnx_model)
            self._init_session()

    # Steps ------------------------------------------------------------------------------------------------------------

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch: inputs of the model, then the label, in the order of the description or by name.

        Returns:
            The outputs of the description, or those of `_train_step_info.fetches`; a single one as it is.
        """
        feeds = self._feeds(args, kwargs)
        self._init_onnx_model(feeds)
        info, options = self._train_step_info, self.options
        fetches = self._fetches()
        update = self._training_session.added + 1 >= options.batch.gradient_accumulation_steps
        scheduler, mixed = options.lr_scheduler, options.mixed_precision
        rate = scheduler._step(info)[0] if scheduler else self.optim_config.lr
        feeds[self.model_desc.learning_rate.name] = torch.tensor([float(rate)])
        results, finite = engine.step(self._training_session, feeds, fetches, update=update, finite=mixed.enabled)
        info.step += 1
        if update:
            info.all_finite = finite
            if mixed.enabled:
                _update_scale(mixed.loss_scaler, info)
            info.optimization_step += finite
        return returned(results, fetches)

    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of one batch as in inference; a label that no output needs may be left out."""
        feeds = self._feeds(args, kwargs, complete=False)
        self._init_onnx_model(feeds)
        fetches = self._fetches()
        return returned(engine.evaluate(self._training_session, feeds, fetches), fetches)

    def _feeds(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, complete: bool = True) -> dict[str, Any]:
        names = [described.name for described in self.model_desc.inputs]
        shapes = {described.name: described.shape for described in self.model_desc.inputs}
        feeds = fed(names, args, kwargs)
        given = complete and not self._train_step_info.fetches
        if not complete and self._onnx_model is None:
            given = True
        missing = [name for name in names if name not in feeds]
        require(not given or not missing, f"the model takes {names}, but {missing} were not given")
        check_sizes(feeds, shapes)
        return feeds

    def _fetches(self) -> list[str]:
        names = [described.name for described in self.model_desc.outputs]
        wanted = self._train_step_info.fetches
        if any(name not in names for name in wanted):
            raise OnwardError(
                f"The specified fetches list contains invalid output names: {wanted}; the outputs are {names}"
            )
        return list(wanted) or names

    # The model and its session ----------------------------------------------------------------------------------------

    def _init_onnx_model(self, feeds: Mapping[str, Any]) -> None:
        """Export the module, once."""
        if self._onnx_model is not None:
            return
        assert self._torch_model is not None
        self._torch_model.cpu()
        samples = [torch.as_tensor(feeds[described.name]).cpu() for described in self.model_desc.inputs]
        made = combine(
            self._torch_model,
            self.loss_fn,
            samples,
            {described.name: described.shape for described in self.model_desc.inputs},
            [described.name for described in self.model_desc.outputs],
            prefer_names=True,
        )
        self._onnx_model = made.model
        try:
            self._postprocess()
            for index, dtype in enumerate(made.inputs):
                self.model_desc.add_type_to_input_description(index, dtype)
            for index, dtype in enumerate(made.outputs[: len(self.model_desc.outputs)]):
                self.model_desc.add_type_to_output_description(index, dtype)
            self._init_session()
        except BaseException:
            self._onnx_model = self._training_session = None
            raise

    def _postprocess(self) -> None:
        extra = self.options._internal_use.extra_postprocess
        if extra is not None:
            self._onnx_model = extra(self._onnx_model)
            require(isinstance(self._onnx_model, onnx.ModelProto), "'extra_postprocess' must return a ONNX model")

    def _init_session(self, optimizer_states: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Make the session, or give it the weights of the model and the state of its optimizer."""
        if self._onnx_model is None:
            return
        flat = {
            kind if weight == engine.SHARED else f"{kind}_{weight}": array_from(value)
            for weight, own in (optimizer_states or {}).items()
            for kind, value in own.items()
        }
        # All of a state is taken, or nothing.
        if self._training_session is None or self._constants_changed():
            session = opening.open_session(self._onnx_model, self.model_desc, self.optim_config, self.options)
            session.load_state(flat)
            self._training_session, trained = session, set(session.get_state())
            self._untrained = [one.name for one in self._onnx_model.graph.initializer if one.name not in trained]
        else:
            self._training_session.load_state({**initializers(self._onnx_model), **flat})
        self._constants = {
            name: array for name, array in initializers(self._onnx_model).items() if name in self._untrained
        }
        self._model_desc_inputs_with_lr = [*self.model_desc.inputs, self.model_desc.learning_rate]
        opening.describe_session(self.model_desc, self.options)
        pending, flat_state = self._load_state_dict, self._state_dict
        self._load_state_dict, self._state_dict = None, {}
        try:
            if pending is not None:
                pending()
            if flat_state:
                self._load_flat_state(flat_state, self._load_state_dict_strict)
        except BaseException:  # the next step must not begin from other weights
            self._load_state_dict, self._state_dict = pending, flat_state
            raise

    def _constants_changed(self) -> bool:
        """Whether a weight that the session does not train, and so has as a constant, is another than before."""
        assert self._onnx_model is not None
        current = initializers(self._onnx_model)
        return any(not np.array_equal(current[name], array) for name, array in self._constants.items())

    def _update_onnx_model_initializers(self, state_tensors: Mapping[str, Any]) -> None:
        """Write weights into the model; names that it does not have are left out."""
        require(isinstance(state_tensors, dict), "state_tensors must be a dict")
        assert self._onnx_model is not None
        update_initializers(self._onnx_model, state_tensors)

    # Files ------------------------------------------------------------------------------------------------------------

    def save_as_onnx(self, path: str) -> None:
        """Write the model, with its loss and in training mode, with the weights as they are now."""
        if not self._training_session:
            warnings.warn(
                "Training session is not initialized yet. 'train_step' or 'eval_step' methods must be executed at "
                "least once before calling 'save_as_onnx()'.",
                stacklevel=2,
            )
            return
        require(isinstance(path, str), "'path' must be a valid path string")
        self._update_onnx_model_initializers(self._training_session.get_state())
        folder, name = os.path.split(path)
        if (folder and not os.path.exists(folder)) or not name:
            warnings.warn("'path' is not valid or does not exist", stacklevel=2)
            return
        assert self._onnx_model is not None
        write_bytes(path, self._onnx_model.SerializeToString())

    def export_model_for_inferencing(self, path: str | os.PathLike[str], outputs: Sequence[str] | None = None) -> None:
        """Write a model for inference, without the loss: all outputs of the description but the loss, or these."""
        if not self._training_session:
            raise OnwardError("there is no model yet: call train_step or eval_step first")
        given = [one.name for one in self.model_desc.outputs if not one.is_loss] if outputs is None else outputs
        engine.export(self._training_session, path, given)

    def state_dict(self, pytorch_format: bool = False) -> dict[str, Any]:
        """The state of the model and its optimizer, and what has to be the same to load it.

        Args:
            pytorch_format: return the weights alone, as tensors: what `load_state_dict` of the module takes.
        """
        if not self._training_session:
            warnings.warn(
                "ONNX Runtime training session is not initialized yet. Please run train_step or eval_step at least "
                "once before calling ORTTrainer.state_dict().",
                stacklevel=2,
            )
            return self._load_state_dict.args[0] if self._load_state_dict else {}
        return state.pytorch_state(self) if pytorch_format else state.whole_state(self)

    def _kept_weights(self) -> list[str]:
        """Weights that are not trained, and belong to the state nevertheless."""
        return [*self._untrained, *self.options.utils.frozen_weights]

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Continue from what `state_dict` returned; before the first step, when the model has been exported.

        Args:
            strict: refuse a state that has other names than that of this trainer. Sections that are missing altogether
                stay as they are, with a warning.
        """
        if not self._training_session:
            self._load_state_dict = partial(self.load_state_dict, state_dict, strict=strict)
            return
        state.load(self, state_dict, strict)

    def _load_flat_state(self, state_dict: Mapping[str, Any], strict: bool) -> None:
        """Continue from a flat state; see `checkpoint`."""
        state.load_flat(self, state_dict, strict)

    def save_checkpoint(
        self, path: str, user_dict: Mapping[str, Any] | None = None, include_optimizer_states: bool = True
    ) -> None:
        """Write the state to a new file, and what the user wants to be kept: numbers, texts, arrays, tensors."""
        content = dict(self.state_dict())
        if not include_optimizer_states:
            content.pop(OPTIMIZER, None)
        if user_dict:
            content[USER_DICT] = _checkpoint_storage.to_serialized_hex(user_dict)
        _checkpoint_storage.save(content, path)

    def load_checkpoint(self, *paths: str, strict: bool = True) -> Any:
        """Continue from a file, or from those of several processes; returns what the user wanted to be kept."""
        require(bool(paths), "load_checkpoint needs the path of a checkpoint, or those of several processes")
        options = _checkpoint_storage.load(paths[0], key=OPTIONS)
        if len(paths) > 1 or options["zero_stage"] > 0 or options["world_size"] > 1:
            content = checkpoint.aggregate_checkpoints(paths, pytorch_format=False)
        else:
            content = _checkpoint_storage.load(paths[0])
        self.load_state_dict(content, strict=strict)
        return _checkpoint_storage.from_serialized_hex(content[USER_DICT]) if USER_DICT in content else {}


def _update_scale(scaler: Any, info: TrainStepInfo) -> None:
    if getattr(scaler, "automatic_update", True):
        scaler.update(info)
