"""The inference that finds out types and shapes: onnx's, corrected where onnxruntime makes other sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import onnx
import onnx_ir as ir

from onward.errors import InvalidModelError
from onward.graph.attention import Attentions
from onward.graph.kernel_sizes import contradicts, doubtful, kernel_shape
from onward.graph.nodes import all_values, describe, subgraphs
from onward.graph.proto import has_map
from onward.graph.ranks import assumed_ranks, implied_ranks
from onward.graph.shapes import dims, is_placeholder
from onward.graph.skeleton import skeleton
from onward.graph.slices import Slices, has_negative_size
from onward.graph.stand_ins import HIDDEN, bodies, hide_long_vectors, put_stand_ins, squeeze_ranges

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
    tried: set[ir.Value] = set()
    while found := _implied(model, tried):
        tried.update(found)  # inference does not always take them over
        before = {value: (value.type, value.shape) for value in (*annotations, *found)}
        for value, (_, shape) in found.items():
            value.shape = shape  # also of inputs of bodies, from which inference starts
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


def _implied(model: ir.Model, tried: Collection[ir.Value]) -> Annotations:
    """Values without a shape whose rank follows from the operators that use them, or else may be assumed."""
    if all(value.shape is not None for value in all_values(model.graph)):
        return {}
    for ranks in (implied_ranks(model.graph), assumed_ranks(model.graph)):
        known = {value: rank for value, rank in ranks.items() if value.type is not None and value not in tried}
        if known:
            return {value: (value.type, ir.Shape([None] * rank)) for value, rank in known.items()}
    return {}


def _infer_from(model: ir.Model, annotations: Annotations, known: Annotations) -> None:
    """Infer types and shapes of all values from nothing but inputs, initializers and what is `known`."""
    corrected: Annotations = {}
    slices, attentions = Slices(model), Attentions(model)
    for rounds_left in reversed(range(_MOST_ROUNDS)):
        for value, (value_type, _) in annotations.items():
            # The checker wants graph outputs to have a type.
            unknown = (value_type if value.is_graph_output() else None, None)
            value.type, value.shape = corrected.get(value) or known.get(value, unknown)
        error = _infer_once(model, [*corrected, *(node.outputs[0] for node in slices.hidden)], attentions)
        negative = _negative_size(model)
        found = _corrections(model, everywhere=error is not None, forget=rounds_left < 2)
        if negative is None and rounds_left and (_changes(found, corrected) | slices.reveal() | attentions.learn()):
            corrected.update(found)
            continue
        if negative is None and error is None:
            for value in corrected:
                value.meta[MISJUDGED] = True
            return
        for value, (value_type, shape) in annotations.items():
            value.type, value.shape = value_type, shape
        raise InvalidModelError(
            negative or f"the model is not valid ONNX; type and shape inference says: {error}"
        ) from error


# In the metadata of a result: onnx, and with it onnxruntime when it loads the model, takes it for larger or smaller.
MISJUDGED = "onward.misjudged"

# Corrected sizes may make others wrong that looked right. After so many rounds, what is still wrong becomes unknown.
_MOST_ROUNDS = 20


def _changes(found: Annotations, corrected: Annotations) -> bool:
    return any(corrected.get(value) != correction for value, correction in found.items())


def _infer_once(model: ir.Model, hidden: Iterable[ir.Value], attentions: Attentions) -> Exception | None:
    """Learn what onnx infers; after an error, which is returned, what it finds out all the same."""
    marked = [node for node in (value.producer() for value in hidden) if node is not None]
    for node in marked:
        node.metadata_props[HIDDEN] = "1"
    attentions.mark()
    proto = put_stand_ins(skeleton(model))
    for node in marked:
        node.metadata_props.pop(HIDDEN, None)
    attentions.unmark()
    error = None
    try:
        hide_long_vectors(proto)
    except Exception as raised:
        return raised
    try:
        inferred_proto = _infer(proto)
    except Exception as raised:
        error = raised
        try:
            inferred_proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        except Exception:
            return error
    _learn_from(model.graph, inferred_proto.graph)
    return error


def _learn_from(graph: ir.Graph, inferred: onnx.GraphProto) -> None:
    """Learn the types and shapes that a proto of `graph` has, bodies included."""
    infos = (*inferred.value_info, *inferred.output, *inferred.input)
    types = {info.name: info.type for info in infos}
    for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
        found = types.get(value.name or "")
        if found is not None and not has_map(found):
            kind = ir.serde.deserialize_type_proto_for_type(found)
            _learn(value, kind, ir.serde.deserialize_type_proto_for_shape(found))
    for body, inferred_body in zip((body for node in graph for body in subgraphs(node)), bodies(inferred), strict=True):
        _learn_from(body, inferred_body)


def _corrections(model: ir.Model, *, everywhere: bool, forget: bool) -> Annotations:
    """The shapes of results that onnxruntime gives other sizes than inference; `everywhere`: of all that may have."""
    found: Annotations = {}
    for node in doubtful(model.graphs()):
        true, kind = kernel_shape(node), None if node.inputs[0] is None else node.inputs[0].type
        if true is None or kind is None or not (everywhere or contradicts(dims(node.outputs[0]), true)):
            continue
        shape = ir.Shape([None] * len(true) if forget else true)
        found[node.outputs[0]] = (kind, shape)
    return found


def _negative_size(model: ir.Model) -> str | None:
    """What to say of a size below zero, if there is one. (Branches that are never taken may have any.)"""
    for node in model.graph:
        if any(has_negative_size(output) for output in node.outputs):
            x = node.inputs[0] if node.inputs else None
            given = "" if x is None else f", of shape {list(dims(x) or ())},"
            shape = list(dims(node.outputs[0]) or ())
            return (
                f"{describe(node)} would have a result of shape {shape}: its input{given} is too small for it. Give "
                "the inputs of the model sizes that it takes."
            )
    return None


def _infer(proto: onnx.ModelProto) -> onnx.ModelProto:
    """onnx's inference, which also follows the values of integers through nodes that compute shapes."""
    try:
        return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        squeeze_ranges(proto)
        # It takes integers of any rank for vectors and refuses the outer difference of two ranges, which masks are
        # made of. When nothing else is wrong, the nodes that it can follow are enough.
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
        return onnx.shape_inference.infer_shapes(proto, check_type=True, data_prop=True)


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


def _is_placeholder(dim: int | ir.SymbolicDim) -> bool:
    return not isinstance(dim, int) and (dim.value is None or is_placeholder(dim.value))
