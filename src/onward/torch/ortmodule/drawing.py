"""Numbers that a module draws into a tensor, `torch.empty(n).bernoulli_(0.8)`, while it is exported.

Exporters write them by other numbers: those of a uniform distribution that are below 0.8. Here an operator takes their
place that says how they are drawn, and later an input that torch draws.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from onward.torch.ortmodule.dropout import DOMAIN, DRAWN, METHOD, NUMBERS

# Method of a tensor -> the names of its numbers, and what they are by default.
_METHODS: dict[str, dict[str, float]] = {
    "bernoulli_": {"p": 0.5},
    "exponential_": {"lambd": 1.0},
    "normal_": {"mean": 0.0, "std": 1.0},
    "uniform_": {"from": 0.0, "to": 1.0},
}


@contextlib.contextmanager
def drawing_is_told() -> Iterator[None]:
    """Let this thread note what it draws into tensors; what depends on data or on sizes is left as it is."""
    own = threading.get_ident()

    def noting(name: str) -> Any:
        draw = getattr(torch.Tensor, name)

        def noted(tensor: torch.Tensor, *args: Any, generator: Any = None, **options: Any) -> Any:
            numbers = {**_METHODS[name], **dict(zip(_METHODS[name], args, strict=False)), **options}
            plain = all(type(number) in (int, float) for number in numbers.values())
            if threading.get_ident() != own or generator is not None or not plain or len(numbers) < len(args):
                return draw(tensor, *args, generator=generator, **options)
            attributes: dict[str, Any] = {METHOD: name, NUMBERS: [float(number) for number in numbers.values()]}
            drawn = torch.onnx.ops.symbolic(
                f"{DOMAIN}::{DRAWN}", (tensor,), attributes, dtype=tensor.dtype, shape=tensor.shape, version=1
            )
            return tensor.copy_(drawn)

        return noted

    flip = torch.bernoulli

    def flipped(p: torch.Tensor, /, *args: Any, generator: Any = None, **options: Any) -> Any:
        if threading.get_ident() != own or generator is not None or len(args) + len(options) > 1 or "out" in options:
            return flip(p, *args, generator=generator, **options)
        if args or options:  # one probability for all; of the tensor only the shape counts
            return torch.empty_like(p).bernoulli_(*args, **options)
        # What torch does; the gradient of the probability is zero, not absent.
        return (torch.rand_like(p) < p).to(p.dtype) + p * 0

    if not hasattr(torch.onnx, "ops"):  # older releases of torch have no such operators
        yield
        return
    for name in _METHODS:
        setattr(torch.Tensor, name, noting(name))
    setattr(torch.Tensor, "bernoulli", flipped)  # noqa: B010
    setattr(torch, "bernoulli", flipped)  # noqa: B010  mypy does not let functions be assigned
    try:
        yield
    finally:
        setattr(torch, "bernoulli", flip)  # noqa: B010
        for name in (*_METHODS, "bernoulli"):
            delattr(torch.Tensor, name)  # there is the method of the class below again
