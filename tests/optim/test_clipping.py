"""Clipping against torch.nn.utils, and how accurate norms are."""

import numpy as np
import onnx_ir as ir
import pytest
import torch

from onward import optim
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.testing import check_optimizer, run_on_runtime
from tests.optim.references import torch_optimizer


def each_norm(bound):
    def clip(parameters):
        for parameter in parameters:
            torch.nn.utils.clip_grad_norm_([parameter], bound)

    return clip


# Bounds below, among and above the norms of the random gradients.
CASES = [
    (optim.clip(0.3), lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.3)),
    (optim.clip_by_norm(1.0), each_norm(1.0)),
    (optim.clip_by_global_norm(0.5), lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.5)),
    (optim.clip_by_global_norm(4.0), lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 4.0)),
    (4.0, lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 4.0)),
    (1e3, lambda parameters: None),
]


@pytest.mark.parametrize(("clip", "before_step"), CASES)
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("sgd", torch.optim.SGD, {}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        ("adamw", torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
    ids=str,
)
def test_equals_torch(name, kind, options, clip, before_step):
    reference = torch_optimizer(kind, before_step=before_step, **options)
    check_optimizer(optim.get(name, learning_rate=0.05, clip=clip, **options), reference)


def norm_model(sizes, emit, kind=ir.DataType.FLOAT):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="norm")
    for index, size in enumerate(sizes):
        graph.inputs.append(ir.Value(name=f"g{index}", shape=ir.Shape(size), type=ir.TensorType(kind)))
    op = Builder(graph, 18)
    with op:
        publish(emit(op, list(graph.inputs)), "y", graph)
    return finish(ir.Model(graph, ir_version=10))


# A round size, one without a divisor near its root, a prime, and dimensions that are not known.
@pytest.mark.parametrize("size", [(10,), (2048, 1024), (2**20,), (2 * 1_000_003,), (1_000_003,), ("n", 1024)])
def test_norm_is_accurate(size):
    """onnxruntime's own sum over a million squares is wrong by 2e-5."""
    random = np.random.default_rng(0)
    g = random.normal(size=(1024, 1024) if size == ("n", 1024) else size).astype(np.float32)
    got = run_on_runtime(norm_model([size], optim.sum_of_squares), {"g0": g})["y"]
    np.testing.assert_allclose(got, np.sum(g.astype(np.float64) ** 2), rtol=1e-6)


def test_norm_in_half_precision_does_not_overflow():
    g = np.full(10, 300, np.float16)
    got = run_on_runtime(norm_model([(10,)], optim.sum_of_squares, ir.DataType.FLOAT16), {"g0": g})["y"]
    assert (got.dtype, got) == (np.float64, 900_000)


@pytest.mark.parametrize("scale", [1.0, 0.25, 4.0])
def test_coefficient_includes_the_scale(scale):
    """Gradients that were added up over batches are averaged and clipped by one coefficient."""
    random = np.random.default_rng(0)
    gradients = [random.normal(size=(3, 4)), random.normal(size=5)]
    feeds = {f"g{index}": g.astype(np.float32) for index, g in enumerate(gradients)}
    model = norm_model([(3, 4), (5,)], lambda op, gs: optim.GlobalNorm(2.0).coefficient(op, gs, scale))
    parameters = [torch.nn.Parameter(torch.tensor(g)) for g in gradients]
    for parameter, g in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(g * scale)
    torch.nn.utils.clip_grad_norm_(parameters, 2.0)
    np.testing.assert_allclose(run_on_runtime(model, feeds)["y"] * gradients[0], parameters[0].grad.numpy(), rtol=1e-6)


def test_no_gradients():
    op = Builder(ir.Graph([], [], nodes=[], opset_imports={"": 18}), 18)
    with pytest.raises(OnwardError, match="norm of no gradients"):
        optim.GlobalNorm(1.0).coefficient(op, [])
