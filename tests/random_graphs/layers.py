"""Steps of neural networks: convolutions, pools, normalisations, resizing.

Not here, because the reference evaluator computes them wrongly or in float32, so that differences say nothing: LRN,
LpNormalization with p = 1, GroupNormalization, MeanVarianceNormalization, GridSample, some ways to resize.
"""

from __future__ import annotations

import numpy as np

from tests.random_graphs.operators import axis_of, step
from tests.random_graphs.program import Program, RejectedError, Tensor


def image(program: Program, ndim: tuple[int, ...] = (3, 4)) -> Tensor:
    """Something `[N, C, ...]`: a value that is one, or one reshaped."""
    there = [tensor for tensor in program.visible() if tensor.ndim in ndim and 0 < tensor.array.size <= 64]
    if there and program.integer(0, 3):
        return program.choice(there)
    x = program.pick(lambda tensor: tensor.array.size in (4, 6, 8, 9, 12, 16, 18, 24))
    size = x.array.size
    shapes = [
        (1, 1, size),
        (1, 2, size // 2),
        (2, 1, size // 2),
        (1, 1, 2, size // 2),
        (1, 2, 2, size // 4),
        (1, 1, 3, size // 3),
    ]
    shape = program.choice([s for s in shapes if np.prod(s) == size and len(s) in ndim])
    return program.add("Reshape", x, program.constant(np.array(shape)))


def window(program: Program, x: Tensor, dilate: bool = True) -> dict[str, list[int]]:
    kernel, strides, dilations, pads = [], [], [], []
    for size in x.shape[2:]:
        k = program.integer(1, 3)
        d = program.integer(1, 2) if dilate else 1
        extent = (k - 1) * d + 1
        p = [program.integer(0, extent - 1), program.integer(0, extent - 1)]
        if size + sum(p) < extent:
            raise RejectedError
        kernel.append(k)
        strides.append(program.integer(1, 2))
        dilations.append(d)
        pads.append(p)
    flat = [before for before, _ in pads] + [after for _, after in pads]
    return {"kernel_shape": kernel, "strides": strides, "pads": flat} | ({"dilations": dilations} if dilate else {})


@step
def conv(program: Program) -> Tensor:
    x = image(program)
    options = window(program, x)
    channels = x.shape[1]
    group = program.choice([g for g in (1, channels) if channels % g == 0])
    outputs = group * program.integer(1, 2)
    w = program.leaf((outputs, channels // group, *options["kernel_shape"]), -0.6, 0.6)
    bias = [program.leaf((outputs,))] if program.flag() else []
    return program.add("Conv", x, w, *bias, group=group, **options)


@step
def conv_transpose(program: Program) -> Tensor:
    x = image(program)
    options = window(program, x)
    channels = x.shape[1]
    w = program.leaf((channels, program.integer(1, 2), *options["kernel_shape"]), -0.6, 0.6)
    for axis, size in enumerate(x.shape[2:]):
        reach = (options["kernel_shape"][axis] - 1) * options["dilations"][axis] + 1
        padded = options["pads"][axis] + options["pads"][axis + x.ndim - 2]
        if (size - 1) * options["strides"][axis] + reach - padded < 1:
            raise RejectedError
    return program.add("ConvTranspose", x, w, **options)


@step
def pool(program: Program) -> Tensor:
    x = image(program)
    op_type = program.choice(["MaxPool", "AveragePool", "LpPool"])
    if op_type == "MaxPool" and x.ndim == 3 and x.shape[:2] != (1, 1):
        raise RejectedError  # the reference evaluator numbers the elements of each row from 0
    options = window(program, x, dilate=op_type == "MaxPool")
    half = [k // 2 for k in options["kernel_shape"]]
    options["pads"] = [min(p, h) for p, h in zip(options["pads"], half + half, strict=True)]
    extra = {}
    if op_type == "AveragePool":
        extra = {"count_include_pad": int(program.flag())}
    if op_type == "LpPool":
        extra = {"p": program.integer(1, 3)}
    if any(
        size + options["pads"][i] + options["pads"][i + len(half)] < k
        for i, (size, k) in enumerate(zip(x.shape[2:], options["kernel_shape"], strict=True))
    ):
        raise RejectedError
    return program.add(op_type, x, **options, **extra)


@step
def global_pool(program: Program) -> Tensor:
    return program.add(program.choice(["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]), image(program))


@step
def layer_normalization(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 1)
    axis = axis_of(program, x)
    shape = x.shape[axis:]
    if np.prod(shape) < 2:
        raise RejectedError
    bias = [program.leaf(shape)] if program.flag() else []
    return program.add("LayerNormalization", x, program.leaf(shape), *bias, axis=axis, epsilon=1e-2)


@step
def channel_normalization(program: Program) -> Tensor:
    x = image(program)
    channels = x.shape[1]
    scale, bias = program.leaf((channels,)), program.leaf((channels,))
    op_type = program.choice(["InstanceNormalization", "BatchNormalization"])
    if op_type == "BatchNormalization":
        mean, variance = program.leaf((channels,)), program.leaf((channels,), 0.5, 1.5)
        return program.add(op_type, x, scale, bias, mean, variance, epsilon=1e-2)
    return program.add(op_type, x, scale, bias, epsilon=1e-2)


@step
def length_normalization(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    return program.add("LpNormalization", x, axis=axis_of(program, x), p=2)


@step
def resize(program: Program) -> Tensor:
    x = image(program, (4,))
    mode = program.choice(["nearest", "linear", "cubic"])
    transform = program.choice(["half_pixel", "asymmetric"])
    if program.flag():
        scales = [1.0, 1.0, *(program.choice([0.5, 1.0, 1.5, 2.0]) for _ in x.shape[2:])]
        if any(int(size * scale) == 0 for size, scale in zip(x.shape, scales, strict=True)):
            raise RejectedError
        operands = [None, program.constant(np.array(scales, np.float32))]
    else:
        sizes = [*x.shape[:2], *(program.integer(1, 4) for _ in x.shape[2:])]
        operands = [None, None, program.constant(np.array(sizes, np.int64))]
    return program.add(
        "Resize", x, *operands, mode=mode, coordinate_transformation_mode=transform, nearest_mode="floor"
    )


@step
def recurrent(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim == 3 and 0 < tensor.array.size <= 24)
    op_type, gates = program.choice([("RNN", 1), ("GRU", 3), ("LSTM", 4)])
    direction = program.choice(["forward", "reverse", "bidirectional"])
    ways, hidden = 2 if direction == "bidirectional" else 1, program.integer(1, 2)
    operands: list[Tensor | None] = [
        x,
        program.leaf((ways, gates * hidden, x.shape[2]), -0.7, 0.7),
        program.leaf((ways, gates * hidden, hidden), -0.7, 0.7),
    ]
    if program.flag():
        lengths = np.array([program.integer(1, x.shape[0]) for _ in range(x.shape[1])], np.int32)
        initial = program.leaf((ways, x.shape[1], hidden))
        operands += [program.leaf((ways, 2 * gates * hidden), -0.5, 0.5), program.constant(lengths), initial]
    options = {"linear_before_reset": int(program.flag())} if op_type == "GRU" else {}
    made = program.add(op_type, *operands, outputs=2, hidden_size=hidden, direction=direction, **options)
    return program.choice(made)
