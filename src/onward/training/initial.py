"""What the state of a training step begins with."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError
from onward.signature import Role, Signature

_STATE = (Role.PARAMETER, Role.SLOT, Role.BUFFER, Role.SEED)


def initial_tensors(signature: Signature, forward: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The first value of each state input of a step, in its order; `forward` is the prepared model it was made of."""
    weights = forward.graph.initializers

    def weight(name: str) -> ir.TensorProtocol:
        if name not in weights or weights[name].const_value is None:
            raise OnwardError(f"the step trains {name!r}, which the model does not have: it was made of another model")
        tensor = weights[name].const_value
        assert tensor is not None
        return tensor

    def tensor(name: str, role: Role) -> ir.TensorProtocol:
        if name not in signature.initial:
            return weight(name)
        value = signature.initial[name]
        if role is Role.SEED:
            return ir.tensor(np.array(value, np.int64), name=name)
        return _filled(weight(signature.links[name]), value, name)

    return {name: tensor(name, role) for name, role in signature.inputs.items() if role in _STATE}


def _filled(like: ir.TensorProtocol, value: float, name: str) -> ir.TensorProtocol:
    """A tensor of one number, made when it is asked for."""
    shape = ir.Shape(like.shape.numpy())

    def make() -> ir.TensorProtocol:
        return ir.tensor(np.full(tuple(shape.numpy()), value, like.dtype.numpy()), dtype=like.dtype, name=name)

    return ir.LazyTensor(make, like.dtype, shape, name=name)
