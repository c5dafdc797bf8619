"""A module and its loss as one ONNX model."""

from __future__ import annotations

import contextlib
import copy
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from onward.errors import OnwardError
from onward.graph.provenance.record import KIND
from onward.torch.exporting import exported
from onward.torch.inputs import Inputs
from onward.torch.ortmodule.marks import mark_gradients

LossFunction = Callable[[Any, Any], Any]
_MODEL = "model"


@dataclass(frozen=True)
class Combination:
    """A model that computes its loss, and the types of its inputs and outputs."""

    model: onnx.ModelProto
    inputs: list[torch.dtype]
    outputs: list[torch.dtype]


class _WithLoss(torch.nn.Module):
    """(loss, prediction) of a module's inputs and a label; without a loss, the module as a function of tensors."""

    def __init__(
        self, model: torch.nn.Module, loss_fn: LossFunction | None, names: Sequence[str], by_name: bool
    ) -> None:
        super().__init__()
        self.add_module(_MODEL, model)
        self.training = model.training  # which decides how `export` takes all modules inside
        self.loss_fn = loss_fn
        self._names, self._by_name = list(names), by_name

    def forward(self, *tensors: Any) -> Any:
        data = tensors if self.loss_fn is None else tensors[:-1]
        model = self.get_submodule(_MODEL)
        named = dict(zip(self._names, data, strict=True)) if self._by_name else {}
        prediction = model(**named) if self._by_name else model(*data)
        return prediction if self.loss_fn is None else (self.loss_fn(prediction, tensors[-1]), prediction)


def combine(
    model: torch.nn.Module,
    loss_fn: LossFunction | None,
    samples: Sequence[torch.Tensor],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    *,
    prefer_names: bool,
) -> Combination:
    """Export a module, in training mode, with a loss on top.

    Args:
        loss_fn: takes the prediction and the label, which is the last input; None where the module computes its loss.
        samples: what the module is called with, to follow its operations.
        inputs: names of all inputs and their shapes, where texts name sizes that may change.
        outputs: names of the outputs: the loss, then those of the module.
        prefer_names: whether inputs are matched with the arguments of `forward` by their names, where that is possible.
    """
    if len(samples) != len(inputs):
        raise OnwardError(f"the model takes the inputs {list(inputs)}, but {len(samples)} were given")
    weights = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    twice = [name for name, count in Counter([*inputs, *outputs, *weights]).items() if count > 1]
    if twice:
        raise OnwardError(
            f"{twice} name more than one thing among inputs, outputs and weights; the description has the inputs "
            f"{list(inputs)} and the outputs {list(outputs)}: give them other names there"
        )
    # The exporter takes a tensor that is given twice for one input.
    samples = [sample.detach().clone() for sample in samples]
    data = list(inputs)[: None if loss_fn is None else -1]
    by_name = _matches(model, data) if prefer_names else _is_subset(model, data)
    _require_arguments(model, data, by_name, loss_fn)
    whole = _WithLoss(model, loss_fn, data, by_name)
    made = _outputs(whole, samples)
    if len(made) < len(outputs):
        raise OnwardError(
            f"the description has the outputs {list(outputs)}, but the model"
            f"{' with its loss' if loss_fn else ''} gives only {len(made)}"
        )
    names = [*outputs, *(f"output_{index}" for index in range(len(outputs), len(made)))]
    axes = {
        name: {axis: size for axis, size in enumerate(shape) if isinstance(size, str) and axis < sample.ndim}
        for (name, shape), sample in zip(inputs.items(), samples, strict=True)
    }
    copied = _copied(whole)
    taken = Inputs.of(copied, tuple(samples), {}, False, {name: own for name, own in axes.items() if own}, list(inputs))
    # What torch detaches, and padding, has no gradient in training either.
    exported_model = exported(copied, taken, names, change=mark_gradients)
    return Combination(
        _tidied(exported_model, inputs), [sample.dtype for sample in samples], [tensor.dtype for tensor in made]
    )


def _require_arguments(
    model: torch.nn.Module, names: Sequence[str], by_name: bool, loss_fn: LossFunction | None
) -> None:
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*([] if by_name else names), **(dict.fromkeys(names) if by_name else {}))
    except TypeError as error:
        rest = "without a loss_fn, the label is one of them" if loss_fn is None else "the last one goes to loss_fn"
        raise OnwardError(
            f"forward{signature} of {type(model).__name__} does not take the inputs {list(names)} of the description "
            f"({error}); {rest}"
        ) from error


def _matches(model: torch.nn.Module, names: Sequence[str]) -> bool:
    """Whether all of these are arguments of the module that can be given by name."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(model.forward).parameters
    return all(name in parameters and parameters[name].kind in kinds for name in names)


def _is_subset(model: torch.nn.Module, names: Sequence[str]) -> bool:
    """The same, and there are more arguments; else they are matched by their places."""
    return len(names) < len(inspect.signature(model.forward).parameters) and _matches(model, names)


def _outputs(module: torch.nn.Module, samples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What a copy of the module computes in evaluation mode; modules may remember what they were called with."""
    copied = _copied(module)
    modes = [(child, child.training) for child in copied.modules()]
    copied.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            leaves, _ = pytree.tree_flatten(copied(*[sample.clone() for sample in samples]))
    finally:
        for child, mode in modes:
            child.training = mode
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    with contextlib.suppress(Exception):  # __deepcopy__ and pickle raise what they like
        return copy.deepcopy(module)
    warnings.warn(
        "This model cannot be deep copied (or pickled), which is a required step for stateful models to be properly "
        "exported to ONNX. Compute will continue, but unexpected results may occur!",
        stacklevel=4,
    )
    return module


def _tidied(model: ir.Model, inputs: Mapping[str, Sequence[int | str]]) -> onnx.ModelProto:
    """Parameters and buffers under the names of the module, and nothing else as an initializer."""
    graph = model.graph
    _measure_first(graph, inputs)
    for value in list(graph.initializers.values()):
        assert value.name is not None
        if KIND in value.metadata_props:
            value.name = value.name.removeprefix(f"{_MODEL}.")
        elif not value.is_graph_output() and value.const_value is not None:
            _to_constant(graph, value)
    return ir.to_proto(model)


def _measure_first(graph: ir.Graph, inputs: Mapping[str, Sequence[int | str]]) -> None:
    """Take sizes that have one name from the first input that has them: a prediction must not need the label."""
    values = {value.name: value for value in graph.inputs}
    first: dict[int | str, tuple[ir.Value, int]] = {}
    for name, shape in inputs.items():
        for axis, size in enumerate(shape):
            if isinstance(size, str) and name in values:
                first.setdefault(size, (values[name], axis))
    for node in graph:
        measured = node.inputs[0] if node.op_type == "Shape" and node.domain == "" else None
        shape = inputs.get(measured.name or "", ()) if measured is not None and measured.is_graph_input() else ()
        start, end = (node.attributes.get_int(key, -1) for key in ("start", "end"))
        if 0 <= start < len(shape) and end == start + 1 and shape[start] in first:
            value, axis = first[shape[start]]
            node.replace_input_with(0, value)
            node.attributes["start"] = ir.AttrInt64("start", axis)
            node.attributes["end"] = ir.AttrInt64("end", axis + 1)


def _to_constant(graph: ir.Graph, value: ir.Value) -> None:
    name, tensor = value.name or "", value.const_value
    assert tensor is not None
    node = ir.node("Constant", [], {"value": tensor})
    result = node.outputs[0]
    result.type, result.shape = value.type, value.shape
    value.replace_all_uses_with(result)
    graph.initializers.pop(name)
    result.name = name
    graph.insert_before(graph[0], node)
