"""Export by `torch.export`, the newer way, and mend what is written for inference."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onward.errors import ExporterWarning, OnwardError, warn
from onward.graph.nodes import all_values
from onward.graph.provenance.program import Operation, operations_of, stored
from onward.graph.provenance.record import OPERATION
from onward.graph.shapes import is_floating
from onward.torch.inputs import Inputs
from onward.torch.mode import causal_masks_are_told, exportable_words

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram


def export(module: nn.Module, inputs: Inputs, output_names: Sequence[str] | None, opset: int | None) -> ir.Model:
    """The module as it is, but for what `write_training_mode` and `choose_plain_forms` mend."""
    from onward.torch.forms import choose_plain_forms

    with exportable_words(module):
        try:
            model = _exported(module, inputs, output_names, opset, inputs.shapes())
        except Exception as error:  # torch raises what it likes
            if not _depend_on_each_other(error):
                raise
            model = _exported(module, inputs, output_names, opset, inputs.shapes(named=False))
    _require_exact(model)
    write_training_mode(model)
    model = choose_plain_forms(model)
    _name_axes(model, inputs)
    _warn_of_fixed_axes(model, inputs)
    return model


def _require_exact(model: ir.Model) -> None:
    """Refuse what is written by a difference that loses everything, without a word."""
    if any("aten.special_erfcx." in node.metadata_props.get(OPERATION, "") for node in model.graph.all_nodes()):
        raise OnwardError(
            "torch's exporter writes erfcx, which log_ndtr is made of, as exp(x^2) (1 - erf(x)): that is wrong from 3 "
            "on, and 0 from 4 on. Leave it out of the module."
        )


def _depend_on_each_other(error: BaseException | None) -> bool:
    """Whether sizes with different names follow from one another: a flat label has as many elements as all rows."""
    while error is not None:
        if "onstraints violated" in str(error):
            return True
        error = error.__cause__
    return False


def _exported(
    module: nn.Module,
    inputs: Inputs,
    output_names: Sequence[str] | None,
    opset: int | None,
    shapes: dict[str, Any],
) -> ir.Model:
    import torch

    args, kwargs = inputs.call
    _forget_how_layers_ran()
    with warnings.catch_warnings(), one_registry(), causal_masks_are_told():
        warnings.simplefilter("ignore")  # torch's, about itself
        exported = torch.onnx.export(
            module,
            args,
            kwargs=kwargs or None,
            dynamo=True,
            optimize=False,  # it merges, folds and drops parameters
            verbose=False,
            dynamic_shapes=shapes,
            input_names=inputs.names,
            output_names=output_names,
            opset_version=opset,
        )
    assert exported is not None
    model: ir.Model = exported.model
    return model


def convert(program: ExportedProgram, input_names: Sequence[str], opset: int | None = None) -> ir.Model:
    """What `torch.export` has captured as a model, whose output tensors are those of the program."""
    import torch

    with warnings.catch_warnings(), one_registry():
        warnings.simplefilter("ignore")  # torch's, about itself
        exported = torch.onnx.export(
            program, (), dynamo=True, optimize=False, verbose=False, input_names=input_names, opset_version=opset
        )
    assert exported is not None
    model: ir.Model = exported.model
    write_training_mode(model)
    return model


def _forget_how_layers_ran() -> None:
    """Let torch look up anew how recurrent layers run: for dynamic sizes, the exporter has them run by loops.

    torch remembers what it found in the first export, after the loops were taken away, and fixes the number of steps in
    the next one.
    """
    import torch

    for layer in ("lstm", "gru"):
        remembered = getattr(getattr(torch.ops.aten, layer).input, "_dispatch_cache", None)
        if remembered is not None:
            remembered.clear()


_registries: dict[tuple[Any, ...], Any] = {}


@contextlib.contextmanager
def one_registry() -> Iterator[None]:
    """Let the exporter read its table of operators once; by itself it does so for each model, for seconds."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        build = ONNXRegistry.__dict__["from_torchlib"]
    except (ImportError, KeyError):  # another release of torch
        yield
        return

    def remembered(cls: Any, *args: Any, **kwargs: Any) -> Any:
        key = (cls, args, tuple(kwargs.items()))
        if key not in _registries:
            _registries[key] = build.__get__(None, cls)(*args, **kwargs)
        return _registries[key]

    setattr(ONNXRegistry, "from_torchlib", classmethod(remembered))  # noqa: B010  mypy does not let methods be assigned
    try:
        yield
    finally:
        setattr(ONNXRegistry, "from_torchlib", build)  # noqa: B010


def _name_axes(model: ir.Model, inputs: Inputs) -> None:
    """Call dynamic sizes as the caller does; the exporter does not where arguments are nested."""
    names = {}
    for value in model.graph.inputs:
        for axis, symbol in inputs.axes.get(value.name or "", {}).items():
            size = None if value.shape is None else value.shape[axis]
            if isinstance(size, ir.SymbolicDim) and size.value is not None:
                names[size.value] = symbol
    for value in all_values(model.graph):
        if value.shape is not None and not value.shape.is_static():
            sizes = [names.get(d.value or "", d.value) if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
            value.shape = ir.Shape(sizes)


def _warn_of_fixed_axes(model: ir.Model, inputs: Inputs) -> None:
    """torch fixes sizes that it finds to be equal to others, and does not always say so."""
    fixed = [
        f"axis {axis} of {value.name!r} ({symbol!r}) at {size}"
        for value in model.graph.inputs
        for axis, symbol in inputs.axes.get(value.name or "", {}).items()
        if value.shape is not None and isinstance(size := value.shape[axis], int)
    ]
    if fixed:
        warn(
            f"torch.export has fixed sizes that were to be any: {', '.join(fixed)}. The module computes with them as "
            "numbers, or they happen to be those of a layer: export it with an example of other sizes.",
            ExporterWarning,
        )


def write_training_mode(model: ir.Model) -> None:
    """Write training mode where the exporter does not: BatchNorm by the batch, the dropout inside of attention.

    And masks of attention as torch has them.
    """
    for operation in operations_of(model):
        for node in operation.nodes:
            if node.op_type == "BatchNormalization" and operation.normalizes_by_the_batch and operation.is_frozen:
                _normalize_by_the_batch(node)
            elif node.op_type == "Dropout" and len(node.inputs) < 3:
                node.resize_inputs(3)
                node.replace_input_with(2, _true(node))
            elif node.op_type == "Where" and "scaled_dot_product_attention" in operation.record:
                _mask_with_infinity(node)
            elif node.op_type == "Softmax" and "scaled_dot_product_attention" in operation.record:
                _zero_masked_rows(node, operation)


def _normalize_by_the_batch(node: ir.Node) -> None:
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", 1)
    node.resize_outputs(3)
    for index in (3, 4):
        read, output = node.inputs[index], node.outputs[index - 2]
        assert read is not None
        statistic = stored(read)
        node.replace_input_with(index, statistic)
        output.name = f"{node.name or node.outputs[0].name}/{statistic.name}"
        output.type, output.shape = statistic.type, statistic.shape


def _mask_with_infinity(node: ir.Node) -> None:
    """Take what a mask hides for minus infinity, where the exporter has the lowest number.

    Rows that are hidden whole are zeros in torch. After the lowest number they would be a mean of everything.
    """
    lowest = None if node.inputs[2] is None else node.inputs[2].producer()
    if lowest is None or lowest.op_type != "Constant" or "value" not in lowest.attributes:
        return
    number = lowest.attributes["value"].as_tensor().numpy()
    if number.ndim == 0 and number.dtype.kind == "f" and number == np.finfo(number.dtype).min:
        infinity = ir.tensor(np.array(-np.inf, number.dtype))
        node.replace_input_with(2, _constant(node, infinity, "infinity"))


def _zero_masked_rows(node: ir.Node, attention: Operation) -> None:
    """Write zeros over rows that are NaN, as the exporter does for masks of booleans, also after masks of numbers."""
    x, y, graph = node.inputs[0], node.outputs[0], node.graph
    masking = None if x is None else x.producer()
    if masking is None or masking.op_type != "Add" or any(use.node.op_type == "IsNaN" for use in y.uses()):
        return
    # The exporter says of what type the result of an operation is, and not what is in between.
    dtype = next((value.dtype for one in attention.nodes for value in one.outputs if is_floating(value)), None)
    if graph is None or dtype is None:
        return
    test = ir.node("IsNaN", [y], name=f"{node.name}/IsNaN")
    zero = ir.node("Constant", [], {"value": ir.tensor(np.array(0, dtype.numpy()), dtype=dtype)})
    choice = ir.node("Where", [test.outputs[0], zero.outputs[0], y], name=f"{node.name}/Where")
    for what, new, kind, shape in (
        ("is_nan", test, ir.DataType.BOOL, y.shape),
        ("zero", zero, dtype, ir.Shape([])),
        ("with_zeros", choice, dtype, y.shape),
    ):
        output = new.outputs[0]
        output.name, output.type, output.shape = f"{y.name}/{what}", ir.TensorType(kind), shape
        new.metadata_props[OPERATION] = node.metadata_props.get(OPERATION, "")
    ir.convenience.replace_all_uses_with(y, choice.outputs[0])
    for reader in (test, choice):
        for index, value in enumerate(reader.inputs):
            if value is choice.outputs[0]:
                reader.replace_input_with(index, y)
    graph.insert_after(node, [test, zero, choice])


def _true(node: ir.Node) -> ir.Value:
    return _constant(node, ir.tensor(np.array(True)), "training")


def _constant(node: ir.Node, tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """A number for an input of a node."""
    constant = ir.node("Constant", [], {"value": tensor})
    value = constant.outputs[0]
    value.name = f"{node.name or node.outputs[0].name}/{name}"
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape([])
    assert node.graph is not None
    node.graph.insert_before(node, constant)
    return value
