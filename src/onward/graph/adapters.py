"""How nodes are rewritten when the meaning or the syntax of their operator changes from one opset to the next.

An adapter gets a builder of the new opset and the node. It changes the node in place, or emits its replacement at
the end of the graph; whoever calls it sorts the graph afterwards. "The same values" are onnxruntime's where the
standard leaves a choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OpsetError
from onward.graph.builder import Builder
from onward.graph.kernel_sizes import counts_whole_kernel
from onward.graph.nodes import attribute, constant_of, describe, input_at, is_used, take_over
from onward.graph.shapes import dims

Adapter = Callable[[Builder, ir.Node], None]

ADAPTERS: dict[tuple[str, int], Adapter] = {}

_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSumSquare"
).split()


def adapter(*op_types: str, since: int) -> Callable[[Adapter], Adapter]:
    """Declare how nodes of these operators move from opset `since` - 1 to `since`."""

    def register(function: Adapter) -> Adapter:
        ADAPTERS.update({(op_type, since): function for op_type in op_types})
        return function

    return register


# Attributes that became inputs ----------------------------------------------------------------------------------


def _attributes_to_inputs(op: Builder, node: ir.Node, names: Mapping[int, str], like: ir.Value | None = None) -> None:
    """Turn attributes into constant inputs: integers, or numbers of the dtype of `like`."""
    for index, name in names.items():
        found = node.attributes.pop(name, None)
        if found is not None:
            dtype = ir.DataType.INT64 if like is None else like.dtype
            _set_input(node, index, op.constant(found.value, dtype))


def _set_input(node: ir.Node, index: int, value: ir.Value | None) -> None:
    if index >= len(node.inputs):
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


@adapter("ReduceSum", "Squeeze", "Unsqueeze", since=13)
@adapter(*_REDUCTIONS, since=18)
def axes_to_input(op: Builder, node: ir.Node) -> None:
    _attributes_to_inputs(op, node, {1: "axes"})


@adapter("Split", since=13)
def split_13(op: Builder, node: ir.Node) -> None:
    _attributes_to_inputs(op, node, {1: "split"})


@adapter("Slice", since=10)
def slice_10(op: Builder, node: ir.Node) -> None:
    _attributes_to_inputs(op, node, {1: "starts", 2: "ends", 3: "axes"})


@adapter("TopK", since=10)
def top_k_10(op: Builder, node: ir.Node) -> None:
    k = node.attributes.pop("k").as_int()
    _set_input(node, 1, op.constant([k], ir.DataType.INT64))


@adapter("Clip", since=11)
def clip_11(op: Builder, node: ir.Node) -> None:
    _attributes_to_inputs(op, node, {1: "min", 2: "max"}, like=node.inputs[0])


@adapter("Pad", since=11)
def pad_11(op: Builder, node: ir.Node) -> None:
    _attributes_to_inputs(op, node, {1: "pads"})
    _attributes_to_inputs(op, node, {2: "value"}, like=node.inputs[0])


@adapter("Upsample", since=9)
def upsample_9(op: Builder, node: ir.Node) -> None:
    scales = node.attributes.pop("scales").value
    _set_input(node, 1, op.constant(scales, ir.DataType.FLOAT))


@adapter("DFT", since=20)
def dft_20(op: Builder, node: ir.Node) -> None:
    """The axis became an input, and its default -2 instead of 1."""
    axis = attribute(node, "axis", 1)
    node.attributes.pop("axis", None)
    _set_input(node, 2, op.constant(axis, ir.DataType.INT64))


# Defaults and names that changed --------------------------------------------------------------------------------


@adapter("Scatter", since=11)
def scatter_11(op: Builder, node: ir.Node) -> None:
    node.op_type = "ScatterElements"


@adapter("Split", since=18)
def split_18(op: Builder, node: ir.Node) -> None:
    """Equal parts are asked for by their number, no longer by giving no sizes."""
    if input_at(node, 1) is None:
        node.resize_inputs(1)
        node.attributes.add(ir.AttrInt64("num_outputs", len(node.outputs)))


@adapter("RoiAlign", since=16)
def roi_align_16(op: Builder, node: ir.Node) -> None:
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "output_half_pixel"))


@adapter("GridSample", since=20)
def grid_sample_20(op: Builder, node: ir.Node) -> None:
    mode = attribute(node, "mode", "bilinear")
    node.attributes.add(ir.AttrString("mode", {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)))


# Upsample and Resize --------------------------------------------------------------------------------------------


@adapter("Upsample", since=10)
def upsample_10(op: Builder, node: ir.Node) -> None:
    node.op_type = "Resize"


@adapter("Resize", since=11)
def resize_11(op: Builder, node: ir.Node) -> None:
    """The only coordinates of opset 10 were asymmetric; nearest rounded down when enlarging and up when reducing."""
    x, scales = node.inputs
    assert scales is not None
    mode = attribute(node, "mode", "nearest")
    settings = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    roi = op.constant([], ir.DataType.FLOAT)
    known = constant_of(scales)
    if mode != "nearest":
        y = op.Resize(x, roi, scales, **settings)
    elif known is not None and np.all(known >= 1):
        y = op.Resize(x, roi, scales, nearest_mode="floor", **settings)
    elif known is not None and np.all(known <= 1):
        y = op.Resize(x, roi, scales, nearest_mode="ceil", **settings)
    else:
        larger, smaller = op.Max(scales, np.float32(1)), op.Min(scales, np.float32(1))
        y = op.Resize(x, roi, larger, nearest_mode="floor", **settings)
        y = op.Resize(y, roi, smaller, nearest_mode="ceil", **settings)
    _replace(node, y)


@adapter("Resize", since=13)
def resize_13(op: Builder, node: ir.Node) -> None:
    """Inputs that do not apply are left out; they were empty tensors before, which are refused now."""
    sizes = input_at(node, 3)
    if sizes is not None:
        node.replace_input_with(2, None)
    roi = constant_of(input_at(node, 1))
    if roi is not None and roi.size == 0:
        node.replace_input_with(1, None)


# Other meanings -------------------------------------------------------------------------------------------------


@adapter("Softmax", "LogSoftmax", "Hardmax", since=13)
def softmax_13(op: Builder, node: ir.Node) -> None:
    """All axes from `axis` on were taken together; now it is one axis."""
    x = node.inputs[0]
    assert x is not None
    axis, known = attribute(node, "axis", 1), dims(x)
    if axis == -1 or (known is not None and all(dim == 1 for dim in known[axis % len(known) + 1 :])):
        node.attributes.add(ir.AttrInt64("axis", axis))
        return
    flat = op.emit(node.op_type, op.Flatten(x, axis=axis), axis=-1)
    _replace(node, op.reshape_like(flat, x))


@adapter("Dropout", since=10)
def dropout_10(op: Builder, node: ir.Node) -> None:
    """The mask, until then of the type of the data, became boolean; onnxruntime made it zero, as nothing is dropped."""
    x = node.inputs[0]
    assert x is not None
    if len(node.outputs) > 1 and is_used(node.outputs[1]):
        mask = node.outputs[1]
        assert mask.dtype is not None
        take_over(mask, op.full(op.shape(x), 0, mask.dtype))
    node.resize_outputs(1)


@adapter("Dropout", since=12)
def dropout_12(op: Builder, node: ir.Node) -> None:
    """Nothing was ever dropped before opset 12, and the mask of dropping nothing was false instead of true."""
    _attributes_to_inputs(op, node, {1: "ratio"}, like=node.inputs[0])
    dropout_10(op, node)


@adapter("BatchNormalization", since=9)
def batch_normalization_9(op: Builder, node: ir.Node) -> None:
    """Without `spatial` every element had its own statistics: the same as one channel for each element."""
    spatial = attribute(node, "spatial", 1)
    node.attributes.pop("spatial", None)
    if spatial:
        return
    x, *statistics = [value for value in node.inputs if value is not None]
    flat = [op.Reshape(value, [-1]) for value in statistics]
    settings = {name: found.value for name, found in node.attributes.items()}
    results = op.BatchNormalization(op.Flatten(x, axis=1), *flat, outputs=len(node.outputs), **settings)
    results = results if isinstance(results, tuple) else (results,)
    likes = [x, *(statistics[2] for _ in results[1:])]
    _replace(node, *(op.reshape_like(result, like) for result, like in zip(results, likes, strict=True)))


@adapter("BatchNormalization", since=14)
def batch_normalization_14(op: Builder, node: ir.Node) -> None:
    """Training was asked for by naming the optional outputs; the saved statistics are outputs no more."""
    if not any(output.name for output in node.outputs[1:]):
        node.resize_outputs(1)
        return
    x = node.inputs[0]
    assert x is not None
    node.attributes.add(ir.AttrInt64("training_mode", 1))
    known = dims(x)
    saved = [output if is_used(output) else None for output in node.outputs[3:]]
    if any(saved):
        if known is None:
            raise OpsetError(f"{describe(node)} uses saved statistics, and the rank of its input is unknown")
        axes = [axis for axis in range(len(known)) if axis != 1]
        mean = op.ReduceMean(x, axes, keepdims=1)
        centred = op.Sub(x, mean)
        variance = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=0)
        # What the standard calls the saved variance is the inverse standard deviation in onnxruntime.
        deviation = op.Sqrt(op.Add(variance, attribute(node, "epsilon", 1e-5)))
        for output, value in zip(saved, (op.Reshape(mean, [-1]), op.Reciprocal(deviation)), strict=False):
            if output is not None:
                take_over(output, value)
    node.resize_outputs(min(len(node.outputs), 3))


@adapter("GroupNormalization", since=21)
def group_normalization_21(op: Builder, node: ir.Node) -> None:
    """Scale and bias were those of each group, not of each channel: as if a group were a channel."""
    x, scale, bias = node.inputs
    assert x is not None
    groups = op.Reshape(x, [0, attribute(node, "num_groups", 1), -1])
    y = op.InstanceNormalization(groups, scale, bias, epsilon=attribute(node, "epsilon", 1e-5))
    _replace(node, op.reshape_like(y, x))


@adapter("AveragePool", since=19)
def average_pool_19(op: Builder, node: ir.Node) -> None:
    """With count_include_pad, a window larger than the padded image was divided by its own size, now by the image's."""
    x = node.inputs[0]
    assert x is not None
    kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
    n, how = len(kernel), attribute(node, "auto_pad", "NOTSET")
    if not counts_whole_kernel(node, 18) or counts_whole_kernel(node, 19) or how.startswith("SAME"):
        return
    if attribute(node, "ceil_mode", 0):
        raise OpsetError(
            f"{describe(node)} rounds the number of its windows up (ceil_mode) and counts its padding: the installed "
            "onnxruntime divides them by other numbers from opset 19 on, so the model cannot be moved there. Install "
            "onnxruntime 1.29 or newer, or export the model with opset 19 or newer."
        )
    strides, pads = attribute(node, "strides", (1,) * n), attribute(node, "pads", (0,) * 2 * n)
    added = [0 if how == "VALID" else pads[i] + pads[n + i] for i in range(n)]
    sizes = (dims(x) or (None,) * (n + 2))[2:]
    # Along other axes, one that is too large is there no time at all.
    larger = [
        axis
        for axis, size, side, stride, padding in zip(range(n), sizes, kernel, strides, added, strict=True)
        if stride > 1 and side > padding + (size if isinstance(size, int) else 1)
    ]
    if not larger:
        return
    assert x.dtype is not None
    places = np.array(larger)
    length = op.Gather(op.shape(x), places + 2, axis=0) + np.array(added)[places]
    whole = np.array(kernel)[places]
    shares = op.cast(op.Min(length, whole), x.dtype) / whole.astype(np.float64)
    settings = {name: found.value for name, found in node.attributes.items()}
    _replace(node, op.AveragePool(x, **settings) * op.ReduceProd(shares, keepdims=0))


@adapter("Scan", since=9)
def scan_9(op: Builder, node: ir.Node) -> None:
    """Scanning a batch of sequences: an outer Scan takes its elements one after the other."""
    if input_at(node, 0) is not None:
        raise OpsetError(
            f"{describe(node)} of opset 8 has sequence_lens, which no newer opset has. Export the model again with "
            "opset 9 or newer."
        )
    operands = [value for value in node.inputs[1:] if value is not None]
    settings: dict[str, Any] = {name: found.value for name, found in node.attributes.items()}
    elements = [_element(op, value, axis=0) for value in operands]
    directions = settings.pop("directions", None)
    # The body may belong to one node only.
    node.attributes.clear()
    inner = ir.node(
        "Scan",
        elements,
        attributes={**settings, **({} if directions is None else {"scan_input_directions": directions})},
        num_outputs=len(node.outputs),
        name=op.unique_name(f"{node.name or node.outputs[0].name}/one"),
    )
    for inside, outside in zip(inner.outputs, node.outputs, strict=True):
        inside.name = op.unique_name(f"{outside.name}/one")
        inside.type = outside.type
    outer_body = ir.Graph(elements, inner.outputs, nodes=[inner], name=f"{inner.name}/body")
    outer = ir.node(
        "Scan",
        operands,
        attributes={"body": outer_body, "num_scan_inputs": len(operands)},
        num_outputs=len(node.outputs),
        name=op.unique_name(f"{node.name or node.outputs[0].name}/batch"),
    )
    op.graph.append(outer)
    _replace(node, *outer.outputs)


def _element(op: Builder, value: ir.Value, axis: int) -> ir.Value:
    """A value for the elements of `value` along `axis`, as an input of a body."""
    known = dims(value)
    shape = None if known is None else ir.Shape([dim for index, dim in enumerate(known) if index != axis])
    return ir.Value(name=op.unique_name(f"{value.name}/element"), type=value.type, shape=shape)


# Replacing outputs ----------------------------------------------------------------------------------------------


def _replace(node: ir.Node, *results: ir.Value) -> None:
    for old, new in zip(node.outputs, results, strict=True):
        take_over(old, new)
    assert node.graph is not None
    node.graph.remove(node, safe=True)
