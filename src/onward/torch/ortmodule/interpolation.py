"""Interpolations whose pixels depend on rounding: they are compared with torch for each size."""

from __future__ import annotations

import math
import re

import onnx_ir as ir

from onward.graph.nodes import attribute
from onward.graph.provenance.record import OPERATION
from onward.torch.ortmodule._fallback import ORTModuleTorchModelException

_FACTORS = re.compile(r"\[((?:[\d.]+(?:, )?)+)\]\), kwargs")


def require_exact_interpolation(model: ir.Model) -> None:
    """Refuse a graph for all sizes where onnxruntime's Resize takes other pixels than torch for some of them.

    Nearest ones are found by a division that is rounded. Factors other than 2, 3, ... and 1/2, 1/4, ... do not lead to
    whole sizes, and onnxruntime copies an axis that keeps its size, where torch interpolates.
    """
    for node in model.graph.all_nodes():
        x = node.inputs[0] if node.op_type == "Resize" else None
        if x is None or (x.shape is not None and all(isinstance(size, int) for size in x.shape[2:])):
            continue
        found = _FACTORS.search(node.metadata_props.get(OPERATION, ""))
        is_by_factors = found is not None and "None, " in node.metadata_props[OPERATION]
        factors = [float(factor) for factor in found[1].split(", ")] if found is not None and is_by_factors else []
        if not all(map(_is_exact, factors)) or (not factors and attribute(node, "mode", "nearest") == "nearest"):
            raise ORTModuleTorchModelException("which pixels it interpolates from follows from each size")


def _is_exact(factor: float) -> bool:
    return factor.is_integer() or math.frexp(factor)[0] == 0.5
