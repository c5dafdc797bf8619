"""All that training a model takes: its graphs with the loss, and the plan of the optimizer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.autodiff.registry import custom_operators
from onward.errors import OnwardError
from onward.graph import provenance
from onward.graph.builder import Builder
from onward.graph.finish import fix_defaults
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values
from onward.graph.parameters import parameters
from onward.graph.prepare import ModelLike, load, prepare
from onward.graph.skeleton import skeleton
from onward.graph.upgrade import in_lowest_opset
from onward.losses import Loss
from onward.losses.activation import activation_of
from onward.optim import Optimizer
from onward.plan import UpdatePlan
from onward.training.loss import attach_loss
from onward.training.selection import selected
from onward.training.split import SplitModels, split_prepared
from onward.training.update import update_plan


@dataclass(frozen=True)
class Assembly:
    """What `assemble` made.

    Attributes:
        models: the training and the evaluation graph. Their outputs are the loss, the outputs of the model, and what
            the loss takes besides.
        plan: how the optimizer updates the parameters.
        trainable: the parameters that it updates, group by group.
        inputs: those of the model.
        targets: those of the loss: what the loss calls them, and what the graphs do.
        outputs: those of the model, in its order.
        borders: inputs and outputs as the model describes them, by name.
        predictions: what the loss takes; nothing where the first output is the loss.
        activation: the operator that makes probabilities of the first of them, if there is one.
        held: the parameters that could be trained, and are not, with their types and shapes.
        folder: where external data of the graphs is.
    """

    models: SplitModels
    plan: UpdatePlan
    trainable: list[str]
    inputs: list[str]
    targets: dict[str, str]
    outputs: list[str]
    borders: dict[str, onnx.ValueInfoProto]
    predictions: list[str]
    activation: str | None
    held: dict[str, tuple[ir.DataType, tuple[int, ...]]]
    folder: Path


def assemble(
    model: ModelLike,
    loss: str | Loss | None,
    optimizer: Optimizer,
    *,
    trainable: str | Sequence[str] | None = None,
    frozen: str | Sequence[str] | None = None,
    loss_inputs: Sequence[str] | None = None,
    weighted: bool = False,
    separate_shared: bool = False,
) -> Assembly:
    """The graphs that train a model, and the plan of its optimizer.

    Args:
        model: the forward model; None as `loss` means that its first output is the loss.
        loss: a name of `onward.losses`, or a function ``(op, prediction, *targets)``.
        optimizer: a value of `onward.optim`.
        trainable: names and patterns of the parameters to train; None means all that `onward.gradient` calls trainable.
        frozen: names and patterns of parameters that are not trained.
        loss_inputs: the outputs (or other values) that the loss takes, where the model has several outputs.
        weighted: whether the training graph takes a number that it multiplies all gradients with.
        separate_shared: give parameters that torch's exporter merged tensors of their own again.
    """
    loaded = load(model)
    if separate_shared:
        provenance.separate_shared(loaded)
    changes = provenance.changes_of(loaded)
    described = skeleton(loaded).graph
    forward = prepare(loaded, keep=custom_operators())
    fix_defaults(forward.graph)
    own = set(forward.graph.initializers)
    inputs = [value.name or "" for value in forward.graph.inputs]
    outputs = [value.name or "" for value in forward.graph.outputs]

    def with_loss(copy: ir.Model) -> tuple[ir.Model, dict[str, str], list[str]]:
        targets = attach_loss(Builder(copy.graph, copy.opset_imports[""]), loss, loss_inputs)
        predictions = [] if loss is None else outputs if loss_inputs is None else list(loss_inputs)
        inner = [value for value in all_values(copy.graph) if value.name in predictions and value.name not in outputs]
        copy.graph.outputs.extend(inner)
        infer_shapes(copy)
        return copy, {name: value.name or "" for name, value in targets.items()}, predictions

    combined, targets, predictions = in_lowest_opset(forward, with_loss)
    constants = [name for name in combined.graph.initializers if name not in own]
    models = split_prepared(
        combined,
        trainable=selected(combined, trainable, frozen, loss=combined.graph.outputs[0], constants=constants),
        targets=list(targets.values()),
        constants=constants,
        changes=changes,
        argument="trainable",
        weighted=weighted,
    )
    if not models.trainable:
        raise OnwardError("there is nothing to train: the model has no parameters, or `trainable` names none of them")
    types = {name: (tensor.dtype, tuple(tensor.shape.numpy())) for name, tensor in models.trainable.items()}
    optimizer.check_groups(types)
    plan = update_plan(optimizer, types, combined.opset_imports[""])
    held = {
        parameter.name: (tensor.dtype, tuple(tensor.shape.numpy()))
        for parameter in parameters(forward)
        if (parameter.trainable or parameter.held)
        and parameter.name not in types
        and (tensor := parameter.value.const_value) is not None
    }
    # A loss of one element has become a scalar.
    borders = [*described.input, *(described.output if loss is not None else described.output[1:])]
    grouped = [name for members in optimizer.partition(types).values() for name in members]
    folder = Path(model).resolve().parent if isinstance(model, (str, os.PathLike)) else Path.cwd()
    return Assembly(
        models=models,
        plan=plan,
        trainable=grouped,
        inputs=inputs,
        targets=targets,
        outputs=outputs,
        borders={value.name: value for value in borders if value.name in (*inputs, *outputs)},
        predictions=predictions,
        activation=next((activation_of(x) for x in all_values(combined.graph) if x.name in predictions[:1]), None),
        held=held,
        folder=folder,
    )
