"""The records of torch's newer exporter: each node says which operation of the program it belongs to.

An operation is printed with its arguments, so it is known which parameters it took. Where none of its nodes has a
tensor that was such a parameter, another tensor stands for it, one that was equal, or the parameter is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.nodes import attribute
from onward.graph.provenance.changes import EXPORT, Changes, Use
from onward.graph.provenance.record import (
    KIND,
    OPERATION,
    ORIGINAL,
    RULES,
    SCOPES,
    folded_from,
    in_program,
    without_dots,
)
from onward.graph.shapes import is_floating

_REMEDY = f"Export it for training, by {EXPORT}"
_EMBEDDING = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, (%?\w+)")
_NOT_OPTIMIZED = f"{_REMEDY}, or without changes, by torch.onnx.export(..., optimize=False)"


@dataclass(eq=False)
class Operation:
    """One operation of the program and the nodes that it became."""

    record: str
    module: str
    arguments: list[str]  # parameters, buffers and constants among them, in their order, as the program calls them
    nodes: list[ir.Node] = field(default_factory=list)
    uses: list[tuple[ir.Value, Use]] = field(default_factory=list)  # of floating-point initializers

    def was_made_by(self, rule: str) -> bool:
        """Whether such a rule of the optimizer made one of the nodes."""
        return any(rule in node.metadata_props.get(RULES, "") for node in self.nodes)

    @property
    def rewritten(self) -> bool:
        """Whether any rule did: then an argument that is missing may be gone."""
        return any(RULES in node.metadata_props for node in self.nodes)

    @property
    def normalizes_by_the_batch(self) -> bool:
        """Whether it is a batch_norm in training mode: ..., training, momentum, eps ...)."""
        target = self.record.partition("target=")[2].partition("]")[0]
        return "batch_norm" in target and ", True, " in self.record

    @property
    def is_frozen(self) -> bool:
        """Whether it normalises by running statistics in the file."""
        return any(
            node.op_type == "BatchNormalization"
            and not attribute(node, "training_mode", 0)
            and any(value is not None and stored(value).is_initializer() for value in node.inputs[3:5])
            for node in self.nodes
        )


def stored(statistic: ir.Value) -> ir.Value:
    """The running statistic that a layer reads: where it is used again, the exporter writes copies of the old one."""
    node = statistic.producer()
    while node is not None and node.op_type == "Identity" and node.inputs[0] is not None:
        statistic = node.inputs[0]
        node = statistic.producer()
    return statistic


def padding_of(node: ir.Node) -> str | None:
    """The row of the table that stands for padding, as it is printed, if a node looks up an embedding that has one."""
    found = _EMBEDDING.search(node.metadata_props.get(OPERATION, "")) if node.op_type == "Gather" else None
    return None if found is None else found[1]


def is_recorded(model: ir.Model) -> bool:
    """Whether the file has such records."""
    return any(OPERATION in node.metadata_props for node in model.graph)


def changes_of(model: ir.Model) -> Changes:
    """What the optimizer of the exporter changed."""
    operations = operations_of(model)
    mentioned = {argument for operation in operations for argument in operation.arguments}
    origins = {
        value: origin
        for value in model.graph.initializers.values()
        if is_floating(value) and (origin := _origin(value, mentioned)) is not None
    }
    names = _Names(origins, operations)
    held: dict[ir.Value, dict[str, list[Use]]] = {}
    for operation in operations:
        for value, use, name in _attributed(operation, origins, names):
            held.setdefault(value, {}).setdefault(name, []).append(use)
    shared = {value: _own_first(value, uses) for value, uses in held.items() if len(uses) > 1}
    folded = [operation for operation in operations if operation.was_made_by("FuseBatchNorm")]
    frozen = [operation for operation in operations if operation.normalizes_by_the_batch and operation.is_frozen]
    kept = [operation for operation in operations if operation not in folded]
    lost = sorted({*_lost(kept, model, origins, held, names), *_computed_into_others(model)})
    untied = _untied(origins)
    tables = {node.inputs[0]: None for node in model.graph.all_nodes() if padding_of(node) is not None}
    padded = [value.name or "" for value in tables if value is not None and value in origins]
    return Changes(
        shared=shared,
        lost=lost,
        untied=untied,
        folded_norms=[operation.module for operation in folded],
        frozen_norms=[operation.module for operation in frozen],
        padded=padded,
        renamed=[value.name or "" for value in origins if _is_renamed(value)],
        remedy=_REMEDY
        if padded or any(norm.normalizes_by_the_batch for norm in (*folded, *frozen))
        else _NOT_OPTIMIZED,
    )


def operations_of(model: ir.Model) -> list[Operation]:
    """The operations of the program that nodes are left of."""
    inputs = {value.name for value in model.graph.inputs}
    found: dict[tuple[int, str], Operation] = {}
    for node in model.graph.all_nodes():
        record = node.metadata_props.get(OPERATION)
        if record is None:
            continue
        key = (id(node.graph), record)
        if key not in found:
            mentioned = re.findall(r"%([pbc]_\w+)", record.partition("(args = ")[2])
            scopes = _scopes(node)
            arguments = [name for name in dict.fromkeys(mentioned) if name not in inputs]
            found[key] = Operation(record, scopes[-1] if scopes else "", arguments)
        found[key].nodes.append(node)
        for index, value in enumerate(node.inputs):
            if value is not None and value.is_initializer() and is_floating(value):
                found[key].uses.append((value, (node, index)))
    return list(found.values())


def _scopes(node: ir.Node) -> list[str]:
    """The modules around a node, from the outside; the last entry of the record is the operation itself."""
    return re.findall(r"'([^']*)'", node.metadata_props.get(SCOPES, ""))[:-1]


def _origin(value: ir.Value, mentioned: set[str]) -> str | None:
    """What an initializer was in the program; None for what the exporter made."""
    if KIND in value.metadata_props:
        return value.metadata_props.get(ORIGINAL)
    name = f"p_{in_program(torch_name(value))}"
    return name if name in mentioned else None


def torch_name(value: ir.Value) -> str:
    """The name of the parameter that an initializer holds, maybe transposed or reshaped."""
    folded = folded_from(value) or ()
    return folded[0] if len(folded) == 1 else value.name or ""


def _is_renamed(value: ir.Value) -> bool:
    return torch_name(value) != value.name


def _lost(
    operations: Iterable[Operation],
    model: ir.Model,
    origins: dict[ir.Value, str],
    held: dict[ir.Value, dict[str, list[Use]]],
    names: _Names,
) -> set[str]:
    """The parameters that operations took and no tensor holds, not even joined with others, as those of an LSTM."""
    there = set(origins.values())
    for value in model.graph.initializers.values():
        there.update(f"p_{in_program(name)}" for name in folded_from(value) or ())
    found = {name for uses in held.values() for name in uses}
    missing = {
        names.of(argument, operation.module)
        for operation in operations
        for argument in operation.arguments
        if argument.startswith("p_") and argument not in there
    }
    return missing - found


def _computed_into_others(model: ir.Model) -> Iterable[str]:
    """Weights of which the optimizer computed one tensor, as the two of a weight_norm."""
    for value in model.graph.initializers.values():
        names = [name for name in folded_from(value) or () if "weight" in name or "bias" in name]
        if len(names) > 1 and not any(node.op_type in ("RNN", "GRU", "LSTM") for node, _ in value.uses()):
            yield from names


def _untied(origins: dict[ir.Value, str]) -> dict[str, list[str]]:
    """Parameters that are there as they were, and transposed too, or transposed twice."""
    copies: dict[str, list[str]] = {}
    for value, origin in origins.items():
        if origin.startswith("p_") and value.uses():
            copies.setdefault(torch_name(value), []).append(value.name or "")
    return {name: found for name, found in copies.items() if len(found) > 1}


def _attributed(
    operation: Operation, origins: dict[ir.Value, str], names: _Names
) -> Iterable[tuple[ir.Value, Use, str]]:
    """For each use of a tensor in an operation, the argument that it is there.

    It is what it was if the operation took that. Otherwise it is one that the operation took and none of its tensors
    was: by its name (a bias for a bias), or by its place among the arguments.
    """
    if operation.was_made_by("FuseBatchNorm"):
        return
    present = {origins.get(value) for value, _ in operation.uses}
    missing = [argument for argument in operation.arguments if argument not in present]
    strangers: list[tuple[ir.Value, Use]] = []
    for value, use in operation.uses:
        if value in origins and (origins[value] in operation.arguments or not missing):
            yield value, use, names.of(origins[value], operation.module)
        elif missing and (value in origins or _is_filled(value)):
            strangers.append((value, use))
    for (value, use), argument in zip(strangers, _places(operation, strangers, missing), strict=True):
        if argument is not None:
            yield value, use, names.of(argument, operation.module)
        elif _is_renamed(value) and operation.rewritten:
            # A transposition that was an operation of its own; what is missing is a bias that was zero.
            yield value, use, torch_name(value)
        elif value in origins:
            yield value, use, f"{operation.module}.{torch_name(value).rpartition('.')[2]}"


def _places(operation: Operation, strangers: list[tuple[ir.Value, Use]], missing: list[str]) -> list[str | None]:
    """Which of the missing arguments each of the tensors stands for; None where that is not clear."""
    leaves = [without_dots(torch_name(value).rpartition(".")[2]) for value, _ in strangers]
    places: list[str | None] = []
    for leaf in leaves:
        alike = [argument for argument in missing if argument.endswith(f"_{leaf}")]
        places.append(alike[0] if len(alike) == 1 and leaves.count(leaf) == 1 else None)
    rest = [argument for argument in missing if argument not in places]
    unclear = [index for index, place in enumerate(places) if place is None]
    if len(rest) == len(unclear) and not operation.rewritten:
        for index, argument in zip(unclear, rest, strict=True):
            places[index] = argument
    return places


def _is_filled(value: ir.Value) -> bool:
    """Whether all elements are equal, and there are several: a constant that may have been merged with a parameter."""
    tensor = value.const_value
    if tensor is None or tensor.size < 2:
        return False
    array = tensor.numpy()
    return bool((array == array.flat[0]).all())


def _own_first(value: ir.Value, uses: dict[str, list[Use]]) -> dict[str, list[Use]]:
    return dict(sorted(uses.items(), key=lambda item: item[0] != torch_name(value)))


class _Names:
    """What parameters are called in torch, from what they are called in the program."""

    def __init__(self, origins: dict[ir.Value, str], operations: Iterable[Operation]) -> None:
        self._known = {origin: torch_name(value) for value, origin in origins.items()}
        paths = {name.rpartition(".")[0] for name in self._known.values()}
        for operation in operations:
            paths.update(_scopes(operation.nodes[0]))
        # The ends of paths, to find out where a dot was: out_proj.weight is out_proj_weight in the program.
        parts = [path.split(".") for path in paths if "parametrizations" not in path]
        ends = {".".join(part[index:]) for part in parts for index in range(len(part))}
        self._ends = sorted(((without_dots(end), end) for end in ends if end), key=lambda pair: -len(pair[0]))
        # The longest path first: layers.0.norm before layers.0.
        self._paths = sorted(((in_program(path), path) for path in paths if path), key=lambda pair: -len(pair[0]))

    def of(self, argument: str, module: str) -> str:
        """The name in torch, from the path of a module that it begins with."""
        if argument in self._known:
            return self._known[argument]
        name = argument[2:]
        nearest = [(in_program(module), module)] if module else []
        for prefix, path in (*self._paths, *nearest):
            if name.startswith(f"{prefix}_"):
                return f"{path}.{self._dotted(name[len(prefix) + 1 :])}"
        return self._dotted(name)

    def _dotted(self, name: str) -> str:
        for prefix, end in self._ends:
            if name.startswith(f"{prefix}_"):
                return f"{end}.{name[len(prefix) + 1 :]}"
        return name
