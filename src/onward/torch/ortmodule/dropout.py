"""Random numbers that torch draws, from its own generator and in its own order: the same seed, the same numbers.

Dropout takes a mask, and noise is an input of the graph.
"""

from __future__ import annotations

import ast
import functools
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from onward.graph.nodes import all_values, attribute, constant_of, input_at, is_used
from onward.graph.provenance.record import OPERATION
from onward.graph.shapes import is_placeholder
from onward.torch.ortmodule._fallback import ORTModuleTorchModelException
from onward.torch.ortmodule.refusal import refusal
from onward.torch.ortmodule.twister import draw_mask

MASK = "random"
_SIZES = "onward.sizes"  # in the metadata of a Dropout
DRAWS = "onward.draws"  # in that of noise which stands for another one
# An operator for what a module draws into a tensor, with the method and its numbers.
DOMAIN, DRAWN, METHOD, NUMBERS = "onward.torch", "Drawn", "method", "numbers"

# Methods of torch's tensors, and a mask of ones divided by their share.
UNIFORM, _NORMAL, _BERNOULLI, EXPONENTIAL, DROPOUT = "uniform_", "normal_", "bernoulli_", "exponential_", "dropout"
INTEGERS, ORDER = "random_", "randperm"


@dataclass(frozen=True)
class Drawn:
    """Numbers that torch drew: how, their shape, the order of axes in memory, the type, and what the method took."""

    kind: str
    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    numbers: tuple[float, ...] = ()

    @property
    def is_decision(self) -> bool:
        """Whether it is a single number, which programs draw to decide something by it."""
        return self.kind == UNIFORM and self.shape == ()


_aten = torch.ops.aten
DRAWING = {
    _aten.rand.default: UNIFORM,
    _aten.rand.generator: UNIFORM,  # which is None here
    _aten.rand_like.default: UNIFORM,
    _aten.randn.default: _NORMAL,
    _aten.randn.generator: _NORMAL,
    _aten.randn_like.default: _NORMAL,
    _aten.bernoulli_.float: _BERNOULLI,
    _aten.exponential_.default: EXPONENTIAL,
    _aten.normal_.default: _NORMAL,
    _aten.uniform_.default: UNIFORM,
    getattr(_aten.random_, "from"): INTEGERS,
    _aten.randperm.default: ORDER,
    _aten.randperm.generator: ORDER,
    _aten.normal.Tensor_Tensor: _NORMAL,
    _aten.normal.Tensor_float: _NORMAL,
    _aten.normal.float_Tensor: _NORMAL,
}
# Where their bounds are among the arguments; the lower one is 0 by default.
_BOUNDS = {
    _aten.randint.default: slice(0, 1),
    _aten.randint.generator: slice(0, 1),
    _aten.randint.low: slice(0, 2),
    _aten.randint.low_generator: slice(0, 2),
    _aten.randint_like.default: slice(1, 2),
    _aten.randint_like.low_dtype: slice(1, 3),
    _aten.random_.to: slice(1, 2),
}


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the masks that are drawn inside of it, and why graphs would not do what is done there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Drawn] = []
        self.statistics: set[int] = set()  # where running statistics of BatchNorm are in memory
        self.refusals: list[str] = []
        self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        if reason := refusal(func, args, kwargs or {}):
            self.refusals.append(reason)
        drawn = func(*args, **(kwargs or {}))
        if (kwargs or {}).get("generator") is not None:
            return drawn
        if func is _aten.native_batch_norm.default:
            self.statistics |= {tensor.data_ptr() for tensor in args[3:5] if tensor is not None}
        elif func in DRAWING:
            # Those that make a tensor take its sizes, or another tensor, and no numbers.
            self._note(DRAWING[func], drawn, args[1:] if func.overloadpacket.__name__.endswith("_") else ())
        elif func is _aten.normal.float_float:
            self._note(_NORMAL, drawn, args[:2])
        elif func in _BOUNDS:
            self._note(INTEGERS, drawn, (0, *args[_BOUNDS[func]])[-2:])
        elif func is _aten.bernoulli.p:
            self._note(_BERNOULLI, drawn, args[1:])
        elif func is _aten.bernoulli.default:
            self._note(UNIFORM, args[0])  # one for each probability: below it or not
        elif func is _aten.multinomial.default:
            self._note_choice(*args)
        return drawn

    def _note_choice(self, p: torch.Tensor, count: int, replacement: bool = False) -> None:
        """What torch draws to choose by probabilities; `choice` has the formulas."""
        if replacement and count > 1:
            shape = (*p.shape[:-1], count)
            self.found.append(Drawn(UNIFORM, shape, tuple(range(p.ndim)), torch.float64))
        else:
            self._note(EXPONENTIAL, p)

    def _note(self, kind: str, noise: torch.Tensor, numbers: Sequence[float] = ()) -> None:
        strides = noise.stride()
        order = sorted(range(noise.ndim), key=lambda axis: (-strides[axis], axis))
        self.found.append(Drawn(kind, tuple(noise.shape), tuple(order), noise.dtype, tuple(numbers)))


@dataclass(frozen=True)
class Mask:
    """An input in place of what draws, for a Dropout 0 or 1 / keep.

    Its sizes are numbers, or arithmetic with those of inputs.
    """

    name: str
    sizes: tuple[int | str, ...]
    kind: str = DROPOUT
    order: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()
    dtype: torch.dtype = torch.float32

    def like(self, drawn: Drawn) -> Mask:
        """The same, drawn as torch has drawn it."""
        return Mask(self.name, self.sizes, self.kind, drawn.order, drawn.numbers, drawn.dtype)

    def is_like(self, drawn: Drawn, known: Mapping[str, int]) -> bool:
        """Whether that is what torch has drawn."""
        kind = _BERNOULLI if self.kind == DROPOUT else self.kind
        return kind == drawn.kind and tuple(self.shape(known)) == drawn.shape

    def shape(self, known: Mapping[str, int]) -> list[int]:
        return [size if isinstance(size, int) else evaluate(size, known) for size in self.sizes]

    def draw(self, known: Mapping[str, int]) -> torch.Tensor:
        """A new mask for inputs of these sizes."""
        shape = self.shape(known)
        noise = torch.empty([shape[axis] for axis in self.order], dtype=self.dtype)
        if self.kind == DROPOUT:
            keep = self.numbers[0] if self.numbers else 0.5  # torch leaves out what it takes by default
            draw_mask(noise, keep)
        elif self.kind == ORDER:
            torch.randperm(noise.numel(), out=noise)
        else:
            getattr(noise, self.kind)(*self.numbers)
        return noise.permute([self.order.index(axis) for axis in range(len(shape))]).contiguous()


def replace_random(model: ir.Model) -> list[Mask]:
    """Take a new input in place of what each node of a prepared model draws; in the order of nodes."""
    masks: list[Mask] = []
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type == "Dropout":
            _replace_dropout(model, node, masks)
        elif node.domain == "" and node.op_type in NOISE:
            _replace_noise(model, node, masks)
        elif (node.domain, node.op_type) == (DOMAIN, DRAWN):
            _replace_by_input(model, node, attribute(node, METHOD, ""), masks)
    return masks


def _replace_dropout(model: ir.Model, node: ir.Node, masks: list[Mask]) -> None:
    x, ratio, training = node.inputs[0], constant_of(input_at(node, 1)), constant_of(input_at(node, 2))
    assert x is not None
    if input_at(node, 2) is None or (training is not None and not training):
        _replace(node, ir.node("Identity", [x]))
        return
    p = 0.5 if ratio is None and input_at(node, 1) is None else None if ratio is None else float(ratio.reshape(()))
    if p is None or training is None or any(is_used(mask) for mask in node.outputs[1:]):
        raise ORTModuleTorchModelException("a Dropout has a rate, a mode or a mask that is computed")
    if p in (0.0, 1.0):
        number = ir.tensor(np.array(1 - p, x.dtype.numpy()) if x.dtype is not None else np.array(1 - p, np.float32))
        constant = ir.node("Constant", [], {"value": number})
        assert node.graph is not None
        node.graph.insert_before(node, constant)
        _replace(node, ir.node("Mul", [x, constant.outputs[0]]))
        return
    _replace(node, ir.node("Mul", [x, _new_input(model, node, x, DROPOUT, masks)]))


# Operator -> what it draws, and the attributes that torch's exporters leave as they are.
NOISE: dict[str, tuple[str, dict[str, float]]] = {
    "RandomNormal": (_NORMAL, {"mean": 0.0, "scale": 1.0}),
    "RandomNormalLike": (_NORMAL, {"mean": 0.0, "scale": 1.0}),
    "RandomUniform": (UNIFORM, {"low": 0.0, "high": 1.0}),
    "RandomUniformLike": (UNIFORM, {"low": 0.0, "high": 1.0}),
}


def _replace_noise(model: ir.Model, node: ir.Node, masks: list[Mask]) -> None:
    kind, usual = NOISE[node.op_type]
    kind = node.metadata_props.get(DRAWS, kind)
    if any(attribute(node, name, value) != value for name, value in usual.items()):
        raise ORTModuleTorchModelException(f"{node.op_type} draws from another distribution than the standard one")
    _replace_by_input(model, node, kind, masks)


def _replace_by_input(model: ir.Model, node: ir.Node, kind: str, masks: list[Mask]) -> None:
    _replace(node, ir.node("Identity", [_new_input(model, node, node.outputs[0], kind, masks)]))


def _new_input(model: ir.Model, node: ir.Node, like: ir.Value, kind: str, masks: list[Mask]) -> ir.Value:
    if node.graph is not model.graph or like.shape is None:
        raise ORTModuleTorchModelException(f"{node.op_type} is inside of a loop or a branch, or of unknown shape")
    sizes = _sizes(node, like)
    # It is drawn in these sizes, so they are true. Arithmetic with several of them is no name, nor what inference
    # has only numbered.
    names = [
        size if isinstance(size, int) or (size.isidentifier() and not is_placeholder(size)) else None for size in sizes
    ]
    given = ir.Value(name=f"{MASK}_{len(masks)}", type=like.type, shape=ir.Shape(names))
    model.graph.inputs.append(given)
    masks.append(Mask(given.name or "", sizes, kind))
    return given


_ATTENTION = re.compile(r"scaled_dot_product_attention\.default\]\(args = \(%(\w+), %(\w+)")


def note_sizes(model: ir.Model) -> None:
    """Write down, in place, the sizes of what each Dropout drops, as long as they are what the exporter calls them.

    Inside of attention these are the sizes of its scores, one for each query and key.
    """
    values = {value.name: value for value in all_values(model.graph)}
    for node in model.graph.all_nodes():
        if (node.domain == "" and node.op_type in NOISE) or (node.domain, node.op_type) == (DOMAIN, DRAWN):
            _note(node, node.outputs[0].shape)
        if node.op_type != "Dropout" or node.domain != "" or node.inputs[0] is None:
            continue
        found = _ATTENTION.search(node.metadata_props.get(OPERATION, ""))
        query, key = (values.get(name) for name in found.groups()) if found else (None, None)
        shape = node.inputs[0].shape
        if query is not None and key is not None and query.shape is not None and key.shape is not None:
            shape = ir.Shape([*query.shape[:-1], key.shape[-2]])
        _note(node, shape)


def _note(node: ir.Node, shape: ir.Shape | None) -> None:
    if shape is not None:
        node.metadata_props[_SIZES] = ";".join(str(s if isinstance(s, int) else s.value) for s in shape)


def _sizes(node: ir.Node, x: ir.Value) -> tuple[int | str, ...]:
    noted = node.metadata_props.get(_SIZES)
    if noted is None:
        return tuple(size if isinstance(size, int) else str(size.value) for size in x.shape or ())
    return tuple(int(size) if size.isdigit() else size for size in noted.split(";") if size)


def _replace(node: ir.Node, new: ir.Node) -> None:
    graph, old = node.graph, node.outputs[0]
    assert graph is not None
    output = new.outputs[0]
    output.type, output.shape = old.type, old.shape
    new.name = node.name
    graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(old, output, replace_graph_outputs=True)
    name, old.name = old.name, None
    output.name = name
    graph.remove(node, safe=True)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {"Max": max, "Min": min, "Mod": operator.mod, "FloorDiv": operator.floordiv}


@functools.lru_cache(maxsize=1024)  # each mask of each call asks
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def evaluate(expression: str, known: Mapping[str, int]) -> int:
    """The number behind what exporters write for a size, ``2*s0 + 1``."""

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int() as number):
                return number
            case ast.Name(id=name) if name in known:
                return known[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*map(value, arguments))
        raise ORTModuleTorchModelException(f"the size {expression!r} of a Dropout is not known before the graph runs")

    try:
        return value(_parsed(expression))
    except SyntaxError as error:
        raise ORTModuleTorchModelException(f"the size {expression!r} of a Dropout cannot be read") from error


def sizes_by_name(shapes: Sequence[Sequence[int | str]], sizes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The numbers that the symbols in declared shapes stand for."""
    return {
        name: number
        for shape, given in zip(shapes, sizes, strict=True)
        for name, number in zip(shape, given, strict=True)
        if isinstance(name, str)
    }
