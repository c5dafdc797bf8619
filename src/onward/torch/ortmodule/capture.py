"""Follow one call of a module and write down its operations as a model."""

from __future__ import annotations

import contextlib
import inspect
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.distributions import Distribution
from torch.export import Dim, ExportedProgram

from onward.autodiff.registry import custom_operators
from onward.errors import OnwardError
from onward.graph.changing import CHANGES
from onward.graph.naming import free_name
from onward.graph.nodes import all_values
from onward.graph.prepare import prepare
from onward.torch import program as dynamo
from onward.torch import trace as legacy
from onward.torch.inputs import Inputs, distinct
from onward.torch.mode import causal_masks_are_told, exportable_dropout, random_operators, require_exportable
from onward.torch.naming import name_parameters
from onward.torch.ortmodule._fallback import ORTModuleONNXModelException, ORTModuleTorchModelException
from onward.torch.ortmodule.call import Call
from onward.torch.ortmodule.choice import write_choices
from onward.torch.ortmodule.chunks import slice_chunks
from onward.torch.ortmodule.decision import decided
from onward.torch.ortmodule.drawing import drawing_is_told
from onward.torch.ortmodule.dropout import NOISE, Mask, note_sizes, replace_random, sizes_by_name
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.flat import Flat, attributes_as_buffers, examples
from onward.torch.ortmodule.forms import choose_forms
from onward.torch.ortmodule.grouped import write_groups
from onward.torch.ortmodule.guards import ExactSizes, Guards
from onward.torch.ortmodule.interpolation import require_exact_interpolation
from onward.torch.ortmodule.marks import mark_gradients
from onward.torch.ortmodule.own_gradient import own_gradients, refused_functions
from onward.torch.ortmodule.refusal import Traceable
from onward.torch.ortmodule.unused import draws_of, with_unused
from onward.torch.quiet import quiet

_PRODUCT = re.compile(r"(\d+)\*([A-Za-z_]\w*)")
_OLDEST_OPSET = 18  # that torch.export writes
_RESERVED = frozenset(
    {
        "args", "dynamic_axes", "dynamo", "export_params", "f", "input_names", "model", "opset_version", "output_names",
        "training", "verbose",
    }
)  # fmt: skip
_IMAGE_RANK = 4


@dataclass
class Captured:
    """A module as a model.

    Attributes:
        model: parameters, buffers and tensors that are attributes are initializers under their own names; the outputs
            are the tensors of what the module returned.
        inputs: names of the tensors among the arguments.
        guards: the sizes that it is right for.
        masks: inputs behind these, in the order in which torch draws them, and what it draws besides.
        draws: all that the exporter has seen being drawn.
        passed: tensors that the module returned which are arguments as they were, by their places.
        order: for each other one, which output of the model it is; it may be returned several times. Then for each
            buffer that is written to.
        exporter: which of torch's exporters wrote it.
        exported: the model as it wrote it.
    """

    model: ir.Model
    inputs: list[str]
    guards: Guards | ExactSizes
    exporter: str
    masks: list[Mask] = field(default_factory=list)
    draws: list[Mask] = field(default_factory=list)
    passed: dict[int, int] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    exported: ir.Model | None = None


@dataclass(frozen=True)
class Wishes:
    """What the user wants of torch's exporters.

    `torch.export` writes no opset below 18, and takes no arguments: such wishes the older one is for.
    """

    opset: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, opset: int | None, arguments: Mapping[str, Any]) -> Wishes:
        """Refuse what a user cannot choose."""
        if reserved := set(arguments) & _RESERVED:
            raise ORTModuleONNXModelException(
                f"The following PyTorch exporter arguments cannot be specified: '{reserved}'."
            )
        return cls(opset, {name: value for name, value in arguments.items() if value is not None})

    @property
    def ways(self) -> list[str]:
        """Which exporters are tried."""
        by_tracing = self.arguments or (self.opset is not None and self.opset < _OLDEST_OPSET)
        return ["tracing"] if by_tracing else list(_WAYS)


def capture(
    module: nn.Module, signature: inspect.Signature, call: Call, wishes: Wishes, *, any_image: bool = False
) -> Captured:
    """What the module does when called like this; by `torch.export`, or else by tracing.

    `any_image`: whether images may have other sizes than these.
    """
    try:
        require_exportable(module)
    except OnwardError as error:
        raise ORTModuleTorchModelException(str(error)) from error
    failures = []
    for name in wishes.ways:
        try:
            with (
                exportable_dropout(module),
                _plain_attention(),
                _valid_distributions(),
                attributes_as_buffers(module),
                decided(),
                quiet(),
            ):
                found = _WAYS[name](module, signature, call, wishes, any_image)
            _name_tensors(found, module)
            return _prepared(found, call)
        except Exception as error:  # torch's exporters raise what they like
            cause = _root(error)
            failures.append(f"{name}: {type(cause).__name__}: {str(cause).strip().partition(chr(10))[0]}")
    raise ORTModuleONNXModelException(
        "There was an error while exporting the PyTorch model to ONNX: torch could not export "
        f"{type(module).__name__} ({'; '.join(failures)})"
    ) from cause


def _root(error: BaseException) -> BaseException:
    """What happened first: which operator cannot be written, for instance, and not that a model cannot."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Encoder layers by their operations: in evaluation torch has an operator for whole ones, which graphs have not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with causal_masks_are_told():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _valid_distributions() -> Iterator[None]:
    """Distributions that do not look at their numbers, which graphs cannot; in torch that is optional."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def _by_export(
    module: nn.Module,
    signature: inspect.Signature,
    call: Call,
    wishes: Wishes,
    any_image: bool,
    *,
    size: Any = Dim.AUTO,
) -> Captured:
    with drawing_is_told(), own_gradients():
        return _exported(module, signature, call, wishes, any_image, size)


def _exported(
    module: nn.Module, signature: inspect.Signature, call: Call, wishes: Wishes, any_image: bool, size: Any
) -> Captured:
    tensors = examples(call)
    dims = tuple(dict.fromkeys(range(tensor.ndim), size) for tensor in tensors)
    for tensor, sizes in zip(tensors, dims, strict=True):
        # Convolutions and pools have faster forms where their sizes are known, and most images are of one size.
        if tensor.ndim >= _IMAGE_RANK and tensor.is_floating_point() and not any_image:
            sizes |= dict.fromkeys(range(1, tensor.ndim), Dim.STATIC)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(
            Flat(module, signature, call), tuple(tensors), dynamic_shapes=(dims,), strict=False
        )
    names = _input_names(module, call)
    model = dynamo.convert(exported, names, wishes.opset)
    for value in all_values(model.graph):  # sizes that turned out to be fixed are written as texts
        if value.shape is not None:
            value.shape = ir.Shape([_size(size) for size in value.shape])
    write_choices(model)
    require_exact_interpolation(model)
    note_sizes(model)
    mark_gradients(model)
    passed, draws = _passed(exported), draws_of(exported)
    return Captured(model, names, Guards(exported), "torch.export", passed=passed, draws=draws)


def _by_export_of_sizes(
    module: nn.Module, signature: inspect.Signature, call: Call, wishes: Wishes, any_image: bool
) -> Captured:
    """For these sizes only: where torch cannot write an operator whose arguments are computed from sizes."""
    return _by_export(module, signature, call, wishes, any_image, size=Dim.STATIC)


def _size(size: int | ir.SymbolicDim) -> int | str | None:
    if isinstance(size, int):
        return size
    if size.value is None:
        return None
    if product := _PRODUCT.fullmatch(size.value):
        return f"{product[2]}*{product[1]}"  # as `graph/sizes.py` has it
    return int(size.value) if size.value.isdigit() else size.value


def _passed(program: ExportedProgram) -> dict[int, int]:
    given = list(program.graph_signature.user_inputs)
    returned = program.graph_signature.user_outputs
    return {index: given.index(name) for index, name in enumerate(returned) if name in given}


def _by_tracing(
    module: nn.Module, signature: inspect.Signature, call: Call, wishes: Wishes, any_image: bool
) -> Captured:
    if call.changed or call.rewritten:
        raise ORTModuleTorchModelException("it changes an argument or a buffer in place")
    leaves = list(call.leaves)
    for place, tensor in zip(call.places, examples(call), strict=True):
        leaves[place] = tensor
    names = _input_names(module, call)
    inputs = Inputs(signature, leaves, call.tree, names, {})
    with refused_functions(), Traceable(has_numbers=any(tensor.ndim == 0 for tensor in call.tensors)):
        model, said = legacy.trace(module, inputs, None, wishes.opset, **wishes.arguments)
    if said:
        # It may follow from sizes, which are the same as long as this graph is used, or from data, which are not.
        raise ORTModuleTorchModelException(str(said[0].message))
    _declare_unused(model, names, call)
    return Captured(model, names, ExactSizes(call.sizes), "tracing")


def _input_names(module: nn.Module, call: Call) -> list[str]:
    """A name for each tensor among the arguments, which no tensor of the module has."""
    return distinct(call.names, Fingerprint(module, named=True).names)


def _declare_unused(model: ir.Model, names: Sequence[str], call: Call) -> None:
    """Tracing leaves arguments out that nothing depends on."""
    there = {value.name: value for value in model.graph.inputs}
    model.graph.inputs.clear()
    for name, tensor in zip(names, call.tensors, strict=True):
        dtype = ir.DataType.from_numpy(tensor.detach().numpy().dtype)
        new = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(tensor.shape))
        model.graph.inputs.append(there.get(name, new))


_WAYS = {"torch.export": _by_export, "torch.export of fixed sizes": _by_export_of_sizes, "tracing": _by_tracing}


def _name_tensors(found: Captured, module: nn.Module) -> None:
    _tell_apart(found.model.graph)
    name_parameters(found.model, module, {id(tensor): tensor.detach().clone() for tensor in module.buffers()})
    for name in Fingerprint(module, named=True).names:
        if name in found.model.graph.initializers:
            found.model.graph.initializers[name].metadata_props[CHANGES] = "True"


def _tell_apart(graph: ir.Graph) -> None:
    """Other names for results of operations that a parameter has, `t` of `x.t()` for instance."""
    taken = {value.name for value in all_values(graph)}
    for node in graph.all_nodes():
        for output in node.outputs:
            if output.name in graph.initializers:
                output.name = free_name(f"{output.name}_result", taken)


def _prepared(found: Captured, call: Call) -> Captured:
    graph = found.model.graph
    random = [name for name in random_operators(found.model) if name not in NOISE]
    if random:
        raise ORTModuleTorchModelException(
            f"it draws random numbers in another way than torch's graphs do ({', '.join(random)})"
        )
    if len(found.passed) < len(graph.outputs):
        computed = [value for index, value in enumerate(graph.outputs) if index not in found.passed]
    else:
        found.passed, computed = {}, list(graph.outputs)
    unique = list(dict.fromkeys(computed))
    found.order = [unique.index(value) for value in computed]
    graph.outputs.clear()
    graph.outputs.extend(unique)
    found.exported = found.model
    found.model = prepare(found.model, keep=custom_operators())
    if found.exporter == "torch.export":
        slice_chunks(found.model)
        write_groups(found.model)
    choose_forms(found.model)
    masks = replace_random(found.model)
    given = found.model.graph.inputs[: len(found.inputs)]
    shapes = [[size if isinstance(size, int) else str(size.value) for size in value.shape or ()] for value in given]
    found.masks = with_unused(masks, found.draws, sizes_by_name(shapes, call.sizes))
    return found
