"""export_gradient_graph: the gradient graph of a torch module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from onward.experimental import export_gradient_graph


class Net(torch.nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.body = torch.nn.Linear(6, 6, bias=False)
        self.head = torch.nn.Linear(6, 6)
        self.body.requires_grad_(False)
        if tied:
            self.body.weight = self.head.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def cross_entropy(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, labels)


def own(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return -torch.sum(labels * torch.log2(torch.sigmoid(output[:, 0])))


@pytest.mark.parametrize("loss", [cross_entropy, own])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("opset", [12, 17])
def test_values_and_gradients_equal_torch(
    tmp_path: Path, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tied: bool, opset: int
) -> None:
    torch.manual_seed(0)
    net = Net(tied=tied)
    export_gradient_graph(net, loss, torch.randn(2, 6), torch.tensor([1, 3]), tmp_path / "graph.onnx", opset)
    model = onnx.load(tmp_path / "graph.onnx")
    onnx.checker.check_model(model)
    parameters = dict(net.named_parameters())
    trained = [name for name, parameter in parameters.items() if parameter.requires_grad]
    assert [value.name for value in model.graph.input] == ["input", "labels", *parameters]
    assert [value.name for value in model.graph.output] == ["output", "loss", *(f"{name}_grad" for name in trained)]

    data, labels = torch.randn(5, 6), torch.tensor([0, 1, 2, 3, 4])  # another batch size than the example's
    output = net(data)
    expected = loss(output, labels)
    expected.backward()
    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"), providers=["CPUExecutionProvider"])
    arrays = {name: parameter.detach().numpy() for name, parameter in parameters.items()}
    results = session.run(None, {"input": data.numpy(), "labels": labels.numpy(), **arrays})
    wanted = [output, expected, *(parameters[name].grad for name in trained)]
    for value, reference in zip(results, wanted, strict=True):
        np.testing.assert_allclose(value, reference.detach(), rtol=1e-4, atol=1e-5)
    assert all(parameter is parameters[name] for name, parameter in net.named_parameters())
