"""The three graphs that another runtime needs: a step of training, evaluation, and inference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.finish import fix_defaults
from onward.graph.nodes import all_values
from onward.graph.proto import drop_map_outputs
from onward.graph.upgrade import in_lowest_opset
from onward.graph.width import is_narrow
from onward.losses import Loss
from onward.losses.activation import activation_of
from onward.optim import Optimizer
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.evaluation import evaluation_graph
from onward.training.loss import put_loss
from onward.training.lowering.webgpu import lower_for_webgpu
from onward.training.modes import switch_to_evaluation
from onward.training.selection import selected
from onward.training.step import step_model


@dataclass(frozen=True)
class Models:
    """What `build` made.

    Attributes:
        step: state in, state out; see `onward.training_step`.
        evaluation: loss and outputs, over parameters and running statistics as inputs.
        inference: the outputs alone, over the same inputs.
        signature: of the step.
        targets: what the graphs call the targets of the loss.
        predictions: the values that the loss takes.
        activation: the operator that makes probabilities of the first of them, if there is one.
    """

    step: onnx.ModelProto
    evaluation: onnx.ModelProto
    inference: onnx.ModelProto
    signature: Signature
    targets: list[str]
    predictions: list[str]
    activation: str | None


def build(
    forward: ir.Model,
    loss: str | Loss | None,
    optimizer: Optimizer,
    *,
    trainable: str | Sequence[str] | None,
    frozen: str | Sequence[str] | None,
    loss_inputs: Sequence[str] | None,
    seed: int,
) -> Models:
    """The graphs of a prepared model; inside of `narrow_numbers`, those for WebGPU."""
    fix_defaults(forward.graph)
    own = set(forward.graph.initializers)
    inputs = [value.name or "" for value in forward.graph.inputs]
    drop_map_outputs(forward.graph)  # no other language takes a list of dictionaries
    outputs = [value.name or "" for value in forward.graph.outputs]
    predictions = [] if loss is None else outputs if loss_inputs is None else list(loss_inputs)

    def with_loss(copy: ir.Model) -> tuple[ir.Model, list[str]]:
        return copy, list(put_loss(copy, loss, loss_inputs).values())

    combined, targets = in_lowest_opset(forward, with_loss)
    constants = [name for name in combined.graph.initializers if name not in own]
    activations = [activation_of(x) for x in all_values(combined.graph) if x.name in predictions[:1]]
    names = selected(combined, trainable, frozen, loss=combined.graph.outputs[0], constants=constants)
    step = step_model(forward, loss, optimizer, trainable=names, loss_inputs=loss_inputs, seed=seed)
    signature = Signature.from_json(next(x.value for x in step.metadata_props if x.key == METADATA_KEY))
    state = {name: role for name, role in signature.inputs.items() if role in (Role.PARAMETER, Role.BUFFER)}
    users = dict.fromkeys(inputs, Role.INPUT)
    losses = {
        value.name or "": Role.OUTPUT if index else Role.LOSS for index, value in enumerate(combined.graph.outputs)
    }
    evaluated = Signature("evaluation", {**users, **dict.fromkeys(targets, Role.TARGET), **state}, losses)
    predicted = Signature("prediction", {**users, **state}, dict.fromkeys(outputs, Role.OUTPUT))
    return Models(
        step=step,
        evaluation=_without_training(combined, evaluated),
        inference=_without_training(forward.clone(), predicted),
        signature=signature,
        targets=targets,
        predictions=predictions,
        activation=next(iter(activations), None),
    )


def _without_training(model: ir.Model, signature: Signature) -> onnx.ModelProto:
    switch_to_evaluation(model)
    if is_narrow():
        lower_for_webgpu(Builder(model.graph, model.opset_imports[""]))
    return evaluation_graph(model, signature)
