"""What a training step costs: operations, and bytes of state."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from onward.errors import InvalidModelError, OnwardError, UnknownNameError
from onward.graph.builder import Builder
from onward.graph.inference import infer_shapes
from onward.graph.nodes import used_values
from onward.graph.prepare import simplify
from onward.graph.shapes import dims, static_size
from onward.inspection.content import Dim, Flops, Parameter, State
from onward.inspection.flops import Count
from onward.inspection.rehearsal import Rehearsal
from onward.optim import Optimizer

# Dimensions that nobody gives: pictures have this height and width, everything else counts once.
_PICTURE = 224
_OTHER = 1
_LARGER = (16, 256, 4096)


def sizes_of(model: ir.Model, given: Mapping[str, int]) -> tuple[dict[str, int], list[str]]:
    """The size of every dynamic dimension of the inputs, and which of them are assumed."""
    if not isinstance(given, Mapping) or not all(isinstance(size, int) and size > 0 for size in given.values()):
        raise OnwardError(f"`dims` gives sizes to dimensions, such as {{'batch': 8}}, and not {given!r}")
    sizes: dict[str, int] = {}
    assumed = []
    for value in _fed(model):
        shape = dims(value) or ()
        for axis, dim in enumerate(shape):
            name = dim_name(value, axis, dim)
            if name is None or name in sizes:
                continue
            place = f"{value.name}[{axis}]"
            if name not in given and place not in given:
                assumed.append(name)
            default = _PICTURE if len(shape) == 4 and axis >= 2 else _OTHER
            sizes[name] = given.get(name, given.get(place, default))
    places = {f"{value.name}[{axis}]" for value in _fed(model) for axis in range(len(dims(value) or ()))}
    unknown = [name for name in given if name not in sizes and name not in places]
    if unknown:
        known = ", ".join(map(repr, sizes)) or "none"
        raise UnknownNameError(
            f"`dims` names {', '.join(map(repr, unknown))}; the dynamic dimensions of the model are {known}"
        )
    return sizes, assumed


def dim_name(value: ir.Value, axis: int, dim: Dim) -> str | None:
    """What a dynamic dimension is called: its symbol, or the input and axis; None for a size."""
    if isinstance(dim, int):
        return None
    return dim or f"{value.name}[{axis}]"


def _fed(model: ir.Model) -> list[ir.Value]:
    return [value for value in model.graph.inputs if not value.is_initializer()]


def growing(model: ir.Model, sizes: dict[str, int], assumed: Collection[str]) -> Iterator[dict[str, int]]:
    """The sizes to try: as they are, then with larger ones where those are assumed.

    Windows may be longer than a sequence; the batch, which comes first, is not to blame.
    """
    yield sizes
    first = {dim_name(value, 0, shape[0]) for value in _fed(model) if (shape := dims(value))}
    short = [name for name in assumed if name not in first and sizes[name] == _OTHER]
    for larger in _LARGER if short else ():
        yield {name: larger if name in short else size for name, size in sizes.items()}


def with_sizes(model: ir.Model, sizes: Mapping[str, int]) -> ir.Model:
    copy = model.clone()
    for value in _fed(copy):
        shape = dims(value)
        if shape is not None:
            named = [(dim, dim_name(value, axis, dim)) for axis, dim in enumerate(shape)]
            value.shape = ir.Shape([dim if name is None else sizes[name] for dim, name in named])
    infer_shapes(copy)
    simplify(copy)
    empty = [value.name for value in _sliding(copy) if 0 in (dims(value) or ())]
    if empty and 0 not in sizes.values():
        raise InvalidModelError(f"{empty[0]!r} would be empty")
    return copy


def _sliding(model: ir.Model) -> list[ir.Value]:
    """The outputs of the model, and of operators whose windows may be larger than what they slide over."""
    windows = [node for node in model.graph.all_nodes() if node.op_type.endswith(("Conv", "Pool", "STFT"))]
    return [*model.graph.outputs, *(node.outputs[0] for node in windows)]


def flops_of(
    model: ir.Model,
    rehearsal: Rehearsal | None,
    optimizer: Optimizer,
    trainable: Iterable[Parameter],
    sizes: dict[str, int],
    assumed: list[str],
) -> Flops:
    """The operations of a step; where a dimension is not in the model as a number, its symbol may be in `sizes`."""
    count = Count(sizes=sizes).nodes(model.graph)
    backward = None
    if rehearsal is not None:
        added = [node for node in rehearsal.model.graph if node not in rehearsal.forward]
        # The loops of the backward pass run as often as those they follow.
        backward = Count(uncertain=count.uncertain, sizes=sizes, trips=count.trips).nodes(added).total
    elements = sum(parameter.size for parameter in trainable)
    return Flops(
        forward=count.total,
        backward=backward,
        optimizer=_operations_per_element(optimizer) * elements,
        dims=sizes,
        assumed=assumed,
        uncertain=sorted(count.uncertain),
    )


def _operations_per_element(optimizer: Optimizer, size: int = 1024) -> int:
    """Counted in the update of one parameter."""
    kind, shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape([size])
    p, g, *slots = (ir.Value(name=name, type=kind, shape=shape) for name in ("p", "g", *optimizer.slots))
    t, lr = (ir.Value(name=name, type=kind, shape=ir.Shape([])) for name in ("t", "lr"))
    graph = ir.Graph([p, g, *slots, t, lr], [], nodes=[], opset_imports={"": 18}, name="update")
    op = Builder(graph, 18)
    updated, state = optimizer.apply(op, p, g, dict(zip(optimizer.slots, slots, strict=True)), t, lr)
    graph.outputs.extend(dict.fromkeys([updated, *state.values()]))
    infer_shapes(ir.Model(graph, ir_version=8))
    return Count().nodes(graph).total // size


def state_of(parameters: Sequence[Parameter], optimizer: Optimizer, rehearsal: Rehearsal | None) -> State:
    """The bytes that training keeps."""
    trained = sum(parameter.nbytes for parameter in parameters if parameter.trainable)
    return State(
        parameters=trained,
        gradients=trained,
        optimizer=len(optimizer.slots) * trained,
        frozen=sum(parameter.nbytes for parameter in parameters if not parameter.trainable),
        activations=None if rehearsal is None else _kept(rehearsal),
        optimizer_name=optimizer.name,
    )


def _kept(rehearsal: Rehearsal) -> int:
    """The bytes of what forward nodes compute and backward nodes use."""
    kept = {
        value
        for node in rehearsal.model.graph
        if node not in rehearsal.forward
        for value in used_values(node)
        if value.producer() in rehearsal.forward
    }
    return sum(math.ceil((static_size(value) or 0) * value.dtype.itemsize) for value in kept if value.dtype is not None)
