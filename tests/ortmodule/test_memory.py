"""Steps take no more memory than the first ones, and the comparison with torch leaves none behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from onward.torch import ORTModule
from onward.torch.room import give_back

STATUS = Path("/proc/self/status")
_KIB = 1024


def resident() -> int:
    """MiB of this process."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // _KIB


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read as Linux tells it")
@pytest.mark.parametrize("steps", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_memory_is_flat(steps: int) -> None:
    """What a step keeps is half a MiB, so that it would show if one of four tensors were not given back."""
    torch.manual_seed(0)
    module = ORTModule(
        nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(16 * 196, 10)
        )
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def train(steps: int) -> None:
        for index in range(steps):
            # Sizes alternate, and the mode does now and then.
            x = torch.randn(8 if index % 3 else 12, 1, 16, 16)
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()
            if index % 100 == 0:
                with torch.no_grad():
                    module.eval()(x)
                module.train()

    train(100)
    before = resident()
    train(steps)
    assert resident() - before < 32


@pytest.mark.skipif(not STATUS.exists(), reason="memory is read as Linux tells it")
def test_what_was_freed_is_given_back() -> None:
    """Blocks of 64 KiB, which come from the heap, below others that are still in use."""
    blocks = [torch.ones(1 << 14) for _ in range(1600)]
    kept = [torch.ones(1 << 14) for _ in range(8)]
    before = resident()
    del blocks
    give_back()
    assert before - resident() > 80
    assert all(map(torch.all, kept))


def test_a_first_call_gives_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("onward.torch.ortmodule.runner.give_back", lambda: calls.append(1))
    module = ORTModule(nn.Linear(2, 2))
    module(torch.ones(3, 2))
    assert calls == [1]
    module(torch.ones(3, 2))
    assert calls == [1]
    module(torch.ones(4, 2))  # another size is compared with torch, too
    assert calls == [1, 1]
