"""Check gradient rules: public, for authors of rules.

``check_vjp("Softmax", [x], axis=-1)`` compares the rule with central differences in float64 on the ONNX reference
evaluator, the same for second derivatives, then float32 on onnxruntime with static, symbolic and unknown dimensions,
then training graphs with the gradient.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onward.autodiff.gradient import gradient
from onward.testing import recurrent
from onward.testing.reference import ConvTranspose, GatherElements, GlobalLpPool, GlobalMaxPool, Loop, Pad
from onward.testing.running import Feeds, floating_outputs, run_on_runtime
from onward.testing.training import check_training

# The step of central differences: its square bounds their error, rounding limits it from below.
_STEPS: dict[Any, float] = {np.float64: 1e-4, np.float32: 1e-2}


def check_vjp(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    *,
    opset: int = 18,
    constants: Collection[int] = (),
    wrt: Collection[int] | None = None,
    of: Collection[int] | None = None,
    outputs: int | Sequence[bool] = 1,
    second_order: bool = True,
    on_runtime: bool = True,
    dtype: type = np.float64,
    tolerance: float = 1e-6,
    runtime_tolerance: float = 2e-3,
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]] | None = None,
    training: bool = True,
    domain: str = "",
    **attributes: Any,
) -> None:
    """Check the rule of one operator on one set of inputs; raises AssertionError with the numbers that differ.

    Args:
        op_type: the operator; `attributes` are its attributes.
        inputs: one array for each input, None for an optional input left out. Floating arrays are differentiated.
        constants: indices of inputs that are stored in the model instead of being fed.
        wrt: indices of the inputs to differentiate with respect to; all floating ones by default.
        of: indices of the outputs to differentiate; all floating ones by default.
        outputs: how many outputs the node has, or for each whether it is there.
        second_order: also compare the gradient of the gradient. Turn off where the function is not smooth enough.
        on_runtime: also run on onnxruntime; turn off where it has no kernel, and say so beside.
        dtype: of the comparison with differences; float32 for operators that the standard restricts to it.
        tolerance: of that comparison, absolute and relative.
        runtime_tolerance: of float32 on onnxruntime against float64.
        run: what runs the float64 models; the reference evaluator by default.
        training: also compare training graphs with the gradient; turn off for operators that draw random numbers.
    """

    def build(dtype: type, dims: str) -> tuple[onnx.ModelProto, Feeds]:
        imports = {"": opset, domain: opset if domain == "" else 1}
        return _single_node_model(op_type, domain, inputs, outputs, attributes, imports, constants, dtype, dims)

    names = [f"x{i}" for i, x in enumerate(inputs) if _is_float(x) and (wrt is None or i in wrt)]
    model, feeds = build(dtype, "static")
    results = [f"y{i}" for i in of] if of is not None else floating_outputs(model)
    wanted, cotangents = _compare_with_differences(
        model,
        feeds,
        wrt=names,
        of=results,
        second_order=second_order,
        tolerance=tolerance,
        step=_STEPS[dtype],
        run=run or run_on_reference,
    )
    cotangents = {name: array.astype(np.float32) for name, array in cotangents.items()}
    for dims in ("static", "symbolic", "unknown") if on_runtime else ():
        model32, feeds32 = build(np.float32, dims)
        got = run_on_runtime(gradient(model32, wrt=names, of=results), {**feeds32, **cotangents})
        _assert_close(got, wanted, runtime_tolerance, f"float32 on onnxruntime, {dims} dimensions")
    if on_runtime and training:
        model32, feeds32 = build(np.float32, "static")
        settings = [name for name in feeds32 if name not in names]
        check_training(model32, feeds32, wrt=names, of=results, constants=settings)


def check_gradient(
    model: onnx.ModelProto,
    feeds: Feeds,
    *,
    wrt: Sequence[str],
    of: Sequence[str] | None = None,
    second_order: bool = True,
    tolerance: float = 1e-6,
    step: float = _STEPS[np.float64],
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]] | None = None,
) -> None:
    """Compare `onward.gradient` of a float64 model with central differences, and the gradient of that in turn."""
    outputs = list(of) if of is not None else floating_outputs(model)
    _compare_with_differences(
        model,
        feeds,
        wrt=wrt,
        of=outputs,
        second_order=second_order,
        tolerance=tolerance,
        step=step,
        run=run or run_on_reference,
    )


def _compare_with_differences(
    model: onnx.ModelProto,
    feeds: Feeds,
    *,
    wrt: Sequence[str],
    of: Sequence[str],
    second_order: bool,
    tolerance: float,
    step: float,
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]],
) -> tuple[Feeds, Feeds]:
    """The comparison of `check_gradient`; returns the gradients that it has found right, and their cotangents."""
    first = gradient(model, wrt=wrt, of=of)
    check_model(first)
    forward = run(model, feeds)
    weights = _cotangents(first, model, forward, seed=0)
    # An output of one element has cotangent 1 where its shape is known, so also where it is not.
    cotangents = {f"{name}_grad": np.ones_like(forward[name]) for name in of} | weights
    grads = [f"{name}_grad" for name in wrt]
    got = {name: array for name, array in run(first, {**feeds, **weights}).items() if name in grads}
    wanted = _differences(model, feeds, wrt, _weighted_sum(of, weights), run, step)
    _assert_close(got, wanted, tolerance, "first derivative")
    if not second_order:
        return got, cotangents
    second = gradient(first, wrt=wrt, of=grads)
    check_model(second)
    weights2 = _cotangents(second, first, got, seed=1)
    results = run(second, {**feeds, **weights, **weights2})
    got2 = {f"{name}_grad": results[f"{name}_grad_1"] for name in wrt}
    wanted2 = _differences(first, {**feeds, **weights}, wrt, _weighted_sum(grads, weights2), run, step)
    _assert_close(got2, wanted2, 10 * tolerance, "second derivative")
    return got, cotangents


def check_model(model: onnx.ModelProto) -> None:
    """onnx's full check, where it is possible: it refuses outputs of unknown rank, which onnxruntime takes."""
    if all(output.type.tensor_type.HasField("shape") for output in model.graph.output):
        onnx.checker.check_model(model, full_check=True)


class Erf(OpRun):
    """The reference evaluator's own Erf and Gelu round to float32, too coarse for differences."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype),)


class Gelu(OpRun):
    """See Erf."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
        if approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
        return ((0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))).astype(x.dtype),)


_OPERATORS: list[type[OpRun]] = [
    *(ConvTranspose, Erf, GatherElements, Gelu, GlobalLpPool, GlobalMaxPool, Loop, Pad),
    *(recurrent.GRU, recurrent.LSTM, recurrent.RNN, recurrent.Scan),
]


def run_on_reference(model: onnx.ModelProto, feeds: Feeds) -> dict[str, np.ndarray]:
    """Run a model on the ONNX reference evaluator."""
    names = [output.name for output in model.graph.output]
    needed = {value.name for value in model.graph.input}
    with np.errstate(all="ignore"):
        results = _evaluator(model.SerializeToString()).run(None, {k: v for k, v in feeds.items() if k in needed})
    return dict(zip(names, results, strict=True))


# Differences run one model many times, and reading it takes longer than running a small one.
@functools.lru_cache(maxsize=4)
def _evaluator(model: bytes) -> ReferenceEvaluator:
    return ReferenceEvaluator(onnx.load_from_string(model), new_ops=_OPERATORS)


def _single_node_model(
    op_type: str,
    domain: str,
    inputs: Sequence[np.ndarray | None],
    outputs: int | Sequence[bool],
    attributes: Mapping[str, Any],
    imports: Mapping[str, int],
    constants: Collection[int],
    dtype: type,
    dims: str,
) -> tuple[onnx.ModelProto, Feeds]:
    present = [True] * outputs if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(
        op_type,
        [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)],
        [f"y{i}" if there else "" for i, there in enumerate(present)],
        name="forward",
        domain=domain,
        **attributes,
    )
    feeds: Feeds = {}
    graph_inputs, initializers = [], []
    for i, x in enumerate(inputs):
        if x is None:
            continue
        array = x.astype(dtype) if _is_float(x) else np.asarray(x)
        if i in constants:
            initializers.append(numpy_helper.from_array(array, f"x{i}"))
        else:
            feeds[f"x{i}"] = array
            graph_inputs.append(_value_info(f"x{i}", array, dims))
    graph_outputs = [
        helper.make_tensor_value_info(f"y{i}", TensorProto.UNDEFINED, None) for i, there in enumerate(present) if there
    ]
    graph = helper.make_graph([node], "check_vjp", graph_inputs, graph_outputs, initializers)
    opset_imports = [helper.make_opsetid(name, version) for name, version in imports.items()]
    model = helper.make_model(graph, opset_imports=opset_imports, ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    found = {value.name: value for value in (*inferred.graph.output, *inferred.graph.value_info)}
    for output in model.graph.output:
        output.CopyFrom(found[output.name])
    return model, feeds


def _value_info(name: str, array: np.ndarray, dims: str) -> onnx.ValueInfoProto:
    shape: list[int | str | None] = list(array.shape)
    if dims == "symbolic":
        shape = [f"{name}_{axis}" for axis in range(array.ndim)]
    elif dims == "unknown":
        shape = [None] * array.ndim
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _is_float(x: np.ndarray | None) -> bool:
    return x is not None and np.issubdtype(np.asarray(x).dtype, np.floating)


def _cotangents(differentiated: onnx.ModelProto, model: onnx.ModelProto, results: Feeds, seed: int) -> Feeds:
    """A random cotangent for each new input of a gradient model."""
    known = {value.name for value in model.graph.input}
    new = [value.name for value in differentiated.graph.input if value.name not in known]
    random = np.random.default_rng(seed)
    primals = {name: results[name[: -len("_grad")]] for name in new}
    return {name: random.normal(size=primal.shape).astype(primal.dtype) for name, primal in primals.items()}


def _weighted_sum(outputs: Sequence[str], weights: Feeds) -> Callable[[Mapping[str, np.ndarray]], float]:
    """<outputs, cotangents> as a number; an output of one element has cotangent 1."""
    return lambda results: float(
        sum(np.sum(results[name] * weights.get(f"{name}_grad", 1.0), dtype=np.float64) for name in outputs)
    )


def _differences(
    model: onnx.ModelProto,
    feeds: Feeds,
    wrt: Sequence[str],
    scalar: Callable[[Mapping[str, np.ndarray]], float],
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]],
    step: float,
) -> Feeds:
    """Central differences of `scalar` of the outputs with respect to every element of the named values."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    result: Feeds = {}
    for name in wrt:
        base = feeds[name] if name in feeds else numpy_helper.to_array(weights[name])
        grad = np.zeros(base.shape)
        for index in np.ndindex(base.shape):
            sides = []
            for sign in (1, -1):
                moved = base.copy()
                moved[index] += sign * step
                sides.append(scalar(_run_with(model, feeds, name, moved, run)))
            grad[index] = (sides[0] - sides[1]) / (2 * step)
        result[f"{name}_grad"] = grad
    return result


def _run_with(
    model: onnx.ModelProto,
    feeds: Feeds,
    name: str,
    array: np.ndarray,
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
    if name in feeds:
        return run(model, {**feeds, name: array})
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for tensor in changed.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(array, name))
    return run(changed, feeds)


def _assert_close(got: Feeds, wanted: Feeds, tolerance: float, what: str) -> None:
    for name, expected in wanted.items():
        np.testing.assert_allclose(
            got[name], expected, rtol=tolerance, atol=tolerance, err_msg=f"{name}: {what} (got first, then expected)"
        )
        assert got[name].shape == expected.shape, f"{name}: {what}: shape {got[name].shape}, not {expected.shape}"
