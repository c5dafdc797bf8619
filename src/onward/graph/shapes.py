"""What is known of a value's shape, and the inference that finds it out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

from onward.errors import InvalidModelError, UnknownShapeError
from onward.graph.guard import show_guards
from onward.graph.nodes import all_values, describe
from onward.graph.ranks import implied_ranks
from onward.graph.skeleton import skeleton

Dim = int | str | None  # a size, a symbol (equal symbols are equal sizes), or unknown

FLOATING = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def is_floating(value: ir.Value | None) -> bool:
    """Whether a value is a tensor of a type that has derivatives."""
    return value is not None and isinstance(value.type, ir.TensorType) and value.dtype in FLOATING


def dims(value: ir.Value) -> tuple[Dim, ...] | None:
    """The dimensions of a value, or None when not even its rank is known."""
    if value.shape is None:
        return None
    return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)


def rank(value: ir.Value) -> int:
    """The rank of a value; a clear error when inference could not find it."""
    if value.shape is None:
        producer = value.producer()
        origin = f", an output of {describe(producer)}," if producer is not None else ""
        raise UnknownShapeError(
            f"the rank of {value.name!r}{origin} is unknown, and a gradient rule needs it. Give the value a shape, "
            "for instance by adding a value_info for it or by exporting the model with shapes on its inputs."
        )
    return len(value.shape)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """The shape as integers, or None when any dimension is symbolic or unknown."""
    known = dims(value)
    if known is None or not all(isinstance(dim, int) for dim in known):
        return None
    return tuple(dim for dim in known if isinstance(dim, int))


def static_size(value: ir.Value) -> int | None:
    """The number of elements, or None when it is not known."""
    shape = static_shape(value)
    return None if shape is None else math.prod(shape)


def same_dims(a: Iterable[Dim] | None, b: Iterable[Dim] | None) -> bool:
    """Whether two shapes are certainly equal (an unknown dimension equals nothing)."""
    if a is None or b is None:
        return False
    a, b = tuple(a), tuple(b)
    return a == b and None not in a


Annotations = dict[ir.Value, tuple[ir.TypeProtocol | None, ir.Shape | None]]


def infer_shapes(model: ir.Model) -> None:
    """Infer types and shapes of all values, in place; what cannot hold raises InvalidModelError.

    Intermediate shape annotations of the file are used only where inference finds nothing: exporters get them wrong
    more often than inference does.
    """
    annotations = {o: (o.type, o.shape) for graph in model.graphs() for node in graph for o in node.outputs}
    # Of operators that inference does not know, annotations are all there is.
    known: Annotations = {
        value: (kind, shape)
        for value, (kind, shape) in annotations.items()
        if kind is not None and _is_unknown_operator(model, value.producer())
    }
    _infer_from(model, annotations, known)
    known = _infer_ranks(model, annotations, known)
    _learn_all(annotations)
    _infer_ranks(model, annotations, known)


def _infer_ranks(model: ir.Model, annotations: Annotations, known: Annotations) -> Annotations:
    """Infer again with the ranks that operators imply, as long as there are more of them."""
    while found := _implied(model):
        before = {value: (value.type, value.shape) for value in annotations}
        try:
            _infer_from(model, annotations, {**known, **found})
        except InvalidModelError:
            # A rank that cannot be comes from a branch that is never taken, or from a wrong annotation.
            for value, (value_type, shape) in before.items():
                value.type, value.shape = value_type, shape
            break
        known = {**known, **found}
        _learn_all(before)  # knowing more, inference finds less at times
    return known


def _learn_all(annotations: Annotations) -> None:
    for value, (value_type, shape) in annotations.items():
        _learn(value, value_type, _without_placeholders(shape))


def _is_unknown_operator(model: ir.Model, node: ir.Node | None) -> bool:
    return (
        node is not None
        and node.domain != ""
        and node.op_identifier() not in model.functions
        and not onnx.defs.has(node.op_type, node.domain)
    )


def _implied(model: ir.Model) -> Annotations:
    """Values without a shape whose rank follows from the operators that use them."""
    ranks = implied_ranks(model.graph) if any(value.shape is None for value in all_values(model.graph)) else {}
    return {value: (value.type, ir.Shape([None] * rank)) for value, rank in ranks.items() if value.type is not None}


def _infer_from(model: ir.Model, annotations: Annotations, known: Annotations) -> None:
    """Infer types and shapes of all values from nothing but inputs, initializers and what is `known`."""
    for value, (value_type, _) in annotations.items():
        # The checker wants graph outputs to have a type.
        value.type, value.shape = known.get(value, (value_type if value.is_graph_output() else None, None))
    try:
        proto = _infer(_inferable(skeleton(model)))
    except Exception as error:
        for value, (value_type, shape) in annotations.items():
            value.type, value.shape = value_type, shape
        raise InvalidModelError(f"the model is not valid ONNX; type and shape inference says: {error}") from error
    inferred_model = ir.serde.deserialize_model(proto)
    for graph, inferred_graph in zip(model.graphs(), inferred_model.graphs(), strict=True):
        inferred = ir.convenience.create_value_mapping(inferred_graph)
        for value in ir.convenience.create_value_mapping(graph).values():
            found = inferred.get(value.name or "")
            if found is not None:
                _learn(value, found.type, found.shape)


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """onnx's inference, which also follows the values of integers through nodes that compute shapes."""
    try:
        return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        _squeeze_ranges(proto)
        # It takes integers of any rank for vectors and refuses the outer difference of two ranges, which masks are
        # made of. When nothing else is wrong, the nodes that it can follow are enough.
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
        return onnx.shape_inference.infer_shapes(proto, check_type=True, data_prop=True)


def _squeeze_ranges(proto: onnx.ModelProto) -> None:
    """Range wants scalars; onnxruntime also takes vectors of one element, and the body of AffineGrid has them."""
    for graph in _graphs(proto):
        for index in reversed(range(len(graph.node))):
            node = graph.node[index]
            if node.op_type == "Range" and node.domain == "":
                scalars = [f"{node.output[0]}/scalar_{place}" for place in range(3)]
                for place, name in enumerate(scalars):
                    graph.node.insert(index, onnx.helper.make_node("Squeeze", [node.input[place]], [name]))
                node.input[:] = scalars


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    graphs = [proto.graph]
    for graph in graphs:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                graphs.extend([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs)


def _inferable(proto: onnx.ModelProto) -> onnx.ModelProto:
    """`proto` with stand-ins of the same result type for operators of which onnx infers nothing."""
    for graph in _graphs(proto):
        show_guards(graph)
        for node in graph.node:
            if node.op_type == "GroupNormalization" and node.domain == "":
                node.op_type = "Identity"
                del node.input[1:], node.attribute[:]
    _show_constants_to_bodies(proto)
    return proto


def _show_constants_to_bodies(proto: onnx.ModelProto) -> None:
    """Copy integers of the main graph (axes, shapes) into the bodies that use them: inference does not look outside."""
    integers = {
        tensor.name: tensor
        for tensor in proto.graph.initializer
        if tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
    }
    for graph in list(_graphs(proto))[1:]:
        shown: set[str] = set()
        for node in graph.node:
            for index, name in enumerate(node.input):
                if name in integers:
                    # Another name: an inner value must not be called as an outer one.
                    node.input[index] = f"{name}/in/{graph.name}"
                    shown.add(name)
        for name in sorted(shown):
            copy = graph.initializer.add()
            copy.CopyFrom(integers[name])
            copy.name = f"{name}/in/{graph.name}"


def _learn(value: ir.Value, value_type: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
    """Fill what is still unknown of a value's type and shape."""
    if value.type is None and value_type is not None:
        value.type = value_type
    if shape is None:
        return
    if value.shape is None:
        value.shape = shape.copy()
    elif len(shape) == len(value.shape):
        pairs = zip(value.shape, shape, strict=True)
        # A placeholder is worth keeping: in one run, equal ones are equal dimensions.
        value.shape = ir.Shape(
            [old if _is_placeholder(new) else new if _is_placeholder(old) else old for old, new in pairs]
        )


def _without_placeholders(shape: ir.Shape | None) -> ir.Shape | None:
    return None if shape is None else ir.Shape([None if _is_placeholder(dim) else dim for dim in shape])


def is_placeholder(dim: Dim) -> bool:
    """Inference calls dimensions it does not know `unk__<n>`, counting anew in each run: equal names of two runs
    mean nothing."""
    return isinstance(dim, str) and dim.startswith("unk__")


def _is_placeholder(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and (dim.value is None or is_placeholder(dim.value))
