"""Compare the gradient of a whole model with differences: public, for whoever wants to trust a gradient.

The gradient is what onnxruntime computes in the model's own type. The differences are those of the model in float64,
along random directions of all its weights at once. A direction goes far in a weight whose gradient is small: every
weight tensor has about the same share in the directional derivative, so that a wrong gradient of one is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.autodiff.gradient import gradient
from onward.errors import OnwardError
from onward.graph.cleanup import remove_unused
from onward.graph.finish import to_input
from onward.graph.nodes import outer_values
from onward.graph.parameters import parameters
from onward.graph.prepare import ModelLike, prepare
from onward.graph.shapes import floating_origin
from onward.testing.float64 import evaluator
from onward.testing.running import run_on_runtime

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Loss = Callable[[Mapping[str, Array]], float]

STEPS = (1e-6, 1e-7, 1e-5)  # the largest change of a weight, relative to the size of its tensor's elements
# A tensor with a smaller share than this in what all weights together do is not stretched further: float32 would show.
LEAST_SHARE = 1e-4
# Of a directional derivative: gradients have 24 bits, and sums over large tensors lose some of them.
TOLERANCE = 5e-3


@dataclass(frozen=True)
class Agreement:
    """How far a gradient is from differences, relative to what is expected of a random direction.

    Attributes:
        gradient: by all weights together, the worst of several directions.
        outputs: between those of the model in its own type and in float64, relative to the largest.
        tensors: by each weight tensor alone, where that was asked for.
        moving: how many weight tensors have a gradient that is not zero, of `count`.
    """

    gradient: float
    outputs: float
    tensors: dict[str, float]
    moving: int
    count: int

    @property
    def ok(self) -> bool:
        return self.gradient <= TOLERANCE and all(value <= TOLERANCE for value in self.tensors.values())


def compare(model: ModelLike, feeds: Arrays, *, directions: int = 2, each: bool = False, seed: int = 0) -> Agreement:
    """Compare the gradients of all weights of a model, of a random sum of its outputs, with differences.

    Args:
        model: a file or a model; it draws no random numbers.
        feeds: an array for each of its inputs.
        directions: along how many random directions of all weights.
        each: whether each weight tensor is compared by itself, too.
        seed: decides the directions.
    """
    prepared = prepare(model)
    # Of a label or a dictionary, the scores that it is made of.
    origins = [floating_origin(value) for value in prepared.graph.outputs]
    outputs = list(dict.fromkeys(value.name or "" for value in origins if value is not None))
    if not outputs:
        raise OnwardError("no output of the model is a tensor of floating point: there is nothing to differentiate")
    random = np.random.default_rng(seed)
    built = gradient(model, of=outputs)
    wanted = {value.name for value in built.graph.input}
    forward = _forward(prepared, outputs, feeds)
    cotangents = {name: _drawn(random, forward[name]) for name in outputs}
    given = {f"{name}_grad": dy for name, dy in cotangents.items() if f"{name}_grad" in wanted}
    cotangents = {name: dy if f"{name}_grad" in given else np.ones_like(dy) for name, dy in cotangents.items()}
    found = run_on_runtime(built, {**feeds, **given})
    weights, loss, wide = _in_float64(prepared, feeds, cotangents)
    gradients = {name: found[f"{name}_grad"] for name in weights}
    if not all(np.isfinite(g).all() for g in gradients.values()):
        return Agreement(float("inf"), float("nan"), {}, 0, len(weights))
    worst = max(disagreement(loss, weights, gradients, np.random.default_rng([seed, i])) for i in range(directions))
    alone = _alone(loss, weights, gradients, random) if each else {}
    differ = max(relative(found[name], wide[name]) for name in outputs)
    moving = sum(bool(np.any(g)) for g in gradients.values())
    return Agreement(worst, differ, alone, moving, len(weights))


def _drawn(random: np.random.Generator, like: Array) -> Array:
    return np.asarray(random.normal(size=like.shape)).astype(like.dtype)


def _forward(prepared: ir.Model, outputs: list[str], feeds: Arrays) -> Arrays:
    """The outputs in the model's own type."""
    values = outer_values(prepared.graph)
    prepared.graph.outputs[:] = [values[name] for name in outputs]
    remove_unused(prepared)
    return run_on_runtime(ir.to_proto(prepared.clone()), feeds)


def _in_float64(prepared: ir.Model, feeds: Arrays, cotangents: Arrays) -> tuple[Arrays, Loss, Arrays]:
    """The weights, their loss (the product of cotangents with the outputs), and the outputs, all in float64."""
    trained = [p.value for p in parameters(prepared) if p.trainable]
    weights = {value.name or "": value.const_value.numpy() for value in trained if value.const_value is not None}
    wide = {name: x.astype(np.float64) if x.dtype.kind == "f" else x for name, x in feeds.items()}
    for value in trained:
        to_input(value)
    names = [output.name or "" for output in prepared.graph.outputs]
    run = evaluator(ir.to_proto(prepared))

    def outputs(given: Mapping[str, Array]) -> Arrays:
        return dict(zip(names, run.run(None, {**wide, **given}), strict=True))

    def loss(given: Mapping[str, Array]) -> float:
        return sum(float(np.sum(y * cotangents[name])) for name, y in outputs(given).items())

    return weights, loss, outputs({name: w.astype(np.float64) for name, w in weights.items()})


def strength(weight: Array, gradient: Array) -> float:
    """How much the loss changes when every element of a weight changes by its typical size."""
    return _typical(weight) * float(np.linalg.norm(gradient.astype(np.float64)))


def _typical(weight: Array) -> float:
    return float(np.sqrt(np.mean(np.square(weight, dtype=np.float64)))) or 1.0


def _alone(loss: Loss, weights: Arrays, gradients: Arrays, random: np.random.Generator) -> dict[str, float]:
    total = float(np.sqrt(sum(strength(weights[name], g) ** 2 for name, g in gradients.items())))
    return {
        name: disagreement(loss, {name: weights[name]}, {name: gradients[name]}, random, rest=weights, total=total)
        for name in weights
    }


def disagreement(
    loss: Loss,
    weights: Arrays,
    gradients: Arrays,
    random: np.random.Generator,
    rest: Arrays | None = None,
    total: float | None = None,
) -> float:
    """|directional derivative by the gradient - by differences|, relative to what is expected of a random direction."""
    strengths = {name: strength(weights[name], gradients[name]) for name in weights}
    total = float(np.sqrt(sum(s**2 for s in strengths.values()))) if total is None else total
    reaches = {name: 1 / max(s, LEAST_SHARE * total, 1e-300) for name, s in strengths.items()}
    directions = {
        name: random.normal(size=w.shape) * _typical(w) * reaches[name] / max(reaches.values())
        for name, w in weights.items()
    }
    products = {name: gradients[name].astype(np.float64) * directions[name] for name in weights}
    by_gradient = sum(float(p.sum()) for p in products.values())
    size = float(np.sqrt(sum(float(np.square(p).sum()) for p in products.values()))) or 1.0
    wide = {name: w.astype(np.float64) for name, w in (rest or weights).items()}
    best = float("inf")
    for step in STEPS:
        ahead, behind = (
            loss({**wide, **{name: wide[name] + sign * step * d for name, d in directions.items()}}) for sign in (1, -1)
        )
        best = min(best, abs((ahead - behind) / (2 * step) - by_gradient) / size)
        if best < TOLERANCE / 10:
            break
    return best


def relative(got: Array, expected: Array) -> float:
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    return float(np.abs(got.astype(np.float64) - expected).max(initial=0.0)) / scale
