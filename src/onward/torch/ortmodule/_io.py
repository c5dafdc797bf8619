"""Arguments of a module as names and a schema, as the original's `_io` has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch.utils import _pytree as pytree

from onward.torch.inputs import path_name
from onward.torch.ortmodule._execution import InputInfo
from onward.torch.ortmodule._fallback import ORTModuleIOError
from onward.torch.utils.torch_io_helper import (
    UnsupportedDataError,
    _TensorStub,
    extract_data_and_schema,
    unflatten_data_using_schema,
)

__all__ = ["_InputInfo", "_TensorStub", "parse_inputs_for_onnx_export", "unflatten_user_output"]

_InputInfo = InputInfo


def parse_inputs_for_onnx_export(
    module_parameters: Iterable[inspect.Parameter],
    onnx_graph: onnx.ModelProto | None,
    schema: Any,
    args: Sequence[Any] | torch.Tensor,
    kwargs: Mapping[str, Any],
) -> InputInfo:
    """Names of the tensors among the arguments of a call, and of those that require gradients.

    Args:
        module_parameters: the parameters of `forward`.
        onnx_graph: if given, only inputs of this model count.
        schema: of the arguments; made of them if None.
        args: the arguments by position; a single tensor is one of them.
        kwargs: those by name.
    """
    positional = (args,) if isinstance(args, torch.Tensor) else tuple(args)
    arguments = inspect.Signature(list(module_parameters)).bind(*positional, **kwargs).arguments
    tensors = {
        path_name(path): leaf
        for path, leaf in pytree.tree_flatten_with_path(arguments)[0]
        if isinstance(leaf, torch.Tensor)
    }
    if onnx_graph is not None:
        taken = {value.name for value in onnx_graph.graph.input}
        tensors = {name: tensor for name, tensor in tensors.items() if name in taken}
    if schema is None:
        schema = _extract_schema(arguments)
    return InputInfo(list(tensors), [name for name, tensor in tensors.items() if tensor.requires_grad], schema)


def _extract_schema(data: Any) -> Any:
    """The structure of arguments or results with a stub for each tensor."""
    try:
        return extract_data_and_schema(data)[1]
    except UnsupportedDataError as error:
        raise ORTModuleIOError(f"ORTModule fails to extract schema from data: {error}") from error


def unflatten_user_output(output_schema: Any, outputs: Sequence[torch.Tensor]) -> Any:
    """The structure of a schema with these tensors."""
    return unflatten_data_using_schema(outputs, output_schema)
