"""What a model must be before anything looks at it: files may be damaged in ways that libraries do not expect."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir

from onward.errors import InvalidModelError
from onward.graph.external import check_place
from onward.graph.nodes import describe

_HIGHEST_RANK = 64  # of numpy
_MOST_ELEMENTS = 2**48  # no machine has as much memory
_LARGEST_VERSION = 2**31 - 1  # onnx's functions take no other
_TERM = r"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_EQUATION = re.compile(rf"{_TERM}(?:,{_TERM})*(?:->{_TERM})?")


def check_soundness(model: ir.Model) -> None:
    """Refuse names that are no texts, versions that are none, tensors that cannot be what they are said to be, and
    those that would come from another folder."""
    _check_versions(model)
    for node in _all_nodes(model):
        _check_names(node.op_type, node.domain, node.overload, node.name, *(value.name for value in node.outputs))
        if node.op_type == "Einsum" and node.domain == "":
            _check_equation(node)
    for graph in model.graphs():
        _check_names(*(value.name for value in graph.inputs), *graph.initializers)
    _check_tensors(model)


def _check_versions(model: ir.Model) -> None:
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain, version in imports.items():
            if not 0 < version <= _LARGEST_VERSION:
                raise InvalidModelError(f"the model uses opset {version} of the domain {domain!r}, which cannot be")


def _check_names(*names: object) -> None:
    for name in names:
        # Where it is no UTF-8, protobuf gives the bytes.
        if isinstance(name, bytes):
            raise InvalidModelError(f"a name in the model is no text: {name!r}")


def _check_equation(node: ir.Node) -> None:
    """onnx's inference never returns from an equation that has anything else in it."""
    found = node.attributes.get("equation")
    if found is not None and not found.is_ref() and not _EQUATION.fullmatch(str(found.value)):
        raise InvalidModelError(f"{describe(node)} has the equation {found.value!r}, which is none")


def _check_tensors(model: ir.Model) -> None:
    """Refuse tensors that cannot be what they are said to be, and those that would come from another folder."""
    for name, tensor in _all_tensors(model):
        if tensor is None:
            raise InvalidModelError(f"tensor {name!r} of the model is missing")
        sizes = tensor.shape.dims
        whole = all(isinstance(size, int) and size >= 0 for size in sizes)
        if not whole or len(sizes) > _HIGHEST_RANK or tensor.size > _MOST_ELEMENTS:
            raise InvalidModelError(f"tensor {name!r} of the model has the shape {list(sizes)[:_HIGHEST_RANK]}")
        if tensor.dtype == ir.DataType.UNDEFINED:
            raise InvalidModelError(f"tensor {name!r} of the model has no type")
        if isinstance(tensor, ir.ExternalTensor):
            check_place(tensor)
            continue
        try:
            tensor.numpy()
        except Exception as error:  # onnx_ir, numpy and ml_dtypes each have their own for data of a wrong size or type
            raise InvalidModelError(f"tensor {name!r} of the model is damaged: {error}") from error


def _all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _all_tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol | None]]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
    for node in _all_nodes(model):
        for attribute in node.attributes.values():
            title = f"{attribute.name} of node {node.name or node.op_type}"
            if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                yield title, attribute.value
            elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                yield from ((title, tensor) for tensor in attribute.value or ())
