"""Gradients of whole models, every parameter, against torch autograd: both exporters, several opsets, float32."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch

import onward
from onward.testing import check_training, run_on_runtime

from .architectures import ARCHITECTURES
from .exporting import export, feeds, match_parameters, randomize, run_torch

TOLERANCE = 1e-4
# Some gradients are zero but for rounding: that of a key's bias under softmax, that of a bias before normalisation.
# They are compared on the scale of the model's largest gradient times this.
FLOOR = 1e-3

QUICK = {"legacy": [17], "dynamo": [18]}
SLOW = {"legacy": [12, 13, 14], "dynamo": [20, 22]}


def cases():
    """Every architecture by each exporter; more opsets are slow."""
    for opsets, marks in ((QUICK, ()), (SLOW, (pytest.mark.slow,))):
        for architecture in ARCHITECTURES.values():
            for exporter in architecture.exporters:
                for opset in opsets[exporter]:
                    if opset >= architecture.oldest_opset:
                        name = f"{architecture.name}-{exporter}-{opset}"
                        yield pytest.param(architecture, exporter, opset, id=name, marks=marks)


# Training graphs of some models in `make test`, by their names, and of all of them in `make test-all`.
TRAINED_ONE_IN = 6


# One of the tables has a row for padding, which is not among the inputs.
@pytest.mark.filterwarnings("ignore:torch's exporter changed the model. The row of an embedding")
@pytest.mark.parametrize(("architecture", "exporter", "opset"), list(cases()))
def test_every_parameter_gradient_equals_torch(architecture, exporter, opset, request):
    quick = "not slow" in request.config.option.markexpr
    chosen = not quick or zlib.crc32(request.node.name.encode()) % TRAINED_ONE_IN == 0
    check_gradients(architecture, exporter, opset, training=chosen)


def check_gradients(architecture, exporter, opset, *, training=False):
    """Export, differentiate, and compare with torch on every input of the architecture; training graphs with that."""
    torch.manual_seed(0)
    module, inputs = architecture.build()
    randomize(module, seed=1)
    model = export(architecture, module, inputs, exporter, opset)
    matches = match_parameters(model, module)
    assert all(matches.values()), f"not found in the model: {[key for key, found in matches.items() if not found]}"
    holders = [match.initializer for found in matches.values() for match in found]

    # Only the newer exporter records which tensors are parameters, so only there can the default be exact.
    differentiated = onward.gradient(model, wrt=None if exporter == "dynamo" else holders)
    output = model.graph.output[0].name
    assert {value.name for value in differentiated.graph.output} == {output, *(f"{name}_grad" for name in holders)}

    for case in (inputs, *([architecture.other_inputs()] if architecture.other_inputs else [])):
        reference = run_torch(module, case, seed=2)
        results = run_on_runtime(differentiated, {**feeds(case), f"{output}_grad": reference.cotangent})
        np.testing.assert_allclose(results[output], reference.output, rtol=1e-4, atol=1e-5)
        gradients = {
            name: sum(match.restore(results[f"{match.initializer}_grad"]) for match in found)
            for name, found in matches.items()
        }
        assert too_different(gradients, reference.gradients) == {}
        if training:  # sizes as they were exported, then without that of the batch
            check_training(model, feeds(case), wrt=holders, of=[output], layouts=("static", "batch"))


def too_different(got, expected):
    """The parameters whose gradient is off by more than the tolerance, with the error."""
    floor = FLOOR * max(np.abs(grad).max() for grad in expected.values())
    errors = {}
    for name, grad in expected.items():
        assert got[name].shape == grad.shape, name
        error = np.abs(got[name] - grad).max() / max(np.abs(grad).max(), floor)
        if not error < TOLERANCE:
            errors[name] = float(error)
    return errors
