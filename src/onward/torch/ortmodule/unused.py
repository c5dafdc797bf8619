"""Random numbers that a module draws for what nothing depends on: graphs leave it out, torch's generator does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from onward.torch.ortmodule._fallback import ORTModuleTorchModelException
from onward.torch.ortmodule.dropout import DRAWING, DROPOUT, Mask

_aten = torch.ops.aten


def with_unused(masks: Sequence[Mask], draws: Sequence[Mask], known: Mapping[str, int]) -> list[Mask]:
    """The masks of a graph, and between them what else is drawn; `known`: the sizes of this call.

    Of draws that are alike the first are those of the graph. Whether that is so, the comparison will say.
    """
    found, left = [], list(masks)
    try:
        for draw in draws if len(draws) > len(masks) else ():
            is_used = bool(left) and (left[0].kind, left[0].shape(known)) == (draw.kind, draw.shape(known))
            found.append(left.pop(0) if is_used else draw)
    except ORTModuleTorchModelException:  # a size follows from data
        return list(masks)
    return list(masks) if left else found


def draws_of(program: ExportedProgram) -> list[Mask]:
    """All that a module draws, in torch's order, used or not."""
    found = [drawn for node in program.graph.nodes if (drawn := _drawn(node)) is not None]
    return [Mask(f"unused_{number}", sizes, kind) for number, (kind, sizes) in enumerate(found)]


def _drawn(node: Node) -> tuple[str, tuple[int | str, ...]] | None:
    """What a node draws, and in which sizes."""
    shape: Sequence[int | torch.SymInt]
    if node.target is _aten.dropout.default:
        _, p, training = node.args
        if not training or p in (0, 1):
            return None
        kind, shape = DROPOUT, node.meta["val"].shape
    elif node.target is _aten.scaled_dot_product_attention.default:
        p = node.args[4] if len(node.args) > 4 else node.kwargs.get("dropout_p", 0)
        if p in (0, 1):
            return None
        query, key = (argument.meta["val"].shape for argument in node.args[:2] if isinstance(argument, Node))
        kind, shape = DROPOUT, [*query[:-1], key[-2]]
    elif node.target in DRAWING:
        kind, shape = DRAWING[node.target], node.meta["val"].shape
    else:
        return None
    sizes = [str(size) for size in shape]
    return kind, tuple(int(size) if size.isdigit() else size for size in sizes)
