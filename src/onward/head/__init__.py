"""`new_head`: a model for other classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from onward.errors import InvalidModelError, OnwardError
from onward.graph.blame import blaming_model
from onward.graph.cleanup import remove_unused
from onward.graph.constants import constant_array, is_constant
from onward.graph.external import read_small_weights
from onward.graph.finish import LARGEST_PROTO
from onward.graph.inference import infer_shapes
from onward.graph.nodes import all_values
from onward.graph.parameters import mark_weight
from onward.graph.prepare import ModelLike, check, forget_annotations, import_default_domain, load
from onward.graph.proto import to_proto
from onward.graph.shapes import Dim, dims
from onward.graph.upgrade import align_functions
from onward.head.classes import Followed, follow
from onward.head.layer import Layer
from onward.head.search import last_layer, named_layer

__all__ = ["NewHead", "new_head"]


class NewHead(NamedTuple):
    """What `new_head` returns.

    Attributes:
        model: with the new layer.
        parameters: the names of its weight and, where the old layer had one, its bias.
    """

    model: onnx.ModelProto
    parameters: list[str]


def new_head(model: ModelLike, classes: int, *, layer: str | None = None, seed: int = 0, name: str = "head") -> NewHead:
    """The model with a fresh last layer, for another number of classes.

    The last Gemm, MatMul or Conv with a constant weight before the outputs, with its bias, is replaced by one with
    `classes` results; Softmax, pooling and reshaping behind it stay. Weight and bias are drawn as torch does it:
    uniformly between -1/sqrt(n) and 1/sqrt(n), where n numbers go into each result. A weight that other nodes use too
    stays theirs. The given model is not changed.

    Args:
        model: a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        classes: the number of classes.
        layer: the name of the layer, where it cannot be told: of its node, its weight, its bias or its output.
        seed: decides the first values of the new parameters.
        name: what they are called by: ``<name>.weight`` and ``<name>.bias``.

    Returns:
        The model, and the names of the new parameters.
    """
    if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or classes < 1:
        raise OnwardError(f"`classes` is the number of classes, at least 1, not {classes!r}")
    copy = load(model)
    import_default_domain(copy)
    read_small_weights(copy)
    _inline(copy)
    check(copy)
    graph = copy.graph
    old = last_layer(graph) if layer is None else named_layer(graph, layer)
    followed = follow(graph, old, _shapes(copy))
    parameters = _replace(copy, old, int(classes), int(seed), name)
    _tell_sizes(graph, old, followed, int(classes))
    _check_result(copy, old)
    weights = [value.const_value for value in graph.initializers.values()]
    if sum(tensor.nbytes for tensor in weights if tensor is not None) < LARGEST_PROTO:
        ir.external_data.load_to_model(copy)
    return NewHead(to_proto(copy), parameters)


def _inline(model: ir.Model) -> None:
    """Put the bodies of functions in the place of their calls: a layer may be in one."""
    if model.functions:
        with blaming_model("inlining the functions of the model"):
            align_functions(model)
            passes.InlinePass()(model)
            model.functions.clear()


def _shapes(model: ir.Model) -> Mapping[str, tuple[Dim, ...]]:
    """The shapes of all values, as far as inference finds them out; the model keeps what the file says."""
    try:
        inferred = _inferred(model)
    except InvalidModelError:
        return {}
    found = {value.name or "": dims(value) for value in all_values(inferred.graph)}
    return {name: shape for name, shape in found.items() if shape is not None}


def _inferred(model: ir.Model) -> ir.Model:
    """A copy with all shapes that inference finds out by itself."""
    copy = model.clone()
    forget_annotations(copy)
    infer_shapes(copy)
    return copy


def _replace(model: ir.Model, old: Layer, classes: int, seed: int, name: str) -> list[str]:
    """Put fresh parameters in the place of the old ones; returns their names."""
    graph = model.graph
    bound = 1 / math.sqrt(max(old.features, 1))
    random = np.random.default_rng(seed)
    shape = [classes if axis == old.weight_axis else size for axis, size in enumerate(old.operand.shape)]
    # Drawn class by class, whatever the layout: the same numbers in every form of the layer.
    weight = random.uniform(-bound, bound, (classes, old.features))
    weight = weight.reshape(shape) if old.weight_axis == 0 else np.ascontiguousarray(weight.T)
    made = {"weight": _put(old.node, 1, weight)}
    if old.bias is not None:
        node, index = old.bias
        shape = _bias_shape(old, classes)
        made["bias"] = _put(node, index, random.uniform(-bound, bound, classes).reshape(shape))
    remove_unused(model)
    for value in [value for value in graph.inputs if value.is_initializer() and not value.uses()]:
        if not value.is_graph_output():
            graph.inputs.remove(value)
            del graph.initializers[value.name or ""]
    prefix = _free_prefix(graph, name, made)
    for suffix, value in made.items():
        value.name = f"{prefix}.{suffix}"
        assert value.const_value is not None
        value.const_value.name = value.name
        graph.register_initializer(value)
        if model.ir_version < 4:  # such files list every initializer as an input too
            graph.inputs.append(value)
    return [value.name or "" for value in made.values()]


def _put(node: ir.Node, index: int, array: np.ndarray) -> ir.Value:
    """Let an input of a node be a fresh weight, in the type of the one that it was."""
    old = constant_array(_origin(node.inputs[index]))
    assert old is not None
    tensor = ir.tensor(array.astype(old.dtype))
    value = ir.Value(type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    mark_weight(value)
    node.replace_input_with(index, value)
    node.metadata_props.clear()  # what an exporter recorded of the old one
    return value


def _origin(value: ir.Value | None) -> ir.Value | None:
    """Where a constant comes from that is transposed, or the like, before it is used."""
    while value is not None and not is_constant(value):
        producer = value.producer()
        assert producer is not None
        value = producer.inputs[0]
    return value


def _bias_shape(old: Layer, classes: int) -> list[int]:
    """The shape of the bias with another number of classes."""
    assert old.bias is not None
    node, index = old.bias
    array = constant_array(node.inputs[index])
    assert array is not None
    shape = list(array.shape) or [1]
    behind = old.class_axis if node is not old.node else -1  # added to the result, or an input of the layer
    place = int(np.argmax(shape)) if array.size > 1 else max(len(shape) + behind, 0)
    return [classes if axis == place else size for axis, size in enumerate(shape)]


def _free_prefix(graph: ir.Graph, name: str, suffixes: Iterable[str]) -> str:
    taken = {value.name for value in all_values(graph)}
    prefix, count = name, 1
    while any(f"{prefix}.{suffix}" in taken for suffix in suffixes):
        count += 1
        prefix = f"{name}{count}"
    return prefix


def _tell_sizes(graph: ir.Graph, old: Layer, followed: Followed, classes: int) -> None:
    """Write the new number where the old one stood: in the shapes of values, and in those that Reshapes make."""
    for value, axis in followed.axes.items():
        known = dims(value)
        if known is not None and len(known) >= -axis and isinstance(known[axis], int):
            value.shape = ir.Shape([*known[: len(known) + axis], classes, *known[len(known) + axis + 1 :]])
    for node, index, element in followed.reshapes:
        _tell_reshape(graph, node, index, element, classes)


def _tell_reshape(graph: ir.Graph, node: ir.Node, index: int, element: int, classes: int) -> None:
    """Let one element of a constant input be the number of classes: in a new constant, since the old may be shared."""
    old = constant_array(node.inputs[index])
    assert old is not None
    shape = old.copy()
    shape.reshape(-1)[element] = classes
    taken = {value.name for value in all_values(graph)}
    title = f"{node.name or node.outputs[0].name}/shape"
    while title in taken:
        title += "_"
    tensor = ir.tensor(shape)
    constant = ir.node("Constant", [], {"value": tensor}, name=title)
    constant.outputs[0].name = title
    constant.outputs[0].type, constant.outputs[0].shape = ir.TensorType(tensor.dtype), ir.Shape(shape.shape)
    graph.insert_before(node, constant)
    node.replace_input_with(index, constant.outputs[0])


def _check_result(model: ir.Model, old: Layer) -> None:
    """See that the model is sound: what has been overlooked shows as a contradiction of shapes."""
    check(model)
    try:
        _inferred(model)
    except InvalidModelError as error:
        raise OnwardError(
            f"{old} cannot be replaced by a layer of another size: something behind it depends on it. {error}"
        ) from error
