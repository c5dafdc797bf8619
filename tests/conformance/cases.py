"""The node cases that come with onnx: one operator each, with inputs and the outputs they must have."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from onward.graph.opsets import accepted_by_runtime

FLOATING = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class Case:
    """A model of one node (or of its function body, in cases called `_expanded`), inputs, and expected outputs."""

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    @property
    def floating_inputs(self) -> list[str]:
        return [value.name for value in self.model.graph.input if _is_floating(value) and value.name in self.inputs]

    @property
    def floating_outputs(self) -> list[str]:
        return [value.name for value in self.model.graph.output if _is_floating(value)]

    @property
    def differentiable(self) -> bool:
        """Whether it has a floating-point input and a floating-point output."""
        return bool(self.floating_inputs and self.floating_outputs)


@functools.cache
def by_operator() -> dict[str, list[Case]]:
    """All cases of the default domain that onnxruntime's opset allows, under their operator."""
    found: dict[str, list[Case]] = defaultdict(list)
    operators: dict[str, str] = {}
    for test in _collect():
        nodes = test.model.graph.node
        if "_expanded" not in test.name:
            operators[test.name] = nodes[0].op_type if len(nodes) == 1 and nodes[0].domain == "" else ""
        operator = operators.get(test.name.split("_expanded")[0], "")
        model = _in_accepted_opset(test.model) if operator else None
        if model is not None:
            inputs, outputs = (_named(values, arrays) for values, arrays in _ends(model, test.data_sets[0]))
            found[operator].append(Case(test.name, operator, model, inputs, outputs))
    return dict(found)


def _collect() -> list[TestCase]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some cases overflow on purpose
        return load_model_tests(kind="node")


def _in_accepted_opset(given: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model in the newest opset that onnxruntime accepts, None if it needs operators or types of a newer one.

    Cases are written for the newest version of their operator, though most do not need it.
    """
    model = onnx.ModelProto()
    model.CopyFrom(given)
    newest_opset, newest_ir = accepted_by_runtime()
    model.ir_version = min(model.ir_version, newest_ir)
    too_new = [imported for imported in model.opset_import if imported.domain == "" and imported.version > newest_opset]
    for imported in too_new:
        imported.version = newest_opset
    if too_new:
        try:
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        except Exception:
            return None
    return model


def _ends(model: onnx.ModelProto, data: tuple[list[Any], list[Any]]) -> Iterator[tuple[Sequence[Any], list[Any]]]:
    yield model.graph.input, data[0]
    yield model.graph.output, data[1]


def _named(values: Sequence[onnx.ValueInfoProto], arrays: list[Any]) -> dict[str, Any]:
    return {value.name: _array(array) for value, array in zip(values, arrays, strict=True)}


def _array(given: Any) -> Any:
    """Types that numpy does not have come as protos, scalars not as arrays; sequences and absent optionals stay."""
    if isinstance(given, TensorProto):
        return numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.generic) else given


def _is_floating(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.elem_type in FLOATING
