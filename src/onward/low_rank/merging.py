"""Put trained pairs into the weights that they belong to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.naming import free_name
from onward.graph.nodes import all_values
from onward.low_rank.layer import Layer
from onward.low_rank.weight import is_moving


def with_weights(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> ir.Model:
    """The model with these numbers in weights of these names: itself, if it has them already."""
    moved = set(moved_weights(model, arrays))
    if not moved:
        return model
    copy = model.clone()
    for value in list(all_values(copy.graph)):
        if value.name in moved and _tensor_of(value) is not None:
            _store(value, functools.partial(arrays.__getitem__, value.name))
    return copy


def moved_weights(model: ir.Model, arrays: Mapping[str, np.ndarray]) -> list[str]:
    """The names of weights that have other numbers in `arrays`."""
    return [name for name, tensor in _stored(model).items() if name in arrays and _differ(tensor, arrays[name])]


def _stored(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    found = ((value.name or "", _tensor_of(value)) for value in all_values(model.graph))
    return {name: tensor for name, tensor in found if tensor is not None}


def _tensor_of(value: ir.Value) -> ir.TensorProtocol | None:
    """What an initializer or a Constant node holds."""
    producer = value.producer()
    if producer is None:
        return value.const_value
    known = producer.attributes.get("value") if producer.op_type == "Constant" and producer.domain == "" else None
    return None if known is None else known.as_tensor()


def _differ(tensor: ir.TensorProtocol, array: np.ndarray) -> bool:
    if tuple(tensor.shape.numpy()) != array.shape or array.dtype.kind in "iubcSUO":
        return False
    return not np.array_equal(tensor.numpy().astype(array.dtype), array, equal_nan=True)


def merge_pair(
    model: ir.Model, layers: Sequence[Layer], before: Layer, a: np.ndarray, b: np.ndarray, scaling: float
) -> None:
    """Let layers that share a pair multiply by w + scaling * (what the pair adds), in place.

    Where other nodes use the weight too, the layers get one of their own, and the others keep theirs.

    Args:
        before: the first of the layers in the model as it was, where w comes from.
    """
    first, weight = layers[0], before.weight
    origin = first.weight.origin
    if weight.quantised:
        raise OnwardError(
            f"{first} cannot be merged with its pair: the weight is stored as integers, which the sum is not. Write "
            "an adapter instead (`save_base` and `save_adapter`), or merge into the model as it was before quantisation"
        )
    dtype = np.float64 if weight.dtype == ir.DataType.DOUBLE else np.float32

    def difference() -> np.ndarray:
        return first.difference(a.astype(dtype), b.astype(dtype)) * dtype(scaling)

    if _is_only_used_by(origin, {layer.node for layer in layers}):
        _store(origin, lambda: weight.stored().astype(dtype) + weight.put_back(difference()))
        return
    taken = {value.name for value in all_values(model.graph)}
    own = ir.Value(name=free_name(f"{origin.name}.merged", taken), shape=ir.Shape(weight.shape))
    own.type = ir.TensorType(weight.dtype)
    own.const_value = _lazy(own, weight.dtype, weight.shape, lambda: weight.taken().astype(dtype) + difference())
    model.graph.register_initializer(own)
    if model.ir_version < 4:  # such files list every initializer as an input too
        model.graph.inputs.append(own)
    for layer in layers:
        layer.node.replace_input_with(layer.side, own)


def _is_only_used_by(value: ir.Value, nodes: Collection[ir.Node]) -> bool:
    """Whether a weight, as it is or moved, goes into these nodes and nowhere else."""
    if value.is_graph_output():
        return False
    return all(
        user in nodes
        or (user.domain == "" and user.op_type in ("Shape", "Size"))  # exporters ask weights for their sizes
        or (is_moving(user) and _is_only_used_by(user.outputs[0], nodes))
        for user, _ in value.uses()
    )


def _store(value: ir.Value, numbers: Callable[[], np.ndarray]) -> None:
    """Let an initializer, or what a Constant node gives, have other numbers of the same type."""
    producer = value.producer()
    if producer is None:
        tensor = value.const_value
        assert tensor is not None
        value.const_value = _lazy(value, tensor.dtype, tuple(tensor.shape.numpy()), numbers)
        return
    known = producer.attributes.get("value")
    array = numbers()
    dtype = ir.DataType.FLOAT if known is None else known.as_tensor().dtype
    tensor = ir.tensor(array.astype(dtype.numpy()), dtype=dtype)
    shape = [ir.AttrTensor("value", tensor)]
    constant = ir.Node("", "Constant", [], shape, name=producer.name)
    graph = producer.graph
    assert graph is not None
    graph.insert_before(producer, constant)
    name = value.name
    value.replace_all_uses_with(constant.outputs[0])
    graph.remove(producer, safe=True)
    constant.outputs[0].name = name


def _lazy(
    value: ir.Value, dtype: ir.DataType, shape: Sequence[int], numbers: Callable[[], np.ndarray]
) -> ir.TensorProtocol:
    """A tensor that is computed when it is written: of a large model, one at a time."""

    def tensor() -> ir.TensorProtocol:
        return ir.tensor(np.ascontiguousarray(numbers().astype(dtype.numpy())), dtype=dtype, name=value.name)

    return ir.LazyTensor(tensor, dtype=dtype, shape=ir.Shape(shape), name=value.name)
