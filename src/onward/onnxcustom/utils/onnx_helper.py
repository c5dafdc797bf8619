"""Initializers, names and types of models."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from onward.errors import UnknownNameError
from onward.onnxcustom.training.excs import WrongValueError

_FLOATING: dict[int | str, type[np.generic]] = {
    onnx.TensorProto.FLOAT: np.float32,
    onnx.TensorProto.DOUBLE: np.float64,
    onnx.TensorProto.FLOAT16: np.float16,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
}


def onnx_rename_weights(onx: onnx.ModelProto) -> onnx.ModelProto:
    """Rename the initializers of the main graph so that their order is that of their names: `I<number>_<name>`.

    The model is changed in place, and returned.
    """
    names = [initializer.name for initializer in onx.graph.initializer]
    # As many digits as the original takes, so that scripts find the names they expect.
    digits = int(math.log(len(names)) / math.log(10) + 1) if names else 1
    renamed = {name: f"I{index:0{digits}d}_{name}" for index, name in enumerate(names)}
    for initializer in onx.graph.initializer:
        initializer.name = renamed[initializer.name]
    for value in (*onx.graph.input, *onx.graph.output, *onx.graph.value_info):
        value.name = renamed.get(value.name, value.name)
    _rename_uses(onx.graph, renamed)
    return onx


def _rename_uses(graph: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """In subgraphs too: what they use and do not make themselves is that of the main graph."""
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                own = {value.name for value in (*body.input, *body.initializer)}
                own.update(name for inner in body.node for name in inner.output)
                _rename_uses(body, {old: new for old, new in renamed.items() if old not in own})
                for value in body.output:  # a body may return a value of the graph around it
                    if value.name not in own:
                        value.name = renamed.get(value.name, value.name)


def get_onnx_opset(onx: onnx.ModelProto, domain: str = "") -> int:
    """The opset of a domain."""
    wanted = {"", "ai.onnx"} if domain in ("", "ai.onnx") else {domain}
    for opset in onx.opset_import:
        if opset.domain in wanted:
            return opset.version
    raise WrongValueError(f"the model imports no opset of domain {domain!r}")


def proto_type_to_dtype(proto_type: int | str) -> type[np.generic]:
    """The numpy type of a floating type of tensors, which is a number of TensorProto or text as 'tensor(float)'."""
    if proto_type not in _FLOATING:
        raise WrongValueError(f"unexpected type {proto_type!r}; only float16, float and double are known")
    return _FLOATING[proto_type]


def dtype_to_var_type(dtype: Any) -> Any:
    """The class of skl2onnx for tensors of a numpy type."""
    from skl2onnx.common import data_types

    classes = {
        np.dtype(np.float32): data_types.FloatTensorType,
        np.dtype(np.float64): data_types.DoubleTensorType,
        np.dtype(np.int64): data_types.Int64TensorType,
        np.dtype(np.int32): data_types.Int32TensorType,
    }
    try:
        return classes[np.dtype(dtype)]
    except KeyError:
        raise WrongValueError(f"unexpected dtype {dtype!r}; use one of {', '.join(map(str, classes))}") from None


def add_initializer(model: onnx.ModelProto, name: str, value: np.ndarray) -> onnx.ModelProto:
    """A copy of `model` with one more initializer; an input of that name gets it as its default."""
    taken = sorted(initializer.name for initializer in model.graph.initializer)
    if name in taken:
        raise WrongValueError(f"the model has an initializer {name!r} already, among {taken}")
    copy = _copy(model)
    copy.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return copy


def replace_initializers_into_onnx(model: onnx.ModelProto, results: Mapping[str, Any]) -> onnx.ModelProto:
    """A copy of `model` with other initializers: arrays, OrtValues of either kind or TensorProtos, by name."""
    copy = _copy(model)
    initializers = {initializer.name: initializer for initializer in copy.graph.initializer}
    for name, value in results.items():
        if name not in initializers:
            raise UnknownNameError(f"unable to find initializer {name!r} in {sorted(initializers)}")
        if isinstance(value, onnx.TensorProto):
            tensor = onnx.TensorProto.FromString(value.SerializeToString())
            tensor.name = name
        else:
            array = value if isinstance(value, np.ndarray) else value.numpy()
            tensor = onnx.numpy_helper.from_array(array, name)
        initializers[name].CopyFrom(tensor)
    return copy


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
