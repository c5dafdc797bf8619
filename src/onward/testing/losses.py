"""Check losses: public, for authors of losses.

``check_loss(my_loss, [x], [t], expected)`` builds the model of a loss and compares its value with `expected` and its
gradient with central differences, in float64 on the ONNX reference evaluator; then both in float32 on onnxruntime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.autodiff.gradient import gradient
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.opsets import NeedsOpsetError
from onward.losses.base import Loss, apply, loss_signature, target_inputs
from onward.testing.rules import check_gradient, run_on_reference
from onward.testing.running import Feeds, run_on_runtime

Array = Any  # what np.asarray takes


def check_loss(
    loss: Loss,
    predictions: Sequence[Array],
    targets: Sequence[Array] | Mapping[str, Array],
    expected: Array,
    expected_gradients: Sequence[Array | None] | None = None,
    *,
    opset: int = 18,
    differences: bool = True,
    second_order: bool = False,
    on_runtime: Sequence[str] = ("static", "symbolic"),
    tolerance: float = 1e-6,
    runtime_tolerance: float = 1e-4,
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]] | None = None,
) -> None:
    """Check one loss on one set of inputs; raises AssertionError with the numbers that differ.

    Args:
        loss: a function (op, *predictions, *targets); options are set with functools.partial.
        predictions: one array for each prediction; floating arrays are converted to each precision that is tried.
        targets: one array for each target, in the order of the loss or by name.
        expected: the value of the loss.
        expected_gradients: the gradient of the sum of its elements with respect to each prediction; None for one that
            is not compared.
        differences: also compare the gradient with central differences; turn off at kinks and for extreme values.
        second_order: also compare the second derivative with differences.
        on_runtime: which dimensions to try in float32 on onnxruntime: "static", "symbolic" or "unknown".
        tolerance: of float64, absolute and relative.
        runtime_tolerance: of float32 on onnxruntime.
        run: what runs the float64 models; the reference evaluator by default.
    """
    arrays = [np.asarray(array) for array in predictions]
    names = loss_signature(loss, len(arrays)).predictions
    wanted = {"loss": np.asarray(expected)}
    for name, array in zip(names, expected_gradients or (), strict=False):
        if array is not None:
            wanted[f"{name}_grad"] = np.asarray(array)

    run = run or run_on_reference
    model, feeds = loss_model(loss, arrays, targets, opset=opset, dtype=np.float64)
    _compare(_value_and_gradient(model, feeds, names, run), wanted, tolerance, "float64")
    if differences:
        check_gradient(model, feeds, wrt=names, second_order=second_order, tolerance=tolerance, run=run)
    for dims in on_runtime:
        model, feeds = loss_model(loss, arrays, targets, opset=opset, dtype=np.float32, dims=dims)
        got = _value_and_gradient(model, feeds, names, run_on_runtime)
        _compare(got, wanted, runtime_tolerance, f"float32 on onnxruntime, {dims} dimensions")


def loss_model(
    loss: Loss,
    predictions: Sequence[np.ndarray],
    targets: Sequence[Array] | Mapping[str, Array],
    *,
    opset: int = 18,
    dtype: type = np.float64,
    dims: str = "static",
) -> tuple[onnx.ModelProto, Feeds]:
    """A model of the loss alone, with the output "loss", and what to feed it; floating arrays become `dtype`."""
    arrays = [_converted(array, dtype) for array in predictions]
    names = loss_signature(loss, len(arrays)).predictions
    while True:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name="check_loss")
        values = [_input(name, array, dims) for name, array in zip(names, arrays, strict=True)]
        declared = target_inputs(loss, values)
        graph.inputs.extend([*values, *declared.values()])
        op = Builder(graph, opset)
        try:
            publish(apply(op, loss, values, declared), "loss", graph)
        except NeedsOpsetError as need:
            opset = need.version
            continue
        break
    given = targets if isinstance(targets, Mapping) else dict(zip(declared, targets, strict=True))
    assert set(given) == set(declared), f"the targets of the loss are {list(declared)}, not {list(given)}"
    feeds = dict(zip(names, arrays, strict=True))
    for name, value in declared.items():
        feeds[name] = _converted(np.asarray(given[name]), dtype)
        _assert_declared(value, feeds[name])
    return finish(ir.Model(graph, ir_version=10)), feeds


def _converted(array: Array, dtype: type) -> np.ndarray:
    array = np.asarray(array)
    return array.astype(dtype) if np.issubdtype(array.dtype, np.floating) else array


def _input(name: str, array: np.ndarray, dims: str) -> ir.Value:
    """An input of the model; equal symbols are equal sizes, and size 1 stays known because it broadcasts."""
    shape: list[int | str | None] = list(array.shape)
    if dims == "symbolic":
        shape = [size if size == 1 else f"size_{size}" for size in array.shape]
    elif dims == "unknown":
        shape = [None] * array.ndim
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(shape))


def _assert_declared(value: ir.Value, array: np.ndarray) -> None:
    """What is fed must be what the loss says of its target."""
    dtype = ir.DataType.from_numpy(array.dtype)
    assert value.dtype == dtype, f"target {value.name!r} is declared {value.dtype}, but given as {dtype}"
    if value.shape is not None:
        fits = len(value.shape) == array.ndim and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(value.shape, array.shape, strict=True)
        )
        assert fits, f"target {value.name!r} is declared with shape {value.shape}, but given with {array.shape}"


def _value_and_gradient(
    model: onnx.ModelProto,
    feeds: Feeds,
    names: Sequence[str],
    run: Callable[[onnx.ModelProto, Feeds], dict[str, np.ndarray]],
) -> Feeds:
    value = run(model, feeds)["loss"]
    # A loss that is not reduced takes a cotangent; ones make it the gradient of the sum.
    results = run(gradient(model, wrt=names, of="loss"), {**feeds, "loss_grad": np.ones_like(value)})
    return {"loss": value, **{f"{name}_grad": results[f"{name}_grad"] for name in names}}


def _compare(got: Feeds, wanted: Feeds, tolerance: float, what: str) -> None:
    for name, expected in wanted.items():
        assert got[name].shape == expected.shape, f"{name}: {what}: shape {got[name].shape}, not {expected.shape}"
        np.testing.assert_allclose(
            got[name], expected, rtol=tolerance, atol=tolerance, err_msg=f"{name}: {what} (got first, then expected)"
        )
