"""A model is compared with its module for the example; for other data it has the values and gradients of torch, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import onward
from onward.errors import OnwardError

TIES = [[0.0, 0, 1, 1, -1, -1], [2, 2, 2, 0, 0, -2], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, -1, -2]]
LARGE = [[-200.0, 200, -90, 90, 0, 1], [1000, -1000, 30, -30, 17.5, -17.5]]
DECIDED = [[-200.0, 200, -26, 40, 0, 1], [1000, -1000, 30, -25, 5, -5]]
SMALL = [[1e-3, -1e-3, 1e-6, -1e-6, 1e-9, 0], [0.09, -0.09, 0.11, -0.11, 3, -0.9]]
AXES = [[0.0, -1, 0, 1, -1, 1], [-0.0, -1, 2, 1, 3, -2]]
SLIGHT = [[1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9]]
SHARES = [[0.0, 1, 0.3, 1, 0, 0.8], [1e-30, 0.5, 1, 0, 0.2, 0.9]]
WHOLE = [[0.7, -0.7, 0.6, 1e6, -0.1, 0.3], [1.0, -1, 2.5, -2.5, 0, 0.1]]


def weighted(x: Tensor, target: Tensor | None = None) -> Tensor:
    target = torch.full_like(x, 0.3) if target is None else target
    return F.binary_cross_entropy_with_logits(x, target, pos_weight=torch.full((6,), 2.0), reduction="none")


CASES: dict[str, tuple[Callable[[Tensor], Tensor], list[list[float]]]] = {
    "logsigmoid": (F.logsigmoid, LARGE),
    "binary_cross_entropy_with_logits": (weighted, LARGE),
    "multilabel_soft_margin_loss": (lambda x: F.multilabel_soft_margin_loss(x, torch.ones_like(x)), LARGE),
    "logaddexp": (lambda x: torch.logaddexp(x, -x.flip(1)), LARGE),
    "logaddexp of equal numbers": (lambda x: torch.logaddexp(x, x.flip(1)), TIES),
    "logaddexp2": (lambda x: torch.logaddexp2(x, x.flip(1)), LARGE),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, -1), LARGE),
    "logcumsumexp of the first axis": (lambda x: torch.logcumsumexp(x, 0), LARGE),
    "log1p": (torch.log1p, SMALL),
    "expm1": (torch.expm1, SMALL),
    "expm1 of large numbers": (lambda x: torch.expm1(x.clamp(max=80)), LARGE),
    "atan2": (lambda x: torch.atan2(x, x.flip(1)), AXES),
    "atan2 of large numbers": (lambda x: torch.atan2(x, x.flip(1)), LARGE),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(torch.sigmoid(x), torch.full_like(x, 0.3)), DECIDED),
    "binary_cross_entropy of what is certain": (
        lambda x: F.binary_cross_entropy(x.sigmoid(), (x > 0).float()),
        DECIDED,
    ),
    "binary_cross_entropy of small numbers": (lambda x: F.binary_cross_entropy(x, x.detach() * 0), SLIGHT),
    "logarithm of a sigmoid": (lambda x: torch.log(torch.sigmoid(x) + 1e-12), DECIDED),
    "xlogy": (lambda x: torch.xlogy(x, x.flip(1)), SHARES),
    "xlogy of 0 and others": (lambda x: torch.xlogy(x, x + 0.5), SHARES),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), [[0.0] * 6, [0, 0, 1, 2, 0, -3]]),
    "normalize": (lambda x: F.normalize(x + 1, 3.0, dim=1), [[0.0] * 6, [0, 0, 1, 2, 0, -3]]),
    "remainder": (lambda x: torch.remainder(x, 0.1) + x % -0.3, WHOLE),
    "floor_divide": (lambda x: torch.floor_divide(x.detach(), 0.1) + x, WHOLE),
    "div that rounds down": (lambda x: torch.div(x, 0.1, rounding_mode="floor") + x, WHOLE),
    "std": (lambda x: x.std(1), TIES),
    "std_mean": (lambda x: torch.stack(torch.std_mean(x, 1)), TIES),
    "relu6": (lambda x: F.relu6(x * 6), TIES),
    "hardtanh": (F.hardtanh, TIES),
    "clamp by tensors": (lambda x: torch.clamp(x, torch.tensor([-1.0, 0, 0, 0, -1, -1]), x.flip(1)), TIES),
    "clamp_min by a tensor": (lambda x: torch.clamp_min(x, x.flip(1)), TIES),
    "max along an axis": (lambda x: x.max(1).values, TIES),
    "min that keeps its axis": (lambda x: x.min(0, keepdim=True)[0], TIES),
    "dstack": (lambda x: torch.dstack((x[0], x[1])), TIES),
    "adaptive_max_pool": (nn.AdaptiveMaxPool1d(1), TIES),
}


class Applied(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


OLDER: dict[str, tuple[Callable[[Tensor], Tensor], list[list[float]]]] = {
    "logsigmoid": (nn.LogSigmoid(), LARGE),
    "binary_cross_entropy_with_logits": CASES["binary_cross_entropy_with_logits"],
    "multilabel_soft_margin_loss": CASES["multilabel_soft_margin_loss"],
    "mean of weighted logits": (lambda x: F.binary_cross_entropy_with_logits(x, x * 0, torch.full((6,), 0.5)), LARGE),
    "softplus with a threshold": (lambda x: F.softplus(x, 0.5, 0.3), TIES),
}


@pytest.mark.parametrize(
    ("exporter", "name"), [*(("dynamo", name) for name in CASES), *(("legacy", name) for name in OLDER)]
)
def test_values_and_gradients_are_those_of_torch(exporter: Literal["dynamo", "legacy"], name: str) -> None:
    function, rows = (CASES if exporter == "dynamo" else OLDER)[name]
    x = torch.tensor(rows, requires_grad=True)
    example = torch.rand(len(rows), 6, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    model = onward.torch.export(
        Applied(function), example, output_names=["y"], exporter=exporter, dynamic_batch=False, verify=False
    )
    assert [value.name for value in model.graph.output] == ["y"]
    assert {node.domain for node in model.graph.node} == {""}
    y = function(x)
    dy = torch.arange(1.0, y.numel() + 1).reshape(y.shape)
    (dx,) = torch.autograd.grad(y, x, dy)
    session = onnxruntime.InferenceSession(onward.gradient(model, ["x"]).SerializeToString())
    feeds = {"x": x.detach().numpy(), "y_grad": dy.numpy()}
    got, slope = session.run(["y", "x_grad"], {value.name: feeds[value.name] for value in session.get_inputs()})
    np.testing.assert_allclose(got, y.detach().numpy(), rtol=2e-6, atol=1e-12)
    known = ~np.isinf(dx.numpy())
    np.testing.assert_allclose(
        slope[known], dx.numpy()[known], rtol=1e-4, atol=1e-6 * y.numel()
    )  # sums of exponentials


def test_numbers_of_forms_are_not_trained() -> None:
    class Angle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return torch.logcumsumexp(torch.atan2(self.linear(x), x), 1)

    model = onward.torch.export(Angle(), torch.randn(2, 6), exporter="dynamo")
    report = onward.check(model)
    assert [parameter.name for parameter in report.trainable] == ["linear.weight", "linear.bias"]
    assert not report.changes
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    x = np.full((5, 6), math.pi, np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert session.run(None, {"x": x})[0].shape == (5, 6)


def test_what_loses_everything_is_refused() -> None:
    for function in (torch.special.erfcx, torch.special.log_ndtr):
        with pytest.raises(OnwardError, match=r"writes erfcx.* as exp\(x\^2\) \(1 - erf\(x\)\)"):
            onward.torch.export(Applied(function), torch.rand(2, 6))


def test_results_that_numpy_does_not_have_are_not_compared() -> None:
    model = onward.torch.export(Applied(lambda x: x.bfloat16()), torch.rand(2, 6), exporter="dynamo")
    assert model.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def test_gradients_of_nothing_are_compared() -> None:
    """torch's sgn has a gradient of zeros without memory."""

    class Sign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 6, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return torch.sgn(x + self.weight)

    x = torch.rand(2, 6).double()
    assert onward.torch.export(Sign(), x, exporter="dynamo", dynamic_batch=False).graph.initializer
