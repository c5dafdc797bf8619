"""A program of ONNX nodes that is evaluated while it is written, so that whoever adds a node knows all shapes so far.

Programs are made of draws of hypothesis, which tries to make them smaller when a test fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onward.graph.builder import Builder
from onward.graph.opsets import NeedsOpsetError
from onward.testing import run_on_reference

OPSET = 22  # in whose form programs are written
LARGEST = 30.0  # beyond, differences lose too many digits

# Draws an integer between two bounds, both included; everything is made of those.
Draw = Callable[[int, int], int]


class RejectedError(Exception):
    """This node makes no sense here: a logarithm of something negative, a kernel too large, numbers that explode."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of a program, with what it is for the inputs of the program."""

    name: str
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def ndim(self) -> int:
        return self.array.ndim


@dataclass
class Program:
    """Nodes in order, floating leaves to differentiate with respect to, and constants."""

    draw: Draw
    seed: int
    leaves: list[Tensor] = field(default_factory=list)
    constants: list[Tensor] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)  # floating results that later nodes may use
    outer: Program | None = None  # of a body

    @property
    def root(self) -> Program:
        return self if self.outer is None else self.outer.root

    def fresh(self, prefix: str) -> str:
        root = self.root
        root.count = getattr(root, "count", 0) + 1  # type: ignore[attr-defined]
        return f"{prefix}{root.count}"  # type: ignore[attr-defined]

    def integer(self, low: int, high: int) -> int:
        return self.draw(low, high)

    def flag(self) -> bool:
        return bool(self.draw(0, 1))

    def choice(self, options: Sequence[Any]) -> Any:
        if not options:
            raise RejectedError
        return options[self.draw(0, len(options) - 1)]

    def subset(self, options: Sequence[int]) -> list[int]:
        return [option for option in options if self.flag()]

    def permutation(self, options: Sequence[Any]) -> list[Any]:
        rest = list(options)
        return [rest.pop(self.draw(0, len(rest) - 1)) for _ in options]

    def leaf(self, shape: Sequence[int], low: float = -1.5, high: float = 1.5) -> Tensor:
        """A new floating input."""
        root = self.root
        random = np.random.default_rng([root.seed, len(root.leaves)])
        tensor = Tensor(self.fresh("x"), np.asarray(random.uniform(low, high, tuple(shape))))
        root.leaves.append(tensor)
        return tensor

    def constant(self, array: Any) -> Tensor:
        """An initializer that is not differentiated; integers, mostly."""
        tensor = Tensor(self.fresh("c"), np.asarray(array))
        self.root.constants.append(tensor)
        return tensor

    def pick(self, wanted: Callable[[Tensor], bool] = lambda tensor: True) -> Tensor:
        """A value to go on with; the newest are the likeliest, so that programs become deep."""
        pool = [*(self.outer.visible() if self.outer else []), *self.values]
        usable = [tensor for tensor in pool if wanted(tensor)]
        if not usable:
            raise RejectedError
        return usable[len(usable) - 1 - self.draw(0, min(4, len(usable) - 1))]

    def visible(self) -> list[Tensor]:
        return [*(self.outer.visible() if self.outer else []), *self.values]

    def add(self, op_type: str, *inputs: Tensor | None, outputs: int = 1, **attributes: Any) -> Any:
        """Append a node; its floating results can be picked from now on."""
        node = helper.make_node(
            op_type,
            ["" if tensor is None else tensor.name for tensor in inputs],
            [self.fresh("y") for _ in range(outputs)],
            name=self.fresh(f"{op_type}_"),
            **attributes,
        )
        arrays = {tensor.name: tensor.array for tensor in inputs if tensor is not None}
        return self.append(node, evaluate([node], arrays))

    def append(self, node: onnx.NodeProto, results: dict[str, np.ndarray]) -> Any:
        made = [Tensor(name, np.asarray(results[name])) for name in node.output]
        for tensor in made:
            if tensor.array.dtype == np.float64 and not (np.abs(tensor.array) < LARGEST).all():
                raise RejectedError
        self.nodes.append(node)
        self.values.extend(tensor for tensor in made if tensor.array.dtype == np.float64)
        return made[0] if len(made) == 1 else made


def evaluate(nodes: Sequence[onnx.NodeProto], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What nodes make of these arrays; RejectedError where they refuse."""
    inputs = [_value_info(name, array, array.shape) for name, array in arrays.items()]
    outputs = [helper.make_empty_tensor_value_info(name) for name in nodes[-1].output]
    graph = helper.make_graph(list(nodes), "so_far", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    try:
        return run_on_reference(made, arrays)
    except (ValueError, IndexError, RuntimeError, NotImplementedError, TypeError) as error:
        raise RejectedError from error


def _value_info(name: str, array: np.ndarray, shape: Sequence[int | str | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def converted(array: np.ndarray, dtype: Any) -> np.ndarray:
    return array.astype(dtype) if array.dtype == np.float64 else array


@dataclass(frozen=True)
class Form:
    """How a program becomes a model: its type, its opset, what is known of shapes, which leaves are parameters."""

    dtype: Any = np.float64
    opset: int = OPSET
    dims: tuple[str, ...] = ("static",)  # repeated for all axes of all inputs
    parameters: int = 0  # so many of the leaves are initializers
    fed: bool = False  # indices, axes and sizes are inputs, so that nobody knows them; needs the newest opset


def build(program: Program, outputs: Sequence[Tensor], form: Form) -> onnx.ModelProto:
    """The model of a program."""
    inputs, weights = [], []
    axes = 0
    for index, leaf in enumerate(program.leaves):
        array = converted(leaf.array, form.dtype)
        if index < form.parameters:
            weights.append(numpy_helper.from_array(array, leaf.name))
            continue
        shape: list[int | str | None] = []
        for axis, size in enumerate(leaf.shape):
            known = form.dims[axes % len(form.dims)]
            axes += 1
            shape.append({"static": size, "unknown": None, "shared": f"d{size}"}.get(known, f"{leaf.name}_{axis}"))
        inputs.append(_value_info(leaf.name, array, shape))
    for constant in program.constants:
        array = converted(constant.array, form.dtype)
        if form.fed and array.dtype == np.int64:
            inputs.append(_value_info(constant.name, array, array.shape))
        else:
            weights.append(numpy_helper.from_array(array, constant.name))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(form.dtype))
    graph = helper.make_graph(
        program.nodes,
        "random",
        inputs,
        [helper.make_tensor_value_info(output.name, kind, [None] * output.ndim) for output in outputs],
        weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    has_bodies = any(attribute.HasField("g") for node in made.graph.node for attribute in node.attribute)
    return made if form.opset >= OPSET or form.fed or has_bodies else in_opset(made, form.opset)


def in_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The same model in an older opset, or in the oldest above it that has all its operators."""
    if any(node.op_type == "Resize" for node in model.graph.node):
        opset = max(opset, 13)  # before, it needs a region
    while True:
        try:
            return _rewritten(model, opset)
        except NeedsOpsetError as need:
            opset = need.version


def _rewritten(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    source = ir.serde.deserialize_model(model)
    inputs = list(source.graph.inputs)
    source.graph.inputs.clear()
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name="random")
    op = Builder(graph, opset)
    values: dict[str, Any] = {value.name or "": value for value in graph.inputs}
    for name, value in list(source.graph.initializers.items()):
        assert value.const_value is not None
        array = value.const_value.numpy()
        # Integers (axes, pads) may have to become attributes.
        values[name] = array if array.dtype.kind in "iub" else value
        if array.dtype.kind == "f":
            del source.graph.initializers[name]
            graph.register_initializer(value)
    for node in source.graph:
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        operands = [None if x is None else values[x.name or ""] for x in node.inputs]
        made = op.emit(node.op_type, *operands, outputs=len(node.outputs), **attributes)
        results = [made] if len(node.outputs) == 1 else made
        for old, new in zip(node.outputs, results, strict=True):
            values[old.name or ""] = new
    for output in source.graph.outputs:
        value = values[output.name or ""]
        if value.producer() is None:
            value = op.Identity(value)
        value.name, value.type, value.shape = output.name, output.type, output.shape
        graph.outputs.append(value)
    return ir.serde.serialize_model(ir.Model(graph, ir_version=8))
