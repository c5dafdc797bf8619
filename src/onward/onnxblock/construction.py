"""What blocks append to the model that they are called on: nodes and initializers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onward.errors import OnwardError, UnknownValueError
from onward.onnxblock import model_accessor
from onward.onnxblock._graph_utils import generate_graph_name

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def add_node(
    op_type: str,
    inputs: Sequence[str],
    *,
    output: str | None = None,
    name: str | None = None,
    domain: str | None = None,
    **attributes: Any,
) -> str:
    """Append a node with one output to the model; returns the name of the output."""
    wrong = [name for name in inputs if not isinstance(name, str)]
    if wrong:
        raise OnwardError(f"a block takes names of values, not {wrong[0]!r}; blocks.Constant makes a value of a number")
    output_name = generate_graph_name(output or f"{op_type.lower()}_output")
    node_name = generate_graph_name(name or op_type)
    node = onnx.helper.make_node(op_type, inputs, [output_name], node_name, domain=domain, **attributes)
    model_accessor.current().model.graph.node.append(node)
    return output_name


def add_initializer(token: str, values: Any, dtype: int = onnx.TensorProto.FLOAT) -> str:
    """Append an initializer to the model; numbers become tensors of shape [1]."""
    return _add_tensor(token, np.atleast_1d(_numbers(values, dtype)), dtype)


def add_scalar(token: str, value: float, dtype: int = onnx.TensorProto.FLOAT) -> str:
    """The same with rank 0. The original's have shape [1], and so has all that is computed with them."""
    return _add_tensor(token, _numbers(value, dtype), dtype)


def _numbers(values: Any, dtype: int) -> np.ndarray:
    try:
        if values is not None:
            return np.asarray(values, dtype=ir.DataType(dtype).numpy())
    except (TypeError, ValueError):
        pass
    raise OnwardError(f"a block needs numbers, not {values!r}")


def _add_tensor(token: str, array: np.ndarray, dtype: int) -> str:
    name = generate_graph_name(token)
    tensor = ir.serde.serialize_tensor(ir.tensor(array, dtype=ir.DataType(dtype), name=name))
    model_accessor.current().model.graph.initializer.append(tensor)
    return name


def element_type(name: str) -> int:
    """The type of a value; float where it cannot be found out."""
    try:
        found: int = model_accessor.current().value_info(name).type.tensor_type.elem_type
    except UnknownValueError:
        found = onnx.TensorProto.UNDEFINED
    return found or onnx.TensorProto.FLOAT


def of_one_type(*names: str) -> list[str]:
    """The names, where the numbers of `blocks.Constant` take the type of the value that they meet."""
    accessor = model_accessor.current()
    constants = accessor.constants.intersection(names)
    others = [name for name in names if name not in constants]
    if not constants or not others:
        return list(names)
    dtype = element_type(others[0])
    return [_converted(accessor, name, dtype) if name in constants else name for name in names]


def _converted(accessor: model_accessor.ModelAccessor, name: str, dtype: int) -> str:
    tensor = next((tensor for tensor in accessor.model.graph.initializer if tensor.name == name), None)
    if tensor is None or tensor.data_type == dtype or dtype not in (int(t) for t in _FLOATS):
        return name
    return add_scalar("initializer", float(onnx.numpy_helper.to_array(tensor)), dtype)
