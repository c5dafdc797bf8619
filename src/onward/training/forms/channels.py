"""Layers on small images with the channels first, as `[C, N H W]`.

In `[N, C, H, W]` an image of a few pixels is a short row: products are many and small, and what is done for each
channel is done a few pixels at a time. With channels first, there is one product for the whole batch, and rows are
long. Images are rearranged where a row of such layers begins and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, input_at, take_over
from onward.graph.replacement import emitting_before
from onward.graph.shapes import dims, static_shape
from onward.graph.sizes import product
from onward.training.forms.depthwise import is_small, matrices_of
from onward.training.forms.elementwise import counts_elements, operands, repeated

_MOST_PIXELS = 64

Rows = Callable[[ir.Value], ir.Value]  # an image to its rows
Layer = Callable[[Builder, ir.Node, Rows], "Sequence[ir.Value]"]


def put_channels_first(op: Builder, path: Sequence[ir.Node], carrying: Collection[ir.Value]) -> bool:
    """Rearrange rows of layers of `path` that gain by it, in place; whether there were any."""
    layers = {node: layer for node in path if (layer := _layer(node, carrying)) is not None}
    regions = [region for region in _connected(layers) if _pays(region)]
    for region in regions:
        _rewrite(op, region, layers)
    return bool(regions)


def _layer(node: ir.Node, carrying: Collection[ir.Value]) -> Layer | None:
    """How to write a node with the channels first, if that is known."""
    if node.domain != "" or not _is_small_image(node.outputs[0]):
        return None
    if node.op_type == "Conv" and node.inputs[1] in carrying:
        if is_small(node):
            return _depthwise
        return _pointwise if _is_pointwise(node) else None
    if node.op_type == "BatchNormalization" and _is_small_image(_images(node)[0]):
        return _batch_normalization
    return _elementwise if operands(node) is not None and all(map(_is_small_image, _images(node))) else None


def _is_small_image(value: ir.Value) -> bool:
    sizes = dims(value) or ()
    if len(sizes) != 4 or not all(isinstance(size, int) for size in sizes[1:]):
        return False
    _, _, height, width = sizes
    return isinstance(height, int) and isinstance(width, int) and height * width <= _MOST_PIXELS


def _is_pointwise(node: ir.Node) -> bool:
    """Whether a convolution reads one pixel for each of its outputs."""
    shape = static_shape(node.inputs[1]) if node.inputs[1] is not None else None
    plain = attribute(node, "group", 1) == 1 and not any(attribute(node, "pads", (0,)))
    return plain and shape is not None and shape[2:] == (1, 1) and set(attribute(node, "strides", (1,))) == {1}


def _images(node: ir.Node) -> list[ir.Value]:
    """The inputs that are images."""
    values = operands(node)
    return [value for value in node.inputs[:1] if value is not None] if values is None else values


# How layers are written --------------------------------------------------------------------------------------------


def _pointwise(op: Builder, node: ir.Node, rows: Rows) -> list[ir.Value]:
    x, w = node.inputs[:2]
    assert x is not None
    assert w is not None
    outputs, channels, *_ = static_shape(w) or ()
    return [_biased(op, node, op.MatMul(op.Reshape(w, [outputs, channels]), rows(x)))]


def _depthwise(op: Builder, node: ir.Node, rows: Rows) -> list[ir.Value]:
    x = node.inputs[0]
    assert x is not None
    values, pixels, _ = matrices_of(op, node)
    channels = _channels(x)
    y = op.MatMul(op.Reshape(rows(x), [channels, -1, pixels]), values)
    return [_biased(op, node, op.Reshape(y, [channels, -1]))]


def _biased(op: Builder, node: ir.Node, y: ir.Value) -> ir.Value:
    """Rows plus the bias of a convolution, if it has one."""
    y, bias = _with_sizes_of(node.outputs[0], y), input_at(node, 2)
    return y if bias is None else y + op.Unsqueeze(bias, [1])


def _batch_normalization(op: Builder, node: ir.Node, rows: Rows) -> list[ir.Value]:
    """One sample that has the pixels of all of them."""
    x = node.inputs[0]
    assert x is not None
    attributes = {name: attr.value for name, attr in node.attributes.items()}
    results = op.BatchNormalization(
        op.Unsqueeze(rows(x), [0]), *node.inputs[1:], **attributes, outputs=len(node.outputs)
    )
    y, *statistics = results if isinstance(results, Sequence) else [results]
    y.shape = ir.Shape([1, *(dims(rows(x)) or ())])
    return [op.Squeeze(y, [0]), *statistics]


def _elementwise(op: Builder, node: ir.Node, rows: Rows) -> list[ir.Value]:
    return [repeated(op, node, {value: rows(value) for value in _images(node)})]


def _with_sizes_of(image: ir.Value, rows: ir.Value) -> ir.Value:
    """Write down what is known of rows: inference does not know that their lengths are the same everywhere."""
    samples, channels, *sizes = dims(image) or ()
    rows.shape = ir.Shape([channels, product([samples, *sizes])])
    return rows


def _channels(x: ir.Value) -> int:
    channels = (dims(x) or ())[1]
    assert isinstance(channels, int)
    return channels


# Rows of layers ----------------------------------------------------------------------------------------------------


def _connected(layers: Iterable[ir.Node]) -> Iterator[list[ir.Node]]:
    """Layers that feed each other, in order."""
    regions: dict[ir.Node, list[ir.Node]] = {}
    for node in layers:
        region = [node]
        for x in _images(node):
            before = x.producer()
            found = None if before is None else regions.get(before)
            if found is not None and found is not region:
                found.extend(region)
                region = found
                regions.update(dict.fromkeys(region, region))
        regions[node] = region
    unique = {id(region): region for region in regions.values()}
    order = {node: index for index, node in enumerate(layers)}
    for region in unique.values():
        yield sorted(region, key=order.__getitem__)


def _pays(region: Sequence[ir.Node]) -> bool:
    """Whether there are more convolutions than images to rearrange."""
    inside = set(region)
    entries = {x for node in region for x in _images(node) if x.producer() not in inside}
    exits = [node for node in region if _is_used_outside(node, inside)]
    return sum(node.op_type == "Conv" for node in region) > len(entries) + len(exits)


def _is_used_outside(node: ir.Node, inside: Collection[ir.Node]) -> bool:
    y = node.outputs[0]
    return y.is_graph_output() or any(user not in inside and not counts_elements(user) for user in y.consumers())


def _rewrite(op: Builder, region: Sequence[ir.Node], layers: dict[ir.Node, Layer]) -> None:
    known: dict[ir.Value, ir.Value] = {}

    def rows(x: ir.Value) -> ir.Value:
        if x not in known:
            known[x] = _with_sizes_of(x, op.Reshape(op.Transpose(x, perm=[1, 0, 2, 3]), [_channels(x), -1]))
        return known[x]

    inside = set(region)
    for node in region:
        with emitting_before(op, node):
            known[node.outputs[0]], *statistics = layers[node](op, node, rows)
        for old, new in zip(node.outputs[1:], statistics, strict=True):
            take_over(old, new)
    for node in [node for node in region if _is_used_outside(node, inside)]:
        y = node.outputs[0]
        _, channels, *sizes = dims(y) or ()
        with emitting_before(op, node):
            images = op.Transpose(op.Reshape(known[y], [channels, -1, *sizes]), perm=[1, 0, 2, 3])
        take_over(y, images)
    for y in (node.outputs[0] for node in region):
        for user, index in list(y.uses()):
            if counts_elements(user):
                user.replace_input_with(index, known[y])
    for node in reversed(region):
        op.graph.remove(node, safe=True)
