"""Shapes that were promised when a value was made, and are verified when inference has found them out."""

from __future__ import annotations

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.nodes import all_values
from onward.graph.shapes import Dim, dims

_KEY = "onward.promises"


def promise(value: ir.Value, like: ir.Value, who: str) -> None:
    """Note that `who` made `value` with the shape of `like`."""
    value.meta.setdefault(_KEY, []).append((like, who))


def check_promises(graph: ir.Graph) -> None:
    """An error for a value whose shape, as far as it is known, is certainly another one."""
    for value in all_values(graph):
        for like, who in value.meta.get(_KEY, ()):
            if _differ(dims(value), dims(like)):
                raise OnwardError(
                    f"{who} made a cotangent of shape {_shown(value)} for {like.name!r} of shape {_shown(like)}; a "
                    "cotangent has the shape of its primal. Where inputs broadcast, declare the rule with "
                    "broadcast=True, or use op.sum_to."
                )


def _differ(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    if a is None or b is None:
        return False
    sizes = [(x, y) for x, y in zip(a, b, strict=False) if isinstance(x, int) and isinstance(y, int)]
    return len(a) != len(b) or any(x != y for x, y in sizes)


def _shown(value: ir.Value) -> str:
    return str(list(dims(value) or ())).replace("'", "")
