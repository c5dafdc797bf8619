"""Update kernels as one compiled loop, where llvmlite is installed.

onnxruntime runs a kernel as a dozen passes over its tensors; the loop reads and writes each element once. It is made
from the same graph and gives the same bits: LLVM neither reorders nor contracts operations unless it is asked to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onward.plan import UPDATED
from onward.runtime import llvm, wire

# Operators on elements and scalars in LLVM's language: {o} is the result, {0} to {2} are operands, {T} is their type.
# Those that are missing here, such as powers, have results that depend on the library that computes them.
_INSTRUCTIONS = {
    "Abs": "{o} = call {T} @llvm.fabs.{t}({T} {0})",
    "Add": "{o} = fadd {T} {0}, {1}",
    "And": "{o} = and i1 {0}, {1}",
    "Clip": """{o}.low = fcmp olt {T} {0}, {1}
    {o}.high = fcmp ogt {T} {0}, {2}
    {o}.top = select i1 {o}.high, {T} {2}, {T} {0}
    {o} = select i1 {o}.low, {T} {1}, {T} {o}.top""",
    "Div": "{o} = fdiv {T} {0}, {1}",
    "Greater": "{o} = fcmp ogt {T} {0}, {1}",
    "Less": "{o} = fcmp olt {T} {0}, {1}",
    "Max": """{o}.beyond = fcmp ogt {T} {0}, {1}
    {o}.nan = fcmp uno {T} {0}, {0}
    {o}.first = or i1 {o}.beyond, {o}.nan
    {o} = select i1 {o}.first, {T} {0}, {T} {1}""",
    "Min": """{o}.beyond = fcmp olt {T} {0}, {1}
    {o}.nan = fcmp uno {T} {0}, {0}
    {o}.first = or i1 {o}.beyond, {o}.nan
    {o} = select i1 {o}.first, {T} {0}, {T} {1}""",
    "Mul": "{o} = fmul {T} {0}, {1}",
    "Neg": "{o} = fneg {T} {0}",
    "Relu": """{o}.negative = fcmp olt {T} {0}, 0.0
    {o} = select i1 {o}.negative, {T} 0.0, {T} {0}""",
    "Sign": """{o}.positive = fcmp ogt {T} {0}, 0.0
    {o}.negative = fcmp olt {T} {0}, 0.0
    {o}.other = select i1 {o}.negative, {T} -1.0, {T} {0}
    {o} = select i1 {o}.positive, {T} 1.0, {T} {o}.other""",
    "Sqrt": "{o} = call {T} @llvm.sqrt.{t}({T} {0})",
    "Sub": "{o} = fsub {T} {0}, {1}",
    "Where": "{o} = select i1 {0}, {T} {1}, {T} {2}",
}
# Element types: LLVM's name, the suffix of its functions, the number in onnx.TensorProto.DataType.
_TYPES = {np.dtype(np.float32): ("float", "f32", 1), np.dtype(np.float64): ("double", "f64", 11)}

_FUNCTIONS = """
declare {T} @llvm.fabs.{t}({T})
declare {T} @llvm.sqrt.{t}({T})
"""


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

    def compiled(self) -> Callable[..., None]:
        """A function of a number of elements and the addresses of scalars and tensors; it runs without the GIL."""
        return llvm.compiled(self.source, "update", len(self.scalars) + len(self.tensors))


def loop_of(model: wire.WireModel, dtype: np.dtype) -> Loop | None:
    """A kernel as a loop over its elements, or None if it has operators that cannot be written as one."""
    if dtype not in _TYPES:
        return None
    tensors = {name for name in model.inputs if (model.type_of(name) or (0, ()))[1]}
    nodes = []
    for node in model.nodes:
        if tensors.isdisjoint(node.inputs):
            continue  # computed once for all elements
        if not _has_instructions(node):
            return None
        nodes.append(node)
        tensors.update(node.outputs)
    scalars = list(dict.fromkeys(name for node in nodes for name in node.inputs if name not in tensors))
    numbers = all((model.type_of(name) or (0, ()))[0] == _TYPES[dtype][2] for name in scalars)
    if not numbers or not tensors.issuperset(model.outputs):
        return None
    read = [name for name in model.inputs if name in tensors]
    written = [name.removesuffix(UPDATED) for name in model.outputs]
    arguments = list(dict.fromkeys([*read, *written]))
    source = _source(dtype, nodes, scalars, arguments, read, list(model.outputs))
    return Loop(tuple(scalars), tuple(arguments), source)


def _has_instructions(node: wire.WireNode) -> bool:
    """Whether the table has the operator with just these operands; some take more, or fewer and attributes."""
    instructions, operands = _INSTRUCTIONS.get(node.operator, ""), len(node.inputs)
    return f"{{{operands - 1}}}" in instructions and f"{{{operands}}}" not in instructions and all(node.inputs)


def _source(
    dtype: np.dtype,
    nodes: Sequence[wire.WireNode],
    scalars: list[str],
    tensors: list[str],
    inputs: list[str],
    outputs: list[str],
) -> str:
    """The text of a function; values are numbered, because their names may be anything."""
    kind, suffix, _ = _TYPES[dtype]
    local: defaultdict[str, str] = defaultdict(lambda: f"%v{len(local)}")
    place = {name: f"%t{i}" for i, name in enumerate(tensors)}
    body = [f"{place[name]}.i = getelementptr inbounds {kind}, ptr {place[name]}, i64 %i" for name in tensors]
    loads = [f"{local[name]} = load {kind}, ptr %s{i}" for i, name in enumerate(scalars)]
    body += [f"{local[name]} = load {kind}, ptr {place[name]}.i" for name in inputs]
    for node in nodes:
        operands = [local[name] for name in node.inputs]
        body.append(_INSTRUCTIONS[node.operator].format(*operands, o=local[node.outputs[0]], T=kind, t=suffix))
    body += [f"store {kind} {local[name]}, ptr {place[name.removesuffix(UPDATED)]}.i" for name in outputs]
    names = [*(f"%s{i}" for i in range(len(scalars))), *place.values()]
    # The promise that no two overlap is what lets LLVM work on many elements at once.
    arguments = ", ".join(f"ptr noalias {name}" for name in names)
    loop = llvm.loop("update", arguments, "\n    ".join(body), before="\n    ".join(loads))
    return loop + _FUNCTIONS.format(T=kind, t=suffix)
