"""Steps for training graphs: layers as forms and lowerings look for them, and what these have to leave alone.

They are not for comparisons with differences: the reference evaluator rounds the sizes of pools, and numbers their
indices, in a way of its own.
"""

from __future__ import annotations

import numpy as np

from tests.random_graphs.layers import image
from tests.random_graphs.operators import Step
from tests.random_graphs.program import Program, RejectedError, Tensor

TRAINED: dict[str, Step] = {}


def step(function: Step) -> Step:
    TRAINED[function.__name__] = function
    return function


@step
def tiling_maxima(program: Program) -> Tensor:
    """Windows beside each other over an image with equal elements, with or without padding, ceil_mode and Relu."""
    x = image(program, (4,))
    kernel = [program.integer(1, min(3, size)) for size in x.shape[2:]]
    pads = [program.integer(0, k - 1) for k in kernel * 2] if program.flag() else [0] * 4
    if any(size + pads[i] + pads[i + 2] < k for i, (size, k) in enumerate(zip(x.shape[2:], kernel, strict=True))):
        raise RejectedError
    if program.flag():
        x = program.add("Round", x)
    if program.flag():
        x = program.add("Relu", x)
    return program.add("MaxPool", x, kernel_shape=kernel, strides=kernel, pads=pads, ceil_mode=program.integer(0, 1))


@step
def normalization_in_training(program: Program) -> Tensor:
    """Of channels that depend on each other: all are the same but for a factor."""
    x = image(program, (4,))
    factors = program.leaf((3, x.shape[1], 1, 1))
    channels = program.add("Conv", x, factors)
    scale, bias = program.leaf((3,)), program.leaf((3,))
    mean, variance = program.constant(np.zeros(3)), program.constant(np.ones(3))
    momentum = program.choice([0.0, 0.5, 0.9])
    return program.add(
        "BatchNormalization", channels, scale, bias, mean, variance, training_mode=1, momentum=momentum, epsilon=1e-2
    )


@step
def shared_weights(program: Program) -> Tensor:
    """Two layers with one parameter."""
    x = program.pick(lambda tensor: tensor.ndim >= 2 and 0 < tensor.array.size <= 64)
    w = program.leaf((x.shape[-1], x.shape[-1]), -0.6, 0.6)
    h = program.add(program.choice(["Relu", "Tanh"]), program.add("MatMul", x, w))
    return program.add("MatMul", h, program.add("Transpose", w, perm=[1, 0]) if program.flag() else w)


@step
def shared_filters(program: Program) -> Tensor:
    """Two convolutions with one parameter, of one pixel or depthwise."""
    x = image(program, (4,))
    channels = x.shape[1]
    group, k = (channels, 3) if program.flag() else (1, 1)
    w = program.leaf((channels, channels // group, k, k), -0.6, 0.6)
    options = {"group": group, "pads": [k // 2] * 4}
    return program.add("Conv", program.add("Relu", program.add("Conv", x, w, **options)), w, **options)


@step
def parts_of_one(program: Program) -> Tensor:
    """What attention makes of a product: parts that are taken after moving axes, or by Split."""
    x = program.pick(lambda tensor: tensor.ndim == 2 and tensor.array.size and tensor.shape[1] % 2 == 0)
    if program.flag():
        a, b = program.add("Split", x, outputs=2, axis=1, num_outputs=2)
    else:
        sizes = program.constant(np.array([x.shape[0], 2, x.shape[1] // 2]))
        moved = program.add("Transpose", program.add("Reshape", x, sizes), perm=[1, 0, 2])
        a, b = (program.add("Gather", moved, program.constant(np.array(index)), axis=0) for index in (0, 1))
    return program.add("Mul", a, b)
