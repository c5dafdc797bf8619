"""Values that are stored in a model as it was written: initializers, and the outputs of Constant nodes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is stored in the model."""
    if value is None:
        return False
    producer = value.producer()
    if producer is None:
        return value.const_value is not None
    if producer.op_type == "ConstantOfShape":
        return is_constant(producer.inputs[0])
    return producer.op_type == "Constant"


def constant_array(value: ir.Value | None) -> np.ndarray | None:
    """The array of a value that is stored in the model, in an initializer or a Constant node."""
    if value is None or not is_constant(value):
        return None
    producer = value.producer()
    if producer is None:
        tensor = value.const_value
        return None if tensor is None or tensor.dtype == ir.DataType.STRING else tensor.numpy()
    if producer.op_type == "ConstantOfShape":
        return _constant_of_shape(producer)
    content = next(iter(producer.attributes.values()))
    if content.type == ir.AttributeType.TENSOR:
        return content.as_tensor().numpy()
    if content.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
        return np.asarray(content.value, np.float32)
    if content.type in (ir.AttributeType.INT, ir.AttributeType.INTS):
        return np.asarray(content.value, np.int64)
    return None


def _constant_of_shape(node: ir.Node) -> np.ndarray | None:
    """A tensor of one number, without the memory for it."""
    shape, content = constant_array(node.inputs[0]), node.attributes.get("value")
    number = np.zeros(1, np.float32) if content is None else content.as_tensor().numpy()
    return None if shape is None else np.broadcast_to(number.reshape(()), [int(size) for size in shape])
