"""Put a loss on top of a forward model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward import losses
from onward.errors import OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.finish import publish
from onward.graph.nodes import all_values


def attach_loss(
    op: Builder, loss: str | losses.Loss | None, inputs: Sequence[str] | None = None
) -> tuple[ir.Value, list[ir.Value]]:
    """Emit a loss over outputs (or other values) of the graph; returns the loss and the new inputs for its targets.

    The loss becomes the first output, before the model's own. None means that the first output is the loss already.
    """
    graph = op.graph
    if loss is None:
        return graph.outputs[0], []
    function = losses.get(loss) if isinstance(loss, str) else loss
    predictions = _predictions(graph, inputs)
    targets = losses.target_inputs(function, predictions)
    for name, target in targets.items():
        target.name = op.unique_name(name)
        graph.inputs.append(target)
    value = losses.apply(op, function, predictions, targets)
    outputs = list(graph.outputs)
    graph.outputs.clear()
    loss_output = publish(value, op.unique_name("loss"), graph)
    graph.outputs.extend(outputs)
    return loss_output, list(targets.values())


def _predictions(graph: ir.Graph, names: Sequence[str] | None) -> list[ir.Value]:
    if names is None:
        if len(graph.outputs) > 1:
            raise OnwardError(
                f"the model has several outputs ({', '.join(str(output.name) for output in graph.outputs)}); say in "
                "`loss_inputs` which of them the loss takes"
            )
        return [graph.outputs[0]]
    values = {value.name: value for value in all_values(graph)}
    unknown = [name for name in names if name not in values]
    if unknown:
        raise UnknownNameError(f"the loss should take {', '.join(map(repr, unknown))}, which the model does not have")
    return [values[name] for name in names]
