"""The graph of a TrainingSession: the model, gradients of its loss, and the update of its weights, state outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.expansion import expand_missing_rules
from onward.autodiff.gradient import gradients_of
from onward.autodiff.registry import custom_operators
from onward.autodiff.sweep import differentiable_path
from onward.errors import NotDifferentiableError, OnwardError, UnknownNameError, warn
from onward.graph.builder import Builder
from onward.graph.finish import finish, fix_defaults, make_way, publish, to_input
from onward.graph.naming import free_name, quoted
from onward.graph.nodes import constant_of
from onward.graph.parameters import parameters as parameters_of
from onward.graph.prepare import ModelLike, load, prepare
from onward.graph.proto import drop_map_outputs
from onward.graph.shapes import is_floating, static_size
from onward.graph.upgrade import in_lowest_opset
from onward.optim.clipping import GlobalNorm
from onward.optim.norm import sum_of_squares
from onward.optim.scalar import checked_rate, checked_step, number, sqrt
from onward.session.optimizers import COUNTERS, MOMENTS, STEP, Update, updates_of
from onward.session.parameters import TrainingParameters
from onward.signature import Role
from onward.training.forms import choose_forms
from onward.training.labels import check_labels
from onward.training.lowering import faster_rules, lower
from onward.training.modes import switch_to_evaluation, update_running_statistics
from onward.training.order import write_in_order_of_use
from onward.training.randomness import draw_explicitly

NORM, GROUP = "global_gradient_norm", "Group_Accumulated_Gradients"
_GRADIENT = "_grad"
_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass
class StepGraph:
    """The graph of a step and of an evaluation, and what their inputs and outputs are.

    State is called as in the original: the weights, ``Moment_1_<weight>`` and so on.
    """

    training: onnx.ModelProto
    evaluation: onnx.ModelProto
    weights: list[str]
    inputs: list[str]  # of the user
    outputs: list[str]
    initial: dict[str, np.ndarray]  # the first value of each state input
    updated: dict[str, str]  # state input -> output that replaces it after an update
    accumulated: dict[str, str]  # state input -> output that replaces it after a pass without an update
    sums: dict[str, str]  # weight -> state input that its gradients are added up in
    state: dict[str, tuple[str, float]]  # what get_state calls it -> state input, and what that is multiplied with
    statistics: list[str]
    random: dict[str, Role] = field(default_factory=dict)


def step_graph(model: ModelLike, parameters: TrainingParameters) -> StepGraph:
    """The graphs of a session."""
    prepared = prepare(load(model), keep=custom_operators())
    fix_defaults(prepared.graph)
    drop_map_outputs(prepared.graph)
    loss = _loss(prepared.graph, parameters.loss_output_name)
    weights = _trained(prepared, loss, parameters)
    updates = updates_of(parameters, weights)
    return in_lowest_opset(prepared, lambda copy: _Assembly(copy, weights, updates, parameters).build())


def _loss(graph: ir.Graph, name: str) -> ir.Value:
    outputs = {value.name or "": value for value in graph.outputs}
    if name not in outputs:
        raise UnknownNameError(f"loss_output_name is {name!r}; the model has the outputs {quoted(outputs)}")
    loss = outputs[name]
    if not is_floating(loss):
        raise NotDifferentiableError(f"the loss {name!r} is not floating point but {loss.type}")
    if loss.shape is not None and static_size(loss) != 1:
        raise OnwardError(f"the loss {name!r} has shape {loss.shape}; a loss has one element: reduce it")
    return loss


def _trained(model: ir.Model, loss: ir.Value, parameters: TrainingParameters) -> list[str]:
    """The weights to train, in the order of the model."""
    graph = model.graph
    wanted, known = set(parameters.weights_to_train), graph.initializers
    unknown = sorted(wanted - set(known))
    if unknown:
        raise UnknownNameError(
            f"weights_to_train has {quoted(unknown)}, but the model has no initializer of that name; it has "
            f"{quoted(known)}"
        )
    if not wanted:
        wanted = {parameter.name for parameter in parameters_of(model) if parameter.trainable}
    wanted -= set(parameters.weights_not_to_train)
    wanted -= {name for name in wanted if _is_immutable(known[name], parameters.immutable_weights)}
    chosen = [value for name, value in known.items() if name in wanted]
    _, carrying = differentiable_path(graph, [value for value in chosen if is_floating(value)], [loss])
    left_out = [value.name for value in chosen if value not in carrying]
    if left_out and parameters.weights_to_train:
        warn(f"{quoted(left_out)} cannot be trained, because the loss does not depend on it, and stays as it is")
    found = [value.name or "" for value in chosen if value in carrying]
    if not found and not any(parameter.trainable for parameter in parameters_of(model)):
        warn(f"the model has no parameters: nothing is trained to make {loss.name!r} small")
    elif not found:
        raise OnwardError(f"there is nothing to train: the loss {loss.name!r} depends on no weight that may be trained")
    return found


def _is_immutable(value: ir.Value, immutable: Mapping[str, Mapping[int, float]]) -> bool:
    """Whether a scalar has the value that an operator wants to stay as it is at one of its inputs."""
    array = constant_of(value)
    if array is None or array.size != 1:
        return False
    return any(
        immutable.get(use.node.op_type, {}).get(use.idx) is not None
        and np.isclose(float(array.reshape(())), immutable[use.node.op_type][use.idx])
        for use in value.uses()
    )


class _Assembly:
    """Puts the graph together; state inputs are noted as they are made."""

    def __init__(
        self, prepared: ir.Model, weights: list[str], updates: dict[str, Update], parameters: TrainingParameters
    ) -> None:
        self._parameters, self._weights, self._updates = parameters, weights, updates
        check_labels(Builder(prepared.graph, prepared.opset_imports[""]))
        self._evaluation = prepared.clone()
        self._model = expand_missing_rules(prepared, weights, [parameters.loss_output_name])
        self._graph = self._model.graph
        self._op = Builder(self._graph, self._model.opset_imports[""])
        self._taken = {v.name for v in (*self._graph.inputs, *self._graph.outputs, *self._graph.initializers.values())}
        self._users = [value.name or "" for value in self._graph.inputs]
        self._outputs = [value.name or "" for value in self._graph.outputs]
        self._initial: dict[str, np.ndarray] = {}
        self._updated: dict[str, str] = {}
        self._accumulated: dict[str, str] = {}
        self._sums: dict[str, str] = {}
        self._state: dict[str, tuple[str, float]] = {}

    def build(self) -> StepGraph:
        op, graph, parameters = self._op, self._graph, self._parameters
        random = draw_explicitly(op)
        stored = {name: value.const_value for name, value in graph.initializers.items()}
        statistics = update_running_statistics(op)
        for new, old in statistics.items():
            tensor = stored[old]
            assert tensor is not None
            self._note(old, old, tensor.numpy())
            self._updated[old] = self._accumulated[old] = new
        loss = next(value for value in graph.outputs if value.name == parameters.loss_output_name)
        choose_forms(self._model, op, self._weights, [loss])
        loss = next(value for value in graph.outputs if value.name == parameters.loss_output_name)
        nodes = set(graph)
        with op:
            seed = op.ones_like(loss)
        with faster_rules():
            gradients = gradients_of(op, {loss: seed}, self._weights)
        for weight in self._weights:
            tensor = graph.initializers[weight].const_value
            assert tensor is not None
            self._note(weight, weight, tensor.numpy())
            to_input(graph.initializers[weight])
        with op:
            self._finish_gradients({value.name or "": dx for value, dx in gradients.items()})
        lower(op, nodes)
        order = [*self._users, *self._initial, *random]
        values = {value.name: value for value in graph.inputs}
        graph.inputs.clear()
        graph.inputs.extend(values[name] for name in order)
        write_in_order_of_use(self._model)
        return StepGraph(
            training=finish(self._model),
            evaluation=self._evaluated(list(statistics.values())),
            weights=self._weights,
            inputs=self._users,
            outputs=self._outputs,
            initial=self._initial,
            updated=self._updated,
            accumulated=self._accumulated,
            sums=self._sums,
            state=self._state,
            statistics=list(statistics.values()),
            random=random,
        )

    def _note(self, name: str, public: str | None, value: np.ndarray, scale: float = 1.0) -> None:
        """A state input, its first value, and what it is called in states."""
        self._initial[name] = np.array(value)
        if public is not None:
            self._state[public] = (name, scale)

    def _input(self, wanted: str, like: ir.Value | None = None) -> ir.Value:
        """A new input of the type and shape of a value, or one that counts."""
        kind = ir.TensorType(ir.DataType.INT64) if like is None else like.type
        shape = ir.Shape([1]) if like is None else like.shape
        name = free_name(wanted, self._taken)
        make_way(self._op, [name])
        value = ir.Value(name=name, type=kind, shape=shape)
        self._graph.inputs.append(value)
        return value

    def _publish(self, value: ir.Value, wanted: str) -> str:
        name = free_name(wanted, self._taken)
        make_way(self._op, [name])
        publish(value, name, self._graph)
        return name

    def _finish_gradients(self, gradients: dict[str, ir.Value]) -> None:
        """Add gradients up, then what an update and the outputs need."""
        op, parameters = self._op, self._parameters
        steps = parameters.gradient_accumulation_steps
        if parameters.set_gradients_as_graph_outputs or not self._updates:
            self._outputs += [self._publish(dx, f"{name}{_GRADIENT}") for name, dx in gradients.items()]
        gradients = {name: self._widened(dx) for name, dx in gradients.items()}
        if steps > 1:
            gradients = {name: self._add_up(name, dx) for name, dx in gradients.items()}
            done = op.Identity(op.constant([True]))
            self._outputs.append(self._publish(done, GROUP))
        scale = 1 / steps
        squares = None
        if parameters.enable_grad_norm_clip and self._updates:
            squares = sum_of_squares(op, list(gradients.values()))
            norm = sqrt(number(op, squares)) * scale
            value = op.cast(norm.value, ir.DataType.FLOAT)  # type: ignore[union-attr]
            value.shape = ir.Shape([])
            self._outputs.append(self._publish(value, NORM))
        if self._updates:
            self._update(gradients, squares, scale)

    def _add_up(self, weight: str, dx: ir.Value) -> ir.Value:
        """The gradient added to those of the passes since the last update."""
        buffer = self._input(f"{weight}{_GRADIENT}/accumulated", dx)
        buffer.shape = self._value(weight).shape
        name = self._sums[weight] = buffer.name or ""
        self._note(name, None, self._zeros(weight, dx))
        total = self._op.Add(buffer, dx)
        total.shape = buffer.shape
        self._accumulated[name] = self._publish(total, f"{name}/new")
        self._updated[name] = self._publish(self._op.zeros_like(buffer), f"{name}/zero")
        return total

    def _widened(self, value: ir.Value) -> ir.Value:
        """A value in single precision: sums and squares of gradients, and epsilon, are no numbers of half precision."""
        return self._op.cast(value, ir.DataType.FLOAT) if value.dtype in _HALF else value

    def _zeros(self, weight: str, like: ir.Value) -> np.ndarray:
        """Zeros of the shape of a weight, in the type of a value."""
        assert like.dtype is not None
        return np.zeros(self._initial[weight].shape, like.dtype.numpy())

    def _value(self, name: str) -> ir.Value:
        return next(value for value in self._graph.inputs if value.name == name)

    def _update(self, gradients: dict[str, ir.Value], squares: ir.Value | None, scale: float) -> None:
        op, name = self._op, self._parameters.training_optimizer_name
        rate = ir.Value(
            name=self._parameters.lr_params_feed_name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1])
        )
        if rate.name in self._taken:
            raise OnwardError(
                f"the model has a value called {rate.name!r} already; give the learning rate another name in "
                "TrainingParameters.lr_params_feed_name"
            )
        self._taken.add(rate.name)
        make_way(op, [rate.name or ""])
        self._graph.inputs.append(rate)
        self._users.append(rate.name or "")
        lr = checked_rate(op, rate)
        counter = COUNTERS.get(name)
        shared = self._count(STEP) if counter == STEP else None
        for weight, dx in gradients.items():
            update, p = self._updates[weight], self._value(weight)
            t = shared or (self._count(f"{counter}_{weight}") if counter is not None else op.constant(1.0))
            factor: ir.Value | float = scale
            if update.max_norm is not None and squares is not None:
                factor = GlobalNorm(update.max_norm).coefficient_of(op, squares, scale)
            assert p.dtype is not None
            wide, slots = self._widened(p), {}
            for slot, kind in update.optimizer.slots.items():
                slots[slot] = self._input(f"{MOMENTS[slot]}_{weight}", wide)
                empty = np.full_like(self._zeros(weight, wide), kind.initial)
                self._note(slots[slot].name or "", f"{MOMENTS[slot]}_{weight}", empty, kind.scale)
            new, state = update.optimizer.apply(op, wide, dx, slots, t, lr, grad_scale=factor)
            self._updated[weight] = self._publish(op.cast(new, p.dtype), f"{weight}/updated")
            for slot, value in state.items():
                self._updated[slots[slot].name or ""] = self._publish(value, f"{slots[slot].name}/updated")

    def _count(self, public: str) -> ir.Value:
        """A counter of updates, 1 at the first one."""
        counter = self._input(public)
        self._note(counter.name or "", public, np.ones(1, np.int64))
        checked = checked_step(self._op, counter)
        self._updated[counter.name or ""] = self._publish(self._op.Add(checked, 1), f"{counter.name}/updated")
        return checked

    def _evaluated(self, statistics: list[str]) -> onnx.ModelProto:
        model = self._evaluation
        switch_to_evaluation(model)
        for name in (*self._weights, *statistics):
            to_input(model.graph.initializers[name])
        return finish(model)
