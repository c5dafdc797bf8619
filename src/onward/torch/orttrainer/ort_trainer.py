"""The first ORTTrainer, of `onnxruntime.capi.ort_trainer`: the learning rate is an input of each step."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any

import onnx
import torch

from onward.errors import OnwardError
from onward.runtime.files import write_bytes
from onward.torch.orttrainer import checkpoint, engine
from onward.torch.orttrainer.combination import LossFunction, combine
from onward.torch.orttrainer.description import IODescription, LossScaler, ModelDescription, generate_sample
from onward.torch.orttrainer.feeding import check_sizes, fed
from onward.torch.orttrainer.legacy_checkpoint import load_checkpoint, save_checkpoint
from onward.torch.orttrainer.refusal import require
from onward.torch.orttrainer.weights import update_initializers

__all__ = [
    "IODescription",
    "LossScaler",
    "ModelDescription",
    "ORTTrainer",
    "generate_sample",
    "load_checkpoint",
    "save_checkpoint",
]

_DEFAULT_LOSS_SCALE = "default_loss_scale_input_name"


class ORTTrainer:
    """Trains a torch module, or an ONNX model that computes its loss.

    Args:
        model: a `torch.nn.Module`, exported at the first step, or an `onnx.ModelProto`; the first output is the loss.
        loss_fn: a function of torch of the prediction and the label; None where the model computes its loss.
        model_desc: inputs and outputs.
        training_optimizer_name: "SGDOptimizer", "AdamOptimizer" or "LambOptimizer".
        map_optimizer_attributes: a function from the name of a parameter to the settings of its optimizer, or None.
        learning_rate_description: what the learning rate is called.
        device: "cpu", "cuda:0" or a `torch.device`.
        gradient_accumulation_steps: how many steps make one update.
        global_step: the number of updates so far.
        get_lr_this_step: a function from the number of updates to the learning rate; without it, `train_step` takes the
            rate, a tensor of one element, after the label.
        loss_scaler: a `LossScaler`, for `use_mixed_precision`.
        frozen_weights: names of parameters that are not trained; those that need no gradients, and buffers, are not
            trained either.
        optimized_model_filepath: where onnxruntime writes the graph of a step as it has optimized it.

    The other arguments, about several processes and about how the original saved memory or time, have no effect.
    """

    def __init__(
        self,
        model: torch.nn.Module | onnx.ModelProto,
        loss_fn: LossFunction | None,
        model_desc: ModelDescription,
        training_optimizer_name: str,
        map_optimizer_attributes: Callable[[str], Mapping[str, float]] | None,
        learning_rate_description: IODescription,
        device: Any,
        gradient_accumulation_steps: int = 1,
        world_rank: int = 0,
        world_size: int = 1,
        use_mixed_precision: bool = False,
        allreduce_post_accumulation: bool = False,
        global_step: int = 0,
        get_lr_this_step: Callable[[int], Any] | None = None,
        loss_scaler: LossScaler | None = None,
        deepspeed_zero_stage: int = 0,
        enable_grad_norm_clip: bool = True,
        frozen_weights: Sequence[str] = (),
        _opset_version: int = 12,
        _enable_internal_postprocess: bool = True,
        _extra_postprocess: Callable[[onnx.ModelProto], Any] | None = None,
        _use_deterministic_compute: bool = False,
        use_invertible_layernorm_grad: bool = False,
        use_memory_efficient_gradient: bool = False,
        run_symbolic_shape_infer: bool = False,
        enable_adasum: bool = False,
        optimized_model_filepath: str = "",
        postprocess_model: Callable[[onnx.ModelProto], Any] | None = None,
        partition_optimizer: bool = False,
        deepspeed_zero: int = 0,
    ) -> None:
        warnings.warn(
            "ORTTrainer is experimental: the ORTTrainer of onnxruntime.training has replaced this one.", stacklevel=2
        )
        if get_lr_this_step is not None or loss_scaler is not None:
            warnings.warn(
                "It is experimental to use learning rate scheduler and loss scaler inside ORTTrainer.", stacklevel=2
            )
        if world_size > 1:
            raise OnwardError(
                f"world_size={world_size}: ORTTrainer trains in one process. For several, use ORTModule inside torch's "
                "DistributedDataParallel."
            )
        if loss_fn is not None and not isinstance(model, torch.nn.Module):
            warnings.warn(
                "loss_fn is not used when creating ORTTrainer because an ONNX model is provided.", stacklevel=2
            )
        elif loss_fn is not None and len(signature(loss_fn).parameters) != 2:
            raise OnwardError("loss function should take two arguments - predict and label.")
        self.is_train = True
        self.torch_model_: torch.nn.Module | None = None
        self.onnx_model_: onnx.ModelProto | None = None
        self.loss_fn_ = loss_fn
        self.model_desc_ = model_desc
        self.training_optimizer_name_ = training_optimizer_name
        self.map_optimizer_attributes_ = map_optimizer_attributes
        self.learning_rate_description_ = learning_rate_description
        self.device_ = device
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.world_rank, self.world_size = world_rank, world_size
        self.use_mixed_precision = use_mixed_precision
        self.loss_scale_input_name = engine.LOSS_SCALE if use_mixed_precision else None
        self.current_step = 0
        self.global_step_ = global_step
        self.get_lr_this_step_, self.loss_scaler_ = get_lr_this_step, loss_scaler
        self.enable_grad_norm_clip_ = enable_grad_norm_clip
        self.frozen_weights_ = list(frozen_weights)
        self.session: Any = None
        self.state_dict_: dict[str, Any] | None = None  # what is to be loaded when there is a session
        self._strict = False
        self._untrained: list[str] = []
        self._optimized_path = optimized_model_filepath
        self._postprocess = [one for one in (_extra_postprocess, postprocess_model) if one is not None]
        if isinstance(model, torch.nn.Module):
            self.torch_model_ = model
        else:
            self.onnx_model_ = onnx.ModelProto()
            self.onnx_model_.CopyFrom(model)
            self._init_session()

    # Steps ------------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Let calls of the trainer be steps of training."""
        self.is_train = True

    def eval(self) -> None:
        """Let calls of the trainer be evaluations."""
        self.is_train = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.train_step(*args, **kwargs) if self.is_train else self.eval_step(*args, **kwargs)

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        """Train on one batch: inputs of the model, the label, then the learning rate (and the scale of the loss).

        The rate is left out where there is `get_lr_this_step`, the scale where there is no mixed precision, or a
        `loss_scaler`. All of them can be given by name. ``fetches=[names]`` selects outputs.
        """
        fetches = self._fetches(kwargs.pop("fetches", None))
        rate_name = self.learning_rate_description_.name_
        names = [described.name_ for described in self.model_desc_.inputs_]
        wanted = [*names, *([] if self.get_lr_this_step_ else [rate_name])]
        if self.use_mixed_precision and self.loss_scaler_ is None:
            wanted.append(engine.LOSS_SCALE)
        if _DEFAULT_LOSS_SCALE in kwargs:
            kwargs[engine.LOSS_SCALE] = kwargs.pop(_DEFAULT_LOSS_SCALE)
        feeds = fed(wanted, args, kwargs)
        missing = [name for name in wanted if name not in feeds]
        require(not missing, f"train_step takes {wanted}, but {missing} were not given")
        feeds.pop(engine.LOSS_SCALE, None)  # gradients are in the precision of the model, and need none
        rate = feeds.pop(rate_name) if rate_name in feeds else self._scheduled_rate()
        self._prepare(feeds)
        update = self.session.added + 1 >= self.gradient_accumulation_steps
        feeds[rate_name] = torch.as_tensor(rate, dtype=torch.float32).reshape(1)
        results, finite = engine.step(self.session, feeds, fetches, update=update, finite=self.use_mixed_precision)
        self.current_step += 1
        if update:
            self.global_step_ += finite
            if self.use_mixed_precision and self.loss_scaler_ is not None:
                self.loss_scaler_.update_loss_scale(finite)
        values = [results[name] for name in fetches]
        whole = len(fetches) == len(self.model_desc_.outputs_)
        if self.use_mixed_precision and self.loss_scaler_ is None and update and whole:
            values.append(torch.tensor([finite]))
        return values[0] if len(values) == 1 else values

    def _scheduled_rate(self) -> Any:
        assert self.get_lr_this_step_ is not None
        return self.get_lr_this_step_(self.global_step_)

    def eval_step(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs of one batch as in inference; a label that nothing in ``fetches`` needs may be left out."""
        fetches = self._fetches(kwargs.pop("fetches", None))
        feeds = fed([described.name_ for described in self.model_desc_.inputs_], args, kwargs)
        self._prepare(feeds)
        results = engine.evaluate(self.session, feeds, fetches)
        values = [results[name] for name in fetches]
        return values[0] if len(values) == 1 else values

    def _fetches(self, wanted: Sequence[str] | None) -> list[str]:
        names = [described.name_ for described in self.model_desc_.outputs_]
        unknown = [name for name in wanted or () if name not in names]
        if unknown:
            raise OnwardError(f"there is no output {unknown}; the outputs are {names}")
        return list(wanted or names)

    # The model and its session ----------------------------------------------------------------------------------------

    def _prepare(self, feeds: Mapping[str, Any]) -> None:
        """Export the module, once; see that sizes agree."""
        shapes = {described.name_: described.shape_ for described in self.model_desc_.inputs_}
        check_sizes(feeds, shapes)
        if self.onnx_model_ is not None:
            return
        assert self.torch_model_ is not None
        missing = [name for name in shapes if name not in feeds]
        require(not missing, f"the first step needs all inputs, but {missing} were not given")
        self.torch_model_.cpu()
        outputs = [described.name_ for described in self.model_desc_.outputs_]
        samples = [torch.as_tensor(feeds[name]).cpu() for name in shapes]
        made = combine(self.torch_model_, self.loss_fn_, samples, shapes, outputs, prefer_names=False)
        self.onnx_model_ = made.model
        try:
            self._init_session()
        except BaseException:
            self.onnx_model_ = self.session = None
            raise

    def _init_session(self) -> None:
        model = self.onnx_model_
        assert model is not None
        for change in self._postprocess:
            change(model)
        self.session = engine.open_training_session(
            model,
            loss=model.graph.output[0].name,
            optimizer=self.training_optimizer_name_,
            rate=self.learning_rate_description_.name_,
            attributes=self.map_optimizer_attributes_ or (lambda name: {}),
            frozen=self.frozen_weights_,
            accumulate=self.gradient_accumulation_steps,
            clip=self.enable_grad_norm_clip_,
            finite=self.use_mixed_precision,
            device=str(self.device_),
            paths={},
            optimized_path=self._optimized_path,
        )
        trained = set(self.session.get_state())
        self._untrained = [one.name for one in model.graph.initializer if one.name not in trained]
        pending, self.state_dict_ = self.state_dict_, None
        try:
            if pending is not None:
                self.load_state_dict(pending, self._strict)
        except BaseException:  # the next step must not begin from other weights
            self.state_dict_ = pending
            raise

    # States -----------------------------------------------------------------------------------------------------------

    def state_dict(self, include_optimizer_state: bool = True) -> dict[str, torch.Tensor]:
        """Weights, state of the optimizer, and what is not trained, as one dictionary of tensors."""
        if self.session is None:
            warnings.warn("ONNXRuntime training session is not initialized yet.", stacklevel=2)
            return copy.copy(self.state_dict_ or {})
        assert self.onnx_model_ is not None
        return checkpoint.flat_state(self.session, self.onnx_model_, self._untrained, include_optimizer_state)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = False) -> None:
        """Continue from such a state; before the first step, when there is a session."""
        if self.session is None:
            self.state_dict_, self._strict = state_dict, strict
            return
        assert self.onnx_model_ is not None
        arrays = checkpoint.arrays_of(state_dict)
        state = self.session.get_state()
        unknown = [name for name in arrays if name not in state and name not in self._untrained]
        if strict and unknown:
            raise OnwardError(f"Checkpoint tensor: {unknown[0]} is not present in the model.")
        self.session.check_sizes(arrays)
        # Weights that are not trained are constants of the session, which is made anew for others.
        others = {name: arrays[name] for name in self._untrained if name in arrays}
        if others:
            update_initializers(self.onnx_model_, {**state, **others})
            passes, postprocess, self._postprocess = self.session.passes, self._postprocess, []
            self._init_session()
            self._postprocess, self.session.passes = postprocess, passes
            self.session.load_state(state)
        self.session.load_state({name: array for name, array in arrays.items() if name in state}, strict)
        self.session.load_sums(0, {})  # those of other weights
        passes = checkpoint.passes_of(state_dict)
        self.session.passes = self.session.passes if passes is None else passes

    def save_as_onnx(self, path: str) -> None:
        """Write the model, with its loss and in training mode, with the weights as they are now."""
        if self.session is None:
            warnings.warn(
                "Training session is not initialized yet. 'train_step' or 'eval_step' methods must be executed at "
                "least once before calling 'save_as_onnx()'.",
                stacklevel=2,
            )
            return
        assert self.onnx_model_ is not None
        update_initializers(self.onnx_model_, self.session.get_state())
        write_bytes(path, self.onnx_model_.SerializeToString())
