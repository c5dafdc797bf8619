"""Which layers get a pair: names and patterns of weights and nodes, against those of the model."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onward.errors import OnwardError
from onward.graph.naming import listed, matching
from onward.low_rank.layer import Layer, Refused, find


def selected(graph: ir.Graph, patterns: str | Sequence[str]) -> list[int]:
    """The places, among all layers of a graph, of those that names and patterns stand for."""
    found = list(find(graph))
    layers = [each for each in found if isinstance(each, Layer)]
    refused = {name: each for each in found if isinstance(each, Refused) for name in each.names}
    known = list(dict.fromkeys(name for layer in layers for name in layer.names))
    others = {name: each.reason for name, each in refused.items() if name not in known}
    wanted = listed("patterns", patterns, one=True)
    if not wanted:
        raise OnwardError('`patterns` is empty: name the weights or nodes that get a low-rank pair; "*" means all')
    if not layers:
        reason = f": {_first(refused)}" if refused else ""
        raise OnwardError(f"the model has no MatMul, Gemm or Conv with a constant weight{reason}")
    names = set(matching("patterns", wanted, known, others, what="weight or node", why_not="which gets no pair"))
    for name in names & set(others):
        raise OnwardError(f"`patterns` names {name!r}, which gets no low-rank pair: {others[name]}")
    return [place for place, layer in enumerate(layers) if names.intersection(layer.names)]


def _first(refused: dict[str, Refused]) -> str:
    name, each = next(iter(refused.items()))
    return f"{name!r} ({each.node.op_type}) is none, because {each.reason}"
