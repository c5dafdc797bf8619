"""Small functions as ONNX graphs: what moves weights, and losses with their gradients.

Rows of predictions have any number of columns; a weight counts for its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.graph.opsets import NeedsOpsetError
from onward.onnxcustom import get_max_opset
from onward.onnxcustom.training.excs import WrongValueError

Trace = Callable[..., Sequence[ir.Value]]
Shape = Sequence[str | int | None] | None

_MATRIX = ("N", "C")
_PAIR: dict[str, Shape] = {"X1": _MATRIX, "X2": _MATRIX}
_PREFIX = "_onnx_"


def get_supported_functions() -> dict[str, str | None]:
    """What `function_onnx_graph` knows: name -> description."""
    return {name[len(_PREFIX) :]: value.__doc__ for name, value in _functions().items()}


def function_onnx_graph(
    name: str, target_opset: int | None = None, dtype: Any = np.float32, weight_name: str | None = None, **kwargs: Any
) -> onnx.ModelProto:
    """The graph of one of the functions below.

    Args:
        target_opset: opset of the graph, or the lowest above it that has the operators; `get_max_opset()` by default.
        dtype: numpy type that it computes in.
        weight_name: the name of an input with a weight for each row, 1 where it is not fed.
        kwargs: options of the function.
    """
    functions = _functions()
    if _PREFIX + name not in functions:
        raise WrongValueError(f"there is no function {name!r}; known are {', '.join(get_supported_functions())}")
    if weight_name is not None:
        kwargs["weight_name"] = weight_name
    opset = get_max_opset() if target_opset is None else target_opset
    while True:
        try:
            return functions[_PREFIX + name](target_opset=opset, dtype=dtype, **kwargs)
        except NeedsOpsetError as need:
            opset = need.version


def _functions() -> dict[str, Callable[..., onnx.ModelProto]]:
    return {name: value for name, value in globals().items() if name.startswith(_PREFIX)}


# What moves weights -------------------------------------------------------------------------------------------------


def _onnx_axpy(target_opset: int, dtype: Any) -> onnx.ModelProto:
    """Y = alpha X1 + X2."""

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, alpha: ir.Value) -> list[ir.Value]:
        return [x1 * _scalar(op, alpha) + x2]

    return _model(trace, {"X1": None, "X2": None, "alpha": [1]}, ["Y"], target_opset, dtype)


def _onnx_axpyw(target_opset: int, dtype: Any) -> onnx.ModelProto:
    """Z = beta G + alpha X1, Y = Z + X2: momentum."""

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, g: ir.Value, alpha: ir.Value, beta: ir.Value) -> list[ir.Value]:
        z = x1 * _scalar(op, alpha) + g * _scalar(op, beta)
        return [z + x2, z]

    return _model(trace, _MOMENTUM, ["Y", "Z"], target_opset, dtype)


def _onnx_axpyw2(target_opset: int, dtype: Any) -> onnx.ModelProto:
    """Z = beta G + alpha X1, Y = beta Z + alpha X1 + X2: Nesterov's momentum."""

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, g: ir.Value, alpha: ir.Value, beta: ir.Value) -> list[ir.Value]:
        step, beta = x1 * _scalar(op, alpha), _scalar(op, beta)
        z = step + g * beta
        return [z * beta + step + x2, z]

    return _model(trace, _MOMENTUM, ["Y", "Z"], target_opset, dtype)


_MOMENTUM: dict[str, Shape] = {"X1": None, "X2": None, "G": None, "alpha": [1], "beta": [1]}


def _onnx_copy(target_opset: int, dtype: Any) -> onnx.ModelProto:
    """Y = X."""
    return _model(lambda op, x: [op.Identity(x)], {"X": None}, ["Y"], target_opset, dtype)


def _onnx_zero(target_opset: int, dtype: Any) -> onnx.ModelProto:
    """Y = 0, in the shape of X."""
    return _model(lambda op, x: [op.zeros_like(x)], {"X": None}, ["Y"], target_opset, dtype)


def _onnx_update_penalty_elastic_error(
    target_opset: int, dtype: Any, l1: float = 1e-4, l2: float = 1e-4
) -> onnx.ModelProto:
    """Y = (1 - 2 l2) X - l1 sign(X): a step along the gradient of l1 |X| + l2 X^2."""
    return _model(
        lambda op, x: [x * (1 - 2 * l2) - op.Sign(x) * l1],
        {"X": None},
        ["Y"],
        target_opset,
        dtype,
    )


# Losses -------------------------------------------------------------------------------------------------------------


def _onnx_linear_regression(target_opset: int, dtype: Any) -> onnx.ModelProto:
    """Y = X A + B."""
    inputs: dict[str, Shape] = {"X": (None, None), "A": (None, None), "B": (None, None)}
    return _model(lambda op, x, a, b: [op.MatMul(x, a) + b], inputs, ["Y"], target_opset, dtype)


def _onnx_square_error(target_opset: int, dtype: Any, weight_name: str | None = None) -> onnx.ModelProto:
    """Y = sum w (X1 - X2)^2."""

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, *weight: ir.Value) -> list[ir.Value]:
        d = x1 - x2
        return [_total(op, _weighted(op, d * d, *weight))]

    return _model(trace, _PAIR, ["Y"], target_opset, dtype, weight_name)


def _onnx_grad_square_error(target_opset: int, dtype: Any, weight_name: str | None = None) -> onnx.ModelProto:
    """Y = -2 w (X1 - X2): the gradient of sum w (X1 - X2)^2 with respect to X2."""

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, *weight: ir.Value) -> list[ir.Value]:
        return [_weighted(op, (x1 - x2) * -2.0, *weight)]

    return _model(trace, _PAIR, ["Y"], target_opset, dtype, weight_name)


def _onnx_grad_loss_square_error(
    target_opset: int, dtype: Any, weight_name: str | None = None, multiply: float = 2
) -> onnx.ModelProto:
    """Y = multiply / 2 sum w (X1 - X2)^2, and its gradient with respect to X2."""

    def rows(op: Builder, d: ir.Value) -> tuple[ir.Value, ir.Value]:
        return d * d * (multiply / 2), d * -multiply

    return _loss(rows, target_opset, dtype, weight_name)


def _onnx_grad_loss_absolute_error(target_opset: int, dtype: Any, weight_name: str | None = None) -> onnx.ModelProto:
    """Y = sum w |X1 - X2|, and its gradient with respect to X2."""
    return _loss(lambda op, d: (op.Abs(d), -op.Sign(d)), target_opset, dtype, weight_name)


def _onnx_grad_loss_elastic_error(
    target_opset: int,
    dtype: Any,
    weight_name: str | None = None,
    l1_weight: float = 0.01,
    l2_weight: float = 0.01,
) -> onnx.ModelProto:
    """Y = sum w (l1_weight |X1 - X2| + l2_weight (X1 - X2)^2), and its gradient with respect to X2."""

    def rows(op: Builder, d: ir.Value) -> tuple[ir.Value, ir.Value]:
        return op.Abs(d) * l1_weight + d * d * l2_weight, -(op.Sign(d) * l1_weight + d * (2 * l2_weight))

    return _loss(rows, target_opset, dtype, weight_name)


def _onnx_grad_sigmoid_neg_log_loss_error(
    target_opset: int, dtype: Any, weight_name: str | None = None, eps: float = 1e-5
) -> onnx.ModelProto:
    """Y = -sum w ((1 - X1) log(1 - p) + X1 log(p)) with p = sigmoid(X2) clipped to [eps, 1 - eps]; and w (p - X1).

    X1 are labels, 0 or 1 (int64), and X2 scores. The slope is that of the loss without its clipping, at the clipped p:
    scores that are far off keep a gradient.
    """

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, *weight: ir.Value) -> list[ir.Value]:
        assert x2.dtype is not None
        p, y = op.Clip(op.Sigmoid(x2), eps, 1 - eps), op.Cast(x1, to=int(x2.dtype))
        rows = -((1 - y) * op.Log(1 - p) + y * op.Log(p))
        return _with_gradient(op, rows, p - y, *weight)

    names = ["Y", *_GRADIENT_NAMES]
    return _model(trace, _PAIR, names, target_opset, dtype, weight_name, types={"X1": np.int64})


# Penalties ----------------------------------------------------------------------------------------------------------


def _onnx_grad_penalty_elastic_error(
    target_opset: int, dtype: Any, l1_weight: float = 0.01, l2_weight: float = 0.01
) -> onnx.ModelProto:
    """Y = l1_weight sum |X| + l2_weight sum X^2, and its gradient."""

    def trace(op: Builder, x: ir.Value) -> list[ir.Value]:
        slope = op.Sign(x) * l1_weight + x * (2 * l2_weight)
        return [_elastic(op, x, l1_weight, l2_weight), slope, op.Identity(slope)]

    return _model(trace, {"X": (None, None)}, ["Y", *_GRADIENT_NAMES], target_opset, dtype)


def _onnx_n_penalty_elastic_error(
    target_opset: int,
    dtype: Any,
    weight_name: str | None = None,
    l1_weight: float = 0.01,
    l2_weight: float = 0.01,
    n_tensors: int = 1,
    loss_shape: Shape = (1, 1),
) -> onnx.ModelProto:
    """Y = loss + the sum over tensors W of l1_weight sum |W| + l2_weight sum W^2; weights of rows have no part."""
    if n_tensors <= 0:
        raise WrongValueError(f"a penalty of {n_tensors} tensors is none; n_tensors must be above 0")

    def trace(op: Builder, loss: ir.Value, *tensors: ir.Value) -> list[ir.Value]:
        total = op.Reshape(loss, [1])
        for tensor in tensors:
            total = total + _elastic(op, tensor, l1_weight, l2_weight)
        return [total]

    inputs: dict[str, Shape] = {"loss": loss_shape, **{f"W{index}": None for index in range(n_tensors)}}
    return _model(trace, inputs, ["Y"], target_opset, dtype)


def _elastic(op: Builder, x: ir.Value, l1: float, l2: float) -> ir.Value:
    return _total(op, op.Abs(x)) * l1 + _total(op, x * x) * l2


# Graphs -------------------------------------------------------------------------------------------------------------

# The original called the gradient Z, and later Y_grad.
_GRADIENT_NAMES = ("Y_grad", "Z")


def _loss(
    rows: Callable[[Builder, ir.Value], tuple[ir.Value, ir.Value]], opset: int, dtype: Any, weight_name: str | None
) -> onnx.ModelProto:
    """Y = sum w r(X1 - X2) and w s(X1 - X2), where `rows` gives r, and s, its slope along X2."""

    def trace(op: Builder, x1: ir.Value, x2: ir.Value, *weight: ir.Value) -> list[ir.Value]:
        return _with_gradient(op, *rows(op, x1 - x2), *weight)

    return _model(trace, _PAIR, ["Y", *_GRADIENT_NAMES], opset, dtype, weight_name)


def _with_gradient(op: Builder, rows: ir.Value, slope: ir.Value, *weight: ir.Value) -> list[ir.Value]:
    gradient = _weighted(op, slope, *weight)
    return [_total(op, _weighted(op, rows, *weight)), gradient, op.Identity(gradient)]


def _weighted(op: Builder, rows: ir.Value, weight: ir.Value | None = None) -> ir.Value:
    return rows if weight is None else rows * op.Reshape(weight, [-1, 1])


def _total(op: Builder, x: ir.Value) -> ir.Value:
    return op.Reshape(op.ReduceSum(x, keepdims=0), [1])


def _scalar(op: Builder, x: ir.Value) -> ir.Value:
    """A vector of one element as a scalar, which leaves the rank of what it multiplies alone."""
    return op.Reshape(x, np.zeros(0, np.int64))


def _model(
    trace: Trace,
    inputs: Mapping[str, Shape],
    outputs: Sequence[str],
    opset: int,
    dtype: Any,
    weight_name: str | None = None,
    types: Mapping[str, Any] | None = None,
) -> onnx.ModelProto:
    """The graph of a function of the builder and of one value for each input."""
    shapes = dict(inputs) if weight_name is None else {**inputs, weight_name: ("weights",)}
    types = dict.fromkeys(shapes, dtype) | dict(types or {})
    values = [_input(name, shape, types[name]) for name, shape in shapes.items()]
    graph = ir.Graph(values, [], nodes=[], name="function", opset_imports={"": opset})
    op = Builder(graph, opset)
    with op:
        results = trace(op, *values)
    for name, result in zip(outputs, results, strict=True):
        publish(result, name, graph)
    if weight_name is not None:
        default = ir.tensor(np.ones(1, dtype), name=weight_name)
        values[-1].const_value = default
        graph.register_initializer(values[-1])
    return _in_typed_fields(finish(ir.Model(graph, ir_version=8)))


def _input(name: str, shape: Shape, dtype: Any) -> ir.Value:
    kind = ir.TensorType(ir.DataType.from_numpy(np.dtype(dtype)))
    return ir.Value(name=name, type=kind, shape=None if shape is None else ir.Shape(shape))


def _in_typed_fields(model: onnx.ModelProto) -> onnx.ModelProto:
    """Constants as lists of numbers rather than bytes: programs read them from these graphs (`float_data`)."""
    for initializer in model.graph.initializer:
        array = onnx.numpy_helper.to_array(initializer)
        typed = onnx.helper.make_tensor(initializer.name, initializer.data_type, array.shape, array.ravel().tolist())
        initializer.CopyFrom(typed)
    return model
