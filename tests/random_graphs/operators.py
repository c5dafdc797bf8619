"""What a random program may do next: each function adds one operator, or raises RejectedError."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tests.random_graphs.program import Program, RejectedError, Tensor

Step = Callable[[Program], Tensor]
STEPS: dict[str, Step] = {}


def step(function: Step) -> Step:
    STEPS[function.__name__] = function
    return function


SMOOTH = (
    "Asinh Atan Cos Cosh Elu Erf Exp Gelu Identity LogSoftmax Mish Neg Sigmoid Sin Sinh Softmax Softplus Softsign "
    "Tan Tanh"
).split()
KINKED = ("Abs Ceil Floor HardSigmoid HardSwish LeakyRelu Relu Round Selu Shrink Sign ThresholdedRelu Hardmax").split()
# Operators that are defined on an interval only.
BOUNDED = {
    "Sqrt": (0.2, 20),
    "Log": (0.2, 20),
    "Reciprocal": (0.3, 20),
    "Asin": (-0.9, 0.9),
    "Acos": (-0.9, 0.9),
    "Atanh": (-0.9, 0.9),
    "Acosh": (1.2, 20),
}


def unary(program: Program, x: Tensor) -> Tensor:
    """A function of one value that keeps its shape."""
    op_type = program.choice([*SMOOTH, *KINKED, *BOUNDED])
    if op_type in BOUNDED:
        low, high = BOUNDED[op_type]
        if x.array.size and not (x.array.min() > low and x.array.max() < high):
            raise RejectedError
    if op_type in ("Softmax", "LogSoftmax", "Hardmax"):
        return program.add(op_type, x, axis=axis_of(program, x))
    return program.add(op_type, x)


def axis_of(program: Program, x: Tensor) -> int:
    if x.ndim == 0:
        raise RejectedError
    return program.integer(-x.ndim, x.ndim - 1)


@step
def unary_function(program: Program) -> Tensor:
    return unary(program, program.pick())


def partner(program: Program, x: Tensor) -> Tensor:
    """A value that broadcasts with x: one that is there, x itself, or a new leaf."""
    there = [other for other in program.visible() if _broadcasts(x.shape, other.shape)]
    if program.integer(0, 2):
        return program.choice(there)
    shape = [size if program.flag() else 1 for size in x.shape][program.integer(0, x.ndim) :]
    if program.integer(0, 4) == 0:
        shape = [program.integer(1, 3), *([1] * (x.ndim - len(shape))), *shape]
    return program.leaf(shape)


def _broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(tuple(a), tuple(b))) <= 64
    except ValueError:
        return False


def binary(program: Program, x: Tensor) -> Tensor:
    op_type = program.choice(
        ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mean", "Sum", "PRelu", "Where", "Pow", "Clip", "Mod"]
    )
    y = partner(program, x)
    if program.flag() and op_type not in ("PRelu", "Clip"):
        x, y = y, x
    if op_type in ("Div", "Mod") and y.array.size and np.abs(y.array).min() < 0.3:
        raise RejectedError
    if op_type == "Mod":
        return program.add("Mod", x, y, fmod=1)
    if op_type == "Pow":
        if program.flag():
            exponent = program.choice([2.0, 3.0, 0.0, 1.0, 0.5, -1.0])
            if exponent not in (0, 1, 2, 3) and (x.array <= 0.2).any():
                raise RejectedError
            return program.add("Pow", x, program.constant(exponent))
        if (x.array <= 0.2).any():
            raise RejectedError
        return program.add("Pow", x, y)
    if op_type == "Where":
        compare = program.choice(["Greater", "Less", "GreaterOrEqual"])
        z = partner(program, x)
        return program.add("Where", program.add(compare, x, z), x, y)
    if op_type == "PRelu" and np.broadcast_shapes(x.shape, y.shape) != x.shape:
        raise RejectedError
    if op_type == "Clip":
        low, high = program.constant(-0.7), program.leaf((), 0.4, 0.9)
        return program.add("Clip", x, *[[low], [low, high], [None, high], [None, low]][program.integer(0, 3)])
    if op_type in ("Max", "Min", "Mean", "Sum") and program.flag():
        z = partner(program, x)
        if not _broadcasts(np.broadcast_shapes(x.shape, y.shape), z.shape):
            raise RejectedError
        return program.add(op_type, x, y, z)
    return program.add(op_type, x, y)


@step
def binary_function(program: Program) -> Tensor:
    return binary(program, program.pick())


REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceSumSquare"
).split()


@step
def reduction(program: Program) -> Tensor:
    x = program.pick()
    op_type = program.choice(REDUCTIONS)
    if op_type == "ReduceLogSum" and (x.array <= 0.2).any():
        raise RejectedError
    keepdims = int(program.flag())
    if program.integer(0, 4) == 0:
        return program.add(op_type, x, keepdims=keepdims)
    axes = [axis - x.ndim * int(program.flag()) for axis in program.subset(range(x.ndim))]
    noop = int(program.flag())
    return program.add(
        op_type, x, program.constant(np.array(axes, np.int64)), keepdims=keepdims, noop_with_empty_axes=noop
    )


@step
def matmul(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0)
    inner = x.shape[-1]
    if program.flag():
        y = program.pick(lambda tensor: tensor.ndim > 0)
        try:
            np.matmul(x.array, y.array)
        except ValueError as error:
            raise RejectedError from error
    else:
        lead = [size if program.flag() else 1 for size in x.shape[:-2]][program.integer(0, max(0, x.ndim - 2)) :]
        shape = program.choice(
            [[inner], [inner, 2], [inner, 1], [*lead, inner, 3], [2, *([1] * max(0, x.ndim - 2)), inner, 2]]
        )
        y = program.leaf(shape)
    return program.add("MatMul", x, y)


@step
def gemm(program: Program) -> Tensor:
    a = program.pick(lambda tensor: tensor.ndim == 2)
    trans_a, trans_b = int(program.flag()), int(program.flag())
    rows, inner = a.shape[::-1] if trans_a else a.shape
    columns = program.integer(1, 3)
    b = program.leaf((columns, inner) if trans_b else (inner, columns))
    c = (
        [program.leaf(program.choice([(), (1,), (columns,), (rows, 1), (1, columns), (rows, columns)]))]
        if program.flag()
        else []
    )
    alpha, beta = program.choice([1.0, 0.5]), program.choice([1.0, 2.0])
    return program.add("Gemm", a, b, *c, transA=trans_a, transB=trans_b, alpha=alpha, beta=beta)


@step
def einsum(program: Program) -> Tensor:
    x = program.pick(lambda tensor: 0 < tensor.ndim <= 3)
    letters = "abc"[: x.ndim]
    other = [letter for letter in letters if program.flag()] + (["d"] if program.flag() else [])
    sizes = dict(zip(letters, x.shape, strict=True)) | {"d": 2}
    y = program.leaf([sizes[letter] for letter in other])
    out = [letter for letter in dict.fromkeys([*letters, *other]) if program.flag()]
    order = program.permutation(out)
    return program.add("Einsum", x, y, equation=f"{letters},{''.join(other)}->{''.join(order)}")


@step
def softmax_like(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0)
    return program.add(program.choice(["Softmax", "LogSoftmax"]), x, axis=axis_of(program, x))


@step
def cumulative(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0)
    options = {"exclusive": int(program.flag()), "reverse": int(program.flag())}
    return program.add("CumSum", x, program.constant(np.array(axis_of(program, x))), **options)


@step
def selection_of_largest(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and tensor.array.size > 0)
    axis = axis_of(program, x)
    k = program.constant(np.array([program.integer(1, x.shape[axis])]))
    values, _ = program.add("TopK", x, k, outputs=2, axis=axis, largest=int(program.flag()))
    return values
