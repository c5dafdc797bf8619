"""Put a loss on top of a forward model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward import losses
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.finish import publish
from onward.graph.inference import infer_shapes
from onward.graph.naming import listed, quoted
from onward.graph.nodes import all_values
from onward.graph.proto import drop_map_outputs, map_refusal, map_type
from onward.graph.shapes import floating_origin, is_floating
from onward.training.labels import check_labels
from onward.training.objective import check_loss, to_scalar


def attach_loss(
    op: Builder, loss: str | losses.Loss | None, inputs: Sequence[str] | None = None
) -> dict[str, ir.Value]:
    """Emit a loss over outputs (or other values) of the graph; returns the new inputs, by what it calls its targets.

    The loss becomes the first output, before the model's own. None means that the first output is the loss already.
    """
    graph = op.graph
    if not graph.outputs:
        raise OnwardError("the model has no outputs, so there is nothing to train")
    if loss is None:
        return {}
    function = losses.get(loss)
    predictions = _predictions(graph, inputs, losses.prediction_count(function))
    targets = losses.target_inputs(function, predictions)
    for name, target in targets.items():
        target.name = op.unique_name(name)
        graph.inputs.append(target)
    value = losses.apply(op, function, predictions, targets)
    outputs = list(graph.outputs)
    graph.outputs.clear()
    publish(value, op.unique_name("loss"), graph)
    graph.outputs.extend(outputs)
    return targets


def put_loss(forward: ir.Model, loss: str | losses.Loss | None, inputs: Sequence[str] | None = None) -> dict[str, str]:
    """Make a scalar loss the first output of a model, in place; its targets: what the loss and the graph call them."""
    op = Builder(forward.graph, forward.opset_imports[""])
    targets = attach_loss(op, loss, inputs)
    drop_map_outputs(forward.graph)
    check_labels(op)
    infer_shapes(forward)
    check_loss(forward.graph, given=loss is not None)
    to_scalar(op)
    return {name: value.name or "" for name, value in targets.items()}


def _predictions(graph: ir.Graph, names: Sequence[str] | None, count: int | None) -> list[ir.Value]:
    if names is None:
        if len(graph.outputs) not in (1, count):
            origins = [output if is_floating(output) else floating_origin(output) for output in graph.outputs]
            floating = list(dict.fromkeys(origin.name for origin in origins if origin is not None))
            raise OnwardError(
                f"the model has several outputs ({', '.join(str(output.name) for output in graph.outputs)}); say in "
                f"`loss_inputs` which of them the loss takes, for instance {floating[: count or 1]}"
            )
        return list(graph.outputs)
    names = listed("loss_inputs", names)
    if not names:
        raise OnwardError("`loss_inputs` is empty; name what the loss takes, or leave it out to give it the output")
    values = {value.name: value for value in all_values(graph)}
    unknown = [name for name in names if name not in values]
    if unknown:
        raise UnknownNameError(
            f"the loss should take {quoted(unknown)}, which the model does not have; its outputs are "
            f"{quoted(output.name for output in graph.outputs)}, and any other value can be named too"
        )
    for name in names:
        kind, origin = map_type(values[name]), floating_origin(values[name])
        if kind is not None:
            raise NotDifferentiableError(map_refusal(name, kind, [] if origin is None else [origin.name or ""]))
    return [values[name] for name in names]
