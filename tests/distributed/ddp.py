"""ORTModule in torch's DistributedDataParallel: scenarios for two processes, and for one on all rows.

Usage, by torchrun: ddp.py <folder>.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from onward.torch import ORTModule


class Net(nn.Module):
    """Two ways through it; parameters that only one of them uses, and that none does."""

    def __init__(self, *, batch_norm: bool = False, unused: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16) if batch_norm else nn.LayerNorm(16)
        self.left, self.right = nn.Linear(16, 4), nn.Linear(16, 4)
        self.register_buffer("scale", torch.ones(()))
        if unused:
            self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, way: str = "both") -> torch.Tensor:
        hidden = torch.relu(self.norm(self.first(x))) * self.scale
        if way == "left":
            return self.left(hidden)
        return self.left(hidden) + self.right(hidden) if way == "both" else self.right(hidden)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator)


def made(**options: bool) -> Net:
    torch.manual_seed(0 if not dist.is_initialized() else dist.get_rank())  # DDP broadcasts those of rank 0
    net = Net(**options)
    if dist.is_initialized():
        net.scale.fill_(1.0 - 0.5 * dist.get_rank())
    return net


def wrapped(net: Net, **options: Any) -> nn.Module:
    """The module as it trains: alone, or with others."""
    module = ORTModule(net)
    return DistributedDataParallel(module, **options) if dist.is_initialized() else module


def mine(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of this process."""
    return tensor.chunk(2)[dist.get_rank()] if dist.is_initialized() else tensor


def parameters(net: nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().numpy().copy() for name, tensor in net.state_dict().items()}


def gradients(net: nn.Module) -> dict[str, Any]:
    return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in net.named_parameters()}


def steps(net: Net, *, count: int = 5, halves: bool = False, **options: Any) -> dict[str, Any]:
    """Outputs, the first gradients, and parameters after some steps of Adam; one process may add two halves up."""
    x, y = data()
    module = wrapped(net, **options)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    found: dict[str, Any] = {}
    for step in range(count):
        optimizer.zero_grad()
        parts = [slice(0, 16), slice(16, 32)] if halves else [slice(None)]
        for part in parts:
            scores = module(mine(x)[part])
            (nn.functional.cross_entropy(scores, mine(y)[part]) / len(parts)).backward()
        if step == 0:
            found = {"outputs": scores.detach().numpy().copy(), "gradients": gradients(net)}
        optimizer.step()
    return {**found, "parameters": parameters(net)}


def joined() -> Any:
    """With gradients that are views of what is exchanged, and hooks that look at them."""
    net = made()
    seen: list[str] = []
    for name, parameter in net.named_parameters():
        parameter.register_hook(lambda g, name=name: seen.append(name))
        parameter.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    found = steps(net, halves=not dist.is_initialized(), gradient_as_bucket_view=True)
    return {**found, "seen": seen}


def unused() -> Any:
    return steps(made(unused=True), find_unused_parameters=True)


def unused_here() -> Any:
    """Each process uses parameters that the other does not."""
    x, y = data()
    net = made()
    module = wrapped(net, find_unused_parameters=True)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ways = ["left", "right"]
        if dist.is_initialized():
            nn.functional.cross_entropy(module(mine(x), ways[dist.get_rank()]), mine(y)).backward()
        else:
            for way, rows, labels in zip(ways, x.chunk(2), y.chunk(2), strict=True):
                (nn.functional.cross_entropy(module(rows, way), labels) / 2).backward()
        optimizer.step()
    return parameters(net)


def accumulated() -> Any:
    """Two passes for each step, the first without exchange of gradients."""
    x, y = data()
    net = made()
    module = wrapped(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        for index, part in enumerate((slice(0, None, 2), slice(1, None, 2))):
            quiet = module.no_sync() if index == 0 and dist.is_initialized() else contextlib.nullcontext()
            with quiet:  # type: ignore[attr-defined]
                (nn.functional.cross_entropy(module(mine(x)[part]), mine(y)[part]) / 2).backward()
        optimizer.step()
    return parameters(net)


def buffers() -> Any:
    """Running statistics are those of rank 0 at the beginning of each pass, as in torch."""
    x, y = data()
    found = []
    for wrap in (ORTModule, lambda net: net):
        net = made(batch_norm=True)
        inner = wrap(net)
        module = DistributedDataParallel(inner) if dist.is_initialized() else inner
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(mine(x)), mine(y)).backward()
            optimizer.step()
        module(mine(x))  # which broadcasts them before
        found.append(parameters(net))
    return found


SCENARIOS: dict[str, Callable[[], Any]] = {
    function.__name__: function for function in (joined, unused, unused_here, accumulated, buffers)
}


def main(folder: Path) -> None:
    warnings.simplefilter("error")  # that torch runs a module in place of onnxruntime is one
    dist.init_process_group("gloo")
    found = {name: run() for name, run in SCENARIOS.items()}
    (folder / f"rank{dist.get_rank()}.pickle").write_bytes(pickle.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
