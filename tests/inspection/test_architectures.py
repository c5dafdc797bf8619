"""Reports of models that torch exported; its own counter of operations is another opinion on the products in them."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import onward
from onward.inspection.cost import sizes_of, with_sizes
from onward.inspection.flops import Count
from onward.inspection.preparation import prepare_as_far_as_possible, read
from onward.inspection.rehearsal import rehearse
from tests.parity.architectures import ARCHITECTURES
from tests.parity.exporting import export, match_parameters, randomize

# torch counts these alone.
PRODUCTS = {"Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul"}
QUICK = {"mlp", "lenet", "bert"}
# torch's formula for the backward pass is for convolutions without strides and groups, and for the usual attention. It
# does not count how windows are read, by a convolution too, which is most of the work where there are few channels.
ALIKE = {"mlp", "lenet", "vit", "bert", "gpt"}
# A size that the exporter computes in floating point.
NOT_COUNTED = {"unet"}


def cases():
    for architecture in ARCHITECTURES.values():
        if "legacy" in architecture.exporters:
            marks = () if architecture.name in QUICK else (pytest.mark.slow,)
            yield pytest.param(architecture, id=architecture.name, marks=marks)


@pytest.mark.parametrize("architecture", list(cases()))
def test_report_of_an_architecture(architecture):
    torch.manual_seed(0)
    module, inputs = architecture.build()
    randomize(module, seed=1)
    model = export(architecture, module, inputs, "legacy", 17)
    sizes = {f"input_{i}[{axis}]": size for i, x in enumerate(inputs) for axis, size in enumerate(x.shape)}
    report = onward.check(model, dims=sizes)
    assert report.ok, report
    assert report.flops is not None
    trainable = [parameter.name for parameter in report.trainable]
    holders = {match.initializer for found in match_parameters(model, module).values() for match in found}
    assert holders <= set(trainable)
    if architecture.name in NOT_COUNTED:
        return

    prepared, _, _ = prepare_as_far_as_possible(read(model))
    prepared = with_sizes(prepared, sizes_of(prepared, sizes)[0])
    forward = Count().nodes(node for node in prepared.graph if node.op_type in PRODUCTS).total
    expected_forward, expected_backward = counted_by_torch(module, inputs)
    # Ours has the additions of biases, and products with tables that torch multiplies element by element.
    assert expected_forward <= forward <= 1.2 * expected_forward
    assert forward <= report.flops.forward
    if architecture.name in ALIKE:
        rehearsal = rehearse(prepared, trainable, report.differentiated)
        added = (node for node in rehearsal.model.graph if node not in rehearsal.forward)
        backward = Count().nodes(node for node in added if node.op_type in PRODUCTS).total
        assert expected_backward <= backward <= 1.1 * expected_backward


def counted_by_torch(module, inputs):
    with FlopCounterMode(display=False) as counter:
        output = module(*inputs)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    return forward, counter.get_total_flops()
