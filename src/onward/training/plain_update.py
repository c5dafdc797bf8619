"""The optimizer as one graph over plain tensors, for runtimes that have no sequences: those of JavaScript."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from onward import plan
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.upgrade import in_lowest_opset
from onward.optim import Optimizer
from onward.optim.scalar import checked_rate, checked_step
from onward.signature import METADATA_KEY, Role, Signature
from onward.training.update import Types, add_input, empty_model, require_parameters, update_plan

FLAG = "updated_flag"
GRADIENT, UPDATED = "_grad", ".updated"


def plain_optimizer_model(optimizer: Optimizer, types: Types, opset: int) -> onnx.ModelProto:
    """One graph that updates all parameters, each an input and an output of its own.

    Inputs: learning_rate `[1]`, step `[1]`, and for each parameter `w` itself, its gradient `w_grad` and its slots,
    such as `w.mu`. Outputs: a flag `[1]`, `w.updated`, `w.mu.updated`. A name that is taken already gets a number: the
    signature in the metadata says what is what, and the plan for our own runtime is there too.
    """
    require_parameters(optimizer, types)

    def build(model: ir.Model) -> onnx.ModelProto:
        op = Builder(model.graph, model.opset_imports[""])
        signature = _write(op, optimizer, types)
        model.metadata_props[METADATA_KEY] = signature.to_json()
        model.metadata_props[plan.METADATA_KEY] = update_plan(optimizer, types, op.opset).to_json()
        return finish(model)

    return in_lowest_opset(empty_model(opset, f"optimizer/{optimizer.name}"), build)


@dataclass
class _Border:
    """The inputs and outputs while they are made, and what each belongs to."""

    op: Builder
    inputs: dict[str, Role] = field(default_factory=dict)
    outputs: dict[str, Role] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, role: Role, kind: tuple[ir.DataType, tuple[int, ...]], of: str | None = None) -> ir.Value:
        value = add_input(self.op.graph, self.op.unique_name(name), *kind)
        self.inputs[value.name or ""] = role
        if of is not None:
            self.links[value.name or ""] = of
        return value

    def publish(self, value: ir.Value, name: str, role: Role, replaces: ir.Value | None = None) -> None:
        output = publish(value, self.op.unique_name(name), self.op.graph).name or ""
        self.outputs[output] = role
        if replaces is not None:
            self.links[output] = replaces.name or ""


def _write(op: Builder, optimizer: Optimizer, types: Types) -> Signature:
    border = _Border(op)
    with op:
        params = {name: border.add(name, Role.PARAMETER, kind) for name, kind in types.items()}
        lr = checked_rate(op, border.add(plan.LEARNING_RATE, Role.LEARNING_RATE, (ir.DataType.FLOAT, (1,))))
        t = checked_step(op, border.add(plan.STEP, Role.STEP, (ir.DataType.INT64, (1,))))
        grads = {name: border.add(f"{name}{GRADIENT}", Role.GRADIENT, types[name], of=name) for name in types}
        slots = {name: _slots(border, optimizer, name, types) for name in types}
        scale = None
        if optimizer.global_norm is not None:
            scale = optimizer.global_norm.coefficient(op, list(grads.values()))
        border.publish(op.Identity(op.constant([True])), FLAG, Role.FLAG)
    for name in types:
        group = optimizer.group_of(name)
        updated, state = optimizer.apply(
            op, params[name], grads[name], slots[name], t, lr,
            lr_scale=group.lr_scale, weight_decay=group.weight_decay, grad_scale=scale,
        )  # fmt: skip
        border.publish(updated, f"{name}{UPDATED}", Role.PARAMETER, params[name])
        for slot, before in slots[name].items():
            border.publish(state[slot], f"{before.name}{UPDATED}", Role.SLOT, before)
    kinds = {value.name or "": slot for values in slots.values() for slot, value in values.items()}
    return Signature(
        "optimizer",
        border.inputs,
        border.outputs,
        links=border.links,
        slots={name: slot.initial for name, slot in optimizer.slots.items()},
        kinds=kinds,
        initial={name: optimizer.slots[slot].initial for name, slot in kinds.items()},
        parameters=list(types),
    )


def _slots(border: _Border, optimizer: Optimizer, name: str, types: Types) -> Mapping[str, ir.Value]:
    return {slot: border.add(f"{name}.{slot}", Role.SLOT, types[name], of=name) for slot in optimizer.slots}
