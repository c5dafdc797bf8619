"""The optimizer as graphs: kernels over flat chunks for our own runtime, and one graph over sequences for any other."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.iteration import SINCE, Step, iterate
from onward.graph.opsets import accepted_by_runtime
from onward.graph.upgrade import in_lowest_opset
from onward.optim import GlobalNorm, Optimizer
from onward.optim.groups import Group
from onward.optim.scalar import checked_rate, checked_step
from onward.plan import (
    COEFFICIENT,
    GRAD_SCALE,
    GRADIENT,
    LEARNING_RATE,
    METADATA_KEY,
    PARAMETER,
    SLOT,
    STEP,
    UPDATED,
    Kernel,
    SlotPlan,
    UpdatePlan,
)

# The names that onnxruntime-training gives to the sequences of the first two slots.
_MOMENTS = ("first_order_moments", "second_order_moments")

# The optimizer of so many parameters has nodes for each of them, which is what people who migrate expect; that of more
# has loops, because with 2000 parameters onnxruntime takes minutes to load tens of thousands of nodes.
_WRITTEN_OUT = 100

Types = Mapping[str, tuple[ir.DataType, tuple[int, ...]]]


def update_plan(optimizer: Optimizer, types: Types, opset: int) -> UpdatePlan:
    """How to apply `optimizer` to parameters of these types and shapes."""
    kernels = []
    for group, names in optimizer.partition(types).items():
        for dtype in sorted({types[name][0] for name in names}):
            members = tuple(name for name in names if types[name][0] == dtype)
            kernels.append(Kernel(members, _kernel(optimizer, group, dtype, opset).SerializeToString()))
    dtypes = sorted({dtype for dtype, _ in types.values()})
    return UpdatePlan(
        optimizer=optimizer.name,
        learning_rate=optimizer.learning_rate,
        elementwise=optimizer.elementwise,
        slots={name: SlotPlan(slot.initial, slot.scale) for name, slot in optimizer.slots.items()},
        kernels=tuple(kernels),
        norm=None if optimizer.global_norm is None else _norm_kernel(optimizer, dtypes, opset).SerializeToString(),
    )


def _kernel(optimizer: Optimizer, group: Group, dtype: ir.DataType, opset: int) -> onnx.ModelProto:
    def build(model: ir.Model) -> onnx.ModelProto:
        graph = model.graph
        op = Builder(graph, model.opset_imports[""])
        p, g = (add_input(graph, name, dtype, ["n"]) for name in (PARAMETER, GRADIENT))
        slots = {name: add_input(graph, f"{SLOT}{name}", dtype, ["n"]) for name in optimizer.slots}
        lr = add_input(graph, LEARNING_RATE, ir.DataType.FLOAT, [])
        t = add_input(graph, STEP, ir.DataType.INT64, [])
        scale = None if optimizer.global_norm is None else add_input(graph, GRAD_SCALE, ir.DataType.FLOAT, [])
        settings = {"lr_scale": group.lr_scale, "weight_decay": group.weight_decay, "grad_scale": scale}
        updated, state = optimizer.apply(op, p, g, slots, t, lr, **settings)  # type: ignore[arg-type]
        publish(updated, f"{PARAMETER}{UPDATED}", graph)
        for name, value in state.items():
            publish(value, f"{SLOT}{name}{UPDATED}", graph)
        return finish(model)

    return in_lowest_opset(empty_model(opset, f"update/{optimizer.name}"), build)


def _norm_kernel(optimizer: Optimizer, dtypes: Sequence[ir.DataType], opset: int) -> onnx.ModelProto:
    def build(model: ir.Model) -> onnx.ModelProto:
        graph = model.graph
        op = Builder(graph, model.opset_imports[""])
        # As rows: onnxruntime adds up a long row one element after the other, which loses digits.
        gradients = [add_input(graph, f"{GRADIENT}:{i}", dtype, ["rows", "columns"]) for i, dtype in enumerate(dtypes)]
        assert optimizer.global_norm is not None
        with op:
            coefficient = optimizer.global_norm.coefficient(op, gradients)
            publish(op.cast(coefficient, ir.DataType.FLOAT), COEFFICIENT, graph)
        return finish(model)

    return in_lowest_opset(empty_model(opset, "norm"), build)


def optimizer_model(optimizer: Optimizer, types: Types, opset: int) -> onnx.ModelProto:
    """One graph that updates all parameters, given as sequences, in the form that onnxruntime-training's has.

    Inputs: learning_rate `[1]`, step `[1]`, the sequences params and gradients, and one sequence for each slot
    (first_order_moments, second_order_moments, then by the slot's own name). Outputs: a flag `[1]`, then the updated
    sequences. The plan for our own runtime is in the metadata.
    """
    require_parameters(optimizer, types)

    def build(model: ir.Model) -> onnx.ModelProto:
        op = Builder(model.graph, model.opset_imports[""])
        with op:
            _update_sequences(op, optimizer, types)
        plan = update_plan(optimizer, types, op.opset)
        model.metadata_props[METADATA_KEY] = plan.to_json()
        return finish(model)

    return in_lowest_opset(empty_model(opset, f"optimizer/{optimizer.name}"), build)


def require_parameters(optimizer: Optimizer, types: Types) -> None:
    """Refuse to update nothing, and groups of parameters that are not there."""
    if not types:
        raise OnwardError("an optimizer needs at least one trainable parameter; list some in requires_grad")
    optimizer.check_groups(types)


def _update_sequences(op: Builder, optimizer: Optimizer, types: Types) -> None:
    graph = op.graph
    dtypes = {dtype for dtype, _ in types.values()}
    if len(dtypes) > 1:
        raise OnwardError(
            f"the trainable parameters have several types ({', '.join(sorted(map(str, dtypes)))}), but a sequence of "
            "ONNX has one; train parameters of one type"
        )
    dtype = dtypes.pop()
    if dtype == ir.DataType.BFLOAT16:
        raise OnwardError(
            "the trainable parameters are bfloat16, and ONNX has no sequences of that type, which an optimizer model "
            "takes: train them in float32 or float16, or with onward.training_step on a device that has the kernels"
        )
    lr = add_input(graph, LEARNING_RATE, ir.DataType.FLOAT, [1])
    t = add_input(graph, STEP, ir.DataType.INT64, [1])
    params, gradients = (_add_sequence(graph, name, dtype) for name in ("params", "gradients"))
    slot_names = list(optimizer.slots)
    titles = [*_MOMENTS[: len(slot_names)], *slot_names[len(_MOMENTS) :]]
    states = {slot: _add_sequence(graph, title, dtype) for slot, title in zip(slot_names, titles, strict=True)}

    publish(op.Identity(op.constant([True])), "updated_flag", graph)
    sequences = _Sequences(params, gradients, states, checked_rate(op, lr), checked_step(op, t))
    if len(types) > _WRITTEN_OUT and op.opset >= SINCE:
        updated = _update_in_loops(op, optimizer, list(types), sequences)
    else:
        updated = _update_written_out(op, optimizer, types, sequences)
    for value, title in zip(updated, ("params", *titles), strict=True):
        value.type = params.type
        publish(value, f"updated_{title}", graph)


@dataclass(frozen=True)
class _Sequences:
    """The inputs of an optimizer model."""

    parameters: ir.Value
    gradients: ir.Value
    slots: dict[str, ir.Value]
    rate: ir.Value
    step: ir.Value


def _update_written_out(op: Builder, optimizer: Optimizer, types: Types, inputs: _Sequences) -> list[ir.Value]:
    """The updated sequences, parameters first; nodes for each parameter."""

    def at(sequence: ir.Value, index: int, name: str) -> ir.Value:
        element = element_of(op, sequence, op.constant(index, ir.DataType.INT64))
        element.shape = ir.Shape(types[name][1])
        return element

    grads = [at(inputs.gradients, index, name) for index, name in enumerate(types)]
    scale = None if optimizer.global_norm is None else optimizer.global_norm.coefficient(op, grads)
    updated: list[list[ir.Value]] = [[], *([] for _ in inputs.slots)]
    for index, name in enumerate(types):
        group = optimizer.group_of(name)
        new, state = optimizer.apply(
            op,
            at(inputs.parameters, index, name),
            grads[index],
            {slot: at(sequence, index, name) for slot, sequence in inputs.slots.items()},
            inputs.step,
            inputs.rate,
            lr_scale=group.lr_scale,
            weight_decay=group.weight_decay,
            grad_scale=scale,
        )
        for values, value in zip(updated, (new, *(state[slot] for slot in inputs.slots)), strict=True):
            values.append(value)
    return [op.SequenceConstruct(*values) for values in updated]


def _update_in_loops(op: Builder, optimizer: Optimizer, names: list[str], inputs: _Sequences) -> list[ir.Value]:
    """The same with a loop for each group: as many nodes for any number of parameters."""
    dtype = inputs.parameters.dtype
    assert dtype is not None
    scale = None
    if optimizer.global_norm is not None:
        scale = coefficient_of_sequence(op, optimizer.global_norm, inputs.gradients, len(names))
    results = [empty_sequence(op, dtype) for _ in range(1 + len(inputs.slots))]
    number = {name: index for index, name in enumerate(names)}
    done: list[int] = []
    for group, members in optimizer.partition(names).items():
        places = sorted(number[name] for name in members)
        # Where each one belongs among those that are there already: of the groups before, and of this one.
        ranks = [bisect.bisect(done, place) + index for index, place in enumerate(places)]
        done = sorted([*done, *places])

        results = iterate(op, len(places), results, _updating(optimizer, group, inputs, scale, places, ranks))
    return results


def _updating(
    optimizer: Optimizer,
    group: Group,
    inputs: _Sequences,
    scale: ir.Value | None,
    places: list[int],
    ranks: list[int],
) -> Step:
    """The step of a loop over parameters of one group."""

    def step(op: Builder, index: ir.Value, carried: Sequence[ir.Value]) -> list[ir.Value]:
        place, rank = (_at(op, table, index) for table in (places, ranks))
        p, g = (element_of(op, sequence, place) for sequence in (inputs.parameters, inputs.gradients))
        slots = {slot: element_of(op, sequence, place) for slot, sequence in inputs.slots.items()}
        new, state = optimizer.apply(
            op, p, g, slots, inputs.step, inputs.rate,
            lr_scale=group.lr_scale, weight_decay=group.weight_decay, grad_scale=scale,
        )  # fmt: skip
        values = (new, *(state[slot] for slot in inputs.slots))
        return [op.SequenceInsert(*pair, rank) for pair in zip(carried, values, strict=True)]

    return step


def _at(op: Builder, table: list[int], index: ir.Value) -> ir.Value:
    return index if table == list(range(len(table))) else op.Gather(np.array(table), index, axis=0)


def coefficient_of_sequence(op: Builder, clip: GlobalNorm, gradients: ir.Value, count: ir.Value | int) -> ir.Value:
    """The coefficient of clipping by the norm of all tensors of a sequence."""

    def square(inner: Builder, index: ir.Value, total: Sequence[ir.Value]) -> list[ir.Value]:
        # In double: the sum of a tensor of any size is right.
        g = inner.cast(element_of(inner, gradients, index), ir.DataType.DOUBLE)
        return [total[0] + inner.ReduceSumSquare(g, keepdims=0)]

    (squares,) = iterate(op, count, [op.constant(0, ir.DataType.DOUBLE)], square)
    return clip.coefficient_of(op, squares)


def element_of(op: Builder, sequence: ir.Value, index: ir.Value) -> ir.Value:
    """One tensor of a sequence, of which the type is known."""
    element = op.SequenceAt(sequence, index)
    assert sequence.dtype is not None
    element.type = ir.TensorType(sequence.dtype)
    return element


def empty_sequence(op: Builder, dtype: ir.DataType) -> ir.Value:
    empty = op.SequenceEmpty(dtype=int(dtype))
    empty.type = ir.SequenceType(ir.TensorType(dtype))
    return empty


def empty_model(opset: int, name: str) -> ir.Model:
    graph = ir.Graph([], [], nodes=[], name=name, opset_imports={"": opset})
    return ir.Model(graph, ir_version=min(10, accepted_by_runtime()[1]), producer_name="onward")


def add_input(graph: ir.Graph, name: str, dtype: ir.DataType, dims: Sequence[int | str]) -> ir.Value:
    value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))
    graph.inputs.append(value)
    return value


def _add_sequence(graph: ir.Graph, name: str, dtype: ir.DataType) -> ir.Value:
    value = ir.Value(name=name, type=ir.SequenceType(ir.TensorType(dtype)))
    graph.inputs.append(value)
    return value
