"""ORTModule in torch's DistributedDataParallel: scenarios for two processes, for one on all rows, and of torch alone.

Modules are exported once: a scenario sets parameters and buffers to what they were at first.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from onward.torch import ORTModule

# What DistributedDataParallel is asked for, and whether gradients of two passes are added up before they are exchanged.
OPTIONS: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, False),
    "many buckets": ({"bucket_cap_mb": 1e-4}, False),
    "find_unused_parameters": ({"find_unused_parameters": True}, False),
    "gradient_as_bucket_view": ({"gradient_as_bucket_view": True}, False),
    "static_graph": ({"static_graph": True}, False),
    "static_graph, gradient_as_bucket_view": ({"static_graph": True, "gradient_as_bucket_view": True}, False),
    "no_sync": ({}, True),
    "no_sync, gradient_as_bucket_view": ({"gradient_as_bucket_view": True}, True),
    "no_sync, find_unused_parameters": ({"find_unused_parameters": True}, True),
    "no_sync, static_graph": ({"static_graph": True}, True),
}


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


def net_of(**options: bool) -> Net:
    torch.manual_seed(0 if not dist.is_initialized() else dist.get_rank())  # DDP broadcasts those of rank 0
    net = Net(**options)
    if dist.is_initialized():
        net.scale.fill_(1.0 - 0.5 * dist.get_rank())
    return net


@functools.cache
def exported(**options: bool) -> ORTModule:
    return ORTModule(net_of(**options))


def made(**options: bool) -> ORTModule:
    """A module as it was at first."""
    module = exported(**options)
    module.load_state_dict(net_of(**options).state_dict())
    module.zero_grad(set_to_none=True)
    return module


def wrapped(module: nn.Module, **options: Any) -> nn.Module:
    """The module as it trains: alone, or with others."""
    return DistributedDataParallel(module, **options) if dist.is_initialized() else module


def mine(tensor: torch.Tensor) -> torch.Tensor:
    """The rows of this process."""
    return tensor.chunk(2)[dist.get_rank()] if dist.is_initialized() else tensor


def parameters(net: nn.Module) -> dict[str, Any]:
    return {name: tensor.detach().numpy().copy() for name, tensor in net.state_dict().items()}


def gradients(net: nn.Module) -> dict[str, Any]:
    return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in net.named_parameters()}


def steps(net: nn.Module, *, halves: bool = False, **options: Any) -> dict[str, Any]:
    """Outputs, the first gradients, and parameters after some steps of Adam; one process may add two halves up."""
    x, y = data()
    module = wrapped(net, **options)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    found: dict[str, Any] = {}
    for step in range(5):
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
    hooks = []
    for name, parameter in net.named_parameters():
        hooks.append(parameter.register_hook(lambda g, name=name: seen.append(name)))
        hooks.append(parameter.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated")))
    found = steps(net, halves=not dist.is_initialized(), gradient_as_bucket_view=True)
    for hook in hooks:
        hook.remove()
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


def accumulated(net: nn.Module | None = None, *, apart: bool = True, **options: Any) -> Any:
    """Two passes for each step, the first without exchange of gradients; or one over all rows."""
    x, y = data()
    net = made() if net is None else net
    module = wrapped(net, **options)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    parts = [slice(0, None, 2), slice(1, None, 2)] if apart else [slice(None)]
    first: dict[str, Any] = {}
    begin = 1 if "static_graph" in options else 0  # torch fails where the first pass of a static graph is one of these
    for step in range(4):
        optimizer.zero_grad()
        for part in parts:
            apart_from_others = step >= begin and part is not parts[-1] and dist.is_initialized()
            with module.no_sync() if apart_from_others else contextlib.nullcontext():  # type: ignore[operator]
                (nn.functional.cross_entropy(module(mine(x)[part]), mine(y)[part]) / len(parts)).backward()
        first = first or gradients(net)
        optimizer.step()
    return {**parameters(net), **{f"gradient of {name}": g for name, g in first.items()}}


def options_of_torch() -> Any:
    """With each option, on onnxruntime and in plain torch; a layer that is not used where torch allows it."""
    found = {}
    for title, (options, apart) in OPTIONS.items():
        kind = {"unused": "find_unused_parameters" in options or "static_graph" in options}
        found[title] = [accumulated(net, apart=apart, **options) for net in (made(**kind), net_of(**kind))]
    return found


def buffers() -> Any:
    """Running statistics are those of rank 0 at the beginning of each pass, as in torch."""
    x, y = data()
    found = []
    for net in (made(batch_norm=True), net_of(batch_norm=True)):
        module = wrapped(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(mine(x)), mine(y)).backward()
            optimizer.step()
        module(mine(x))  # which broadcasts them before
        found.append(parameters(net))
    return found


def outside() -> Any:
    """DistributedDataParallel inside the ORTModule, or in a part of it: what it warns of, and what torch computes."""
    x, y = data()
    found = []
    for wrap in (lambda net: wrapped(net), lambda net: ORTModule(wrapped(net)), lambda net: ORTModule(part_of(net))):
        net = net_of()
        module = wrap(net)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            nn.functional.cross_entropy(module(mine(x)), mine(y)).backward()
        found.append((gradients(net), " ".join(str(each.message) for each in said)))
    return found


def part_of(net: nn.Module) -> nn.Module:
    return nn.Sequential(wrapped(net), nn.Identity())


MODULES: dict[str, Callable[[], Any]] = {
    function.__name__: function
    for function in (joined, unused, unused_here, accumulated, options_of_torch, buffers, outside)
}
