"""Compare the gradient of a real model with differences.

`onward.testing.agreement` says how. Here, training graphs are compared too, and times are taken.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

import onward
from onward.graph.finish import to_input
from onward.graph.parameters import parameters
from onward.graph.prepare import prepare
from onward.testing import check_training
from onward.testing.agreement import Array, Arrays, Loss, disagreement, relative, strength
from tests.real_models.float64 import evaluator

DIRECTIONS = 2
_FLOATING = {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


@dataclass
class Report:
    """What was found out about one model."""

    nodes: int
    operators: int
    tensors: int
    elements: int
    build_seconds: float
    forward_seconds: float = float("nan")
    gradient_seconds: float = float("nan")
    outputs_differ: float = float("nan")
    gradient_differs: float = float("nan")
    moving: int = 0  # weight tensors whose gradient is not zero
    finite: bool = True
    training: str = ""  # how training graphs differ from the gradient, if they do


def check(path: Path, feeds: Arrays, *, differences: bool = True) -> Report:
    """Build the gradient of a model file with respect to all its weights, run it, and compare it with differences."""
    model = onnx.load(path)
    outputs = [value.name for value in model.graph.output if value.type.tensor_type.elem_type in _FLOATING]
    start = time.perf_counter()
    built = onward.gradient(model, of=outputs)
    build_seconds = time.perf_counter() - start
    weights, loss_of = _weights_and_loss(path, feeds)
    report = Report(
        nodes=len([node for node in _nodes(model.graph) if node.op_type != "Constant"]),
        operators=len({node.op_type for node in _nodes(model.graph)} - {"Constant"}),
        tensors=len(weights),
        elements=sum(value.size for value in weights.values()),
        build_seconds=build_seconds,
    )
    forward = _session(model)
    expected = dict(zip([o.name for o in forward.get_outputs()], forward.run(None, feeds), strict=True))
    rng = np.random.default_rng(1)
    cotangents = {name: rng.normal(size=expected[name].shape).astype(expected[name].dtype) for name in outputs}

    session = _session(built)
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name for value in session.get_inputs()}
    given = {**feeds, **{f"{name}_grad": dy for name, dy in cotangents.items() if f"{name}_grad" in wanted}}
    found = dict(zip(names, session.run(None, given), strict=True))
    cotangents = {n: dy if f"{n}_grad" in wanted else np.ones_like(dy) for n, dy in cotangents.items()}
    report.outputs_differ = max(relative(found[name], expected[name]) for name in outputs)
    gradients = {name: found[f"{name}_grad"] for name in weights}
    report.moving = sum(bool(np.any(g)) for g in gradients.values())
    report.finite = all(bool(np.isfinite(g).all()) for g in gradients.values())
    report.forward_seconds = _seconds(lambda: forward.run(None, feeds))
    report.gradient_seconds = _seconds(lambda: session.run(None, given))
    report.training = _difference_of_training(model, feeds, outputs, list(weights))
    if differences and report.finite:
        loss = loss_of(cotangents)
        report.gradient_differs = max(
            disagreement(loss, weights, gradients, np.random.default_rng(seed)) for seed in range(DIRECTIONS)
        )
    return report


# Of the largest element of a tensor. Sums over 100,000 places in another order, and Relus that this turns on or off,
# move single elements by up to 5e-3; where they do, both gradients are equally near to differences in float64.
_TRAINING_TOLERANCE = 2e-2


def _difference_of_training(model: onnx.ModelProto, feeds: Arrays, outputs: list[str], weights: list[str]) -> str:
    stored = {tensor.name for tensor in model.graph.initializer}
    try:
        check_training(
            model,
            feeds,
            wrt=[name for name in weights if name in stored],
            of=outputs,
            layouts=["static"],
            tolerance=_TRAINING_TOLERANCE,
        )
    except (AssertionError, onward.OnwardError) as error:
        return str(error).splitlines()[0]
    return ""


def explain(path: Path, feeds: Arrays, worst: int = 10) -> list[tuple[float, str]]:
    """The disagreement of each weight tensor by itself, the worst first: for whoever looks for a bug."""
    model = onnx.load(path)
    outputs = [value.name for value in model.graph.output if value.type.tensor_type.elem_type in _FLOATING]
    session, rng = _session(onward.gradient(model, of=outputs)), np.random.default_rng(1)
    shapes = {o.name: y for o, y in zip(_session(model).get_outputs(), _session(model).run(None, feeds), strict=True)}
    cotangents = {name: rng.normal(size=shapes[name].shape).astype(shapes[name].dtype) for name in outputs}
    wanted = {value.name for value in session.get_inputs()}
    given = {**feeds, **{f"{name}_grad": dy for name, dy in cotangents.items() if f"{name}_grad" in wanted}}
    cotangents = {n: dy if f"{n}_grad" in wanted else np.ones_like(dy) for n, dy in cotangents.items()}
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))
    weights, loss_of = _weights_and_loss(path, feeds)
    loss = loss_of(cotangents)
    gradients = {name: found[f"{name}_grad"] for name in weights}
    total = np.sqrt(sum(strength(weights[name], g) ** 2 for name, g in gradients.items()))
    results = []
    for name in weights:
        one = disagreement(loss, {name: weights[name]}, {name: gradients[name]}, rng, rest=weights, total=float(total))
        results.append((one, name))
    return sorted(results, reverse=True)[:worst]


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    bodies = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*graph.node, *(node for body in bodies for node in _nodes(body))]


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # wrong shapes in files are reported in each run otherwise
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _weights_and_loss(path: Path, feeds: Arrays) -> tuple[Arrays, Callable[[Mapping[str, Array]], Loss]]:
    """The weights, and a function that makes a loss of cotangents: their product with the outputs, in float64."""
    prepared = prepare(path)
    trained = [p.value for p in parameters(prepared) if p.trainable]
    weights = {value.name or "": value.const_value.numpy() for value in trained if value.const_value is not None}
    wide = {name: x.astype(np.float64) if x.dtype == np.float32 else x for name, x in feeds.items()}

    def loss_of(cotangents: Mapping[str, Array]) -> Loss:
        for value in trained:
            to_input(value)
        prepared.graph.outputs[:] = [o for o in prepared.graph.outputs if o.name in cotangents]
        names = [output.name or "" for output in prepared.graph.outputs]
        run = evaluator(ir.to_proto(prepared))

        def loss(given: Mapping[str, Array]) -> float:
            results = run.run(None, {**wide, **given})
            return sum(float(np.sum(y * cotangents[name])) for name, y in zip(names, results, strict=True))

        return loss

    return weights, loss_of


def _seconds(function: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
