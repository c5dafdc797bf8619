"""Export torch modules by both exporters, and find torch's parameters again in what they wrote."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import nn

from .architectures import Architecture, Inputs

Array = np.ndarray


def randomize(module: nn.Module, seed: int) -> None:
    """Give every parameter and statistic its own random values, so that zero biases and unit scales hide nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            one = 1.0 if "norm" in name or "bn" in name or parameter.std(correction=0) == 0 else 0.0
            parameter.copy_(one + 0.2 * noise if one else parameter + 0.1 * noise)
        for name, buffer in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))


def export(architecture: Architecture, module: nn.Module, inputs: Inputs, exporter: str, opset: int) -> onnx.ModelProto:
    """The module as an ONNX model with its parameters kept apart where the exporter allows it."""
    module.train(architecture.training)
    with warnings.catch_warnings():
        # Only torch's own code runs in here; its notes about deprecation and tracing are not about ours.
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            return _export_dynamo(architecture, module, inputs, opset)
        return _export_legacy(architecture, module, inputs, opset)


def _export_dynamo(architecture: Architecture, module: nn.Module, inputs: Inputs, opset: int) -> onnx.ModelProto:
    dynamic = architecture.dynamic and tuple(architecture.dynamic.values())
    program = torch.onnx.export(
        module,
        inputs,
        dynamo=True,
        opset_version=opset,
        dynamic_shapes=dynamic,
        input_names=_names(inputs),
        optimize=architecture.optimize,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _export_legacy(architecture: Architecture, module: nn.Module, inputs: Inputs, opset: int) -> onnx.ModelProto:
    dynamic = architecture.dynamic and dict(zip(_names(inputs), architecture.dynamic.values(), strict=True))
    file = io.BytesIO()
    torch.onnx.export(
        module,
        inputs,
        file,
        dynamo=False,
        opset_version=opset,
        dynamic_axes=dynamic,
        input_names=_names(inputs),
        # The default mode folds BatchNormalization into Conv; folding constants transposes the weights of Linear.
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
    )
    return onnx.load_from_string(file.getvalue())


def _names(inputs: Inputs) -> list[str]:
    return [f"input_{index}" for index in range(len(inputs))]


def feeds(inputs: Inputs) -> dict[str, Array]:
    return dict(zip(_names(inputs), (x.numpy() for x in inputs), strict=True))


class Match(NamedTuple):
    """An initializer that holds a parameter, and how its gradient turns into the parameter's."""

    initializer: str
    restore: Callable[[Array], Array]


def match_parameters(model: onnx.ModelProto, module: nn.Module) -> dict[str, list[Match]]:
    """For each parameter of the module, by value, the initializers and constants that hold it.

    Exporters rename parameters, transpose and reshape them, and write tied ones twice; then the gradient of the
    parameter is the sum of those of its copies.
    """
    stored = dict(_stored_tensors(model))
    found = {}
    for name, parameter in module.named_parameters():
        wanted = parameter.detach().numpy()
        matches = ((key, _restoring(array, wanted)) for key, array in stored.items())
        found[name] = [Match(key, restore) for key, restore in matches if restore is not None]
    return found


def _stored_tensors(model: onnx.ModelProto) -> Iterator[tuple[str, Array]]:
    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            yield node.output[0], numpy_helper.to_array(node.attribute[0].t)


def _restoring(stored: Array, wanted: Array) -> Callable[[Array], Array] | None:
    if stored.dtype != wanted.dtype or stored.size != wanted.size:
        return None
    if np.array_equal(stored.reshape(wanted.shape), wanted):
        return lambda grad: grad.reshape(wanted.shape)
    if stored.ndim == 2 and stored.shape == wanted.T.shape and np.array_equal(stored, wanted.T):
        return lambda grad: grad.T
    return None


class Reference(NamedTuple):
    """What torch computes: the output, a random cotangent for it, and the gradient of every parameter."""

    output: Array
    cotangent: Array
    gradients: dict[str, Array]


def run_torch(module: nn.Module, inputs: Inputs, seed: int) -> Reference:
    """Forward and backward under autograd."""
    module.zero_grad()
    # A training step also updates running statistics; put them back, since the exported model has them as they were.
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    output = module(*inputs)
    random = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed))
    cotangent = torch.ones_like(output) if output.numel() == 1 else random
    output.backward(cotangent)
    for name, buffer in module.named_buffers():
        buffer.copy_(before[name])
    gradients = {name: parameter.grad.numpy().copy() for name, parameter in module.named_parameters()}
    return Reference(output.detach().numpy(), cotangent.numpy(), gradients)
