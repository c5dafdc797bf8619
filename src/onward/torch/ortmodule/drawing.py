"""Numbers that a module draws into a tensor, `torch.empty(n).bernoulli_(0.8)`, or as whole ones, while it is exported.

Exporters write them by other numbers: those of a uniform distribution that are below 0.8. Here an operator takes their
place that says how they are drawn, and later an input that torch draws.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
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


_FUNCTIONS = ("bernoulli", "normal", "randint", "randint_like", "randperm")


@contextlib.contextmanager
def drawing_is_told() -> Iterator[None]:
    """Let this thread note what it draws into tensors; what depends on data or on sizes is left as it is."""
    if not hasattr(torch.onnx, "ops"):  # older releases of torch have no such operators
        yield
        return
    telling = _Telling()
    functions = {name: getattr(torch, name) for name in _FUNCTIONS}
    for name in _METHODS:
        setattr(torch.Tensor, name, telling.method(name))
    # A function, which becomes a method of the tensor.
    setattr(torch.Tensor, "bernoulli", lambda p, *args, **options: telling.bernoulli(p, *args, **options))  # noqa: B010
    for name in _FUNCTIONS:
        setattr(torch, name, getattr(telling, name))
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(torch, name, function)
        for name in (*_METHODS, "bernoulli"):
            delattr(torch.Tensor, name)  # there is the method of the class below again


class _Telling:
    """torch's own functions, but what one thread draws by them is an operator that says how."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._torch = SimpleNamespace(**{name: getattr(torch, name) for name in _FUNCTIONS})

    def _is_told(self, generator: Any = None) -> bool:
        """Whether a call is that thread's, and draws from torch's own generator."""
        return threading.get_ident() == self._thread and generator is None

    def method(self, name: str) -> Callable[..., torch.Tensor]:
        draw = getattr(torch.Tensor, name)

        def noted(tensor: torch.Tensor, *args: Any, generator: Any = None, **options: Any) -> torch.Tensor:
            if name == "random_" and len(args) == 1 and not options:
                args = (0, *args)  # it is the upper bound
            numbers = {**_METHODS[name], **dict(zip(_METHODS[name], args, strict=False)), **options}
            plain = all(type(number) in (int, float) and number == number for number in numbers.values())
            if not self._is_told(generator) or not plain or len(numbers) < len(args):
                left: torch.Tensor = draw(tensor, *args, generator=generator, **options)
                return left
            return tensor.copy_(_drawn(tensor, name, list(numbers.values())))

        return noted

    def bernoulli(self, p: torch.Tensor, /, *args: Any, generator: Any = None, **options: Any) -> Any:
        if not self._is_told(generator) or len(args) + len(options) > 1 or "out" in options:
            return self._torch.bernoulli(p, *args, generator=generator, **options)
        if args or options:  # one probability for all; of the tensor only the shape counts
            return torch.empty_like(p).bernoulli_(*args, **options)
        # What torch does; the gradient of the probability is zero, not absent.
        return (torch.rand_like(p) < p).to(p.dtype) + p * 0

    def normal(self, mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, **options: Any) -> Any:
        if not self._is_told(generator) or not options.keys() <= _OPTIONS:
            return self._torch.normal(mean, std, *([] if size is None else [size]), generator=generator, **options)
        if size is not None:
            return torch.empty(size, **options).normal_(mean, std)
        with torch.no_grad():
            return torch.empty_like(mean + std).normal_() * std + mean

    def randint(self, *args: Any, generator: Any = None, **options: Any) -> Any:
        *bounds, size = args if "size" not in options else (*args, options["size"])
        low, high = _bounds(bounds, options)
        left = options.keys() - {"size", "low", "high"}
        if not self._is_told(generator) or not left <= _OPTIONS or not _are_known(low, high):
            return self._torch.randint(*args, generator=generator, **options)
        made = torch.empty(size, **{"dtype": torch.int64, **{name: options[name] for name in left}})
        return made.random_(low, high)

    def randint_like(self, like: torch.Tensor, *bounds: Any, **options: Any) -> Any:
        low, high = _bounds(bounds, options)
        left = options.keys() - {"low", "high"}
        if not self._is_told() or not left <= _OPTIONS or not _are_known(low, high):
            return self._torch.randint_like(like, *bounds, **options)
        return torch.empty_like(like, **{name: options[name] for name in left}).random_(low, high)

    def randperm(self, n: Any, *, generator: Any = None, **options: Any) -> Any:
        is_plain = options.keys() <= _OPTIONS and options.get("dtype", torch.int64) is torch.int64
        if not self._is_told(generator) or not is_plain:
            return self._torch.randperm(n, generator=generator, **options)
        return _drawn(torch.empty(n, dtype=torch.int64), ORDER, [])


def _bounds(given: Sequence[Any], options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The bounds of whole numbers: one of them is the upper one, unless that has its name."""
    low, high = options.get("low", 0), options.get("high")
    if not given:
        return low, high
    return (given[0], high) if high is not None else (given[0] if len(given) > 1 else low, given[-1])


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
