"""Gradients that have gradients themselves, for which torch runs a call again.

Losses of gradients need them: penalties, forces of energies, equations that a net is to satisfy.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from onward.torch.ortmodule.call import Call, Results, invoke
from onward.torch.ortmodule.fingerprint import Fingerprint


@dataclass(slots=True)
class Repetition:
    """What it takes to run a call again.

    Attributes:
        module: the module, as it is now.
        signature: that of its `forward`.
        call: the arguments.
        state: the module at the call.
        before: its tensors before the call.
        generator: the state of torch's random numbers before it, if any were drawn.
    """

    module: nn.Module
    signature: inspect.Signature
    call: Call
    state: Fingerprint
    before: Sequence[Tensor]
    generator: Tensor | None

    def gradients(
        self, inputs: Sequence[Tensor], of: Sequence[int], gradients: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """The gradients of some tensors, arguments and tensors of the module, where those of results are given.

        `of`: which result, of the tensors that the module returns, each of these belongs to.
        """
        differentiable = torch.is_grad_enabled()  # if not, many gradients are wanted at once
        with torch.enable_grad():
            # Each under another name: one argument may be computed from another, which is no matter of this module.
            own = {id(tensor): tensor.view_as(tensor) for tensor in inputs}
        leaves = list(self.call.leaves)
        for place, tensor in zip(self.call.places, self.call.tensors, strict=True):
            if isinstance(leaves[place], Tensor):  # not so if it is a number that varies
                leaves[place] = own.get(id(tensor), tensor)
        with (
            torch.enable_grad(),
            contextlib.nullcontext() if self.generator is None else torch.random.fork_rng(devices=[]),
        ):
            if self.generator is not None:
                torch.set_rng_state(self.generator)
            returned = invoke(self._copy(own), self.signature, self.call.arguments(leaves))
        results = Results.of(returned).tensors
        pairs = [(results[i], g) for i, g in zip(of, gradients, strict=True) if g is not None]
        ends = [(result, gradient) for result, gradient in pairs if result.requires_grad]
        if not ends or not own:
            return [None] * len(inputs)
        found = torch.autograd.grad(
            [result for result, _ in ends],
            list(own.values()),
            [gradient for _, gradient in ends],
            create_graph=differentiable,
            allow_unused=True,
        )
        by_input = dict(zip(own, found, strict=True))
        return [by_input[id(tensor)] for tensor in inputs]

    def _copy(self, own: dict[int, Tensor]) -> nn.Module:
        """The module as it was, with tensors that lead back to its own."""
        now = Fingerprint(self.module)
        if now.key != self.state.key:
            raise RuntimeError(
                f"{type(self.module).__name__} has other attributes, or parameters that require gradients, than when "
                "it was called; gradients that have gradients themselves are computed by another call. Take them "
                "before the module is changed"
            )
        buffers = {id(tensor) for tensor in self.module.buffers()}
        memo = {
            id(tensor): own.get(id(old), old.clone() if id(tensor) in buffers else old)
            for tensor, old in zip(now.tensors, self.before, strict=True)
        }
        return copy.deepcopy(self.module, memo)


def without_gradients(tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The same, of which nobody gets a gradient without being told that there is none."""
    reason = b"ORTModule has no gradients of gradients in half precision, nor where arguments are changed in place"
    stopped: Any = [None if tensor is None else tensor.detach().requires_grad_() for tensor in tensors]
    marked: tuple[Tensor | None, ...] = torch._C._functions.DelayedError(reason, len(tensors))(*stopped)
    return marked
