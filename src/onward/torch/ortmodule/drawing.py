"""Numbers that a module draws into a tensor, `torch.empty(n).bernoulli_(0.8)`, or as whole ones, while it is exported.

Exporters write them by other numbers: those of a uniform distribution that are below 0.8. Here an operator takes their
place that says how they are drawn, and later an input that torch draws.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from onward.torch.ortmodule.dropout import DOMAIN, DRAWN, METHOD, NUMBERS, ORDER

# Method of a tensor -> the names of its numbers, and what they are by default.
_METHODS: dict[str, dict[str, float]] = {
    "bernoulli_": {"p": 0.5},
    "exponential_": {"lambd": 1.0},
    "normal_": {"mean": 0.0, "std": 1.0},
    "uniform_": {"from": 0.0, "to": 1.0},
    "random_": {"from": 0, "to": math.nan},
}
_OPTIONS = frozenset({"device", "dtype"})


@contextlib.contextmanager
def drawing_is_told() -> Iterator[None]:
    """Let this thread note what it draws into tensors; what depends on data or on sizes is left as it is."""
    own = threading.get_ident()

    def noting(name: str) -> Any:
        draw = getattr(torch.Tensor, name)

        def noted(tensor: torch.Tensor, *args: Any, generator: Any = None, **options: Any) -> Any:
            if name == "random_" and len(args) == 1 and not options:
                args = (0, *args)  # it is the upper bound
            numbers = {**_METHODS[name], **dict(zip(_METHODS[name], args, strict=False)), **options}
            plain = all(type(number) in (int, float) and number == number for number in numbers.values())
            if threading.get_ident() != own or generator is not None or not plain or len(numbers) < len(args):
                return draw(tensor, *args, generator=generator, **options)
            return tensor.copy_(_drawn(tensor, name, list(numbers.values())))

        return noted

    spread = torch.normal

    def normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Any:
        if threading.get_ident() != own or generator is not None or not options.keys() <= _OPTIONS:
            return spread(mean, std, *([] if size is None else [size]), generator=generator, **options)
        if size is not None:
            return torch.empty(size, **options).normal_(mean, std)
        with torch.no_grad():
            return torch.empty_like(mean + std).normal_() * std + mean

    pick, pick_like, order = torch.randint, torch.randint_like, torch.randperm

    def picked(*args: Any, generator: Any = None, **options: Any) -> Any:
        *bounds, size = args if "size" not in options else (*args, options["size"])
        low, high = options.get("low", 0), options.get("high")
        left = options.keys() - {"size", "low", "high"}
        if high is None and bounds:
            *first, high = bounds
            low = first[0] if first else low
        elif bounds:
            low = bounds[0]
        if threading.get_ident() != own or generator is not None or not left <= _OPTIONS or not _are_known(low, high):
            return pick(*args, generator=generator, **options)
        made = torch.empty(size, **{"dtype": torch.int64, **{name: options[name] for name in left}})
        return made.random_(low, high)

    def picked_like(like: torch.Tensor, *bounds: Any, **options: Any) -> Any:
        low, high = options.get("low", 0), options.get("high")
        left = options.keys() - {"low", "high"}
        if bounds:
            low, high = (low, *bounds)[-2:] if high is None else (bounds[0], high)
        if threading.get_ident() != own or not left <= _OPTIONS or not _are_known(low, high):
            return pick_like(like, *bounds, **options)
        return torch.empty_like(like, **{name: options[name] for name in left}).random_(low, high)

    def ordered(n: Any, **options: Any) -> Any:
        if threading.get_ident() != own or options:
            return order(n, **options)
        return _drawn(torch.empty(n, dtype=torch.int64), ORDER, [])

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
    functions = {"bernoulli": flip, "normal": spread, "randint": pick, "randint_like": pick_like, "randperm": order}
    others = {
        "bernoulli": flipped,
        "normal": normal,
        "randint": picked,
        "randint_like": picked_like,
        "randperm": ordered,
    }
    for name, function in others.items():
        setattr(torch, name, function)
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(torch, name, function)
        for name in (*_METHODS, "bernoulli"):
            delattr(torch.Tensor, name)  # there is the method of the class below again


def _drawn(like: torch.Tensor, method: str, numbers: Sequence[float]) -> torch.Tensor:
    """What is drawn, as an operator that says how."""
    attributes: dict[str, Any] = {METHOD: method}
    if numbers:
        attributes[NUMBERS] = [float(number) for number in numbers]
    found: torch.Tensor = torch.onnx.ops.symbolic(
        f"{DOMAIN}::{DRAWN}", (like,), attributes, dtype=like.dtype, shape=like.shape, version=1
    )
    return found


def _are_known(*bounds: Any) -> bool:
    return all(type(bound) is int for bound in bounds)
