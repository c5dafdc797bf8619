"""The sizes that onnxruntime's kernels give their results, for operators of which onnx's inference says otherwise.

onnx multiplies the scales of Resize in double precision and onnxruntime in single: 6 elements by 5/6 are 4 or 5. Older
versions of the pooling operators count windows that begin in the padding, ConvTranspose forgets axes, and Slice of
opset 10 keeps the name of a size that it cuts. onnxruntime runs the model, so its sizes are the true ones.
`tests/graph/test_inferred_sizes.py` compares them for every operator whose sizes are arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onward.graph.nodes import attribute, constant_of, input_at, integers
from onward.graph.opsets import runtime_is_before
from onward.graph.shapes import Dim, dims, is_placeholder

Shape = list[Dim]


def kernel_shape(node: ir.Node) -> Shape | None:
    """The shape of each output of a node as onnxruntime makes it, None for a size that is not known.

    None instead of a shape where inference can be trusted, or nothing is known of the input.
    """
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    x = input_at(node, 0)
    shape = None if x is None else dims(x)
    return None if rule is None or shape is None else rule(node, list(shape))


def contradicts(claimed: Sequence[Dim] | None, true: Shape) -> bool:
    """Whether a claim may be wrong: it has other numbers, or a number or name for what is not known."""
    if claimed is None:
        return False
    if len(claimed) != len(true):
        return True
    pairs = zip(claimed, true, strict=True)
    return any(claim != size for claim, size in pairs if _says_something(claim) and not _names_number(claim, size))


def _says_something(size: Dim) -> bool:
    return size is not None and not is_placeholder(size)


def _names_number(claim: Dim, size: Dim) -> bool:
    return isinstance(claim, str) and isinstance(size, int)


def _pool(node: ir.Node, shape: Shape) -> Shape | None:
    """Windows that begin behind the image do not count, also where the number is rounded up."""
    kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
    n = len(kernel)
    if len(shape) != n + 2 or attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID", *_SAME):
        return None
    strides: tuple[int, ...] = attribute(node, "strides", (1,) * n)
    dilations: tuple[int, ...] = attribute(node, "dilations", (1,) * n)
    pads: tuple[int, ...] = attribute(node, "pads", (0,) * 2 * n)
    if (len(strides), len(dilations), len(pads)) != (n, n, 2 * n) or min(strides, default=1) < 1:
        return None
    windows = zip(shape[2:], kernel, strides, dilations, pads[:n], pads[n:], strict=True)
    return [*shape[:2], *(_positions(node, *window) for window in windows)]


_SAME = ("SAME_UPPER", "SAME_LOWER")


def _positions(node: ir.Node, size: Dim, kernel: int, stride: int, dilation: int, before: int, after: int) -> Dim:
    how = attribute(node, "auto_pad", "NOTSET")
    if not isinstance(size, int):
        # Inference says so of dilated windows too, which reach further than the padding.
        return size if how in _SAME and stride == 1 and 1 in (dilation, kernel) else None
    if how != "NOTSET":
        before = after = 0
    if how in _SAME:
        before, after = pooling_padding(size, kernel, stride, upper=how == "SAME_UPPER")
    room = size + before + after - dilation * (kernel - 1) - 1
    if attribute(node, "ceil_mode", 0):
        count = -(-room // stride) + 1
        count = count - 1 if (count - 1) * stride >= size + before and not runtime_is_before(21) else count
    elif room < 0 and not runtime_is_before(21):
        # Rounded towards zero, not down: a window that is larger by less than a stride is one that reads what there is.
        count = 1 - (-room // stride)
    else:
        count = room // stride + 1
    return count if count >= 0 else None  # onnxruntime refuses


def counts_whole_kernel(node: ir.Node, opset: int) -> bool:
    """Whether onnxruntime divides means by the size of the kernel, also where windows reach beyond the padded image."""
    if not attribute(node, "count_include_pad", 0):
        return False
    if runtime_is_before(21):
        return True
    return opset < 19 and (runtime_is_before(29) or not attribute(node, "ceil_mode", 0))


def plain_pooling(node: ir.Node) -> dict[str, ir.Attr]:
    """Attributes by which a pooling node, whose sizes are misjudged, says the same so that they are not.

    To state the size of its result again does not do: onnxruntime plans its memory by what it infers.
    """
    x = input_at(node, 0)
    if not is_pooling(node) or x is None:
        return {}
    shape = dims(x) or (None,) * (2 + len(attribute(node, "kernel_shape", ())))
    found = _explicit_padding(node, shape[2:])
    if not found and attribute(node, "auto_pad", "NOTSET") in _SAME:
        return {}
    plain = ir.node(node.op_type, [], {**node.attributes, **found, "ceil_mode": ir.AttrInt64("ceil_mode", 0)})
    counts = _pool(plain, list(shape))
    if attribute(node, "ceil_mode", 0) and counts is not None and None not in counts[2:]:
        divides = attribute(node, "count_include_pad", 0) and not _fits(plain, shape[2:])
        if counts == _pool(node, list(shape)) and not divides:
            found["ceil_mode"] = plain.attributes["ceil_mode"]
    return found


def reaches_beyond_padding(node: ir.Node) -> bool:
    """Whether the padding of a pooling node forgets that its windows are dilated, as that of auto_pad SAME does.

    Inference says that sizes stay as they are, of images too whose sizes only onnxruntime finds out.
    """
    same = is_pooling(node) and attribute(node, "auto_pad", "NOTSET") in _SAME
    kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
    dilations: tuple[int, ...] = attribute(node, "dilations", (1,) * len(kernel))
    return same and any(k > 1 and d > 1 for k, d in zip(kernel, dilations, strict=False))


def is_pooling(node: ir.Node) -> bool:
    """Whether windows slide over what a node of the default domain reads."""
    return _RULES.get(node.op_type) is _pool


def _explicit_padding(node: ir.Node, sizes: Sequence[Dim]) -> dict[str, ir.Attr]:
    """The pads that auto_pad SAME stands for, where they are known, or the same for all sizes."""
    kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
    strides: tuple[int, ...] = attribute(node, "strides", (1,) * len(kernel))
    how, rows = attribute(node, "auto_pad", "NOTSET"), list(zip(sizes, kernel, strides, strict=True))
    if how not in _SAME or not all(isinstance(size, int) or stride == 1 for size, _, stride in rows):
        return {}
    ends = [
        pooling_padding(size if isinstance(size, int) else 1, k, s, upper=how == "SAME_UPPER") for size, k, s in rows
    ]
    pads = [before for before, _ in ends] + [after for _, after in ends]
    if min(pads) < 0:
        return {}
    return {"auto_pad": ir.AttrString("auto_pad", "NOTSET"), "pads": ir.AttrInt64s("pads", pads)}


def _fits(node: ir.Node, sizes: Sequence[Dim]) -> bool:
    """Whether the windows of a node without auto_pad are no larger than the padded image, of known size."""
    kernel: tuple[int, ...] = attribute(node, "kernel_shape", ())
    n = len(kernel)
    dilations, pads = attribute(node, "dilations", (1,) * n), attribute(node, "pads", (0,) * 2 * n)
    rows = zip(sizes, kernel, dilations, pads[:n], pads[n:], strict=True)
    return all(isinstance(size, int) and d * (k - 1) < size + before + after for size, k, d, before, after in rows)


def pooling_padding(size: int, kernel: int, stride: int, *, upper: bool) -> tuple[int, int]:
    """What onnxruntime puts before and after an axis for auto_pad SAME of pooling.

    It leaves dilation out, and where strides are larger than windows the padding is negative: the first window begins
    within the image.
    """
    total = (-(-size // stride) - 1) * stride + kernel - size
    twice = total if upper else total + 1
    before = twice // 2 if twice >= 0 else -(-twice // 2)
    return before, total - before


def _conv_transpose(node: ir.Node, shape: Shape) -> Shape | None:
    """Of those that say what they want: inference gives up between two axes where that is less than there was.

    Where padding is to make the result as many times larger as there are strides, it adds the output padding to that.
    """
    n = len(shape) - 2
    weights = None if input_at(node, 1) is None else dims(node.inputs[1])  # type: ignore[arg-type]
    if weights is None or len(weights) != n + 2:
        return None
    channels = weights[1] * attribute(node, "group", 1) if isinstance(weights[1], int) else None
    wanted: tuple[int, ...] = attribute(node, "output_shape", ())
    if len(wanted) >= n > 0:
        return [shape[0], channels, *wanted[len(wanted) - n :]]
    kernel: Sequence[Dim] = attribute(node, "kernel_shape", weights[2:])
    strides: Sequence[int] = attribute(node, "strides", (1,) * n)
    dilations: Sequence[int] = attribute(node, "dilations", (1,) * n)
    added: Sequence[int] = attribute(node, "output_padding", (0,) * n)
    settings = (kernel, strides, dilations, added)
    if attribute(node, "auto_pad", "NOTSET") not in _SAME or any(len(setting) != n for setting in settings):
        return None
    rows = zip(shape[2:], *settings, strict=True)
    return [shape[0], channels, *(_enlarged(*row) for row in rows)]


def _enlarged(size: Dim, kernel: Dim, stride: int, dilation: int, added: int) -> Dim:
    if not isinstance(size, int) or not isinstance(kernel, int):
        return None
    return min(size * stride, (size - 1) * stride + dilation * (kernel - 1) + 1 + added)


def _slice(node: ir.Node, shape: Shape) -> Shape | None:
    """A size without number that is cut has no name afterwards."""
    starts, ends = integers(node, 1, "starts"), integers(node, 2, "ends")
    axes, steps = integers(node, 3, "axes"), integers(node, 4, "steps")
    if isinstance(axes, ir.Value) or not isinstance(starts, tuple) or not isinstance(ends, tuple):
        return None
    if isinstance(steps, ir.Value):
        return None
    axes = tuple(range(len(starts))) if axes is None else axes
    rows = zip(axes, starts, ends, steps or (1,) * len(axes), strict=False)
    for axis, start, end, step in rows:
        if not -len(shape) <= axis < len(shape) or not step:
            return None
        size = shape[axis]
        if isinstance(size, int):
            shape[axis] = _sliced(size, start, end, step)
        elif (start, step) != (0, 1) or end < 2**31 - 1:
            shape[axis] = None
    return shape


def _sliced(size: int, start: int, end: int, step: int) -> int:
    if size <= 0:
        return 0
    # Unlike in Python, a start before the first element is that element, backwards too.
    lowest, highest = (-1, size - 1) if step < 0 else (0, size)
    start = min(max(start + size if start < 0 else start, 0), highest)
    end = min(max(end + size if end < 0 else end, lowest), highest)
    return len(range(start, end, step))


def _resize(node: ir.Node, shape: Shape) -> Shape | None:
    axes = [axis % len(shape) for axis in attribute(node, "axes", tuple(range(len(shape))))] if shape else []
    sizes, scales = constant_of(input_at(node, 3)), _scales(node)
    if _is_given(input_at(node, 3)):
        found = _sizes(node, shape, axes, sizes)
    elif scales is None or len(scales) != len(axes):
        found = [None] * len(axes)
    else:
        found = [resized(shape[axis], scale) for axis, scale in zip(axes, scales, strict=True)]
    for axis, size in zip(axes, found, strict=True):
        shape[axis] = size
    return shape


def resized(size: Dim, scale: float) -> Dim:
    """The size that onnxruntime makes of another: the product in single precision, rounded down."""
    if scale == 1:
        return size
    product = np.float32(size) * np.float32(scale) if isinstance(size, int) else np.float32(np.nan)
    return int(product) if np.isfinite(product) else None


def _scales(node: ir.Node) -> list[float] | None:
    if "scales" in node.attributes:  # Upsample in opset 7
        listed: tuple[float, ...] = attribute(node, "scales", ())
        return [float(scale) for scale in listed]
    before_opset_11 = node.op_type == "Upsample" or len(node.inputs) == 2
    known = constant_of(input_at(node, 1 if before_opset_11 else 2))
    return None if known is None else [float(scale) for scale in known.reshape(-1)]


def _is_given(value: ir.Value | None) -> bool:
    """Whether an optional input is there; before opset 13 an empty tensor stands for one that is not."""
    known = constant_of(value)
    return value is not None and (known is None or known.size > 0)


def _sizes(node: ir.Node, shape: Shape, axes: Sequence[int], wanted: np.ndarray | None) -> Shape:
    policy = attribute(node, "keep_aspect_ratio_policy", "stretch")
    if wanted is None or wanted.size != len(axes):
        return [None] * len(axes)
    if policy == "stretch":
        return [int(size) for size in wanted]
    before = [shape[axis] for axis in axes]
    if min(attribute(node, "axes", (0,))) < 0 or not all(isinstance(size, int) for size in before):
        # onnxruntime 1.31 does not find axes that are counted from the end, and resizes nothing.
        return [None] * len(axes)
    lengths: np.ndarray = np.array(before, np.float32)
    if not np.all(lengths > 0):
        return [None] * len(axes)
    ratios = wanted.astype(np.float32) / lengths
    scale = np.float32(ratios.min() if policy == "not_larger" else ratios.max())
    return [math.floor(scale * length + np.float32(0.5)) for length in lengths]


_RULES: dict[str, Callable[[ir.Node, Shape], Shape | None]] = {
    "AveragePool": _pool,
    "ConvTranspose": _conv_transpose,
    "LpPool": _pool,
    "MaxPool": _pool,
    "Resize": _resize,
    "Slice": _slice,
    "Upsample": _resize,
}


def doubtful(graphs: Iterable[ir.Graph]) -> list[ir.Node]:
    """The nodes whose sizes are to be compared."""
    return [node for graph in graphs for node in graph if is_doubtful(node)]


def is_doubtful(node: ir.Node) -> bool:
    """Whether the sizes that a node makes may be others than inference says."""
    return node.op_type in _RULES and node.domain == ""
