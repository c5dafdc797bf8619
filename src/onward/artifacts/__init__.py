"""`generate_artifacts`: from a forward model to all files that training needs, as `onnxruntime.training.artifacts`."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from onward import onnxblock
from onward.artifacts import files
from onward.artifacts.forward import forward_model, with_separated_parameters
from onward.artifacts.loss import Loss, LossType, loss_block, loss_inputs
from onward.artifacts.names import listed_once
from onward.artifacts.optimizer import Optimizer, OptimType, by_group, optimizer_block, optimizer_model
from onward.artifacts.training import Training
from onward.graph.prepare import checked
from onward.runtime.state import State

__all__ = ["Artifacts", "LossType", "OptimType", "generate_artifacts"]

# A ModelProto above this size (in bytes) cannot be serialized; such a model is given as a path.
USE_PATH_THRESHOLD = 2147483648

logger = logging.getLogger(__name__)


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
    files.require_prefix(prefix)
    proto, path = forward_model(model, USE_PATH_THRESHOLD)
    checked(proto if path is None else path)
    if separate_shared:
        proto = with_separated_parameters(path or proto)
    objective, update = loss_block(loss), optimizer_block(optimizer)
    training = Training(
        objective,
        trainable=None if requires_grad is None else listed_once("requires_grad", requires_grad),
        frozen=listed_once("frozen_params", frozen_params),
        loss_inputs=loss_inputs(proto, objective, loss_input_names),
        outputs=listed_once("additional output names", additional_output_names),
    )
    library = None if custom_op_library is None else Path(os.fsdecode(custom_op_library))
    with contextlib.nullcontext() if library is None else onnxblock.custom_op_library(library):
        with onnxblock.base(proto, path):
            training()
        update_model = optimizer_model(update, training, plain_tensors)
    models = training.models
    protos = {"training_model": models.training, "eval_model": models.evaluation}
    if update_model is not None:
        protos["optimizer_model"] = update_model
    trainable = by_group(list(models.trainable), update)
    state = State(
        {name: models.trainable[name].numpy() for name in trainable},
        {name: tensor.numpy() for name, tensor in models.frozen.items()},
    )
    directory = files.directory_of(artifact_directory)
    paths = files.paths_of(protos, directory, prefix, nominal_checkpoint=nominal_checkpoint, manifest=plain_tensors)
    for file in paths.values():
        if file.exists():
            logger.info("%s exists and is replaced", file)
    source = None if path is None else Path(path).resolve().parent
    files.write(
        protos,
        state,
        paths,
        directory=directory,
        external_data_folder=source,
        library=library,
        ort_format=ort_format,
    )
    return Artifacts(models.training, models.evaluation, update_model, trainable, list(models.frozen), paths)
