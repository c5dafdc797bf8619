"""Cross entropy of a single row without an axis for it: onnxruntime refuses it, torch's exporters write it."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import onward

SCORES, LABEL, WEIGHT = torch.tensor([0.5, -1.0, 2.0]), torch.tensor(2), torch.tensor([1.0, 2.0, 0.5])
# Inputs, result and node; what torch computes.
CASES = {
    "cross entropy": ("y = SoftmaxCrossEntropyLoss(x, t)", lambda x: F.cross_entropy(x, LABEL)),
    "one for each row": (
        'y = SoftmaxCrossEntropyLoss<reduction="none">(x, t)', lambda x: F.cross_entropy(x, LABEL, reduction="none")
    ),
    "summed, weights": (
        'y = SoftmaxCrossEntropyLoss<reduction="sum">(x, t, w)',
        lambda x: F.cross_entropy(x, LABEL, WEIGHT, reduction="sum"),
    ),
    "ignored": (
        'y = SoftmaxCrossEntropyLoss<ignore_index=2, reduction="sum">(x, t)',
        lambda x: F.cross_entropy(x, LABEL, ignore_index=2, reduction="sum"),
    ),
    "logarithms": (
        "l, p = SoftmaxCrossEntropyLoss(x, t) s = ReduceSumSquare<keepdims=0>(p) y = Add(l, s)",
        lambda x: F.cross_entropy(x, LABEL) + x.log_softmax(0).square().sum(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("opset", [12, 18])
@pytest.mark.parametrize("name", CASES)
def test_losses_of_a_single_row(name: str, opset: int) -> None:
    nodes, expected = CASES[name]
    w = ", float[3] w" if "w)" in nodes else ""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[3] x, int64 t{w}) => (float y) {{ {nodes} }}'
    )
    x = SCORES.clone().requires_grad_()
    loss = expected(x)
    loss.backward()
    feeds = {"x": SCORES.numpy(), "t": LABEL.numpy(), "w": WEIGHT.numpy()}
    differentiated = onward.gradient(model, wrt=["x"])
    session = onnxruntime.InferenceSession(differentiated.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(["y", "x_grad"], {value.name: feeds[value.name] for value in session.get_inputs()})
    np.testing.assert_allclose(found[0], loss.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(found[1], x.grad.numpy(), rtol=1e-5, atol=1e-7)
