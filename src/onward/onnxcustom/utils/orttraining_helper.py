"""Add a loss to a graph, and find what can be trained in it."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.cleanup import remove_unused
from onward.graph.finish import make_way, publish
from onward.graph.prepare import import_default_domain, load
from onward.graph.proto import to_proto
from onward.graph.shapes import is_floating
from onward.onnxcustom.training.excs import UnsupportedError, WrongTypeError, WrongValueError
from onward.onnxcustom.utils.onnx_rewriter import _unique_name as _unique_name
from onward.onnxcustom.utils.onnx_rewriter import onnx_rewrite_operator

# Metadata of a model with a loss that is a mean over its rows; others are sums.
MEAN_LOSS = "onnxcustom.mean_loss"
_TRAINABLE = (onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
Rows = Callable[..., ir.Value]


def get_train_initializer(onx: onnx.ModelProto) -> dict[str, tuple[np.ndarray, onnx.TensorProto]]:
    """The initializers of floating point: name -> (array, tensor), in the order of the graph."""
    return {
        tensor.name: (onnx.numpy_helper.to_array(tensor), tensor)
        for tensor in onx.graph.initializer
        if tensor.data_type in _TRAINABLE
    }


def add_loss_output(
    onx: onnx.ModelProto,
    score_name: str = "squared_error",
    loss_name: str = "loss",
    label_name: str = "label",
    weight_name: str | None = None,
    penalty: Mapping[str, Any] | None = None,
    output_index: int | str | None = None,
    **kwargs: Any,
) -> onnx.ModelProto:
    """A model that compares an output p with labels y: its outputs are the loss `[1, 1]` and p.

    Args:
        score_name: 'squared_error' or 'l2': sum w (p - y)^2; 'absolute_error' or 'l1': sum w |p - y|; 'elastic':
            sum w (l1_weight |p - y| + l2_weight (p - y)^2); 'log': the mean of -w ((1 - y) log p0 + y log p1) for
            probabilities `[N, 2]` clipped to [eps, 1 - eps] and labels 0 or 1, int64 `[N, 1]`.
        weight_name: the name of an input `[N]` with a weight for each row; None for weights of 1.
        penalty: what is added for weights of the model, {name: {'l1': a, 'l2': b}} or {name: b}: a sum |w| + b sum w^2.
        output_index: which output p is, by number or name; None where there is only one.
        kwargs: l1_weight=0.5 and l2_weight=0.5 for 'elastic', eps=1e-6 for 'log'.
    """
    if score_name not in _LOSSES:
        raise UnsupportedError(f"score_name={score_name!r} is not known; use one of {', '.join(map(repr, _LOSSES))}")
    rows, mean = _LOSSES[score_name]
    if any(not value.type.HasField("tensor_type") for value in onx.graph.output):
        onx = onnx.shape_inference.infer_shapes(onx)  # a part of a model need not say what type its output has
    model = load(onx)
    import_default_domain(model)
    graph = model.graph
    prediction = _output(graph, output_index)
    _rename_inner_labels(graph)
    op = Builder(graph, model.opset_imports[""])
    label = _new_input(op, label_name, _label_like(prediction, binary=mean))
    with op, op.scope("loss"):
        losses = rows(op, prediction, label, **kwargs)
        if weight_name is not None:
            losses = losses * _weight(op, weight_name, prediction)
        total = _total(op, losses, mean)
        for name, factors in (penalty or {}).items():
            total = total + _penalty(op, name, factors)
        total = op.Reshape(total, [1, 1])
    graph.outputs.clear()
    _free_for_an_output(op, loss_name, prediction)
    publish(total, loss_name, graph).shape = ir.Shape([1, 1])
    graph.outputs.append(prediction)
    if mean:
        model.metadata_props[MEAN_LOSS] = "1"
    remove_unused(model)
    return _rewrite_op_no_grad(to_proto(model))


# Losses of rows -----------------------------------------------------------------------------------------------------


def _square(op: Builder, p: ir.Value, y: ir.Value) -> ir.Value:
    d = p - y
    return d * d


def _absolute(op: Builder, p: ir.Value, y: ir.Value) -> ir.Value:
    return op.Abs(p - y)


def _elastic(op: Builder, p: ir.Value, y: ir.Value, l1_weight: float = 0.5, l2_weight: float = 0.5) -> ir.Value:
    d = p - y
    return op.Abs(d) * l1_weight + d * d * l2_weight


def _log(op: Builder, p: ir.Value, y: ir.Value, eps: float = 1e-6) -> ir.Value:
    assert p.dtype is not None
    clipped = op.Clip(p, eps, 1 - eps)
    logarithms = op.Log(clipped / op.ReduceSum(clipped, [1], keepdims=1))
    second = op.Cast(y, to=int(p.dtype))
    return -op.ReduceSum(logarithms * op.Concat(1 - second, second, axis=1), [1], keepdims=1)


# Name -> the loss of rows, and whether the whole is their mean (else their sum).
_LOSSES: dict[str, tuple[Rows, bool]] = {
    "squared_error": (_square, False),
    "l2": (_square, False),
    "absolute_error": (_absolute, False),
    "l1": (_absolute, False),
    "elastic": (_elastic, False),
    "log": (_log, True),
}


def _total(op: Builder, losses: ir.Value, mean: bool) -> ir.Value:
    return op.ReduceMean(losses, keepdims=0) if mean else op.ReduceSum(losses, keepdims=0)


def _penalty(op: Builder, name: str, factors: Any) -> ir.Value:
    """l1 sum |w| + l2 sum w^2."""
    weight = op.graph.initializers.get(name) or next((value for value in op.graph.inputs if value.name == name), None)
    if weight is None:
        known = ", ".join(map(repr, op.graph.initializers))
        raise WrongValueError(
            f"`penalty` names {name!r}, which is neither an initializer nor an input; there is {known}"
        )
    factors = {"l2": factors} if isinstance(factors, numbers.Real) else dict(factors)
    if set(factors) - {"l1", "l2"}:
        raise WrongValueError(f"the penalty of {name!r} has {sorted(factors)}; only 'l1' and 'l2' are known")
    terms = []
    if factors.get("l1"):
        terms.append(op.ReduceSum(op.Abs(weight), keepdims=0) * float(factors["l1"]))
    if factors.get("l2"):
        terms.append(op.ReduceSum(weight * weight, keepdims=0) * float(factors["l2"]))
    if not terms:
        raise WrongValueError(f"l1 and l2 cannot both be 0 or None in the penalty of {name!r}; leave it out")
    return terms[0] if len(terms) == 1 else terms[0] + terms[1]


# Inputs and outputs -------------------------------------------------------------------------------------------------


def _output(graph: ir.Graph, index: int | str | None) -> ir.Value:
    """The output that is compared with the labels."""
    names = [output.name for output in graph.outputs]
    if index is None:
        if len(names) != 1:
            raise WrongValueError(
                f"which of the outputs {names} is compared with the labels? Say it in `output_index`."
            )
        index = 0
    if isinstance(index, str):
        if index not in names:
            raise WrongValueError(f"unable to find output {index!r} in {names}")
        index = names.index(index)
    elif not isinstance(index, numbers.Integral) or isinstance(index, bool):
        raise WrongTypeError(f"output_index must be an integer or a string, not {type(index).__name__}")
    if not -len(names) <= index < len(names):
        raise WrongValueError(f"output_index={index}, but there are {len(names)} outputs: {names}")
    output = graph.outputs[int(index)]
    if not is_floating(output):
        raise WrongTypeError(
            f"output {output.name!r} is {output.type}; a loss needs numbers of floating point. Name another output "
            "in `output_index`."
        )
    return output


def _rename_inner_labels(graph: ir.Graph) -> None:
    """Classifiers call what they predict `label`, too."""
    taken = {value.name for node in graph for value in node.outputs}
    for node in graph:
        for value in node.outputs:
            if value.name == "label":
                if "_label_" in taken:
                    raise WrongValueError("an inner value is called 'label' and another '_label_'; rename one of them")
                value.name = "_label_"


def _label_like(prediction: ir.Value, binary: bool) -> ir.Value:
    rows = None if prediction.shape is None or len(prediction.shape) == 0 else prediction.shape[0]
    if binary:
        return ir.Value(name=None, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([rows, 1]))
    shape = None if prediction.shape is None else prediction.shape.copy()
    return ir.Value(name=None, type=prediction.type, shape=shape)


def _weight(op: Builder, name: str, prediction: ir.Value) -> ir.Value:
    """A new input `[N]`, in a shape that multiplies rows and not columns."""
    rank = 2 if prediction.shape is None else len(prediction.shape)
    rows = None if prediction.shape is None or rank == 0 else prediction.shape[0]
    weight = ir.Value(name=None, type=prediction.type, shape=ir.Shape([rows]))
    _new_input(op, name, weight)
    return op.Reshape(weight, [-1] + [1] * max(rank - 1, 0))


def _new_input(op: Builder, name: str, value: ir.Value) -> ir.Value:
    taken = {other.name for other in (*op.graph.inputs, *op.graph.initializers.values())}
    taken.update(other.name for node in op.graph for other in node.outputs)
    if name in taken:
        raise WrongValueError(f"the model has a value {name!r} already; call the new input something else")
    value.name = name
    op.graph.inputs.append(value)
    return value


def _free_for_an_output(op: Builder, name: str, prediction: ir.Value) -> None:
    fixed = {value.name for value in (*op.graph.inputs, *op.graph.initializers.values(), prediction)}
    if name in fixed:
        raise WrongValueError(f"the model has a value {name!r} already; choose another `loss_name`")
    make_way(op, [name])


def _rewrite_op_no_grad(onx: onnx.ModelProto) -> onnx.ModelProto:
    """1 / x in the place of Reciprocal, which the original had no gradient of (onward has)."""
    nodes = [node for node in onx.graph.node if node.op_type == "Reciprocal"]
    if not nodes:
        return onx
    types = _element_types(onx)
    kinds = {types.get(node.input[0], 0) or onnx.TensorProto.FLOAT for node in nodes}
    if len(kinds) > 1:
        return onx
    kind = kinds.pop()
    one = onnx.numpy_helper.from_array(np.ones(1, onnx.helper.tensor_dtype_to_np_dtype(kind)), "one")
    x, y = (onnx.helper.make_tensor_value_info(name, kind, None) for name in "XY")
    divide = onnx.helper.make_node("Div", ["one", "X"], ["Y"])
    body = onnx.helper.make_model(onnx.helper.make_graph([divide], "reciprocal", [x], [y], [one]))
    return onnx_rewrite_operator(onx, "Reciprocal", body)


def _element_types(onx: onnx.ModelProto) -> dict[str, int]:
    graph = onnx.shape_inference.infer_shapes(onx).graph
    return {
        value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info, *graph.output)
    } | {tensor.name: tensor.data_type for tensor in graph.initializer}
