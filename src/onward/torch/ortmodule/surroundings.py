"""What torch does around a call: it follows operations, keeps what backward passes need elsewhere, or watches them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from onward.torch.ortmodule.call import FLAT

_is_of_vmap, _is_of_old_vmap = (
    torch._C._functorch.is_functorch_wrapped_tensor,
    torch._C._functorch.is_legacy_batchedtensor,
)


def is_followed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch is following the operations of a module around this one, to export or to compile it."""
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0  # a graph has no derivatives of that kind
    ):
        return True
    if FLAT.issuperset(map(type, args)) and FLAT.issuperset(map(type, kwargs.values())):
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return any(isinstance(leaf, FakeTensor) for leaf in leaves)


def is_many(gradient: torch.Tensor | None) -> bool:
    """Whether it stands for several gradients of as many backward passes at once, by vmap; it has no memory."""
    return gradient is not None and (_is_of_old_vmap(gradient) or _is_of_vmap(gradient))


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Inside, nobody follows operations and what is kept for them: checkpoints compare a call with its repetition."""
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():  # in which no tensor knows whether it is changed
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
            # The innermost ones are those that count.
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, lambda kept: kept))
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield
