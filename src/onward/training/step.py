"""The graph of `onward.training_step`: forward, loss, backward, clipping and update in a single graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.gradient import gradients_of
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.finish import finish, fix_defaults, publish, to_input
from onward.graph.naming import listed
from onward.graph.shapes import static_shape
from onward.graph.upgrade import in_lowest_opset
from onward.graph.width import is_narrow, whole
from onward.losses import Loss
from onward.optim import Optimizer
from onward.optim import get as get_optimizer
from onward.optim.scalar import checked_rate, checked_step
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.forms import choose_forms
from onward.training.loss import put_loss
from onward.training.lowering import faster_rules, lower
from onward.training.lowering.webgpu import lower_for_webgpu
from onward.training.modes import UPDATED, update_running_statistics
from onward.training.objective import check_trainable, default_parameters
from onward.training.order import write_in_order_of_use
from onward.training.randomness import draw_explicitly

LEARNING_RATE, STEP = "learning_rate", "step"


def step_model(
    forward: ir.Model,
    loss: str | Loss | None,
    optimizer: str | Optimizer,
    *,
    trainable: Sequence[str] | None = None,
    loss_inputs: Sequence[str] | None = None,
    seed: int = 0,
) -> onnx.ModelProto:
    """See `onward.training_step`; `forward` is a prepared model, and no state has a value in the result."""
    fix_defaults(forward.graph)
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise OnwardError(f"`seed` is an integer of 64 bits, not {seed!r}")
    recipe = get_optimizer(optimizer)
    own = set(forward.graph.initializers)
    return in_lowest_opset(forward, lambda copy: _step(copy, loss, recipe, trainable, own, loss_inputs, seed))


def _step(
    forward: ir.Model,
    loss: str | Loss | None,
    optimizer: Optimizer,
    trainable: Sequence[str] | None,
    own: Collection[str],
    loss_inputs: Sequence[str] | None,
    seed: int,
) -> onnx.ModelProto:
    users = [value.name or "" for value in forward.graph.inputs]
    targets = list(put_loss(forward, loss, loss_inputs).values())
    names = _trained(forward, trainable, own)
    model = expand_missing_rules(forward, names, [forward.graph.outputs[0].name or ""])
    op = Builder(model.graph, model.opset_imports[""])
    rate = _add_scalar(model.graph, LEARNING_RATE, ir.DataType.FLOAT)
    number = _add_scalar(model.graph, STEP, whole())
    random = draw_explicitly(op, number)
    outputs = [value.name or "" for value in model.graph.outputs]
    statistics = update_running_statistics(op)
    choose_forms(model, op, names)
    nodes = set(model.graph)
    state = _update(op, optimizer, _gradients(op, names), number, rate)
    optimizer.check_groups(names)
    given = {
        **dict.fromkeys(users, Role.INPUT),
        **dict.fromkeys(targets, Role.TARGET),
        LEARNING_RATE: Role.LEARNING_RATE,
        STEP: Role.STEP,
        **random,
    }
    signature = _signature(given, outputs, optimizer, state, statistics, dict.fromkeys(random, seed))
    model.metadata_props[METADATA_KEY] = signature.to_json()
    lower(op, nodes)
    if is_narrow():
        lower_for_webgpu(op)
    write_in_order_of_use(model)
    return finish(model)


def _gradients(op: Builder, names: Sequence[str]) -> dict[ir.Value, ir.Value]:
    """The parameters of these names, and the gradients of the loss with respect to them."""
    loss = op.graph.outputs[0]
    assert loss.dtype is not None
    one = op.constant(np.ones(static_shape(loss) or ()), loss.dtype)
    with faster_rules():
        return gradients_of(op, {loss: one}, names)


@dataclass
class _State:
    """What a step replaces: the roles of its parameters and slots, what each output renews, and first values.

    `kinds` says of each slot what it is to its parameter.
    """

    roles: dict[str, Role] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    initial: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)


def _update(
    op: Builder, optimizer: Optimizer, gradients: Mapping[ir.Value, ir.Value], number: ir.Value, rate: ir.Value
) -> _State:
    """Turn parameters and the optimizer's slots into inputs, and publish what becomes of them."""
    scale, made = None, _State()
    with op:
        t, lr = checked_step(op, number), checked_rate(op, rate)
        if optimizer.global_norm is not None:
            scale = optimizer.global_norm.coefficient(op, list(gradients.values()))
    for parameter, gradient in gradients.items():
        to_input(parameter)
        slots = {name: _add_slot(op.graph, parameter, name) for name in optimizer.slots}
        group = optimizer.group_of(parameter.name or "")
        updated, state = optimizer.apply(
            op, parameter, gradient, slots, t, lr,
            lr_scale=group.lr_scale, weight_decay=group.weight_decay, grad_scale=scale,
        )  # fmt: skip
        for value, new in ((parameter, updated), *((slots[slot], state[slot]) for slot in slots)):
            name = value.name or ""
            made.roles[name] = Role.PARAMETER if value is parameter else Role.SLOT
            made.links[f"{name}{UPDATED}"] = name
            publish(new, f"{name}{UPDATED}", op.graph)
        made.links.update({value.name or "": parameter.name or "" for value in slots.values()})
        made.kinds.update({value.name or "": slot for slot, value in slots.items()})
        made.initial.update({value.name or "": optimizer.slots[slot].initial for slot, value in slots.items()})
    return made


def _signature(
    given: Mapping[str, Role],
    outputs: Sequence[str],
    optimizer: Optimizer,
    state: _State,
    statistics: Mapping[str, str],
    seeds: Mapping[str, int],
) -> Signature:
    """What each input and output is for; `given` are the inputs that are no state, `outputs` those of the model."""
    return Signature(
        "step",
        inputs={**given, **state.roles, **dict.fromkeys(statistics.values(), Role.BUFFER)},
        outputs={
            **{name: Role.OUTPUT if index else Role.LOSS for index, name in enumerate(outputs)},
            **{f"{name}{UPDATED}": role for name, role in state.roles.items()},
            **dict.fromkeys(statistics, Role.BUFFER),
        },
        links={**state.links, **statistics},
        slots={name: slot.initial for name, slot in optimizer.slots.items()},
        kinds=state.kinds,
        initial={**seeds, **state.initial},
    )


def _trained(forward: ir.Model, trainable: Sequence[str] | None, own: Collection[str]) -> list[str]:
    """The parameters to train; `own` are the initializers of the model, all others those of the loss."""
    constants = [name for name in forward.graph.initializers if name not in own]
    if trainable is None:
        return default_parameters(forward, argument="trainable", constants=constants, required=True)
    names = list(dict.fromkeys(listed("trainable", trainable)))
    if not names:
        raise OnwardError("`trainable` is empty; name at least one parameter, or leave it out to train all")
    check_trainable(forward, names, argument="trainable", constants=constants)
    return names


def _add_scalar(graph: ir.Graph, name: str, dtype: ir.DataType) -> ir.Value:
    if any(value.name == name for value in graph.inputs):
        raise OnwardError(f"the model has an input called {name!r} already, a name that the training step needs")
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape([]))
    graph.inputs.append(value)
    return value


def _add_slot(graph: ir.Graph, parameter: ir.Value, slot: str) -> ir.Value:
    """A slot of a parameter: an input of its type and shape."""
    value = ir.Value(name=f"{parameter.name}.{slot}", type=parameter.type, shape=parameter.shape)
    graph.inputs.append(value)
    return value
