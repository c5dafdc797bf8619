"""Export by tracing, the older way: for what `torch.export` refuses, scripted modules for instance."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from onward.errors import ExporterWarning
from onward.torch.inputs import Inputs

if TYPE_CHECKING:
    from torch import Tensor, nn

_INNER = "module"
_DUMP = "Torch IR graph at exception:"


@contextlib.contextmanager
def _without_graphs() -> Iterator[None]:
    """Let programs print, but for torch's tracer: where it fails, hundreds of lines about what it had until then."""
    import torch

    printed, log = io.StringIO(), torch._C._jit_onnx_log
    setattr(torch._C, "_jit_onnx_log", lambda *args: None)  # noqa: B010  it prints past Python
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        setattr(torch._C, "_jit_onnx_log", log)  # noqa: B010
        print(printed.getvalue().partition(_DUMP)[0], end="")  # what the module has said itself


def export(module: nn.Module, inputs: Inputs, output_names: Sequence[str] | None, opset: int | None) -> ir.Model:
    """The operations of one call of the module; a warning for each value that tracing fixed in the user's code."""
    import torch

    from onward.torch.traced import traceable_words

    with traceable_words():
        model, caught = trace(module, inputs, output_names, opset)
    own = str(Path(torch.__file__).parent)
    for warning in caught:
        if not warning.filename.startswith(own):
            place = f"{Path(warning.filename).name}:{warning.lineno}"
            warnings.warn(f"torch's older exporter says of {place}: {warning.message}", ExporterWarning, stacklevel=3)
    return model


def trace(
    module: nn.Module, inputs: Inputs, output_names: Sequence[str] | None, opset: int | None, **arguments: Any
) -> tuple[ir.Model, list[warnings.WarningMessage]]:
    """The operations of one call of the module, and what the tracer says it has fixed; more arguments are torch's."""
    import torch
    from torch.utils import _pytree as pytree

    for name, tensor in zip(inputs.names, inputs.tensors, strict=True):
        if tensor.numel() == 0:  # by whose sizes it divides, which ends the process
            raise ValueError(
                f"torch's older exporter cannot follow {name!r} of shape {list(tensor.shape)}, which has no elements"
            )

    class Flat(torch.nn.Module):
        """The module as a function of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.add_module(_INNER, module)
            self.training = True

        def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = inputs.call_with(tensors)
            leaves, _ = pytree.tree_flatten(self.get_submodule(_INNER)(*args, **kwargs))
            return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught, _without_graphs():
        warnings.simplefilter("always")
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            # Scripted modules are not traced, and cannot be called while others are.
            module if isinstance(module, torch.jit.ScriptModule) else Flat(),
            tuple(inputs.tensors),
            file,
            dynamo=False,
            input_names=inputs.names,
            output_names=output_names,
            dynamic_axes=inputs.axes,
            opset_version=opset,
            training=torch.onnx.TrainingMode.PRESERVE,
            **{"do_constant_folding": False} | arguments,
        )
        proto = onnx.load(file)
    model = ir.from_proto(proto)
    for value in list(model.graph.initializers.values()):
        if value.name is not None and value.name.startswith(f"{_INNER}."):
            value.name = value.name.removeprefix(f"{_INNER}.")
    return model, [warning for warning in caught if warning.category.__name__ == "TracerWarning"]
