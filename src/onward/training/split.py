"""The training and the evaluation graph of a model that computes its loss, as separate files run them.

Trainable parameters are inputs of both graphs and frozen ones stay initializers, so that onnxruntime folds, fuses and
pre-packs them. The training graph adds each gradient to a buffer, or replaces the buffer if `lazy_reset_grad` is true.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.gradient import gradients_of
from onward.autodiff.registry import custom_operators
from onward.errors import OnwardError
from onward.graph import provenance
from onward.graph.builder import Builder
from onward.graph.changing import changing
from onward.graph.finish import finish, fix_defaults, make_way, publish, to_input
from onward.graph.prepare import ModelLike, load, prepare
from onward.graph.proto import drop_map_outputs
from onward.graph.shapes import dims, static_shape
from onward.graph.upgrade import in_lowest_opset, upgrade
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.evaluation import evaluation_graph
from onward.training.forms import choose_forms
from onward.training.labels import check_labels
from onward.training.lowering import faster_rules, lower
from onward.training.modes import update_running_statistics
from onward.training.objective import check_loss, check_trainable, default_parameters, to_scalar
from onward.training.order import write_in_order_of_use
from onward.training.randomness import draw_explicitly

RESET = "lazy_reset_grad"
WEIGHT = "gradient_weight"
GRADIENT = "_grad"
BUFFER = "_grad.accumulation.buffer"
ACCUMULATED = "_grad.accumulation.out"
# Nodes that only add gradients up; a runtime that resets every step leaves them out (`onward.runtime`).
ACCUMULATE_SCOPE = "accumulate"


@dataclass(frozen=True)
class SplitModels:
    """The graphs of one training set-up, and the parameters that belong to them."""

    training: onnx.ModelProto
    evaluation: onnx.ModelProto
    trainable: dict[str, ir.TensorProtocol]
    frozen: dict[str, ir.TensorProtocol]


def split(
    model: ModelLike,
    *,
    trainable: Sequence[str] | None,
    frozen: Collection[str] = (),
    targets: Collection[str] = (),
    constants: Collection[str] = (),
    opset: int | None = None,
) -> SplitModels:
    """Training and evaluation graph of `model`, whose first output is the loss.

    Args:
        model: the forward model with its loss.
        trainable: initializers, or graph inputs, whose gradient is computed too. None means every parameter that
            `onward.gradient` calls trainable, that influences the loss, and that is neither frozen nor a constant.
        frozen: initializers that belong to the checkpoint but do not change; names that do not exist are ignored.
        targets: the graph inputs that only the loss uses.
        constants: initializers that are no parameters of the model, because the loss brought them.
        opset: the lowest opset of the default domain that the graphs may have.
    """
    loaded = load(model)
    changes = provenance.changes_of(loaded)
    forward = prepare(loaded, keep=custom_operators())
    fix_defaults(forward.graph)
    names = None if trainable is None else list(trainable)
    return split_prepared(
        forward, trainable=names, frozen=frozen, targets=targets, constants=constants, opset=opset, changes=changes
    )


def split_prepared(
    forward: ir.Model,
    *,
    trainable: Sequence[str] | None,
    frozen: Collection[str] = (),
    targets: Collection[str] = (),
    constants: Collection[str] = (),
    opset: int | None = None,
    changes: provenance.Changes,
    argument: str = "requires_grad",
    weighted: bool = False,
) -> SplitModels:
    """The same of a prepared model.

    Args:
        changes: what an exporter did to the model.
        argument: where the caller has named the parameters to train.
        weighted: whether the training graph takes a number that it multiplies all gradients with.
    """
    if opset is not None and opset > forward.opset_imports[""]:
        forward = upgrade(forward, opset)
    check_loss(forward.graph, given=bool(targets or constants))
    to_scalar(Builder(forward.graph, forward.opset_imports[""]))
    if trainable is None:
        names = default_parameters(forward, argument=argument, frozen=frozen, constants=constants)
    else:
        names = list(dict.fromkeys(trainable))
        check_trainable(forward, names, argument=argument, constants=constants, inputs=True, changes=changes)
    provenance.warn_of_changes(changes, trainable)
    return in_lowest_opset(forward, lambda copy: _split(copy, names, set(frozen), set(targets), weighted))


def _split(forward: ir.Model, names: list[str], frozen: set[str], targets: set[str], weighted: bool) -> SplitModels:
    initializers = forward.graph.initializers
    parameters = [name for name in initializers if name in names]
    check_labels(Builder(forward.graph, forward.opset_imports[""]))
    evaluation = forward.clone()
    drop_map_outputs(forward.graph)  # evaluation keeps them for those who export it, without a role in its signature
    model = expand_missing_rules(forward, names, [forward.graph.outputs[0].name or ""])
    graph = model.graph
    op = Builder(graph, model.opset_imports[""])
    users = {value.name or "": _user_role(value, targets) for value in graph.inputs}
    scalars = draw_explicitly(op)
    outputs = {value.name or "": Role.OUTPUT if index else Role.LOSS for index, value in enumerate(graph.outputs)}
    loss = graph.outputs[0]
    assert loss.dtype is not None
    statistics = update_running_statistics(op)
    with changing(graph, frozen):  # owners of a checkpoint may replace them
        choose_forms(model, op, names)
    nodes = set(graph)

    seed = op.constant(np.ones(static_shape(loss) or ()), loss.dtype)
    if weighted:
        weight = ir.Value(name=op.unique_name(WEIGHT), type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape([]))
        graph.inputs.append(weight)
        scalars[weight.name or ""] = Role.WEIGHT
        with op:
            seed = op.cast(weight, loss.dtype)
    wanted = [*(name for name in users if name in names), *parameters]
    with faster_rules(), changing(graph, frozen):
        gradients = gradients_of(op, {loss: seed}, wanted) if wanted else {}
    for name in parameters:
        to_input(graph.initializers[name])
    _make_way(op, wanted)
    for name, gradient in zip(wanted, gradients.values(), strict=True):
        publish(gradient, f"{name}{GRADIENT}", graph)
    with changing(graph, frozen):
        lower(op, nodes)
    _accumulate(op, list(gradients))
    for value in [value for value in graph.inputs if value.name in scalars]:  # the inputs of the original come first
        graph.inputs.remove(value)
        graph.inputs.append(value)

    stateful = {*parameters, *statistics.values(), *frozen}
    kept = [value for value in initializers.values() if value.name in stateful]
    state = {**dict.fromkeys(parameters, Role.PARAMETER), **dict.fromkeys(statistics.values(), Role.BUFFER)}
    signature = Signature(
        "training",
        inputs={
            **users,
            **state,
            **{f"{name}{BUFFER}": Role.GRADIENT for name in wanted},
            RESET: Role.RESET,
            **scalars,
        },
        outputs={
            **outputs,
            **dict.fromkeys(statistics, Role.BUFFER),
            **{f"{name}{ACCUMULATED}": Role.GRADIENT for name in wanted},
        },
        links={**statistics, **{f"{name}{suffix}": name for name in wanted for suffix in (BUFFER, ACCUMULATED)}},
        parameters=[value.name or "" for value in kept],
        initial={name: 0 for name, role in scalars.items() if role is Role.SEED},
    )
    model.metadata_props[METADATA_KEY] = signature.to_json()
    write_in_order_of_use(model)
    return SplitModels(
        training=finish(model),
        evaluation=evaluation_graph(evaluation, Signature("evaluation", {**users, **state}, outputs)),
        trainable=_tensors(value for value in kept if value.name in names),
        frozen=_tensors(value for value in kept if value.name not in names),
    )


def _make_way(op: Builder, wanted: Sequence[str]) -> None:
    """Free the names of gradients, or say that the model has given them to something that keeps its name."""
    names = {f"{name}{suffix}": name for name in wanted for suffix in (GRADIENT, BUFFER, ACCUMULATED)}
    for value in (*op.graph.inputs, *op.graph.outputs):
        if value.name in names:
            raise OnwardError(
                f"the model has a parameter, an input or an output called {value.name!r}, which has to be the name of "
                f"the gradient of {names[value.name]!r}: rename one of them"
            )
    make_way(op, names)


def _accumulate(op: Builder, values: Sequence[ir.Value]) -> None:
    """Put sums with buffers in the place of gradients, the last outputs of the graph.

    Last of all, so that nothing rewrites the gradients after they have their names: runtimes that leave the sums out
    (`onward.runtime`) look for those.
    """
    graph = op.graph
    first = len(graph.outputs) - len(values)
    gradients = [graph.outputs.pop(first) for _ in values]
    buffers = [ir.Value(name=f"{value.name}{BUFFER}", type=value.type, shape=value.shape) for value in values]
    reset = ir.Value(name=RESET, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
    graph.inputs.extend([*buffers, reset])
    for value, buffer, gradient in zip(values, buffers, gradients, strict=True):
        with op.scope(f"{ACCUMULATE_SCOPE}/{value.name}"):
            # The flag has one axis, as in the original, which a number has not.
            chosen = op.Reshape(reset, []) if dims(value) == () else reset
            total = op.Where(chosen, gradient, op.Add(buffer, gradient))
        total.shape = buffer.shape
        publish(total, f"{value.name}{ACCUMULATED}", graph)


def _tensors(values: Iterable[ir.Value]) -> dict[str, ir.TensorProtocol]:
    return {value.name or "": value.const_value for value in values if value.const_value is not None}


def _user_role(value: ir.Value, targets: set[str]) -> Role:
    return Role.TARGET if value.name in targets else Role.INPUT
