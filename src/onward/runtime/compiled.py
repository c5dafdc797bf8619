"""Update kernels as one compiled loop, where numba is installed.

onnxruntime runs a kernel as a dozen passes over its tensors; the loop reads and writes each element once. It is made
from the same graph and gives the same bits: numba neither reorders nor contracts operations unless it is asked to.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onward.plan import UPDATED
from onward.runtime import wire

# Operators on elements and scalars as Python expressions. Those that are missing here, such as powers, have results
# that depend on the library that computes them.
_EXPRESSIONS = {
    "Abs": "abs({0})",
    "Add": "{0} + {1}",
    "And": "{0} & {1}",
    "Clip": "{1} if {0} < {1} else ({2} if {0} > {2} else {0})",
    "Div": "{0} / {1}",
    "Greater": "{0} > {1}",
    "Identity": "{0}",
    "Less": "{0} < {1}",
    "Max": "{0} if {0} > {1} or {0} != {0} else {1}",
    "Min": "{0} if {0} < {1} or {0} != {0} else {1}",
    "Mul": "{0} * {1}",
    "Neg": "-{0}",
    "Relu": "number(0) if {0} < 0 else {0}",
    "Sign": "number(1) if {0} > 0 else (number(-1) if {0} < 0 else {0})",
    "Sqrt": "math.sqrt({0})",
    "Sub": "{0} - {1}",
    "Where": "{1} if {0} else {2}",
}
_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True)
class Loop:
    """A kernel that updates elements one by one.

    Attributes:
        scalars: the values that are the same for all elements, in the order of the arguments.
        tensors: the inputs of the graph that are read and written over, after the scalars.
    """

    scalars: tuple[str, ...]
    tensors: tuple[str, ...]
    source: str

    def compiled(self, dtype: np.dtype) -> Any:
        """A function of arrays: of one element for each scalar, one-dimensional for each tensor. Releases the GIL."""
        return _compile(self.source, dtype, len(self.scalars), len(self.tensors))


def is_available() -> bool:
    """Whether there is something to compile with."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def loop_of(model: wire.WireModel, dtype: np.dtype) -> Loop | None:
    """A kernel as a loop over its elements, or None if it has operators that cannot be written as one."""
    if dtype not in _DTYPES:
        return None
    tensors = {name for name in model.inputs if (model.type_of(name) or (0, ()))[1]}
    nodes = []
    for node in model.nodes:
        if tensors.isdisjoint(node.inputs):
            continue  # computed once for all elements
        if not _is_expression(node):
            return None
        nodes.append(node)
        tensors.update(node.outputs)
    if not tensors.issuperset(model.outputs):
        return None
    scalars = list(dict.fromkeys(name for node in nodes for name in node.inputs if name not in tensors))
    read = [name for name in model.inputs if name in tensors]
    written = [name.removesuffix(UPDATED) for name in model.outputs]
    arguments = list(dict.fromkeys([*read, *written]))
    return Loop(tuple(scalars), tuple(arguments), _source(nodes, scalars, arguments, read, list(model.outputs)))


def _is_expression(node: wire.WireNode) -> bool:
    """Whether the table has the operator with just these operands; some take more, or fewer and attributes."""
    expression, operands = _EXPRESSIONS.get(node.operator, ""), len(node.inputs)
    return f"{{{operands - 1}}}" in expression and f"{{{operands}}}" not in expression and all(node.inputs)


def _source(
    nodes: Sequence[wire.WireNode], scalars: list[str], tensors: list[str], inputs: list[str], outputs: list[str]
) -> str:
    """The text of a function; values are numbered, because their names may be anything."""
    local: defaultdict[str, str] = defaultdict(lambda: f"v{len(local)}")
    arguments = {name: f"t{i}" for i, name in enumerate(tensors)}
    lines = [f"def update({', '.join([*(f's{i}' for i in range(len(scalars))), *arguments.values()])}):"]
    lines += [f"    {local[name]} = s{i}[0]" for i, name in enumerate(scalars)]
    lines += ["    for i in range(t0.shape[0]):"]
    lines += [f"        {local[name]} = {arguments[name]}[i]" for name in inputs]
    for node in nodes:
        expression = _EXPRESSIONS[node.operator].format(*(local[name] for name in node.inputs))
        lines.append(f"        {local[node.outputs[0]]} = {expression}")
    # Into the arguments that were read: of others, the compiler would have to assume that they overlap.
    lines += [f"        {arguments[name.removesuffix(UPDATED)]}[i] = {local[name]}" for name in outputs]
    return "\n".join(lines)


@functools.lru_cache(maxsize=64)
def _compile(source: str, dtype: np.dtype, scalars: int, tensors: int) -> Any:
    import numba

    space: dict[str, Any] = {"math": math, "number": dtype.type}
    exec(source, space)  # made above, of nothing but the expressions of the table
    array = numba.types.Array(numba.from_dtype(dtype), 1, "C")
    signature = numba.void(*[array] * (scalars + tensors))
    return numba.njit(signature, nogil=True, error_model="numpy")(space["update"])
