"""`generate_artifacts`: from a forward model to all files that training needs, as `onnxruntime.training.artifacts`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import onnx

from onward import losses, onnxblock, optim
from onward.artifacts.manifest import describe_artifacts
from onward.errors import InvalidModelError, OnwardError
from onward.graph import provenance
from onward.graph.naming import listed
from onward.graph.prepare import checked, load, prepare
from onward.graph.proto import to_proto
from onward.graph.saving import save_model
from onward.graph.shapes import FLOATING, floating_origin
from onward.onnxblock.loss import FunctionLoss
from onward.onnxblock.model_accessor import ModelAccessor
from onward.onnxblock.optim import RecipeOptimizer
from onward.ort_format import refuse_ort_format
from onward.runtime import checkpoint
from onward.runtime.files import replacing_together
from onward.runtime.ort_format import convert_to_ort_format
from onward.runtime.state import State
from onward.training.description import opset_of
from onward.training.plain_update import plain_optimizer_model
from onward.training.split import SplitModels, split

__all__ = ["Artifacts", "LossType", "OptimType", "generate_artifacts"]

# A ModelProto above this size (in bytes) cannot be serialized; such a model is given as a path.
USE_PATH_THRESHOLD = 2147483648

logger = logging.getLogger(__name__)


class LossType(Enum):
    """The losses that `generate_artifacts` takes by name; those of onnxruntime-training have its numbers."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4
    SmoothL1Loss = 5
    HuberLoss = 6
    NLLLoss = 7
    BCELoss = 8
    KLDivLoss = 9
    HingeLoss = 10
    HingeEmbeddingLoss = 11
    SoftMarginLoss = 12
    MultiMarginLoss = 13
    PoissonNLLLoss = 14
    GaussianNLLLoss = 15
    CosineEmbeddingLoss = 16
    TripletMarginLoss = 17
    FocalLoss = 18
    BinaryFocalLoss = 19
    SoftCrossEntropyLoss = 20
    CTCLoss = 21


class OptimType(Enum):
    """The optimizers that `generate_artifacts` takes by name; those of onnxruntime-training have its numbers.

    `AdamW` is that of Hugging Face and onnxruntime-training, `TorchAdamW` that of torch.
    """

    AdamW = 1
    SGD = 2
    TorchAdamW = 3
    Adam = 4
    Adamax = 5
    LAMB = 6
    Adagrad = 7
    RMSprop = 8
    Adadelta = 9
    Lion = 10


Loss: TypeAlias = LossType | onnxblock.Block | losses.Loss | onnx.ModelProto | str | os.PathLike[str]
Optimizer: TypeAlias = OptimType | onnxblock.Block | optim.Optimizer | str


@dataclass(frozen=True)
class Artifacts:
    """What `generate_artifacts` made.

    Attributes:
        training_model: forward, loss and backward.
        eval_model: forward and loss.
        optimizer_model: the update; None where no optimizer was given.
        trainable: the names of the trained parameters, in the order of the checkpoint.
        frozen: the names of the other parameters in the checkpoint.
        paths: the files, by what they are: "training_model", "eval_model", "optimizer_model", "checkpoint",
            "nominal_checkpoint", "manifest".
    """

    training_model: onnx.ModelProto
    eval_model: onnx.ModelProto
    optimizer_model: onnx.ModelProto | None
    trainable: list[str]
    frozen: list[str]
    paths: dict[str, Path]

    def __repr__(self) -> str:
        files = {what: str(path) for what, path in self.paths.items()}
        return f"Artifacts(trainable={self.trainable}, frozen={self.frozen}, paths={files})"


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: Loss | None = None,
    optimizer: Optimizer | None = None,
    artifact_directory: str | bytes | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | bytes | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    separate_shared: bool = False,
    plain_tensors: bool = False,
) -> Artifacts:
    """Write training_model.onnx, eval_model.onnx, checkpoint and, with an optimizer, optimizer_model.onnx.

    Nothing is written before everything has been built. All models have one opset: that of `model`, unless training
    needs operators of a newer one.

    Args:
        model: the forward model; the path of a file where it has external data or more than 2 GB.
        requires_grad: the parameters to train. None means all that `onward.gradient` calls trainable, except
            `frozen_params`.
        frozen_params: parameters that belong to the checkpoint but are not trained; names that the model does not have
            are ignored. All others stay inside the models.
        loss: a `LossType`, the name of a loss of `onward.losses`, a block, a function ``(op, prediction, *targets)``,
            or an ONNX model (or its path) with a scalar output. None means that the first output of the model is the
            loss.
        optimizer: an `OptimType`, a value or a name of `onward.optim`, or a block.
        artifact_directory: where the files go, the current directory by default; created where it is missing.
        prefix: what the names of the files begin with.
        ort_format: write the models in the ORT format too.
        custom_op_library: the library of the custom operators of the model.
        additional_output_names: values that become outputs of the training and the eval model, after the loss.
        nominal_checkpoint: write nominal_checkpoint too, which has the names and types of the parameters only.
        loss_input_names: the values that the loss takes; by default all outputs of the model.
        separate_shared: give parameters that torch's exporter merged, because they were equal, tensors of their own
            again, under their own names; `onward.check` says whether it did.
        plain_tensors: write an optimizer model over tensors instead of sequences, which JavaScript cannot feed, and
            manifest.json, which says in plain JSON what the metadata of the models says. `onward.api` runs either.

    Returns:
        The models, the names of the parameters, and the paths of the files.
    """
    if not isinstance(prefix, str) or Path(f"{prefix}x").name != f"{prefix}x":
        raise OnwardError(
            f"`prefix` is what the names of the files begin with, not {prefix!r}; folders go into `artifact_directory`"
        )
    proto, path = _load(model)
    checked(proto if path is None else path)
    if separate_shared:
        proto = _with_separated_parameters(path or proto)
    loss_block, optimizer_block = _loss_block(loss), _optimizer_block(optimizer)
    training = _Training(
        loss_block,
        trainable=None if requires_grad is None else _listed("requires_grad", requires_grad),
        frozen=_listed("frozen_params", frozen_params),
        loss_inputs=_loss_inputs(proto, loss_block, loss_input_names),
        outputs=_listed("additional output names", additional_output_names),
    )
    library = None if custom_op_library is None else Path(os.fsdecode(custom_op_library))
    with contextlib.nullcontext() if library is None else onnxblock.custom_op_library(library):
        with onnxblock.base(proto, path):
            training()
        optimizer_model = _optimizer_model(optimizer_block, training, plain_tensors)
    models = training.models
    trainable = _by_group(list(models.trainable), optimizer_block)
    protos = {"training_model": models.training, "eval_model": models.evaluation}
    if optimizer_model is not None:
        protos["optimizer_model"] = optimizer_model
    state = State(
        {name: models.trainable[name].numpy() for name in trainable},
        {name: tensor.numpy() for name, tensor in models.frozen.items()},
    )
    directory = _directory(artifact_directory)
    paths = {what: directory / f"{prefix}{what}.onnx" for what in protos}
    paths["checkpoint"] = directory / f"{prefix}checkpoint"
    if nominal_checkpoint:
        paths["nominal_checkpoint"] = directory / f"{prefix}nominal_checkpoint"
    if plain_tensors:
        paths["manifest"] = directory / f"{prefix}manifest.json"
    for file in paths.values():
        if file.exists():
            logger.info("%s exists and is replaced", file)
    with replacing_together(directory) as drafts:
        source = None if path is None else Path(path).resolve().parent
        _write(protos, state, {what: drafts / file.name for what, file in paths.items()}, source, library, ort_format)
    return Artifacts(models.training, models.evaluation, optimizer_model, trainable, list(models.frozen), paths)


def _write(
    protos: Mapping[str, onnx.ModelProto],
    state: State,
    files: Mapping[str, Path],
    external_data_folder: Path | None,
    library: Path | None,
    ort_format: bool,
) -> None:
    """Write all files; the manifest, which describes the others, last."""
    for what, made in protos.items():
        save_model(made, files[what], external_data_folder=external_data_folder)
        if ort_format:
            convert_to_ort_format(files[what], library)
    checkpoint.save(state, files["checkpoint"])
    if "nominal_checkpoint" in files:
        checkpoint.save(state, files["nominal_checkpoint"], nominal=True)
    if "manifest" in files:
        described = {what: file for what, file in files.items() if what != "manifest"}
        files["manifest"].write_text(json.dumps(describe_artifacts(protos, state, described), indent=1), "utf-8")


# What the caller gave ------------------------------------------------------------------------------------------------


def _load(model: Any) -> tuple[onnx.ModelProto, str | None]:
    """The model without external data, and the path of its file if it has one."""
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not Path(path).is_file():
            raise InvalidModelError(f"there is no model file at {path!r}")
        refuse_ort_format(path)
        try:
            return onnx.load(path, load_external_data=False), path
        except Exception as error:
            raise InvalidModelError(f"{path!r} is not a readable ONNX model: {error}") from error
    if not isinstance(model, onnx.ModelProto):
        raise OnwardError(
            "Please pass in either a string or an ONNX ModelProto for the model (or a path-like object), not "
            f"{type(model).__name__}."
        )
    if not model.HasField("graph"):
        raise InvalidModelError("the ModelProto has no graph; was it loaded from a file?")
    if _size(model) > USE_PATH_THRESHOLD:
        raise OnwardError(
            "the model is larger than 2 GB, which is more than a ModelProto can be serialized to. Please pass in the "
            "path of its file instead."
        )
    return model, None


def _with_separated_parameters(model: onnx.ModelProto | str) -> onnx.ModelProto:
    separated = load(model)
    provenance.separate_shared(separated)
    return to_proto(separated)


def _size(model: onnx.ModelProto) -> int:
    try:
        return model.ByteSize()
    except Exception:  # protobuf refuses to count further than its limit
        return USE_PATH_THRESHOLD + 1


def _listed(argument: str, names: Any) -> list[str]:
    """A list of names, each once."""
    try:
        return [] if names is None else list(dict.fromkeys(listed(argument, names)))
    except OnwardError as error:
        raise OnwardError(f"Unknown type provided for {argument}: {error}") from None


def _directory(given: Any) -> Path:
    if given is not None and not isinstance(given, (str, bytes, os.PathLike)):
        raise OnwardError(f"`artifact_directory` is a path, not {given!r}")
    return Path.cwd() if given is None else Path(os.fsdecode(given))


def _loss_block(loss: Any) -> onnxblock.Block:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        return getattr(onnxblock.loss, loss.name)()
    if isinstance(loss, onnxblock.Block):
        return loss
    if isinstance(loss, str) and loss in LossType.__members__:
        return _loss_block(LossType[loss])
    if not isinstance(loss, (str, os.PathLike, onnx.ModelProto)) and (not callable(loss) or isinstance(loss, type)):
        raise OnwardError(
            f"Unknown loss provided {type(loss)}. Expected loss to be a LossType, an onnxblock.Block, the name of a "
            "loss of onward.losses, a function (op, prediction, *targets) or an ONNX model."
        )
    return FunctionLoss(losses.get(loss))


def _loss_inputs(model: onnx.ModelProto, loss: onnxblock.Block, names: Sequence[str] | None) -> list[str]:
    """The values that the loss takes, all outputs by default."""
    if names:
        return _listed("loss_input_names", names)
    outputs = [output.name for output in model.graph.output]
    if not outputs:
        raise OnwardError("the model has no outputs, so there is nothing to train")
    # The original gives a second output to the loss in place of its target, and trains towards that.
    if isinstance(loss, FunctionLoss) and len(outputs) != loss.predictions:
        floating = [output.name for output in model.graph.output if _is_floating(output)] or _origins(model)
        raise OnwardError(
            f"the model has {len(outputs)} outputs ({', '.join(outputs)}), but the loss takes {loss.predictions} of "
            f"them; say which, for instance loss_input_names={(floating or outputs)[: loss.predictions]!r}, or give a "
            "block that combines them"
        )
    return outputs


def _origins(model: onnx.ModelProto) -> list[str]:
    """What labels are chosen by, in a model without an output of floating point."""
    with contextlib.suppress(OnwardError):
        found = [floating_origin(output) for output in prepare(model).graph.outputs]
        return list(dict.fromkeys(origin.name or "" for origin in found if origin is not None))
    return []


def _is_floating(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in {int(dtype) for dtype in FLOATING}


def _optimizer_block(optimizer: Any) -> onnxblock.ForwardBlock | None:
    if isinstance(optimizer, str) and optimizer in OptimType.__members__:
        optimizer = OptimType[optimizer]
    if isinstance(optimizer, OptimType):
        return getattr(onnxblock.optim, optimizer.name)()
    if isinstance(optimizer, (str, optim.Optimizer)):
        return RecipeOptimizer(optimizer)
    if optimizer is None or isinstance(optimizer, onnxblock.ForwardBlock):
        return optimizer
    raise OnwardError(
        f"Unknown optimizer provided {type(optimizer)}. Expected optimizer to be an OptimType, an "
        "onnxblock.ForwardBlock, an onward.optim.Optimizer or the name of one."
    )


# What is built -------------------------------------------------------------------------------------------------------


class _Training(onnxblock.TrainingBlock):
    """The loss on top of the forward model, and everything that `split` wants to know."""

    def __init__(
        self,
        loss: onnxblock.Block,
        *,
        trainable: list[str] | None,
        frozen: list[str],
        loss_inputs: list[str],
        outputs: list[str],
    ) -> None:
        super().__init__()
        both = sorted(set(trainable or ()) & set(frozen))
        if both:
            raise OnwardError(f"A parameter cannot be frozen and require gradient computation at the same time: {both}")
        self._loss, self._trainable, self._frozen = loss, trainable, frozen
        self._loss_inputs, self._additional_outputs = loss_inputs, outputs
        self._arguments: dict[str, Any] = {}

    def build(self) -> tuple[str, ...]:
        loss = self._loss(*self._loss_inputs)
        return (*((loss,) if isinstance(loss, str) else loss), *self._additional_outputs)

    def _split(self, accessor: ModelAccessor) -> SplitModels:
        self._arguments = {
            "model": accessor.to_ir(),
            "trainable": self._trainable,
            "frozen": self._frozen,
            "targets": accessor.added_inputs(),
            "constants": accessor.added_initializers(),
        }
        return split(**self._arguments)

    @property
    def models(self) -> SplitModels:
        return self._built("the training block was not called")

    def move_to(self, opset: int) -> None:
        """Make the models again, in this opset at least."""
        self._set(split(**self._arguments, opset=opset))


def _optimizer_model(
    block: onnxblock.ForwardBlock | None, training: _Training, plain_tensors: bool
) -> onnx.ModelProto | None:
    """The optimizer model in the opset of the others; where it needs a newer one, they move there."""
    if block is None:
        return None
    while True:
        opset = opset_of(training.models.training)
        model = _over_tensors(block, training, opset) if plain_tensors else _over_sequences(block, training, opset)
        if opset_of(model) <= opset:
            return model
        training.move_to(opset_of(model))


def _over_sequences(block: onnxblock.ForwardBlock, training: _Training, opset: int) -> onnx.ModelProto:
    with onnxblock.empty_base(opset):
        block(training.parameters())
    return block.to_model_proto()


def _over_tensors(block: onnxblock.ForwardBlock, training: _Training, opset: int) -> onnx.ModelProto:
    if not isinstance(block, RecipeOptimizer):
        raise OnwardError(
            f"`plain_tensors` needs an optimizer of onward.optim or onnxblock.optim; {type(block).__name__} is a block "
            "that writes its own model, so let it take tensors instead of sequences itself"
        )
    tensors = training.models.trainable
    types = {name: (tensor.dtype, tuple(tensor.shape.numpy())) for name, tensor in tensors.items()}
    return plain_optimizer_model(block.optimizer, types, opset)


def _by_group(names: list[str], block: onnxblock.ForwardBlock | None) -> list[str]:
    """The parameters group by group, so that each group is one piece of the runtime's flat buffers."""
    if not isinstance(block, RecipeOptimizer):
        return names
    return [name for members in block.optimizer.partition(names).values() for name in members]
