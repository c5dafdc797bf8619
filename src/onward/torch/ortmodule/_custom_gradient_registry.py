"""Gradients of operators as the original declares them: lists of nodes, with tokens for what they are connected to.

    @register_gradient("", "Cos")
    def cos_gradient():
        return [
            ("Sin", ["I(0)"], ["sin"]),
            ("Mul", ["sin", "GO(0)"], ["product"]),
            ("Neg", ["product"], ["GI(0)"]),
        ]

``I(i)`` is an input of the operator, ``O(i)`` an output, ``GO(i)`` and ``GI(i)`` are their gradients.
`onward.vjp` says the same in less.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.autodiff.custom import vjp
from onward.errors import OnwardError
from onward.graph.builder import Builder

_DTYPES = {
    "int": ir.DataType.INT64,
    "float": ir.DataType.FLOAT,
    "bool": ir.DataType.BOOL,
    "double": ir.DataType.DOUBLE,
}
_Nodes = Sequence[Sequence[Any]]


def register_gradient(
    domain: str, name: str, *attributes: str
) -> Callable[[Callable[[], _Nodes]], Callable[[], _Nodes]]:
    """Declare the gradient of an operator, in place of the one that it has.

    Args:
        domain: of the operator; that of the standard is "".
        name: of the operator.
        attributes: which ATen operator it is; there are none here.
    """
    if attributes:
        raise OnwardError(
            f"{domain}.{name} with {', '.join(map(repr, attributes))} is an operator of PyTorch inside of a graph, "
            "which the original had and onward has not: torch's exporter writes operators of the standard in its place"
        )

    def register(definition: Callable[[], _Nodes]) -> Callable[[], _Nodes]:
        nodes = [_checked(node, name) for node in definition()]

        def rule(op: Builder, node: ir.Node, *dys: ir.Value | None) -> list[ir.Value | None]:
            return _emit(op, node, dys, nodes)

        vjp(name, domain=domain, override=True)(rule)
        return definition

    return register


def _checked(node: Sequence[Any], name: str) -> tuple[str, list[str], list[str], Mapping[str, Any]]:
    if not 3 <= len(node) <= 4:
        raise OnwardError(
            f"a node of the gradient of {name} is (operator, inputs, outputs) or with attributes, not {node!r}"
        )
    operator, domain = (node[0], "") if isinstance(node[0], str) else node[0]
    if domain not in ("", "ai.onnx"):
        raise OnwardError(f"the gradient of {name} has {domain}.{operator}; gradients are operators of the standard")
    return operator, list(node[1]), list(node[2]), node[3] if len(node) == 4 else {}


def _emit(
    op: Builder,
    node: ir.Node,
    dys: Sequence[ir.Value | None],
    nodes: Sequence[tuple[str, list[str], list[str], Mapping[str, Any]]],
) -> list[ir.Value | None]:
    known: dict[str, ir.Value | None] = {}
    for kind, values in (("I", node.inputs), ("O", node.outputs), ("GO", dys)):
        known |= {f"{kind}({index})": value for index, value in enumerate(values)}
    for operator, inputs, outputs, attributes in nodes:
        missing = [name for name in inputs if name and name not in known]
        if missing:
            raise OnwardError(f"the gradient of {node.op_type} uses {missing[0]!r}, which nothing computes")
        given = {key: _attribute(value, node) for key, value in attributes.items()}
        if operator == "Constant":
            known[outputs[0]] = op.constant(given["value"].numpy(), given["value"].dtype)
            continue
        found = op.emit(operator, *(known.get(name) for name in inputs), outputs=len(outputs), **given)
        known |= dict(zip(outputs, found if len(outputs) > 1 else [found], strict=True))
    return [known.get(f"GI({index})") for index in range(len(node.inputs))]


def _attribute(given: Mapping[str, Any], node: ir.Node) -> Any:
    """What ``{'value': v, 'dtype': t, 'is_tensor': b}`` stands for."""
    value, kind = given["value"], given["dtype"]
    if not given.get("is_tensor", False):
        return value
    found = re.fullmatch(r"(I|O)ElemType\((\d+)\)", kind)
    if found:
        typed = (node.inputs if found[1] == "I" else node.outputs)[int(found[2])]
        dtype = None if typed is None else typed.dtype
    else:
        dtype = _DTYPES.get(kind)
    if dtype is None:
        raise OnwardError(f"the type {kind!r} of a constant in the gradient of {node.op_type} is not known")
    return ir.tensor(np.array(value, dtype.numpy()), dtype=dtype)
