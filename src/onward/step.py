"""`training_step`: forward, loss, backward, clipping and update as a single model, and `initial_state`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.errors import OnwardError
from onward.graph import provenance
from onward.graph.finish import LARGEST_PROTO
from onward.graph.prepare import ModelLike, load, prepare
from onward.losses import Loss
from onward.optim import Optimizer
from onward.runtime.tensorfile import Entry, write
from onward.signature import METADATA_KEY, Signature
from onward.training.initial import initial_tensors
from onward.training.step import step_model

_FORMAT = "onward.state"


def training_step(
    model: ModelLike,
    loss: str | Loss | None,
    optimizer: str | Optimizer = "adamw",
    *,
    trainable: Sequence[str] | None = None,
    loss_inputs: Sequence[str] | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    self_contained: bool = False,
    separate_shared: bool = False,
) -> onnx.ModelProto:
    """One training step as one model: any onnxruntime, in any language, trains with it.

    Inputs, all of them required: those of the model, the targets of the loss, `learning_rate` (float scalar), `step`
    (int64 scalar, from 1), and the state: parameters, optimizer slots ``<parameter>.<slot>``, running statistics, and
    `random_seed` in a model that draws. Outputs: the loss, the model's outputs, and for every state input that changes
    ``<name>.updated``, to be fed in its place next time. The model's metadata (`onward.signature`) says so.

    What the state begins with is written to `checkpoint`, or returned by `initial_state`.

    Args:
        model: the forward model; None as `loss` means that its first output is the loss.
        loss: a name of `onward.losses`, or a function ``(op, prediction, *targets)``.
        optimizer: a name or a value of `onward.optim`.
        trainable: names of initializers; None means all that `onward.gradient` calls trainable.
        loss_inputs: the outputs (or other values) that the loss takes, where the model has several outputs.
        seed: what Dropout and other random operators draw from, together with the number of the step; the first value
            of the input `random_seed`, which a model has that draws.
        checkpoint: where to write the initial state: a safetensors file with a tensor for every state input, under its
            name, and with the signature among its metadata, for languages that cannot read that of a model.
        self_contained: keep the initial values in the model, as default values of its inputs, so that the first step
            needs none. Python, C and C++ can feed such inputs, and have to: those that are left out begin anew. Other
            languages cannot: onnxruntime-node ignores what it is given, onnxruntime-web refuses it.
        separate_shared: give parameters that torch's exporter merged, because they were equal, tensors of their own
            again, under their own names; `onward.check` says whether it did.
    """
    loaded = load(model)
    if separate_shared:
        provenance.separate_shared(loaded)
    provenance.warn_of_changes(provenance.changes_of(loaded), trainable)
    forward = prepare(loaded, keep=custom_operators())
    step = step_model(forward, loss, optimizer, trainable=trainable, loss_inputs=loss_inputs, seed=seed)
    if checkpoint is not None or self_contained:
        signature = _signature(step)
        tensors = initial_tensors(signature, forward)
        if self_contained:
            _store(step, tensors)
        if checkpoint is not None:
            entries = [Entry(name, tuple(x.shape.numpy()), x.dtype.numpy(), x.numpy) for name, x in tensors.items()]
            write(checkpoint, entries, {"format": _FORMAT, METADATA_KEY: signature.to_json()})
    return step


def initial_state(step: onnx.ModelProto | str | os.PathLike[str], model: ModelLike) -> dict[str, np.ndarray]:
    """What to feed the state inputs of a training step the first time, by name.

    Args:
        step: what `training_step` returned, or the path of the file that it was saved to.
        model: the forward model that it was made of.
    """
    if not isinstance(step, onnx.ModelProto):
        step = onnx.load(step, load_external_data=False)
    loaded = load(model)
    provenance.separate_shared(loaded)  # of which the step may be made; all other names stay as they are
    tensors = initial_tensors(_signature(step), prepare(loaded, keep=custom_operators()))
    return {name: np.array(tensor.numpy()) for name, tensor in tensors.items()}


def _signature(step: onnx.ModelProto) -> Signature:
    texts = {entry.key: entry.value for entry in step.metadata_props}
    if METADATA_KEY not in texts:
        raise OnwardError("the model has no state: it was not made by onward.training_step")
    return Signature.from_json(texts[METADATA_KEY])


def _store(step: onnx.ModelProto, tensors: Mapping[str, ir.TensorProtocol]) -> None:
    """Give the state inputs of a step their values."""
    size = step.ByteSize() + sum(tensor.nbytes for tensor in tensors.values())
    if size > LARGEST_PROTO:
        raise OnwardError(
            f"the step and its state have {size / 1e9:.1f} GB, but one ONNX file has 2 GB at most; write the state to "
            "a file of its own, with `checkpoint`, instead of `self_contained`"
        )
    for name, tensor in tensors.items():
        proto = ir.to_proto(ir.tensor(tensor.numpy(), dtype=tensor.dtype, name=name))
        step.graph.initializer.append(proto)
