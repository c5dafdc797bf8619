"""The gradient graph of a torch module."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onward.autodiff.gradient import gradient
from onward.graph.saving import save_model
from onward.runtime.files import replacing_together

if TYPE_CHECKING:
    import torch

__all__ = ["export_gradient_graph"]


def export_gradient_graph(
    model: torch.nn.Module,
    loss_fn: Callable[[Any, Any], Any],
    example_input: torch.Tensor,
    example_labels: torch.Tensor,
    gradient_graph_path: str | os.PathLike[str],
    opset_version: int = 12,
) -> None:
    """Write the graph of a module, its loss, and the gradient with respect to each parameter that requires one.

    Inputs: ``input``, ``labels`` and all parameters; outputs: ``output``, ``loss`` and ``<parameter>_grad`` in the
    order of `model.named_parameters()`. The first axis of input, labels and output is the batch, of any size.
    """
    forward = _export(model, loss_fn, example_input, example_labels, opset_version)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    path = Path(gradient_graph_path)
    result = gradient(forward, wrt=trained, of="loss")
    with replacing_together(path.parent) as drafts:
        save_model(result, drafts / path.name)


def _export(
    model: torch.nn.Module, loss_fn: Callable[[Any, Any], Any], example_input: Any, labels: Any, opset: int
) -> onnx.ModelProto:
    import torch

    names = [name for name, _ in model.named_parameters()]

    class WithLoss(torch.nn.Module):
        """A function of the input, the labels and the parameters."""

        def forward(self, example: Any, labels: Any, *parameters: Any) -> tuple[Any, Any]:
            with _parameters_replaced(model, parameters):
                output = model(example)
            return output, loss_fn(output, labels)

    file = io.BytesIO()
    with warnings.catch_warnings():
        # This exporter is called legacy. It keeps the names of parameters, which the newer one does not.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            WithLoss(),
            (example_input, labels, *(parameter.detach() for parameter in model.parameters())),
            file,  # type: ignore[arg-type]  # this exporter takes files too
            input_names=["input", "labels", *names],
            output_names=["output", "loss"],
            dynamic_axes={name: {0: "batch_size"} for name in ("input", "labels", "output")},
            opset_version=opset,
            do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING if model.training else torch.onnx.TrainingMode.EVAL,
            dynamo=False,
        )
    return onnx.load_model_from_string(file.getvalue())


@contextlib.contextmanager
def _parameters_replaced(model: torch.nn.Module, values: Sequence[Any]) -> Iterator[None]:
    """Compute with other tensors in place of the parameters. torch.func.functional_call does not work when traced."""
    replacements = dict(zip(model.parameters(), values, strict=True))
    places = [
        (module._parameters, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]
    try:
        for owner, name, parameter in places:
            owner[name] = replacements[parameter]
        yield
    finally:
        for owner, name, parameter in places:
            owner[name] = parameter
