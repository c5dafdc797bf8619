"""Check optimizers: public, for authors of transformations and recipes.

``check_optimizer(optim.sgd(0.1), reference)`` runs the emitted graph for some steps and compares the parameters after
each with what `reference` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx.reference import ReferenceEvaluator

from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.optim.groups import Group
from onward.optim.optimizer import Optimizer

Arrays = dict[str, np.ndarray]
# From the first parameters, the gradients of each step and the learning rate of each step to the parameters after each.
Reference = Callable[[Arrays, Sequence[Arrays], Sequence[float]], Iterable[Arrays]]

# A matrix, a vector and a scalar; one has more elements than there are steps in a small test.
SHAPES: dict[str, tuple[int, ...]] = {"layer.weight": (3, 4), "layer.bias": (4,), "scale": ()}


def check_optimizer(
    optimizer: Optimizer,
    reference: Reference,
    *,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    steps: int = 50,
    learning_rates: Sequence[float] | None = None,
    opset: int = 18,
    seed: int = 0,
    tolerance: float = 1e-9,
    runtime_tolerance: float = 2e-5,
) -> None:
    """Compare an optimizer with a reference over several steps; raises AssertionError with the numbers that differ.

    In float64 on the ONNX reference evaluator, then in float32 on onnxruntime; and where the optimizer says that it is
    elementwise, also on flat chunks that hold all parameters of a group.

    Args:
        reference: ``(parameters, gradients of each step, learning rate of each step)`` to the parameters after each.
        shapes: of the parameters, by name.
        learning_rates: one for each step; by default the optimizer's own, changing a little from step to step.
        tolerance: of float64, absolute and relative; `runtime_tolerance` of float32 likewise.
    """
    random = np.random.default_rng(seed)
    start = {name: random.normal(size=shape) for name, shape in shapes.items()}
    gradients = [{name: random.normal(size=shape) for name, shape in shapes.items()} for _ in range(steps)]
    if learning_rates is None:
        learning_rates = [optimizer.learning_rate * (1 + 0.1 * (step % 3)) for step in range(steps)]
    wanted = list(reference({name: array.copy() for name, array in start.items()}, gradients, learning_rates))
    assert len(wanted) == steps, f"the reference gave {len(wanted)} steps, not {steps}"
    runs: list[tuple[str, type, bool, float]] = [
        ("float64 on the reference evaluator", np.float64, False, tolerance),
        ("float32 on onnxruntime", np.float32, False, runtime_tolerance),
    ]
    if optimizer.elementwise:
        runs.append(("float64 on flat chunks", np.float64, True, tolerance))
    for what, dtype, flat, allowed in runs:
        got = run_optimizer(optimizer, start, gradients, learning_rates, dtype=dtype, flat=flat, opset=opset)
        for step, (parameters, expected) in enumerate(zip(got, wanted, strict=True), start=1):
            for name in shapes:
                message = f"{name} after step {step}: {what} (got first, then expected)"
                np.testing.assert_allclose(parameters[name], expected[name], allowed, allowed, err_msg=message)
                assert parameters[name].shape == expected[name].shape, message


def run_optimizer(
    optimizer: Optimizer,
    start: Arrays,
    gradients: Sequence[Arrays],
    learning_rates: Sequence[float],
    *,
    dtype: type = np.float32,
    flat: bool = False,
    opset: int = 18,
) -> Iterator[Arrays]:
    """The parameters after each step: float32 runs on onnxruntime, anything else on the reference evaluator."""
    shapes = {name: array.shape for name, array in start.items()}
    chunks = _chunks(optimizer, shapes, flat)
    model = optimizer_model(
        optimizer,
        {key: _shape(names, shapes) for key, (_, names) in chunks.items()},
        {key: group for key, (group, _) in chunks.items()},
        dtype=dtype,
        opset=opset,
    )
    run = _runner(model, dtype)
    state = {key: _join(names, start, dtype) for key, (_, names) in chunks.items()}
    for key in chunks:
        for slot, described in optimizer.slots.items():
            state[f"{key}/{slot}"] = np.full_like(_join(chunks[key][1], start, dtype), described.initial)
    for step, (grads, lr) in enumerate(zip(gradients, learning_rates, strict=True), start=1):
        feeds = {f"{key}_grad": _join(names, grads, dtype) for key, (_, names) in chunks.items()}
        feeds["step"] = np.array([step], np.int64)
        feeds["learning_rate"] = np.array([lr], dtype)
        results = run({**state, **feeds})
        state = {name: results[f"{name}_new"] for name in state}
        yield {k: v for key, (_, names) in chunks.items() for k, v in _split(state[key], names, shapes).items()}


def optimizer_model(
    optimizer: Optimizer,
    shapes: Mapping[str, tuple[int, ...]],
    groups: Mapping[str, Group] | None = None,
    *,
    dtype: type = np.float32,
    opset: int = 18,
) -> onnx.ModelProto:
    """A model that makes one step on the named parameters.

    Inputs: each parameter, ``<name>/<slot>``, ``<name>_grad``, learning_rate `[1]` and step `[1]`. Outputs: the new
    parameters and slots, with ``_new`` at the end.
    """
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="optimizer")

    def graph_input(name: str, shape: tuple[int, ...], kind: ir.DataType) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind))
        graph.inputs.append(value)
        return value

    lr = graph_input("learning_rate", (1,), kind)
    step = graph_input("step", (1,), ir.DataType.INT64)
    gradients = {name: graph_input(f"{name}_grad", shape, kind) for name, shape in shapes.items()}
    op = Builder(graph, opset)
    clipping = optimizer.global_norm
    with op:
        coefficient = None if clipping is None else clipping.coefficient(op, list(gradients.values()))
    for name, shape in shapes.items():
        group = optimizer.group_of(name) if groups is None else groups[name]
        p = graph_input(name, shape, kind)
        slots = {slot: graph_input(f"{name}/{slot}", shape, kind) for slot in optimizer.slots}
        updated, new_slots = optimizer.apply(
            op,
            p,
            gradients[name],
            slots,
            step,
            lr,
            lr_scale=group.lr_scale,
            weight_decay=group.weight_decay,
            grad_scale=coefficient,
        )
        publish(updated, f"{name}_new", graph)
        for slot, value in new_slots.items():
            publish(value, f"{name}/{slot}_new", graph)
    return finish(ir.Model(graph, ir_version=10))


def _chunks(
    optimizer: Optimizer, shapes: Mapping[str, tuple[int, ...]], flat: bool
) -> dict[str, tuple[Group, list[str]]]:
    """What one `apply` works on: each parameter by itself, or all of a group as one flat chunk."""
    if not flat:
        return {name: (optimizer.group_of(name), [name]) for name in shapes}
    parts = optimizer.partition(shapes).items()
    return {f"chunk{index}": (group, names) for index, (group, names) in enumerate(parts)}


def _shape(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    return shapes[names[0]] if len(names) == 1 else (sum(int(np.prod(shapes[name])) for name in names),)


def _join(names: Sequence[str], arrays: Arrays, dtype: type) -> np.ndarray:
    if len(names) == 1:
        return np.asarray(arrays[names[0]], dtype)
    return np.concatenate([np.ravel(arrays[name]) for name in names]).astype(dtype)


def _split(joined: np.ndarray, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    ends = np.cumsum([int(np.prod(shapes[name])) for name in names])
    parts = np.split(joined.reshape(-1), ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}


def _runner(model: onnx.ModelProto, dtype: type) -> Callable[[Mapping[str, Any]], Arrays]:
    names = [output.name for output in model.graph.output]
    needed = {value.name for value in model.graph.input}
    if dtype is np.float32:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        run: Any = session.run
    else:
        run = ReferenceEvaluator(model).run
    return lambda feeds: dict(
        zip(names, run(None, {name: array for name, array in feeds.items() if name in needed}), strict=True)
    )
