"""Calls inside of what torch does around modules: checkpoints, vectorised Jacobians, forward mode, global hooks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning

# torch's own, when vmap or forward mode are first used.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))


def keep_products(context: object, operation: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    is_kept = operation is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpointed(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(model, x, use_reentrant=False)


def selective(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(
        model, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(keep_products)
    )


def saved_elsewhere(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autograd.graph.save_on_cpu():
        return model(x)


def reentrant(model: nn.Module, x: Tensor) -> Tensor:
    return checkpoint(model, x, use_reentrant=True)


@pytest.mark.parametrize("call", [checkpointed, reentrant, selective, saved_elsewhere])
def test_the_first_call_leaves_no_traces(call: Callable[[nn.Module, Tensor], Tensor]) -> None:
    module = net()
    found = []
    for model in (copy.deepcopy(module), ORTModule(module)):
        for rows in (5, 7):  # compared with torch at the second sizes, too
            torch.manual_seed(1)
            x = torch.randn(rows, 4, requires_grad=True)
            y = call(model, x)
            y.pow(2).sum().backward()
            found.append([y, x.grad, *(parameter.grad.clone() for parameter in model.parameters())])
            found[-1] += [buffer.clone() for buffer in model.buffers()]
    torch.testing.assert_close(found[2:], found[:2])


def test_many_backward_passes_at_once() -> None:
    module = net().eval()
    model, x = ORTModule(module), torch.randn(2, 4)
    for of in (model, module):
        of(x)
    jacobians = [torch.autograd.functional.jacobian(of, x, vectorize=True) for of in (model, module)]
    torch.testing.assert_close(*jacobians)
    gradients = []
    for of in (model, module):
        own = x.clone().requires_grad_()
        gradients += torch.autograd.grad(of(own), own, torch.eye(6).view(6, 2, 3), is_grads_batched=True)
    torch.testing.assert_close(*gradients)


def test_forward_mode() -> None:
    module = net().eval()
    model, x, direction = ORTModule(module), torch.randn(2, 4), torch.randn(2, 4)
    model(x)
    tangents = []
    for of in (model, module):
        with forward_ad.dual_level():
            tangents.append(forward_ad.unpack_dual(of(forward_ad.make_dual(x, direction))).tangent)
    torch.testing.assert_close(*tangents)


def test_hooks_for_all_modules() -> None:
    module = net().eval()
    model, x = ORTModule(module), torch.randn(2, 4)
    before = model(x)
    hook = register_module_forward_hook(lambda of, args, y: 2 * y if isinstance(of, nn.Linear) else None)
    try:
        with pytest.warns(FallbackWarning, match="hooks for all modules"):
            torch.testing.assert_close(model(x), module(x))
    finally:
        hook.remove()
    torch.testing.assert_close(model(x), before)
    assert model.runs_on_onnxruntime(x)
