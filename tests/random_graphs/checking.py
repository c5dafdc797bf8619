"""Compare the gradient of a random program with directional differences, and its other forms with that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnxruntime.capi import onnxruntime_pybind11_state as ort

import onward
from onward.errors import UnknownShapeError
from onward.testing import run_on_reference, run_on_runtime
from tests.random_graphs import control_flow, layers, movement  # noqa: F401  they add steps
from tests.random_graphs.operators import STEPS
from tests.random_graphs.program import Draw, Form, Program, RejectedError, Tensor, build, converted
from tests.random_graphs.trained import TRAINED

Feeds = dict[str, np.ndarray]
STEP = 1e-4  # of differences

# What onnxruntime says where it has no kernel for a type or an opset.
NO_KERNEL = (ort.NotImplemented, ort.Fail, ort.InvalidGraph, ort.InvalidArgument)


def write(
    draw: Draw, steps: Sequence[str] | None = None, longest: int = 6, smallest: int = 1
) -> tuple[Program, list[Tensor]]:
    """A program, and what it returns: its last value and another one."""
    program = Program(draw, seed=draw(0, 2**31 - 1))
    for _ in range(program.integer(1, 2)):
        shape = [program.integer(smallest, 4) for _ in range(program.integer(0, 4))]
        program.values.append(program.leaf([min(size, 3) if len(shape) > 3 else size for size in shape]))
    names = sorted(STEPS) if steps is None else list(steps)
    for _ in range(program.integer(1, longest)):
        try:
            {**STEPS, **TRAINED}[program.choice(names)](program)
        except RejectedError:
            continue
    made = [value for value in program.values if value not in program.leaves]
    if not made:
        raise RejectedError
    return program, list(dict.fromkeys([made[-1], made[program.integer(0, len(made) - 1)]]))


def cotangents(outputs: Sequence[Tensor], seed: int) -> Feeds:
    """Of an output of one element it is 1, because that is what it is where the size is known to be 1."""
    random = np.random.default_rng([seed, 1])
    drawn = {f"{output.name}_grad": np.asarray(random.uniform(-1, 1, output.shape)) for output in outputs}
    return {name: np.ones_like(array) if array.size == 1 else array for name, array in drawn.items()}


def check_differences(program: Program, outputs: Sequence[Tensor]) -> Feeds:
    """The gradient in float64, compared with differences; RejectedError where these say nothing, as at a kink."""
    model = build(program, outputs, Form())
    names = [leaf.name for leaf in program.leaves]
    feeds = {leaf.name: leaf.array for leaf in program.leaves}
    first = onward.gradient(model, wrt=names, of=[output.name for output in outputs])
    weights = cotangents(outputs, program.seed)
    results = run_on_reference(first, {**feeds, **weights})
    gradients = {name: results[f"{name}_grad"] for name in names}
    for leaf in program.leaves:
        assert gradients[leaf.name].shape == leaf.shape, f"{leaf.name}: {gradients[leaf.name].shape}, not {leaf.shape}"
        assert gradients[leaf.name].dtype == np.float64
    _compare(model, feeds, weights, gradients, program.seed)
    return gradients


def check_second_order(program: Program, outputs: Sequence[Tensor]) -> None:
    """The gradient of the gradient, compared with differences of the gradient."""
    model = build(program, outputs, Form())
    names = [leaf.name for leaf in program.leaves]
    weights = cotangents(outputs, program.seed)
    feeds = {leaf.name: leaf.array for leaf in program.leaves}
    first = onward.gradient(model, wrt=names, of=[output.name for output in outputs])
    slopes = [Tensor(f"{name}_grad", feeds[name]) for name in names]
    weights2 = cotangents(slopes, program.seed + 1)
    second = onward.gradient(first, wrt=names, of=[slope.name for slope in slopes])
    results = run_on_reference(second, {**feeds, **weights, **weights2})
    _compare(first, feeds, weights2, {name: results[f"{name}_grad_1"] for name in names}, program.seed, weights)


def _compare(
    model: onnx.ModelProto, feeds: Feeds, weights: Feeds, gradients: Feeds, seed: int, fixed: Feeds | None = None
) -> None:
    """The slope of the weighted sum of outputs in one direction."""
    random = np.random.default_rng([seed, 2])
    direction = {name: random.uniform(-1, 1, array.shape) for name, array in feeds.items()}

    def moved(step: float) -> float:
        point = {name: np.asarray(array + step * direction[name]) for name, array in feeds.items()}
        values = run_on_reference(model, {**point, **(fixed or {})})
        return float(sum(np.sum(values[name.removesuffix("_grad")] * weight) for name, weight in weights.items()))

    coarse, fine = ((moved(step) - moved(-step)) / (2 * step) for step in (STEP, STEP / 2))
    expected = (4 * fine - coarse) / 3
    parts = {name: gradient * direction[name] for name, gradient in gradients.items()}
    got = float(sum(np.sum(part) for part in parts.values()))
    size = 1 + sum(float(np.abs(part).sum()) for part in parts.values() if np.isfinite(part).all())
    if not math.isfinite(expected) or abs(coarse - fine) > 1e-5 * (size + abs(expected)):
        raise RejectedError
    assert math.isclose(got, expected, abs_tol=1e-6 * size), f"gradient {got}, differences {expected}"


def check_form(program: Program, outputs: Sequence[Tensor], gradients: Feeds, form: Form) -> str:
    """The same gradient from another form of the model, in float32 on onnxruntime."""
    model = build(program, outputs, form)
    names = [leaf.name for leaf in program.leaves]
    feeds = {tensor.name: converted(tensor.array, form.dtype) for tensor in (*program.leaves, *program.constants)}
    try:
        forward = run_on_runtime(model, feeds)
    except NO_KERNEL:
        return "no kernel"
    for output in outputs:
        shape = forward[output.name].shape
        if shape != output.shape or not np.allclose(forward[output.name], output.array, rtol=1e-3, atol=1e-3):
            return "another value"  # at a jump, or onnxruntime and the reference evaluator differ
    try:
        first = onward.gradient(model, wrt=names, of=[output.name for output in outputs])
    except UnknownShapeError:
        if form.fed:
            return "unknown rank"  # a shape that is computed at run time may have any
        raise
    onnx.checker.check_model(first)
    weights = {name: array.astype(form.dtype) for name, array in cotangents(outputs, program.seed).items()}
    try:
        results = run_on_runtime(first, {**feeds, **weights})
    except ort.NotImplemented as error:
        return f"no kernel for the gradient: {error}"
    for name in names:
        got, wanted = results[f"{name}_grad"], gradients[name]
        assert got.dtype == form.dtype
        assert got.shape == wanted.shape, f"{name}: shape {got.shape}, not {wanted.shape}"
        size = 1 + float(np.abs(wanted).max(initial=0))
        np.testing.assert_allclose(got, wanted, rtol=5e-3, atol=5e-3 * size, err_msg=name)
    return "checked"


def describe(program: Program, outputs: Sequence[Tensor], form: Any = None) -> str:
    """The program as text, for the report of a failure."""
    return onnx.printer.to_text(build(program, outputs, form or Form()))
