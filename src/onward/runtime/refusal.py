"""What is wrong with the inputs of a step, in words of our own: before it runs where that can be seen, else after."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onward.errors import OnwardError
from onward.signature import CHECK

# Names of nodes that refuse something; a number at the end makes the name unique.
_REFUSED = re.compile(rf"Name:'{CHECK}(.+?)(?:_\d+)?' Status Message")
# Those that are called after what labels must be.
_LABELS = re.compile(
    rf"{CHECK}labels '(?P<name>.+?)' must be from 0 to (?:(?P<most>\d+)|.+?)"
    r"(?:, or (?P<ignored>-?\d+) to be ignored)?(?:_\d+)?$"
)
_OUT_OF_RANGE = re.compile(r"(?i)out of|bounds|range")

Shapes = Mapping[str, Sequence[int]]


class Labels(NamedTuple):
    """What labels must be: from 0 to below the number of classes, where that is known, or the one to be ignored."""

    name: str
    classes: int | None
    ignored: int | None


def check_targets(shapes: Shapes, declared: Mapping[str, Sequence[Any] | None], targets: Collection[str]) -> None:
    """Compare the sizes of targets with those of inputs that the model gives the same name.

    The graph compares them with the prediction itself. Here, a name that the inputs use for two sizes says nothing.
    """
    sizes: dict[str, set[int]] = {}
    owners: dict[str, str] = {}
    for name in (name for name in shapes if name not in targets):
        for symbol, size in zip(declared[name] or (), shapes[name], strict=False):
            sizes.setdefault(symbol, set()).add(size)
            owners[symbol] = name
    for name in (name for name in shapes if name in targets):
        for symbol, size in zip(declared[name] or (), shapes[name], strict=False):
            if isinstance(symbol, str) and len(sizes.get(symbol, ())) == 1 and size not in sizes[symbol]:
                raise OnwardError(
                    f"input {name!r} has shape {list(shapes[name])}, but {owners[symbol]!r} has {min(sizes[symbol])} "
                    f"as {symbol!r}; these must be equal"
                )


def explain(said: str, model: str, feeds: Mapping[str, Any], targets: Collection[str], rules: Sequence[str]) -> str:
    """Why a model could not run, before what onnxruntime says about it; `rules` are the names of nodes that refuse."""
    arrays = {name: value if isinstance(value, np.ndarray) else value.numpy() for name, value in feeds.items()}
    refused = _REFUSED.search(said)
    empty = [f"{name!r} of shape {list(array.shape)}" for name, array in arrays.items() if not array.size]
    if empty:
        why = f"there is nothing in {', '.join(empty)}; leave empty batches out. "
    elif refused is not None:
        why = f"{refused.group(1)}. "
    else:
        broken = [rule for rule in rules if _breaks(rule, arrays, said)]
        why = f"{_without_number(broken[0])}. " if broken else ""
    given = "; ".join(f"{name!r} {_described(array, name in targets)}" for name, array in arrays.items())
    return f"{why}{model!r} could not run. Given were {given}. onnxruntime says: {said}"


def labels_of(rule: str) -> Labels | None:
    """What a node that refuses labels says of them, by its name; None of other nodes."""
    found = _LABELS.match(rule)
    if found is None:
        return None
    return Labels(
        found["name"],
        None if found["most"] is None else int(found["most"]) + 1,
        None if found["ignored"] is None else int(found["ignored"]),
    )


def labels_in(names: Iterable[str]) -> dict[str, dict[str, int | None]]:
    """Targets that are labels of a known number of classes, by the names of a graph's nodes: as manifests say it.

    Not every runtime says which node has refused something.
    """
    found = [labels_of(name) for name in names]
    return {
        labels.name: {"classes": labels.classes, "ignored": labels.ignored}
        for labels in found
        if labels is not None and labels.classes is not None
    }


def _breaks(rule: str, arrays: Mapping[str, np.ndarray], said: str) -> bool:
    """Whether labels are no classes: where the number of classes is known, as the rule says, else if that is likely."""
    known = labels_of(rule)
    labels = None if known is None else arrays.get(known.name)
    if known is None or labels is None or labels.dtype.kind not in "iu":
        return False
    if known.classes is None:
        return _OUT_OF_RANGE.search(said) is not None
    counted = labels if known.ignored is None else labels[labels != known.ignored]
    return bool(counted.size) and not 0 <= counted.min() <= counted.max() < known.classes


def _without_number(rule: str) -> str:
    return re.sub(r"_\d+$", "", rule.removeprefix(CHECK))


def _described(array: np.ndarray, is_target: bool) -> str:
    values = ""
    if is_target and array.size and array.dtype.kind in "iu":
        values = f" with values from {array.min()} to {array.max()}"
    return f"of shape {list(array.shape)}{values}"
