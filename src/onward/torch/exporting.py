"""`onward.torch.export`: a module as a model that trains as the module would."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx
import onnx_ir as ir

from onward.errors import ExporterWarning, OnwardError
from onward.graph.finish import LARGEST_PROTO
from onward.graph.rows import add_rows
from onward.torch import program, trace
from onward.torch.inputs import Inputs
from onward.torch.mode import exportable_padding, preserved, random_operators, require_exportable, training_mode
from onward.torch.naming import name_parameters
from onward.torch.quiet import quiet
from onward.torch.verification import verify as verify_evaluation

if TYPE_CHECKING:
    from torch import nn

Exporter = Literal["dynamo", "legacy"]


def export(
    module: nn.Module,
    args: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_batch: bool = True,
    dynamic_axes: Mapping[str, Mapping[int, str]] | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset_version: int | None = None,
    exporter: Exporter | None = None,
    verify: bool = True,
) -> onnx.ModelProto:
    """A torch module as a model made for training: `generate_artifacts` and `training_step` take it.

    Every parameter is an initializer under its name in `module.named_parameters()`, tied ones a single one; nothing is
    merged or folded. BatchNorm normalises by the batch and Dropout drops, until they are switched to evaluation (the
    evaluation graph, `export_model_for_inferencing`). Running variances are averaged as torch does, unbiased.
    Parameters that do not require gradients are not trained by default. The module stays as it is: modes, buffers,
    torch's random numbers.

    A module in evaluation mode is exported in training mode. One in training mode is exported as it is: a BatchNorm
    that was set to evaluation stays frozen.

    Args:
        module: the module.
        args: what it is called with, to follow its operations: a tensor, or a tuple of positional arguments, tensors,
            or lists, tuples and dictionaries of them.
        path: where to write the model; weights above 2 GB go to ``<path>.data``.
        kwargs: the arguments by name.
        dynamic_batch: let the first axis of every input that is as long as that of the first input have any size.
        dynamic_axes: names of other axes that may have any size, ``{"tokens": {0: "batch", 1: "length"}}``; what is
            said of an input replaces what `dynamic_batch` says of it.
        input_names: names of the input tensors, in their order; by default the names of the arguments of `forward`,
            with the keys of dictionaries and places in lists behind them (``pair_0``), and ``_input`` where a tensor of
            the module is called so.
        output_names: names of the output tensors, in their order.
        opset_version: the opset; by default that of the exporter.
        exporter: "dynamo" (`torch.export`) or "legacy" (TorchScript tracing); None means the first, and the other where
            it fails.
        verify: compare what the model and the module compute, in evaluation mode and for another batch.

    Returns:
        The model.
    """
    try:
        import torch
    except ImportError as error:
        raise OnwardError("onward.torch.export needs torch, and onnxscript: pip install torch onnxscript") from error

    if not isinstance(module, torch.nn.Module):
        raise OnwardError(f"a module is a torch.nn.Module, not {type(module).__name__}")
    inputs = Inputs.of(module, args, kwargs or {}, dynamic_batch, dynamic_axes or {}, input_names)
    model = exported(module, inputs, output_names, opset_version, exporter, verify=verify)
    proto = ir.to_proto(model)
    if path is not None:
        _save(model, Path(path))
    return proto


def exported(
    module: nn.Module,
    inputs: Inputs,
    output_names: Sequence[str] | None,
    opset_version: int | None = None,
    exporter: Exporter | None = None,
    *,
    verify: bool = True,
    change: Callable[[ir.Model], None] | None = None,
) -> ir.Model:
    """What `export` writes, changed in place before it is compared with the module."""
    with preserved(module) as buffers, training_mode(module), exportable_padding(module):
        require_exportable(module)
        model = _exported(module, inputs, output_names, opset_version, exporter)
        name_parameters(model, module, buffers)
    if change is not None:
        change(model)
    random = random_operators(model)
    if random:
        warnings.warn(
            "the module draws random numbers in another way than by Dropout, written as "
            f"{', '.join(random)}: these draw in evaluation too. Use nn.Dropout, or leave the layer out.",
            ExporterWarning,
            stacklevel=3,
        )
    elif verify:
        with preserved(module):
            verify_evaluation(model, module, inputs)
    return model


def _exported(
    module: nn.Module,
    inputs: Inputs,
    output_names: Sequence[str] | None,
    opset: int | None,
    exporter: Exporter | None,
) -> ir.Model:
    ways = {"dynamo": program.export, "legacy": trace.export}
    if exporter is not None and exporter not in ways:
        raise OnwardError(f"there is no exporter {exporter!r}; there are {' and '.join(map(repr, ways))}")
    failures = []
    for name in ways if exporter is None else [exporter]:
        try:
            with quiet():
                model = ways[name](module, inputs, output_names, opset)
            add_rows(model)
            return model
        except OnwardError:
            raise
        except Exception as error:  # torch's exporters raise what they like
            cause = _root(error)
            said = str(cause).strip().partition("\n")[0]
            failures.append(f"with exporter={name!r}: {type(cause).__name__}: {said}")
    raise OnwardError(f"torch cannot export {type(module).__name__}. {'; '.join(failures)}") from cause


def _root(error: BaseException) -> BaseException:
    """What happened first; torch.export wraps it in advice for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _save(model: ir.Model, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    ir.save(model, path, external_data=f"{path.name}.data" if size > 0.95 * LARGEST_PROTO else None)
