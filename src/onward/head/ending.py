"""What the end of a model says: which value holds its scores, and how probabilities and labels follow from them.

Losses take scores, since gradients through an activation and its logarithm are slow where they are not nan. So the way
back from the probabilities goes through what makes them:

* Softmax: scores `[N, C]` of classes that exclude each other, of which probabilities are exp(s) / sum(exp(s));
* Sigmoid: one score `[N, 1]` for the second of two classes, one a label where a row has several, or one a class that
  is told from all others (as skl2onnx writes the logistic regression of two classes);
* neither: scores as they are, to which softmax (or the sigmoid of a single one) is applied; or probabilities that were
  made in another way, where something divides them by their sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onward.errors import OnwardError, UnknownNameError
from onward.graph.naming import quoted
from onward.graph.nodes import attribute, constant_of, outer_values
from onward.graph.proto import map_type
from onward.graph.shapes import dims, floating_origin, is_floating

# What does not change numbers, or only their places.
_TRANSPARENT = frozenset("Cast Flatten Identity Reshape Squeeze Unsqueeze".split())
IDENTITY, SOFTMAX, SIGMOID, PROBABILITY = "identity", "softmax", "sigmoid", "probability"


@dataclass(frozen=True)
class Head:
    """The end of a model.

    Attributes:
        scores: the name of the value that a loss takes.
        link: how probabilities follow from scores, as above: "softmax", "sigmoid", or "probability" where the scores
            are probabilities themselves; "identity" for numbers.
        width: how many scores a row has; None if that is not known.
        rank: how many axes the scores have, `dtype` of which type they are.
        labels: the classes that the model knows by name, in the order of the scores.
        end: the name of the value that has what the scores become: probabilities, as a rule.
        label: the output that has the label of each row.
        is_probability: whether `end` has probabilities, and not scores or logarithms.
    """

    scores: str
    link: str
    width: int | None
    rank: int
    dtype: np.dtype[Any]
    labels: tuple[int | str, ...] | None = None
    end: str = ""
    label: str | None = None
    is_probability: bool = False


def read_numbers(model: ir.Model, output: str | None = None) -> Head:
    """The end of a model that predicts numbers."""
    value = _chosen(model.graph, output)
    return _head(value, IDENTITY, end=value.name or "")


def read_classes(model: ir.Model, output: str | None = None) -> Head:
    """The end of a model that predicts classes."""
    end = _chosen(model.graph, output)
    label, labels = _labels(model.graph)
    found, link = _before_activation(end)
    if link is None and output is None and label is not None:
        # Margins, of which an output may have one side only; labels are chosen by all of them.
        found = _chosen_by(label, len(labels or ())) or end
        found, link = _before_activation(found)
    probable = link is not None and _producer(_seen_through(end), "LogSoftmax") is None
    if link is None:
        link = PROBABILITY if _divided(end) else SIGMOID if _width(found) == 1 else SOFTMAX
        found = end if link is PROBABILITY else found
    named = {"labels": labels, "end": end.name or "", "label": None if label is None else label.name}
    return _head(found, link, is_probability=probable or link is PROBABILITY, **named)


def as_probabilities(model: ir.Model, head: Head) -> Head:
    """The same end, where its probabilities turned out to be made in another way than they seem."""
    return _head(outer_values(model.graph)[head.end], PROBABILITY, labels=head.labels, end=head.end, label=head.label)


def _head(value: ir.Value, link: str, **others: Any) -> Head:
    assert value.dtype is not None
    rank = 2 if value.shape is None else len(value.shape)
    return Head(value.name or "", link, _width(value), rank, np.dtype(value.dtype.numpy()), **others)


def _chosen(graph: ir.Graph, name: str | None) -> ir.Value:
    """The value that an estimator reads: what was asked for, or the only output that can be meant."""
    if name is not None:
        known = outer_values(graph)
        if name not in known:
            raise UnknownNameError(
                f"there is no value {name!r} in the model; its outputs are "
                f"{quoted(value.name for value in graph.outputs)}, and any other value can be named too"
            )
        return _tensor(known[name])
    maps = [value for value in graph.outputs if map_type(value) is not None]
    floating = [value for value in graph.outputs if is_floating(value)]
    found = list(dict.fromkeys(_tensor(value) for value in (maps or floating or graph.outputs)))
    if len(found) != 1:
        raise OnwardError(
            f"the model has the outputs {quoted(value.name for value in graph.outputs)}; say which of them the "
            f"estimator is to read: output={(found[0].name if found else '...')!r}"
        )
    return found[0]


def _tensor(value: ir.Value) -> ir.Value:
    """The numbers of a value: those that a map is made of, or that a label is chosen by."""
    origin = floating_origin(value)
    if origin is None:
        raise OnwardError(f"{value.name!r} is {value.dtype}, and made of no value of floating point: nothing to learn")
    return origin


def _width(value: ir.Value) -> int | None:
    """The size of the second axis; 1 where there is none."""
    known = dims(value)
    if known is None:
        return None
    if len(known) == 1:
        return 1
    return known[1] if isinstance(known[1], int) else None


def _producer(value: ir.Value, *operators: str) -> ir.Node | None:
    node = value.producer()
    return node if node is not None and node.domain == "" and node.op_type in operators else None


def _seen_through(value: ir.Value) -> ir.Value:
    """What a value is, before its type and shape were changed."""
    node = _producer(value, *_TRANSPARENT)
    inner = None if node is None else node.inputs[0]
    return value if inner is None or not is_floating(inner) else _seen_through(inner)


def _before_activation(end: ir.Value) -> tuple[ir.Value, str | None]:
    """The scores that probabilities are made of, and how."""
    value = _seen_through(end)
    node = _producer(value, "Softmax", "LogSoftmax")
    if node is not None and node.inputs[0] is not None and _is_last(node):
        return node.inputs[0], SOFTMAX
    node = _producer(value, "Sigmoid")
    if node is not None and node.inputs[0] is not None:
        return _mirrored(node.inputs[0]) or node.inputs[0], SIGMOID
    normalised = _divided(value)
    if normalised is not None:
        inner, link = _before_activation(normalised)
        # Divided by their sum: the probabilities of a softmax, and of two classes, have one of 1 already.
        if link is SOFTMAX or (link is SIGMOID and _width(inner) in (1, 2)):
            return inner, link
        return value, None
    both = _producer(value, "Concat")
    if both is not None and len(both.inputs) == 2 and both.inputs[1] is not None and _width(both.inputs[1]) == 1:
        # 1 - p beside p: that of the second class is made of the score.
        inner, link = _before_activation(both.inputs[1])
        first = None if both.inputs[0] is None else _producer(both.inputs[0], "Sub")
        if link is SIGMOID and first is not None and first.inputs[1] is both.inputs[1]:
            return inner, SIGMOID
    return value, None


def _is_last(node: ir.Node) -> bool:
    """Whether a softmax goes over the scores of a row."""
    known = dims(node.outputs[0])
    axis = attribute(node, "axis", -1)
    return known is None or axis in (-1, len(known) - 1, 1)


def _mirrored(value: ir.Value) -> ir.Value | None:
    """The score s of [-s, s]."""
    node = _producer(value, "Concat")
    if node is None or len(node.inputs) != 2 or node.inputs[0] is None:
        return None
    first = _producer(node.inputs[0], "Neg")
    return node.inputs[1] if first is not None and first.inputs[0] is node.inputs[1] else None


def _divided(value: ir.Value) -> ir.Value | None:
    """What a value was before it was divided by a sum over its row."""
    node = _producer(_seen_through(value), "Div")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    divisor = node.inputs[1]
    for _ in range(4):  # what keeps a sum from being 0 is between
        total = _producer(divisor, "ReduceSum", "ReduceL1")
        if total is not None:
            # A mean divides by the sum of something else: by how many there are.
            inner = None if total.inputs[0] is None else _seen_through(total.inputs[0])
            return inner if inner is _seen_through(node.inputs[0]) else None
        guard = _producer(divisor, "Where", "Add", "Max", "Clip")
        candidates = [] if guard is None else [x for x in guard.inputs if x is not None and is_floating(x)]
        following = next((x for x in reversed(candidates) if constant_of(x) is None), None)
        if following is None:
            return None
        divisor = following
    return None


def _labels(graph: ir.Graph) -> tuple[ir.Value | None, tuple[int | str, ...] | None]:
    """The output with labels, and the names of the classes, where the file has them: the table that labels are from,
    or the keys of dictionaries."""
    label = next((value for value in graph.outputs if not is_floating(value) and map_type(value) is None), None)
    for output in graph.outputs:
        node = output.producer()
        if node is not None and node.op_type == "ZipMap":
            keys: Sequence[int | str] = attribute(node, "classlabels_strings", ()) or attribute(
                node, "classlabels_int64s", ()
            )
            return label, tuple(_text(key) for key in keys) or None
    table = None if label is None else _table(label)
    return label, None if table is None or table.ndim != 1 else tuple(_text(key) for key in table.tolist())


def _chosen_by(label: ir.Value, count: int) -> ir.Value | None:
    """The scores, as many as there are classes, whose largest one decides on a label."""
    value: ir.Value | None = label
    while value is not None:
        node = _producer(value, *_TRANSPARENT, "ArgMax", "Gather")
        if node is None:
            return None
        value = node.inputs[1 if node.op_type == "Gather" else 0]
        if node.op_type == "ArgMax":
            return value if value is not None and _width(value) == count else None
    return None


def _text(label: int | str | bytes) -> int | str:
    return label.decode("utf-8") if isinstance(label, bytes) else label


def _table(value: ir.Value) -> np.ndarray | None:
    """The constant that a label is gathered from."""
    node = _producer(value, *_TRANSPARENT, "Gather")
    if node is None or node.inputs[0] is None:
        return None
    return constant_of(node.inputs[0]) if node.op_type == "Gather" else _table(node.inputs[0])
