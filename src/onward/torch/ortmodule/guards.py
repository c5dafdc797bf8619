"""The sizes that a graph was captured for: what the program took for granted while it was followed."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from onward.torch.ortmodule.call import Sizes


class Guards:
    """Says of other sizes whether the captured program is the one that they would lead to."""

    def __init__(self, program: ExportedProgram) -> None:
        placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        values = [
            placeholders[name].meta["val"] for name in program.graph_signature.user_inputs if name in placeholders
        ]
        self._shapes = [tuple(value.shape) for value in values]
        symbolic = [size for shape in self._shapes for size in shape if isinstance(size, torch.SymInt)]
        self._environment: Any = symbolic[0].node.shape_env if symbolic else None

    def accept(self, sizes: Sizes) -> bool:
        """Whether tensors of these shapes may be fed."""
        if len(sizes) != len(self._shapes):
            return False
        known: dict[Any, Any] = {}
        pairs = []
        for shape, given in zip(self._shapes, sizes, strict=True):
            if len(shape) != len(given):
                return False
            for size, number in zip(shape, given, strict=True):
                if not isinstance(size, torch.SymInt):
                    if size != number:
                        return False
                    continue
                pairs.append((size.node.expr, number))
                if size.node.expr.is_symbol:
                    known[size.node.expr] = number
        if any(expression.subs(known) != number for expression, number in pairs):
            return False
        return self._environment is None or self._allows(known)

    def _allows(self, known: dict[Any, Any]) -> bool:
        environment = self._environment
        for symbol, number in known.items():
            limits = environment.var_to_range.get(symbol)
            if limits is not None and not (limits.lower <= number <= limits.upper):
                return False
        for guard in environment.guards:
            expression = environment.replace(guard.expr)
            # What depends on data, the graph computes; torch checks it while it runs.
            if any(str(symbol).startswith("u") for symbol in expression.free_symbols):
                continue
            if expression.subs(known) != True:  # noqa: E712  sympy's, or a condition that stays open
                return False
        return True


class ExactSizes:
    """What older exporters give: a graph for the sizes of the example and no others."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes

    def accept(self, sizes: Sizes) -> bool:
        """Whether these are the sizes of the example."""
        return sizes == self._sizes
