"""Compare the gradient of a node case with differences, along random directions.

How a case is evaluated is chosen by itself, the first of these that works:

1. in float64 on the ONNX reference evaluator, all floating types of the case made float64;
2. the same on onnxruntime, where it has the kernels;
3. in float32 on onnxruntime;
4. in float32 on the reference evaluator.

"Works" means that the forward model gives the outputs that the case wants and that the differences agree with
themselves: the same for two steps and for both sides. Where they do not, the case's own inputs lie on a kink, and
they are moved a little. What decides never looks at the gradient, so that a wrong one cannot talk itself out.
At the case's own inputs the gradient must be finite in any case, and where onnxruntime runs the forward model in the
types of the case, it must run the gradient too and give the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onward
from onward.errors import InvalidModelError
from onward.testing.rules import Erf, Gelu
from tests.conformance.cases import FLOATING, Case

Feeds = dict[str, np.ndarray]
Runner = Callable[[Feeds], Feeds]


class FailureError(Exception):
    """Why the gradient of a case is not proved."""


class UnsuitableError(Exception):
    """Why one way of evaluating a case cannot judge its gradient."""


@dataclass(frozen=True)
class Way:
    """One way to evaluate a case: in which precision, on what, with which steps and tolerances."""

    name: str
    dtype: type
    start: Callable[[onnx.ModelProto], Runner]
    steps: tuple[float, ...]  # the first for which the differences agree with themselves is taken
    relative_step: float  # inputs larger than its inverse are moved by as much more
    tolerance: float
    jitter: float


def check(case: Case) -> str:
    """Prove the gradient of a case, and say in which way; raises FailureError."""
    reasons = []
    for way in WAYS:
        try:
            return _check(case, way)
        except UnsuitableError as reason:
            reasons.append(f"{way.name}: {reason}")
    raise FailureError("no reliable differences: " + "; ".join(reasons))


# Operators that the reference evaluator gets wrong where a gradient needs them.
WRONG_ON_REFERENCE = {
    "LpNormalization": "it forgets the absolute value for p = 1",
    "MaxPool": "its indices do not count channels",
}


def _check(case: Case, way: Way) -> str:
    if way.start is _on_reference and case.operator in WRONG_ON_REFERENCE:
        raise UnsuitableError(WRONG_ON_REFERENCE[case.operator])
    forward, feeds, cotangents = _forward(case, way)
    model = _with_type(case, way.dtype)
    try:
        differentiated = onward.gradient(model, wrt=case.wrt, of=case.of)
    except InvalidModelError as error:
        if way.dtype == np.float64:
            raise UnsuitableError("the operator is not defined for it") from error
        raise FailureError(str(error)) from error
    except Exception as error:
        raise FailureError(f"{type(error).__name__}: {error}") from error
    try:
        backward = way.start(differentiated)
        own = _gradient(backward, case, feeds, cotangents)
        try:
            _compare(own, _differences(forward, case, feeds, cotangents, way), way)
            moved = ""
        except UnsuitableError:
            point = _moved(case, feeds, way)
            there = _gradient(backward, case, point, cotangents)
            _compare(there, _differences(forward, case, point, cotangents, way), way)
            moved = ", moved"
    except (FailureError, UnsuitableError):
        raise
    except Exception as error:
        if way.start is _on_reference or way.dtype == np.float64:
            raise UnsuitableError(f"does not run the gradient ({type(error).__name__})") from error
        raise FailureError(f"onnxruntime runs the model but not its gradient: {error}") from error
    _check_on_runtime(case, own, cotangents)
    return way.name + moved


# Evaluation -----------------------------------------------------------------------------------------------------


def _on_reference(model: onnx.ModelProto) -> Runner:
    evaluator = ReferenceEvaluator(model, new_ops=[Erf, Gelu])
    names = [output.name for output in model.graph.output]
    needed = {value.name for value in model.graph.input}

    def run(feeds: Feeds) -> Feeds:
        with np.errstate(all="ignore"):
            results = evaluator.run(None, {name: array for name, array in feeds.items() if name in needed})
        return dict(zip(names, results, strict=True))

    return run


def _on_runtime(model: onnx.ModelProto) -> Runner:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    needed = {value.name for value in session.get_inputs()}
    return lambda feeds: dict(
        zip(names, session.run(None, {name: array for name, array in feeds.items() if name in needed}), strict=True)
    )


WAYS = (
    Way("float64, reference", np.float64, _on_reference, (1e-5, 1e-6), 1e-4, tolerance=1e-4, jitter=1e-2),
    Way("float64, onnxruntime", np.float64, _on_runtime, (1e-5, 1e-6), 1e-4, tolerance=1e-4, jitter=1e-2),
    Way("float32, onnxruntime", np.float32, _on_runtime, (1e-2, 2e-3), 1e-1, tolerance=5e-2, jitter=5e-2),
    Way("float32, reference", np.float32, _on_reference, (1e-2, 2e-3), 1e-1, tolerance=5e-2, jitter=5e-2),
)


def _forward(case: Case, way: Way) -> tuple[Runner, Feeds, Feeds]:
    """What runs the forward model, verified to give what the case wants, its inputs, and random cotangents."""
    feeds = {name: value for name, value in case.inputs.items() if value is not None}
    feeds.update({name: np.asarray(feeds[name].astype(way.dtype)) for name in case.wrt})
    try:
        run = way.start(_with_type(case, way.dtype))
        results = run(feeds)
    except Exception as error:
        raise UnsuitableError(f"does not run ({type(error).__name__})") from error
    if any(np.asarray(results[name]).dtype != way.dtype for name in case.of):
        raise UnsuitableError("the outputs have another type")
    if not _as_wanted(case, results):
        raise UnsuitableError("the outputs are not what the case wants")
    random = np.random.default_rng(0)
    cotangents = {}
    for name in case.of:
        drawn = np.asarray(random.normal(size=np.shape(results[name])))
        cotangents[name] = np.where(_is_ordinary(results[name]), drawn, 0).astype(way.dtype)
    return run, feeds, cotangents


def _as_wanted(case: Case, results: Feeds) -> bool:
    for name in case.of:
        wanted, got = np.asarray(case.outputs[name]), np.asarray(results[name])
        coarse = 1e-2 if wanted.dtype.itemsize < 4 else 1e-3
        with np.errstate(all="ignore"):
            pair = (got.astype(np.float64), wanted.astype(np.float64))
            if got.shape != wanted.shape or not np.allclose(*pair, rtol=coarse, atol=coarse, equal_nan=True):
                return False
    return True


def _is_ordinary(array: np.ndarray) -> np.ndarray:
    """Infinities, and the huge numbers that stand for them in masks, have no derivative: their cotangent is zero."""
    with np.errstate(all="ignore"):
        return np.abs(array.astype(np.float64)) < 1e15


def _with_type(case: Case, wanted: type) -> onnx.ModelProto:
    """The model with all its floating types replaced by one, except in settings."""
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
    copy = onnx.ModelProto()
    copy.CopyFrom(case.model)
    for value in (*copy.graph.input, *copy.graph.output, *copy.graph.value_info):
        if value.name not in case.settings:
            _retype(value.type, dtype)
    _retype_nodes(copy.graph, dtype)
    return copy


def _retype(given: onnx.TypeProto, dtype: int) -> None:
    kind = given.WhichOneof("value")
    if kind == "tensor_type" and given.tensor_type.elem_type in FLOATING:
        given.tensor_type.elem_type = dtype
    elif kind in ("sequence_type", "optional_type"):
        _retype(getattr(given, kind).elem_type, dtype)


def _retype_nodes(graph: onnx.GraphProto, dtype: int) -> None:
    for tensor in graph.initializer:
        _retype_tensor(tensor, dtype)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in FLOATING:
                attribute.i = dtype
            elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                numbers = np.array(attribute.f if attribute.name == "value_float" else list(attribute.floats))
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(numbers.astype(np.float32))))
            if attribute.type == onnx.AttributeProto.TENSOR:
                _retype_tensor(attribute.t, dtype)
            for inner in (attribute.g, *attribute.graphs):
                for value in (*inner.input, *inner.output, *inner.value_info):
                    _retype(value.type, dtype)
                _retype_nodes(inner, dtype)


def _retype_tensor(tensor: TensorProto, dtype: int) -> None:
    if tensor.data_type in FLOATING:
        array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(dtype))
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


# Gradients and differences --------------------------------------------------------------------------------------


def _gradient(run: Runner, case: Case, feeds: Feeds, cotangents: Feeds) -> Feeds:
    results = run({**feeds, **{f"{name}_grad": array for name, array in cotangents.items()}})
    grads = {name: np.asarray(results[f"{name}_grad"]) for name in case.wrt}
    for name, grad in grads.items():
        if grad.shape != feeds[name].shape:
            raise FailureError(f"the gradient of {name} has shape {grad.shape}, not {feeds[name].shape}")
        if not np.all(np.isfinite(grad)):
            raise FailureError(f"the gradient of {name} is not finite")
    return grads


def _value(results: Feeds, cotangents: Feeds) -> float:
    """<outputs, cotangents>; an output of one element is differentiated as it is."""
    total = 0.0
    for name, cotangent in cotangents.items():
        if np.shape(results[name]) != cotangent.shape:
            raise UnsuitableError("the number of elements jumps")
        weights = np.ones_like(cotangent) if cotangent.size == 1 else cotangent
        products = np.where(weights == 0, 0, np.asarray(results[name], np.float64)) * weights
        total += float(np.sum(products))
    return total


def _differences(
    run: Runner, case: Case, point: Feeds, cotangents: Feeds, way: Way
) -> list[tuple[str, np.ndarray, float]]:
    """(input, direction, derivative along it), two random directions for each input; raises where it has none."""
    random = np.random.default_rng(1)
    return [
        (name, direction, _difference(run, name, direction, point, cotangents, way))
        for name in case.wrt
        for direction in np.asarray(random.normal(size=(2, *point[name].shape)))
    ]


def _difference(run: Runner, name: str, direction: np.ndarray, point: Feeds, cotangents: Feeds, way: Way) -> float:
    x = point[name]
    size = math.sqrt(np.mean(np.square(np.where(_is_ordinary(x), x, 0), dtype=np.float64))) if x.size else 0.0

    def at(distance: float) -> float:
        return _value(run({**point, name: np.asarray((x + distance * direction).astype(way.dtype))}), cotangents)

    for number in way.steps:
        step = number * max(1.0, way.relative_step * size)
        left2, left, here, right, right2 = (at(k * step) for k in (-2, -1, 0, 1, 2))
        narrow, wide = (right - left) / (2 * step), (right2 - left2) / (4 * step)
        scale = max(abs(narrow), abs(wide), 1e-2)
        smooth = abs(right - 2 * here + left) <= 0.1 * scale * step
        if smooth and abs(narrow - wide) <= way.tolerance * scale:
            return (4 * narrow - wide) / 3
    raise UnsuitableError("the inputs lie on a kink, or the differences depend on the step")


def _compare(grads: Feeds, wanted: list[tuple[str, np.ndarray, float]], way: Way) -> None:
    for name, direction, difference in wanted:
        terms = grads[name].astype(np.float64) * direction
        got = float(np.sum(terms))
        size = max(abs(difference), float(np.sqrt(np.sum(np.square(terms)))), 1e-2)
        if abs(got - difference) > way.tolerance * size:
            raise FailureError(f"along {name}, gradient {got:.6g}, differences {difference:.6g} ({way.name})")


def _moved(case: Case, feeds: Feeds, way: Way) -> Feeds:
    random = np.random.default_rng(2)
    moved = dict(feeds)
    for name in case.wrt:
        shape = feeds[name].shape
        amount = random.uniform(0.5, 1, shape) * random.choice([-1, 1], shape) * way.jitter
        moved[name] = np.asarray((feeds[name] + amount).astype(way.dtype))
    return moved


def _check_on_runtime(case: Case, wanted: Feeds, cotangents: Feeds) -> None:
    """onnxruntime runs the gradient in the case's own types wherever it gets the model itself right."""
    feeds = {name: value for name, value in case.inputs.items() if value is not None}
    try:
        results = _on_runtime(case.model)(feeds)
    except Exception:
        return
    if not _as_wanted(case, results):
        return
    own = {f"{name}_grad": array.astype(np.asarray(results[name]).dtype) for name, array in cotangents.items()}
    try:
        got = _on_runtime(onward.gradient(case.model, wrt=case.wrt, of=case.of))({**feeds, **own})
    except Exception as error:
        raise FailureError(f"onnxruntime runs the model but not its gradient: {error}") from error
    for name, array in wanted.items():
        grad = np.asarray(got[f"{name}_grad"])
        tolerance = 3e-2 if grad.dtype.itemsize < 4 else 2e-3
        size = max(float(np.max(np.abs(array), initial=0)), 1e-2)
        difference = float(np.max(np.abs(grad.astype(np.float64) - array), initial=0))
        if not difference <= tolerance * size:
            raise FailureError(f"the gradient of {name} on onnxruntime is off by {difference:.3g} of {size:.3g}")
