"""What a training graph draws at random, as a function of a seed and of the number of the pass.

onnxruntime's own kernels keep their state where nobody can save it. Here, Dropout, Bernoulli and the Random operators
of the main graph become arithmetic, so that training which continues from a checkpoint draws what it would have drawn.

A tensor of uniform numbers is seen as a matrix: u[i, j] = (a[i] . b[j] mod 2^18) / 2^18, where the b[j] are constant
vectors of 8 odd integers, and the a[i] are vectors of 8 integers that a hash makes of seed, pass, node and i. All sums
stay below 2^24, so that they are exact in float32, on every machine. Numbers of one row are independent as far as their
b[j] are: no few of these have a sum or difference of zero, which is all that a threshold could show. It is one thin
matrix product and two passes over memory, four times as fast as onnxruntime's Dropout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at, is_used
from onward.graph.replacement import replace_node
from onward.graph.shapes import dims, static_size
from onward.signature import Role
from onward.training.mask import as_mask

SEED, PASS = "random_seed", "random_pass"

_LENGTH = 8  # of the vectors
_A = 2**10  # the elements of a[i] are below, and those of b[j] below twice that: _LENGTH * _A * 2 * _A <= 2^24
_GRAIN = 2**18
_PRIME = 2**31 - 1  # hashing squares modulo this prime
_OTHER_PRIME = 2**31 - 19  # modulo both primes, all seeds of 62 bits are different
_KEY = 2**29  # keys are below, so that squares of a number below the prime and a key stay below 2^63
_COLUMNS = range(64, 1025)  # the widths of the matrix: rows cost more than columns


def _draws(node: ir.Node) -> bool:
    """Whether a node draws numbers that this module can draw."""
    if node.domain != "":
        return False
    if node.op_type != "Dropout":
        return node.op_type in _OPERATORS
    mode, ratio = constant_of(input_at(node, 2)), constant_of(input_at(node, 1))
    if input_at(node, 2) is None or (mode is not None and not mode):
        return False
    return ratio is None or 0 <= float(ratio.reshape(())) < 1  # onnxruntime refuses others


def _drops_nothing(node: ir.Node) -> bool:
    """Whether a node is a Dropout with a ratio of 0, of which nobody asks for the mask."""
    ratio = constant_of(input_at(node, 1)) if (node.op_type, node.domain) == ("Dropout", "") else None
    return ratio is not None and not ratio.any() and not any(is_used(mask) for mask in node.outputs[1:])


def draw_explicitly(op: Builder, number: ir.Value | None = None) -> dict[str, Role]:
    """Replace all nodes of the main graph that draw; returns the inputs that the graph needs for that, if any.

    They are the seed, and the number of the pass, unless it is given as a scalar integer.
    """
    for node in [node for node in op.graph if _drops_nothing(node)]:
        replace_node(op, node, lambda op, node: [op.Identity(node.inputs[0])])
    nodes = [node for node in op.graph if _draws(node)]
    if not nodes:
        return {}
    roles = {}
    seed = _add_scalar(op, SEED)
    roles[seed.name or ""] = Role.SEED
    if number is None:
        number = _add_scalar(op, PASS)
        roles[number.name or ""] = Role.PASS
    source = _Source(op, seed, number, len(nodes))
    for node in nodes:
        replace_node(op, node, lambda _, node: _OPERATORS[node.op_type](source, node))
    return roles


def _add_scalar(op: Builder, name: str) -> ir.Value:
    value = ir.Value(name=op.unique_name(name), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
    op.graph.inputs.append(value)
    return value


class _Source:
    """Uniform numbers, different ones for each call."""

    def __init__(self, op: Builder, seed: ir.Value, number: ir.Value, nodes: int) -> None:
        self.op = op
        self._seed, self._number = seed, number
        self._keys: tuple[ir.Value, ir.Value] | None = None
        # Every tensor hashes a range of its own, and a node draws three at most.
        self._used, self._share = 0, (2**31 - 1) // (3 * max(nodes, 1))

    def uniform(self, like: ir.Value | tuple[int, ...]) -> ir.Value:
        """Multiples of 2^-18 in [0, 1), in float32 and of the shape of `like`."""
        op = self.op
        size = math.prod(like) if isinstance(like, tuple) else static_size(like)
        total = op.Size(like) if size is None else size
        columns = size if size in range(1, _COLUMNS[-1]) else _width(_divisor(like))
        # Where no width divides the size, the last row is longer than needed.
        width = _COLUMNS[-1] if columns is None else columns
        rows = (total + (width - 1)) // width if isinstance(total, int) else _rows(op, total, width, columns is None)
        a = op.Reshape(op.cast(self._hash(rows), ir.DataType.FLOAT), [-1, _LENGTH])
        x = op.MatMul(a, op.constant(_vectors(width), ir.DataType.FLOAT))
        u = x - op.Floor(x)
        if columns is None:
            flat = op.Reshape(u, [-1])
            u = op.Slice(flat, [0], [total] if isinstance(total, int) else op.Reshape(total, [1]), [0])
        if isinstance(like, tuple):
            return op.reshape(u, like)
        u = op.reshape_like(u, like)
        u.shape = like.shape
        return u

    def fine(self, like: ir.Value | tuple[int, ...]) -> ir.Value:
        """Multiples of 2^-24 in [0, 1): all that float32 has."""
        op = self.op
        return self.uniform(like) + op.Floor(self.uniform(like) * 2**6) * 2**-24

    def normal(self, like: ir.Value | tuple[int, ...]) -> ir.Value:
        """sqrt(-2 log(1 - u)) cos(2 pi v), the method of Box and Muller."""
        op = self.op
        return op.Sqrt(op.Log(1 - self.fine(like)) * -2) * op.Cos(self.uniform(like) * (2 * math.pi))

    def _hash(self, rows: int | ir.Value) -> ir.Value:
        """`[rows * 8]` integers below 2^10: three squares modulo a prime, with a key before each of the first two."""
        op = self.op
        if self._keys is None:
            self._keys = self._mix()
        start = self._used * self._share
        self._used += 1
        if isinstance(rows, int):
            index = op.Range(start, start + rows * _LENGTH, 1)
        else:
            index = op.Range(start, op.Add(op.Mul(rows, _LENGTH), start), 1)
        h = _square(op, index + self._keys[0])
        h = _square(op, h + self._keys[1])
        return op.Mod(_square(op, h), _A)

    def _mix(self) -> tuple[ir.Value, ir.Value]:
        """The keys of this pass."""
        op = self.op
        with op.scope("random"):
            wide = (op.cast(value, ir.DataType.INT64) for value in (self._seed, self._number))
            seed, number = (op.Mod(value, np.array([_PRIME, _OTHER_PRIME])) for value in wide)
            h = _square(op, seed + np.array([314159265, 271828182]))
            h = _square(op, op.Mod(h + number, _PRIME))
            h = _square(op, _square(op, h + np.array([141421356, 173205080])))
            keys = op.Mod(h, _KEY)
            return op.Gather(keys, 0, axis=0), op.Gather(keys, 1, axis=0)


def _square(op: Builder, h: ir.Value) -> ir.Value:
    return op.Mod(h * h, _PRIME)


def _rows(op: Builder, total: ir.Value, width: int, round_up: bool) -> ir.Value:
    return op.Div(op.Add(total, width - 1) if round_up else total, width)


def _divisor(like: ir.Value | tuple[int, ...]) -> int:
    """A number that certainly divides the number of elements."""
    known = like if isinstance(like, tuple) else dims(like) or ()
    return math.prod(size for size in known if isinstance(size, int))


def _width(divisor: int) -> int | None:
    """How wide a matrix with a multiple of so many elements is best; None where only padding makes it a matrix."""
    if 0 < divisor < _COLUMNS[0]:
        return None
    return next((width for width in reversed(_COLUMNS) if divisor % width == 0), None)


@functools.cache
def _vectors(count: int) -> np.ndarray:
    """The b[j] as columns `[8, count]`, divided by 2^18 (splitmix64 of the indices: the same in all versions)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, _LENGTH * count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    odd = (z % np.uint64(2 * _A)).astype(np.int64) * 2 - (2 * _A - 1)
    return (odd / _GRAIN).astype(np.float32).reshape(count, _LENGTH).T


# Operators -----------------------------------------------------------------------------------------------------------


def _dropout(source: _Source, node: ir.Node) -> list[ir.Value]:
    """y = x mask / (1 - ratio), mask = u >= ratio."""
    op, x = source.op, node.inputs[0]
    assert x is not None
    assert x.dtype is not None
    ratio, mode = input_at(node, 1), input_at(node, 2)
    fixed = np.array(0.5) if ratio is None else constant_of(ratio)
    u = source.uniform(x)
    if fixed is not None and constant_of(mode) is not None:
        rate = float(fixed.reshape(()))
        threshold = round(rate * _GRAIN)
        # (u >= threshold / 2^18) as 0 or 1 in one pass.
        kept = as_mask(op.HardSigmoid(u, alpha=2.0 * _GRAIN, beta=1.0 - 2 * threshold))
        mask = op.cast(kept, ir.DataType.BOOL) if len(node.outputs) > 1 else None
        factor = op.Mul(op.cast(kept, x.dtype), 1 / (1 - rate))
    else:
        rate_value = op.constant(0.5, ir.DataType.FLOAT) if ratio is None else op.cast(ratio, ir.DataType.FLOAT)
        rate_value = op.Where(mode, rate_value, 0)
        mask = op.Not(op.Less(u, rate_value))
        factor = op.cast(op.cast(mask, ir.DataType.FLOAT) / (1 - rate_value), x.dtype)
    factor.shape = x.shape
    y = op.Mul(x, factor)
    return [y] if mask is None else [y, mask]


def _bernoulli(source: _Source, node: ir.Node) -> list[ir.Value]:
    """Whether u < x."""
    op, x = source.op, node.inputs[0]
    assert x is not None
    kept = op.Less(source.fine(x), op.cast(x, ir.DataType.FLOAT))
    return [op.cast(kept, _dtype(node))]


def _random_uniform(source: _Source, node: ir.Node) -> list[ir.Value]:
    """low + (high - low) u."""
    low, high = attribute(node, "low", 0.0), attribute(node, "high", 1.0)
    return [source.op.cast(source.fine(_shape(node)) * (high - low) + low, _dtype(node))]


def _random_normal(source: _Source, node: ir.Node) -> list[ir.Value]:
    """mean + scale z."""
    mean, scale = attribute(node, "mean", 0.0), attribute(node, "scale", 1.0)
    return [source.op.cast(source.normal(_shape(node)) * scale + mean, _dtype(node))]


def _shape(node: ir.Node) -> ir.Value | tuple[int, ...]:
    like = input_at(node, 0)
    return tuple(map(int, attribute(node, "shape", ()))) if like is None else like


def _dtype(node: ir.Node) -> ir.DataType:
    """That of the attribute; else, that of the input."""
    given = attribute(node, "dtype", 0)
    like = input_at(node, 0)
    if given:
        return ir.DataType(given)
    return ir.DataType.FLOAT if like is None or like.dtype is None else like.dtype


_OPERATORS: dict[str, Callable[[_Source, ir.Node], list[ir.Value]]] = {
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "RandomNormal": _random_normal,
    "RandomNormalLike": _random_normal,
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform,
}
