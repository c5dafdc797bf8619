"""Steps that move, repeat, select and place elements."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from tests.random_graphs.operators import axis_of, step
from tests.random_graphs.program import Program, RejectedError, Tensor


def ints(program: Program, values: object) -> Tensor:
    return program.constant(np.array(values, np.int64))


@step
def reshape(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.array.size > 0)
    shape: list[int] = []
    rest = x.array.size
    for _ in range(program.integer(0, 3)):
        size = program.choice([divisor for divisor in range(1, 5) if rest % divisor == 0])
        shape.append(size)
        rest //= size
    if rest > 1 or program.flag():
        shape.insert(program.integer(0, len(shape)), rest)
    for axis, size in enumerate(shape):
        if axis < x.ndim and x.shape[axis] == size and program.integer(0, 3) == 0:
            shape[axis] = 0  # as in x
    if shape and program.flag():
        shape[program.integer(0, len(shape) - 1)] = -1
    return program.add("Reshape", x, ints(program, shape))


@step
def transpose(program: Program) -> Tensor:
    x = program.pick()
    if program.integer(0, 3) == 0 or x.ndim == 0:
        return program.add("Transpose", x)
    return program.add("Transpose", x, perm=program.permutation(range(x.ndim)))


@step
def squeeze(program: Program) -> Tensor:
    x = program.pick(lambda tensor: 1 in tensor.shape)
    if program.flag():
        return program.add("Squeeze", x)
    axes = [axis for axis, size in enumerate(x.shape) if size == 1]
    return program.add("Squeeze", x, ints(program, [program.choice(axes)]))


@step
def unsqueeze(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim < 4)
    return program.add("Unsqueeze", x, ints(program, [program.integer(-x.ndim - 1, x.ndim)]))


@step
def flatten(program: Program) -> Tensor:
    x = program.pick()
    return program.add("Flatten", x, axis=program.integer(0, x.ndim))


@step
def expand(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.array.size <= 16 and tensor.ndim < 4)
    shape = [program.integer(1, 3) if size == 1 else program.choice([1, size]) for size in x.shape]
    if program.flag():
        shape.insert(0, program.integer(1, 2))
    return program.add("Expand", x, ints(program, shape))


@step
def tile(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size <= 16)
    return program.add("Tile", x, ints(program, [program.integer(1, 2) for _ in x.shape]))


@step
def concat(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size <= 32)
    axis = axis_of(program, x)
    shape = list(x.shape)
    shape[axis] = program.integer(1, 3)
    y = program.leaf(shape)
    parts = [[x, y], [y, x], [x, x], [x, y, x], [x]][program.integer(0, 4)]
    return program.add("Concat", *parts, axis=axis)


@step
def split(program: Program) -> Tensor:
    x = program.pick(lambda tensor: any(size > 1 for size in tensor.shape))
    axis = program.choice([axis for axis, size in enumerate(x.shape) if size > 1])
    size = x.shape[axis]
    if program.flag():
        first = program.integer(1, size - 1)
        parts = program.add("Split", x, ints(program, [first, size - first]), outputs=2, axis=axis)
    else:
        parts = program.add("Split", x, outputs=2, axis=axis - x.ndim, num_outputs=2)
    return program.choice(parts)


@step
def slices(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0)
    axes = program.subset(range(x.ndim)) or [0]
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        stride = program.choice([1, 1, 2, -1, -2])
        first, last = program.integer(-size - 1, size + 1), program.integer(-size - 1, size + 1)
        if len(range(*slice(first, last, stride).indices(size))) == 0:
            first, last = (0, size) if stride > 0 else (size, -size - 1)
        starts.append(first)
        ends.append(last)
        steps.append(stride)
    given = [axis - x.ndim if program.flag() else axis for axis in axes]
    operands = [ints(program, starts), ints(program, ends), ints(program, given), ints(program, steps)]
    return program.add("Slice", x, *operands)


@step
def pad(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and 0 < tensor.array.size <= 32)
    mode = program.choice(["constant", "reflect", "edge", "wrap"])
    widths = []
    for _ in range(2):
        for size in x.shape:
            most = 2 if mode == "constant" else min(2, size - (mode == "reflect"))
            lowest = -1 if mode == "constant" and size > 2 else 0
            widths.append(program.integer(lowest, max(0, most)))
    value = []
    if mode == "constant" and program.flag():
        value = [program.choice([program.constant(0.5), program.leaf(())])]
    return program.add("Pad", x, ints(program, widths), *value, mode=mode)


@step
def gather(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and 0 < tensor.array.size <= 32)
    axis = axis_of(program, x)
    size = x.shape[axis]
    shape = program.choice([(), (1,), (3,), (2, 2)])
    count = math.prod(shape)
    indices = np.array([program.integer(-size, size - 1) for _ in range(count)]).reshape(shape)
    return program.add("Gather", x, ints(program, indices), axis=axis)


def _element_indices(program: Program, x: Tensor, axis: int) -> np.ndarray:
    shape = [program.integer(1, size) for size in x.shape]
    shape[axis] = program.integer(1, 3)
    random = np.random.default_rng(program.integer(0, 99))
    size = x.shape[axis]
    return random.integers(-size, size, shape)


@step
def gather_elements(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    axis = axis_of(program, x)
    return program.add("GatherElements", x, ints(program, _element_indices(program, x, axis)), axis=axis)


@step
def gather_nd(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    depth = program.integer(1, x.ndim)
    rows = [[program.integer(-size, size - 1) for size in x.shape[:depth]] for _ in range(program.integer(1, 3))]
    return program.add("GatherND", x, ints(program, rows))


@step
def scatter_elements(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    axis = axis_of(program, x)
    reduction = program.choice(["none", "add", "mul", "max", "min"])
    indices = _element_indices(program, x, axis)
    if reduction == "none":
        shape = [program.integer(1, size) for size in x.shape]
        random = np.random.default_rng(program.integer(0, 99))
        order = random.permuted(
            np.broadcast_to(np.arange(x.shape[axis]), (*np.delete(shape, axis), x.shape[axis])), axis=-1
        )
        indices = np.moveaxis(order[..., : shape[axis]], -1, axis)
    updates = program.leaf(indices.shape)
    return program.add("ScatterElements", x, ints(program, indices), updates, axis=axis, reduction=reduction)


@step
def scatter_nd(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    depth = program.integer(1, x.ndim)
    reduction = program.choice(["none", "add", "mul", "max", "min"])
    rows = [[program.integer(0, size - 1) for size in x.shape[:depth]] for _ in range(program.integer(1, 3))]
    if reduction == "none":
        rows = [list(row) for row in dict.fromkeys(map(tuple, rows))]
    updates = program.leaf((len(rows), *x.shape[depth:]))
    return program.add("ScatterND", x, ints(program, rows), updates, reduction=reduction)


@step
def compress(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    axis = program.choice([None, *range(x.ndim)])
    size = x.array.size if axis is None else x.shape[axis]
    keep = [program.flag() for _ in range(min(size, 6))]
    if not any(keep):
        raise RejectedError
    return program.add("Compress", x, program.constant(np.array(keep)), **({} if axis is None else {"axis": axis}))


@step
def triangle(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim >= 2)
    return program.add("Trilu", x, ints(program, program.integer(-1, 1)), upper=int(program.flag()))


@step
def reversed_sequence(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim >= 2 and tensor.array.size > 0)
    time, batch = program.choice([(0, 1), (1, 0)])
    lengths = [program.integer(0, x.shape[time]) for _ in range(x.shape[batch])]
    return program.add("ReverseSequence", x, ints(program, lengths), time_axis=time, batch_axis=batch)


@step
def depth_to_space(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim == 4 and tensor.shape[1] % 4 == 0)
    return program.add("DepthToSpace", x, blocksize=2, mode=program.choice(["DCR", "CRD"]))


@step
def space_to_depth(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim == 4 and tensor.shape[2] % 2 == 0 and tensor.shape[3] % 2 == 0)
    return program.add("SpaceToDepth", x, blocksize=2)


@step
def as_another(program: Program) -> Tensor:
    """Reshaped or expanded to the shape of another value, which is computed at run time as exporters do it."""
    x = program.pick(lambda tensor: 0 < tensor.array.size <= 32)
    fits = [y for y in program.visible() if y.array.size == x.array.size and y.ndim > 0]
    if program.flag():
        return program.add("Reshape", x, program.add("Shape", program.choice(fits)))
    wide = [y for y in program.visible() if y.ndim > 0 and _expands(x, y)]
    return program.add("Expand", x, program.add("Shape", program.choice(wide)))


def _expands(x: Tensor, y: Tensor) -> bool:
    try:
        return np.broadcast_shapes(x.shape, y.shape) == y.shape
    except ValueError:
        return False


@step
def flattened_by_its_shape(program: Program) -> Tensor:
    """x `[a, b, ...]` as `[a b, -1]`, or with its last two axes exchanged for one: arithmetic on sizes."""
    x = program.pick(lambda tensor: tensor.ndim >= 2 and tensor.array.size > 0)
    shape = program.add("Shape", x)
    first = program.add("Gather", shape, ints(program, [0]), axis=0)
    second = program.add("Gather", shape, ints(program, [1]), axis=0)
    rows = program.add("Mul", first, second) if program.flag() else first
    sizes = [rows, ints(program, [-1])] if program.flag() else [ints(program, [-1]), second]
    return program.add("Reshape", x, program.add("Concat", *sizes, axis=0))


@step
def cut_to_size(program: Program) -> Tensor:
    """The first elements of an axis, as many as another value has."""
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    axis = program.integer(0, x.ndim - 1)
    y = program.pick(lambda tensor: tensor.ndim > 0 and 0 < tensor.shape[0] <= x.shape[axis])
    end = program.add("Gather", program.add("Shape", y), ints(program, [0]), axis=0)
    return program.add("Slice", x, ints(program, [0]), end, ints(program, [axis]))


@step
def zeros_or_ones(program: Program) -> Tensor:
    """x times a tensor that was made of its shape."""
    x = program.pick()
    value = helper.make_tensor("value", TensorProto.INT64, [1], [program.integer(1, 2)])
    filled = program.add("ConstantOfShape", program.add("Shape", x), value=value)
    return program.add("Mul", x, program.add("CastLike", filled, x))


@step
def one_hot(program: Program) -> Tensor:
    values = program.leaf((2,))
    indices = ints(program, [program.integer(-3, 2) for _ in range(program.integer(1, 3))])
    return program.add("OneHot", indices, ints(program, 3), values, axis=program.integer(-2, 1))
