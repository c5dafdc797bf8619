"""The section of the model: its layers, and what of them was trained."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from onward.report.content import Layer, Structure, Weight
from onward.report.figure import shown
from onward.report.markup import Markup, details, joined, name_of, scrolling, section, tag

_FEW = 40  # so many layers are one table; more of them are in groups
_GROUPS = 40
_RUN = 25  # layers of a group whose names say nothing about where they belong
_KINDS = ("trained", "statistic", "frozen", "constant")


def layers_section(structure: Structure | None) -> Markup | None:
    """The model from its inputs to its outputs."""
    if structure is None:
        return None
    layers = structure.layers
    ends = joined([_end("Input", structure.inputs), _end("Output", structure.outputs)])
    said = f"{_many(structure.nodes, 'node')} in {_many(len(layers), 'layer')}. A layer is a node with parameters, and "
    said += "those without that follow it."
    if len(layers) <= _FEW:
        body = _table(layers, "The layers in their order", structure)
    else:
        body = joined(_group(name, members, structure) for name, members in _groups(layers))
    return section("Model", tag("dl", ends, class_="origin"), tag("p", said), _legend(layers), body, anchor="model")


def _end(name: str, values: Sequence[str]) -> Markup:
    return tag("div", tag("dt", name), tag("dd", name_of(", ".join(values), 400)))


def _legend(layers: Sequence[Layer]) -> Markup:
    """How many numbers are trained, and how many are not, as one bar."""
    counts = _counts(weight for layer in layers for weight in layer.weights)
    total = sum(counts.values())
    if not total:
        return tag("p", "It has no parameters.")
    bars = [tag("span", class_=kind, style=f"flex-grow:{counts[kind] / total:.6f}") for kind in _KINDS if counts[kind]]
    items = [
        tag("li", tag("span", kind, class_=f"chip {kind}"), f" {shown(counts[kind])}")
        for kind in _KINDS
        if counts[kind]
    ]
    return joined([tag("div", *bars, class_="share", aria_hidden="true"), tag("ul", *items, class_="legend")])


def _counts(weights: Iterable[Weight]) -> Counter[str]:
    """Numbers by what becomes of them; a parameter that several layers use counts once."""
    counts: Counter[str] = Counter()
    for weight in {weight.name: weight for weight in weights}.values():
        counts[weight.kind] += math.prod(weight.shape)
    return counts


def _many(count: int, what: str) -> str:
    return f"{shown(count)} {what}{'' if count == 1 else 's'}"


def _groups(layers: Sequence[Layer]) -> list[tuple[str, list[Layer]]]:
    """Neighbours whose names begin alike, in as many groups as can be read; else runs of equal length."""
    paths = [re.split(r"[./]", layer.name.strip("/")) for layer in layers]
    chosen: list[tuple[str, list[Layer]]] = []
    for depth in range(1, 6):
        keyed = [(".".join(path[:depth]), layer) for path, layer in zip(paths, layers, strict=True)]
        grouped = [
            (key, [layer for _, layer in members]) for key, members in itertools.groupby(keyed, lambda pair: pair[0])
        ]
        if len(grouped) > _GROUPS:
            break
        chosen = grouped
    if len(chosen) > 1:
        return chosen
    runs = [list(layers[first : first + _RUN]) for first in range(0, len(layers), _RUN)]
    return [(f"{i * _RUN + 1} to {i * _RUN + len(run)}: {run[0].name} …", run) for i, run in enumerate(runs)]


def _group(name: str, layers: Sequence[Layer], structure: Structure) -> Markup:
    counts = _counts(weight for layer in layers for weight in layer.weights)
    chips = [tag("span", f"{kind} {shown(counts[kind])}", class_=f"chip {kind}") for kind in _KINDS if counts[kind]]
    summary = joined([tag("strong", name_of(name)), f" {_many(len(layers), 'layer')} ", *chips])
    return details(summary, _table(layers, f"Layers of {name}", structure))


def _table(layers: Sequence[Layer], caption: str, structure: Structure) -> Markup:
    total = sum(_counts(w for layer in structure.layers for w in layer.weights).values()) or 1
    names = ("layer", "operators", "returns", "parameters", "numbers", "kind")
    head = tag("tr", *(tag("th", name, scope="col", class_="number" if name == "numbers" else None) for name in names))
    rows = [_row(layer, total) for layer in layers]
    made = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *rows), class_="layers")
    return scrolling(made, caption)


def _row(layer: Layer, total: int) -> Markup:
    counts = _counts(layer.weights)
    share = sum(counts.values()) / total
    chips = [tag("span", kind, class_=f"chip {kind}") for kind in _KINDS if counts[kind]]
    weights = [
        tag("span", name_of(weight.name, 50), f" {'×'.join(map(str, weight.shape)) or 'scalar'}", class_="weight")
        for weight in layer.weights[:8]
    ]
    more = [f"and {len(layer.weights) - 8} more"] if len(layer.weights) > 8 else []
    shape = "" if layer.shape is None else f"[{', '.join('?' if d is None else str(d) for d in layer.shape)}]"
    bar = tag("span", class_="bar", style=f"--share:{share:.4f}", aria_hidden="true")
    return tag(
        "tr",
        tag("th", name_of(layer.name, 50), scope="row"),
        tag("td", operators(layer.operators), class_="text"),
        tag("td", name_of(shape, 40), class_="shape"),
        tag("td", *weights, *more, class_="text"),
        tag("td", bar, shown(sum(counts.values())) if counts else "", class_="number measured"),
        tag("td", *chips),
    )


def operators(names: Sequence[str], limit: int = 6) -> str:
    """Operators in their order, repetitions counted; with many only the most frequent."""
    runs = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    if len(runs) <= limit:
        return " → ".join(name if count == 1 else f"{count} × {name}" for name, count in runs)
    frequent = ", ".join(f"{count} × {name}" for name, count in Counter(names[1:]).most_common(limit - 2))
    return f"{names[0]}, and {len(names) - 1} more ({frequent}{', …' if len(set(names)) > limit - 2 else ''})"
