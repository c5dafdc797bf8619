"""The node cases that come with onnx: one operator each, with inputs and the outputs they must have."""

from __future__ import annotations

import functools
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from onward.graph.opsets import accepted_by_runtime

FLOATING = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)

# Floating-point inputs that say how many elements there are or which are taken, and have no derivative:
# operator -> input indices.
SETTINGS = {
    "Dropout": (1,),  # ratio
    "MelWeightMatrix": (3, 4),  # the band of frequencies
    "OneHot": (0, 1),  # indices and depth may be given in floating point
    "Range": (1,),  # limit
    "Resize": (1, 2),  # roi and scales
    "Upsample": (1,),  # scales
}


@dataclass(frozen=True, eq=False)
class Case:
    """A model of one node (or of its function body, in cases called `_expanded`), inputs, and expected outputs."""

    name: str
    operator: str
    model: onnx.ModelProto
    inputs: dict[str, Any]
    outputs: dict[str, Any]

    settings: frozenset[str]

    @property
    def wrt(self) -> list[str]:
        """Its floating-point inputs but for settings."""
        floating = [value.name for value in self.model.graph.input if _is_floating(value)]
        return [name for name in floating if name not in self.settings and self.inputs.get(name) is not None]

    @property
    def of(self) -> list[str]:
        """Its floating-point outputs."""
        return [value.name for value in self.model.graph.output if _is_floating(value)]


@functools.cache
def by_operator() -> dict[str, list[Case]]:
    """All cases of the default domain that onnxruntime's opset allows, under their operator."""
    found: dict[str, list[Case]] = defaultdict(list)
    nodes: dict[str, onnx.NodeProto] = {}
    for test in _collect():
        if "_expanded" not in test.name and len(test.model.graph.node) == 1:
            nodes[test.name] = test.model.graph.node[0]
        node = nodes.get(test.name.split("_expanded")[0])
        model = _in_accepted_opset(test.model) if node is not None and node.domain == "" else None
        if node is not None and model is not None:
            settings = frozenset(
                node.input[index] for index in SETTINGS.get(node.op_type, ()) if index < len(node.input)
            )
            given, wanted = test.data_sets[0]
            inputs, outputs = _named(model.graph.input, given), _named(model.graph.output, wanted)
            found[node.op_type].append(Case(test.name, node.op_type, model, inputs, outputs, settings))
    return dict(found)


def sweep() -> dict[str, list[Case]]:
    """The cases that have a floating-point input and a floating-point output."""
    return {operator: [case for case in cases if case.wrt and case.of] for operator, cases in by_operator().items()}


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
            onnx.checker.check_model(model, full_check=True)
        except Exception:
            return None
    return model


def _named(values: Sequence[onnx.ValueInfoProto], arrays: list[Any]) -> dict[str, Any]:
    return {value.name: _array(array) for value, array in zip(values, arrays, strict=True)}


def _array(given: Any) -> Any:
    """Types that numpy does not have come as protos, scalars not as arrays; sequences and absent optionals stay."""
    if isinstance(given, TensorProto):
        return numpy_helper.to_array(given)
    return np.asarray(given) if isinstance(given, np.generic) else given


def _is_floating(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") == "tensor_type" and value.type.tensor_type.elem_type in FLOATING
