"""Statistics of what layers compute, and of its gradients, in files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onward.errors import OnwardError, warn
from onward.torch.utils.hooks import _subscriber_manager
from onward.torch.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase

_SAMPLES = 128
_See = Callable[[Any, int, str, int], None]  # a tensor, the depth of its layer, its name and the step


class _InspectActivation(torch.autograd.Function):
    """The tensor itself; the subscribers, or the two functions given, see it, and later its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        activation_name: str,
        module_idx: int | None,
        run_ctx: RuntimeStates,
        input_tensor: torch.Tensor,
        module_post_forward: _See | None = None,
        module_pre_backward: _See | None = None,
    ) -> torch.Tensor:
        states = run_ctx.global_states
        depth = -1 if module_idx is None else states.module_index_to_depth[module_idx]
        ctx.said = (depth, activation_name, states.execution_step)
        forward, backward = [module_post_forward], [module_pre_backward]
        if module_post_forward is None or module_pre_backward is None:
            own = [s for s in states.subscribers if isinstance(s, StatisticsSubscriber) and s.runs(run_ctx)]
            forward = [subscriber.module_post_forward_impl for subscriber in own]
            backward = [subscriber.module_pre_backward_impl for subscriber in own]
        ctx.backward_seen_by = backward
        for see in forward:
            assert see is not None
            see(input_tensor.detach(), *ctx.said)
        return input_tensor.view_as(input_tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        for see in ctx.backward_seen_by:
            see(None if gradient is None else gradient.detach(), *ctx.said)
        return None, None, None, gradient, None, None


class StatisticsSubscriber(SubscriberBase):
    """Writes ``<output_dir>/step_<n>/<class>_<number>_<k>th_output_forward`` for the k-th result of each layer.

    A file that ends in ``_backward`` is about its gradient; ``order.txt`` lists them as they were computed. Each has
    the shape, the type, smallest and largest element, mean, deviation, numbers of NaN, infinite, negative, positive
    and zero elements, and the first of them.

    Args:
        output_dir: the folder; it must not be there yet.
        start_step: the first step to write about.
        end_step: the first one not to write about any more.
        override_output_dir: remove a folder that is there.
        run_on_cpu: bring tensors to the CPU before they are summed up.
        bucket_size: taken as in the original, where it bounds memory; nothing is copied here.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str],
        start_step: int | None = None,
        end_step: int | None = None,
        override_output_dir: bool = False,
        run_on_cpu: bool = False,
        bucket_size: int = 1 << 29,
    ) -> None:
        super().__init__(start_step, end_step)
        self._folder, self._run_on_cpu = Path(output_dir), run_on_cpu
        if self._folder.exists():
            if not override_output_dir:
                raise _FolderExistsError(
                    f"Output directory {self._folder} already exists. "
                    "Set override_output_dir=True for StatisticsSubscriber if this is the intention."
                )
            warn(f"{self._folder} is there already; it is replaced")
            shutil.rmtree(self._folder)

    def post_forward_tensor_apply_impl(
        self, run_ctx: RuntimeStates, module: nn.Module, tensor_index: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        index = run_ctx.global_states.module_to_module_index[module]
        name = f"{type(module).__name__}_{index}_{tensor_index}th_output"
        found: torch.Tensor = _InspectActivation.apply(  # type: ignore[no-untyped-call]
            name, index, run_ctx, tensor, self.module_post_forward_impl, self.module_pre_backward_impl
        )
        return found

    def module_post_forward_impl(self, activation: Any, depth: int, name: str, step: int) -> None:
        """Write about what was computed."""
        self._write(activation, depth, name, step, "forward")

    def module_pre_backward_impl(self, activation: Any, depth: int, name: str, step: int) -> None:
        """Write about its gradient."""
        self._write(activation, depth, name, step, "backward")

    def _write(self, tensor: torch.Tensor | None, depth: int, name: str, step: int, way: str) -> None:
        if tensor is None or _subscriber_manager.ORT_NO_INCREASE_GLOBAL_STEP[0]:
            return
        folder = self._folder / f"step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "order.txt").open("a", encoding="utf-8") as order:
            order.write(f"{name}_{way}\n")
        text = summary(f"{'>' * max(0, depth)}{name} {way} run", tensor.cpu() if self._run_on_cpu else tensor)
        (folder / f"{name}_{way}").write_text(text, encoding="utf-8")


class _FolderExistsError(OnwardError, FileExistsError):
    pass


def summary(title: str, tensor: torch.Tensor) -> str:
    """The statistics of a tensor as text."""
    flat = tensor.flatten()
    exact = flat.double() if not flat.is_complex() else flat.abs().double()
    counts = {
        "neg": (exact < 0).sum(),
        "pos": (exact > 0).sum(),
        "zero": (exact == 0).sum(),
    }
    smallest, largest = (exact.min(), exact.max()) if flat.numel() else (float("nan"), float("nan"))
    deviation = exact.std() if flat.numel() > 1 else float("nan")
    return (
        f"{title} shape: {tuple(tensor.shape)} dtype: {tensor.dtype} size: {flat.numel()} \n"
        f"min: {float(smallest):.6g} max: {float(largest):.6g}, mean: {float(exact.mean()):.6g}, "
        f"std: {float(deviation):.6g} \n"
        f"nan: {int(exact.isnan().sum())}, inf: {int(exact.isinf().sum())}\n"
        f"samples(top {_SAMPLES}): {flat[:_SAMPLES].tolist()}\n"
        + ", ".join(f"{what}: {int(count)}" for what, count in counts.items())
        + f",\n{'=' * 16}\n"
    )
