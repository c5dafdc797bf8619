"""What is trained for what: the loss of a model and the parameters that it depends on, with all errors first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.autodiff.sweep import differentiable_path
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.naming import quoted
from onward.graph.nodes import take_over
from onward.graph.parameters import parameters as parameters_of
from onward.graph.parameters import weights_elsewhere
from onward.graph.provenance import Changes
from onward.graph.shapes import is_floating, static_shape, static_size
from onward.training.modes import running_statistics

_SCALAR = "loss/scalar"


def check_loss(graph: ir.Graph, *, given: bool) -> None:
    """See that the first output is a loss; `given` says whether a loss has been put on top of the model."""
    loss = graph.outputs[0]
    hint = "" if given else " It is the first output of the model, because no loss was given; give one."
    if not is_floating(loss):
        raise NotDifferentiableError(f"the loss {loss.name!r} is not floating point but {loss.type}.{hint}")
    if loss.shape is not None and static_size(loss) != 1:
        shown = str(loss.shape).replace("'", "")
        raise OnwardError(
            f"the loss {loss.name!r} has shape {shown}; a loss has one element. Reduce it by its mean or sum.{hint}"
        )


def to_scalar(op: Builder) -> None:
    """Give a loss of one element rank 0, so that it is a number: `float(loss)` wants that."""
    loss = op.graph.outputs[0]
    if static_shape(loss) == () or loss.is_graph_input() or loss.is_initializer():
        return
    with op, op.scope(_SCALAR):
        scalar = op.Reshape(loss, op.constant([], ir.DataType.INT64))
    uses = list(loss.uses())
    take_over(loss, scalar)
    loss.name = op.unique_name(f"{scalar.name}/element")
    for node, index in uses:
        node.replace_input_with(index, loss)
    scalar.shape = ir.Shape([])


def default_parameters(
    model: ir.Model,
    *,
    argument: str,
    frozen: Collection[str] = (),
    constants: Collection[str] = (),
    required: bool = False,
) -> list[str]:
    """What `onward.gradient` calls trainable and the loss depends on, but for what is frozen or a constant.

    A model that has no parameters gives an empty list, unless one is required, or its weights are where nobody can
    train them.
    """
    loss = model.graph.outputs[0]
    known = [p.value for p in parameters_of(model) if p.trainable and p.name not in constants]
    values = [value for value in known if value.name not in frozen]
    _, carrying = differentiable_path(model.graph, values, [loss])
    found = [value.name or "" for value in values if value in carrying]
    elsewhere = weights_elsewhere(model.graph)
    if not found and (values or (not known and (required or elsewhere))):
        why = (
            "does not depend on any of the trainable parameters"
            if values
            else "has no trainable parameter to depend on"
        )
        raise OnwardError(
            f"the loss {loss.name!r} {why}, so there is nothing to train: {elsewhere}name "
            f"parameters in `{argument}`; onward.check says of each why it is trained or not."
        )
    return found


def check_trainable(
    model: ir.Model,
    trainable: Sequence[str],
    *,
    argument: str,
    constants: Collection[str] = (),
    inputs: bool = False,
    changes: Changes | None = None,
) -> None:
    """Refuse what could only give a useless training graph; `argument` is where the caller has named the parameters.

    `inputs` says whether inputs of the model may be among them.
    """
    graph = model.graph
    values = differentiable_values(
        model, trainable, argument=argument, constants=constants, inputs=inputs, changes=changes
    )
    loss = graph.outputs[0]
    _, carrying = differentiable_path(graph, values, [loss])
    unreached = [value.name or "" for value in values if value not in carrying]
    if unreached:
        fed = {value.name for value in graph.inputs}
        raise OnwardError(
            f"{quoted(unreached)} cannot be trained: the loss {loss.name!r} does not depend on it through "
            f"differentiable operators. Leave it out of `{argument}`"
            + (", or list it in `frozen_params`." if inputs and not set(unreached) & fed else ".")
        )


def differentiable_values(
    model: ir.Model,
    trainable: Sequence[str],
    *,
    argument: str,
    constants: Collection[str] = (),
    inputs: bool = False,
    changes: Changes | None = None,
) -> list[ir.Value]:
    """The values of these names; an error for what has no gradient, whatever the loss is."""
    graph = model.graph
    fed = {value.name: value for value in graph.inputs if not value.is_initializer()}
    known = {value.name: value for value in graph.initializers.values() if value.name not in constants}
    wrong = [name for name in trainable if name in fed and not inputs]
    if wrong:
        raise OnwardError(
            f"`{argument}` names {quoted(wrong)}, which the caller feeds: there is nothing to train. The model has the "
            f"parameters {quoted(known) or 'none'}."
        )
    unknown = [name for name in trainable if name not in known and name not in fed]
    if unknown:
        raise UnknownNameError(
            f"{quoted(unknown)} should be trained, but the model has no initializer{' or input' if inputs else ''} of "
            f"that name; it has {quoted(known) or 'no initializers'}" + (f". {changes.message()}" if changes else "")
        )
    values = {**known, **fed}
    integers = [name for name in trainable if not is_floating(values[name])]
    if integers:
        kinds = ", ".join(str(values[name].dtype) for name in integers)
        raise NotDifferentiableError(
            f"{quoted(integers)} cannot be trained: not floating point but {kinds}. Leave it out of `{argument}`."
        )
    statistics = running_statistics(graph, model.opset_imports[""])
    running = [name for name in trainable if values[name] in statistics]
    if running:
        raise OnwardError(
            f"{quoted(running)} cannot be trained: BatchNormalization in training computes it from the data. Leave it "
            f"out of `{argument}`."
        )
    return [values[name] for name in trainable]
