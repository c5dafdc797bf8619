"""`lora`: low-rank pairs beside the weights of a model, to be trained instead of these."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes

from onward.errors import OnwardError, OpsetError
from onward.graph.blame import blaming_model
from onward.graph.external import read_small_weights
from onward.graph.naming import free_name
from onward.graph.nodes import all_values
from onward.graph.prepare import ModelLike, check, import_default_domain, load
from onward.graph.upgrade import OLDEST, align_functions, upgrade
from onward.low_rank.adapted import Lora, Pair, Settings
from onward.low_rank.layer import layers_of
from onward.low_rank.selection import selected

__all__ = ["Lora", "lora"]

_DROPOUT_OPSET = 12  # since then, an input of Dropout says whether it drops


def lora(
    model: ModelLike,
    patterns: str | Sequence[str],
    *,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    rank_stabilised: bool = False,
    seed: int = 0,
) -> Lora:
    """The model with low-rank pairs beside some of its weights: `y = x W` becomes `y = x W + (alpha / rank) (x A) B`.

    A has `rank` columns and B as many rows. They are all that is trained, while W stays as it is. B starts at zero, so
    that the model first gives what it gave before; A is drawn as torch draws the weight of a layer. Weights of MatMul,
    Gemm and Conv can have a pair. The given model is not changed.

    Args:
        model: a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        patterns: names and shell patterns ("*.attention.*") of weights, or of the nodes that use them.
        rank: of what is added to each weight; in a Conv with groups, to that of each group.
        alpha: how much the pairs count; `rank` by default.
        dropout: the part of their input that the pairs do not see, at random, in training.
        rank_stabilised: divide `alpha` by the root of the rank instead, as rsLoRA does.
        seed: decides the first values of A.
    """
    settings = _settings(rank, alpha, dropout, rank_stabilised, seed)
    copy = load(model)
    import_default_domain(copy)
    read_small_weights(copy)
    _inline(copy)
    check(copy)
    if copy.opset_imports[""] < OLDEST:
        raise OpsetError(f"low-rank pairs need opset {OLDEST}; the model has {copy.opset_imports['']}. Export it again")
    if settings.dropout and copy.opset_imports[""] < _DROPOUT_OPSET:
        copy = upgrade(copy, _DROPOUT_OPSET)
    folder = Path(model).resolve().parent if isinstance(model, (str, os.PathLike)) else None
    return Lora(copy, _pairs(copy, selected(copy.graph, patterns)), settings, folder)


def _settings(rank: Any, alpha: Any, dropout: Any, rank_stabilised: bool, seed: Any) -> Settings:
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise OnwardError(f"`rank` is a number of columns, at least 1, not {rank!r}")
    alpha = rank if alpha is None else alpha
    if not _is_number(alpha) or not math.isfinite(alpha) or not alpha:
        raise OnwardError(f"`alpha` is a number other than 0, not {alpha!r}")
    if not _is_number(dropout) or not 0 <= dropout < 1:
        raise OnwardError(f"`dropout` is a part, from 0 to below 1, not {dropout!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OnwardError(f"`seed` is an integer that is not negative, not {seed!r}")
    scaling = float(alpha) / (math.sqrt(rank) if rank_stabilised else int(rank))
    return Settings(int(rank), float(alpha), scaling, float(dropout), int(seed))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _inline(model: ir.Model) -> None:
    """Put the bodies of functions in the place of their calls: a layer may be in one."""
    if model.functions:
        with blaming_model("inlining the functions of the model"):
            align_functions(model)
            passes.InlinePass()(model)
            model.functions.clear()


def _pairs(model: ir.Model, places: Sequence[int]) -> list[Pair]:
    """One pair for all chosen layers that multiply by one weight alike."""
    layers = layers_of(model.graph)
    together: dict[object, list[int]] = {}
    for place in places:
        together.setdefault(layers[place].form, []).append(place)
    taken = {value.name for value in all_values(model.graph)}
    pairs = []
    for members in together.values():
        weight = layers[members[0]].weight.origin.name or ""
        stem = weight.removesuffix(".weight")
        a, b = (free_name(f"{stem}.lora_{letter}", taken) for letter in "AB")
        pairs.append(Pair(weight, a, b, tuple(members)))
    return pairs
