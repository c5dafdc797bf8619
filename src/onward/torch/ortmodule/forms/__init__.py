"""Operations that torch's exporter writes in a form which is right for some numbers only.

Log(Sigmoid(x)) is -infinity from -104 on, Floor(x / y) one too many for 0.7 and 0.1. The comparison with torch does not
see that if there are no such numbers in the first call. Here they get a form that is torch's for all.
"""

from __future__ import annotations

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import input_at
from onward.graph.shapes import is_floating
from onward.torch.ortmodule.forms.bound import clip, count_axes, double, mean
from onward.torch.ortmodule.forms.choice import Form, Forms, form_of, replace_by
from onward.torch.ortmodule.forms.index import guard_indices
from onward.torch.ortmodule.forms.logarithm import (
    binary_cross_entropy,
    expm1,
    log1p,
    log_add_exp,
    log_sigmoid,
    log_sum_exp,
    sigmoid,
    with_its_slope,
)
from onward.torch.ortmodule.forms.quotient import atan2, floor_divide, power, remainder, sinc
from onward.torch.ortmodule.marks import define_marks


def choose_forms(model: ir.Model) -> None:
    """Give operations other forms, in place."""
    op = Builder(model.graph, model.opset_imports[""])
    for node in reversed(list(model.graph)):  # an operation that consists of others comes before them
        guard_indices(op, node)
        count_axes(op, node)
        form = _form_of(node)
        if form is not None and node.graph is not None and input_at(node, 0) is not None:
            replace_by(op, node, form)
    define_marks(model)


def _form_of(node: ir.Node) -> Form | None:
    if node.domain != "" or not is_floating(node.outputs[0]):
        return None
    return _BY_OPERATOR.get(node.op_type) or form_of(node, _BY_OPERATION)


_BY_OPERATION: Forms = {
    ("aten.log_sigmoid.", "Log"): log_sigmoid,
    ("aten.logaddexp.", "Log"): log_add_exp,
    ("aten.log1p.", "Log"): log1p,
    ("aten.expm1.", "Sub"): expm1,
    ("aten.atan2.", "Where"): atan2,
    ("aten.sinc.", "Where"): sinc,
    ("aten.linalg_vector_norm.", "Pow"): power,
    ("aten.remainder.", "Sub"): remainder,
    ("aten.floor_divide.", "Floor"): floor_divide,
    ("rounding_mode: floor", "Floor"): floor_divide,
    ("aten.sub.", "Sub"): binary_cross_entropy,
    ("aten.mean.", "ReduceMean"): mean,
    ("prims.var.", "ReduceMean"): mean,
    ("aten.scalar_tensor.", "Cast"): double,
}
_BY_OPERATOR: dict[str, Form] = {
    "Clip": clip,
    "ReduceLogSumExp": log_sum_exp,
    "Sigmoid": sigmoid,
    "Softplus": with_its_slope,
}
