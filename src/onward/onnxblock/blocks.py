"""Blocks of one operator, and the class that all blocks derive from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward import optim
from onward.errors import OnwardError, UnknownValueError
from onward.graph.builder import Builder
from onward.onnxblock import model_accessor
from onward.onnxblock._graph_utils import generate_graph_name
from onward.onnxblock.block import Block
from onward.onnxblock.construction import add_initializer, add_node, add_scalar, element_type, of_one_type
from onward.onnxblock.tracing import trace

__all__ = [
    "Abs",
    "Add",
    "Block",
    "Cast",
    "Clip",
    "Constant",
    "Div",
    "InputLike",
    "LabelEncoder",
    "Linear",
    "Log",
    "Mul",
    "Neg",
    "PassThrough",
    "Pow",
    "ReduceAllL2",
    "ReduceMean",
    "ReduceSum",
    "SequenceConstruct",
    "Sigmoid",
    "Sub",
]


class _BinaryOp(Block):
    """An operator of two values."""

    def __init__(self, op_name: str) -> None:
        super().__init__()
        if not op_name:
            raise OnwardError("Unknown op name provided to create a binary op.")
        self._op_name = op_name

    def build(self, input_name1: str, input_name2: str) -> str:
        return add_node(self._op_name, of_one_type(input_name1, input_name2))


class Add(_BinaryOp):
    """a + b."""

    def __init__(self) -> None:
        super().__init__("Add")


class Sub(_BinaryOp):
    """a - b."""

    def __init__(self) -> None:
        super().__init__("Sub")


class Mul(_BinaryOp):
    """a b."""

    def __init__(self) -> None:
        super().__init__("Mul")


class Div(_BinaryOp):
    """a / b."""

    def __init__(self) -> None:
        super().__init__("Div")


class Pow(Block):
    """x to a constant power."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        exponent = add_initializer("pow_exponent", self._exponent, element_type(pow_input_name))
        return add_node("Pow", [pow_input_name, exponent])


class _UnaryOp(Block):
    """An operator of one value."""

    def __init__(self, op_name: str, **attributes: Any) -> None:
        super().__init__()
        if not op_name:
            raise OnwardError("Unknown op name provided to create a unary op.")
        self._op_name = op_name
        self._attributes = attributes

    def build(self, input_name: str) -> str:
        return add_node(self._op_name, [input_name], **self._attributes)


class ReduceMean(_UnaryOp):
    """The mean of all elements."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceMean", keepdims=int(keepdims))


class ReduceSum(_UnaryOp):
    """The sum of all elements."""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__("ReduceSum", keepdims=int(keepdims))


class Sigmoid(_UnaryOp):
    """1 / (1 + exp(-x))."""

    def __init__(self) -> None:
        super().__init__("Sigmoid")


class Log(_UnaryOp):
    """The natural logarithm."""

    def __init__(self) -> None:
        super().__init__("Log")


class Neg(_UnaryOp):
    """-x."""

    def __init__(self) -> None:
        super().__init__("Neg")


class Abs(_UnaryOp):
    """|x|."""

    def __init__(self) -> None:
        super().__init__("Abs")


class Constant(Block):
    """A number, as an initializer of rank 0; float, unless Add, Sub, Mul or Div meets it with another type.

    That of the original has shape [1], and a loss made with it too, which is no number for `float(loss)`.
    """

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        name = add_scalar("initializer", self._value)
        model_accessor.current().constants.add(name)
        return name


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *sequence_input_names: str) -> str:
        return add_node("SequenceConstruct", sequence_input_names)


class ReduceAllL2(Block):
    """sqrt(sum of x² over all elements of all tensors), of shape [1], in standard operators."""

    def build(self, *reduce_input_names: str) -> str:
        accessor = model_accessor.current()

        def norm(op: Builder, tensors: list[ir.Value]) -> ir.Value:
            with op.scope("ReduceAllL2"):
                total = op.Sqrt(optim.sum_of_squares(op, tensors))
                precise = all(x.dtype == ir.DataType.DOUBLE for x in tensors)
                return op.reshape(total if precise else op.cast(total, ir.DataType.FLOAT), [1])

        return trace(accessor, norm, [accessor.value(name) for name in reduce_input_names], "reducealll2_output")


class Clip(Block):
    """x within bounds; None for no bound."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._bounds = {"clip_min": clip_min, "clip_max": clip_max}

    def build(self, clip_input_name: str) -> str:
        dtype = element_type(clip_input_name)
        inputs = [clip_input_name]
        for token, bound in self._bounds.items():
            inputs.append("" if bound is None else add_scalar(token, bound, dtype))
        return add_node("Clip", inputs)


class PassThrough(Block):
    """The values themselves, as a tuple of names."""

    def build(self, *input_names: str) -> tuple[str, ...]:
        return input_names


class InputLike(Block):
    """A new graph input with the type and shape of a value of the model."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        accessor = model_accessor.current()
        try:
            like = accessor.value_info(self._like)
        except UnknownValueError:
            raise UnknownValueError(f"Could not find input or output with name {self._like}") from None
        created = onnx.ValueInfoProto()
        created.CopyFrom(like)
        created.name = input_name or generate_graph_name("input")
        accessor.model.graph.input.append(created)
        return created.name


class LabelEncoder(Block):
    """Replaces keys by values: LabelEncoder of ai.onnx.ml, which the model must import."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        lists = {
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }
        defaults = {"default_float": default_float, "default_int64": default_int64, "default_string": default_string}
        self._attributes = {**defaults, **{name: values for name, values in lists.items() if values is not None}}

    def build(self, label_encoder_input_name: str) -> str:
        return add_node(
            "LabelEncoder",
            [label_encoder_input_name],
            output="label_encoder.output",
            name="label_encoder",
            domain="ai.onnx.ml",
            **self._attributes,
        )


class Cast(Block):
    """x in another type."""

    def __init__(self, to: int) -> None:
        super().__init__()
        if to not in onnx.TensorProto.DataType.values():
            raise OnwardError(f"Cast needs a type, such as onnx.TensorProto.FLOAT, not {to!r}")
        self._to = to

    def build(self, cast_input_name: str) -> str:
        return add_node("Cast", [cast_input_name], output="cast.output", to=self._to)


class Linear(Block):
    """alpha x W + beta b with W `[in, out]`; both drawn from numpy's standard normal distribution, as in the original.

    `np.random.seed` makes them reproducible.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0
    ) -> None:
        super().__init__()
        if not all(isinstance(size, int) and size > 0 for size in (in_features, out_features)):
            raise OnwardError(f"Linear needs two sizes, not {in_features!r} and {out_features!r}")
        self._shape = (in_features, out_features)
        self._bias, self._alpha, self._beta = bias, alpha, beta

    def build(self, linear_input_name: str) -> str:
        dtype = element_type(linear_input_name)
        inputs = [linear_input_name, add_initializer("linear.weight", np.random.randn(*self._shape), dtype)]
        if self._bias:
            inputs.append(add_initializer("linear.bias", np.random.randn(self._shape[1]), dtype))
        return add_node("Gemm", inputs, output="linear.output", name="linear", alpha=self._alpha, beta=self._beta)
