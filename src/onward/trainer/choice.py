"""Which parameters are trained."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import onnx_ir as ir

from onward.graph.parameters import parameters


def chosen(model: ir.Model, trainable: Sequence[str] | None, frozen: Sequence[str] | None) -> list[str] | None:
    """Placeholder until the patterns of the data helper land."""
    if trainable is None and frozen is None:
        return None

    def matches(name: str, patterns: Sequence[str] | None) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns or ())

    known = parameters(model)
    names = [p.name for p in known if (p.trainable if trainable is None else matches(p.name, trainable))]
    return [name for name in names if not matches(name, frozen)]
