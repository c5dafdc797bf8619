"""How torch's older exporter, the second one that is tried, writes operators of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch.onnx.utils import register_custom_op_symbolic

from onward.errors import OnwardError

_Symbolic = Callable[..., Any]


class CustomOpSymbolicRegistry:
    """Functions that write an operator, by its name in torch."""

    _SYMBOLICS: ClassVar[dict[str, _Symbolic]] = {}

    @classmethod
    def register(cls, name: str, domain: str, fn: _Symbolic) -> None:
        """Let a function write ``domain::name`` from now on, in all opsets."""
        qualified = f"{domain}::{name}"
        cls._SYMBOLICS[qualified] = fn
        register_custom_op_symbolic(qualified, fn, 1)

    @classmethod
    def register_all(cls, onnx_opset_version: int | None = None) -> None:
        """Register all of them again."""
        for qualified, fn in cls._SYMBOLICS.items():
            register_custom_op_symbolic(qualified, fn, onnx_opset_version or 1)


def register_symbolic(
    name: str, domain: str = "aten", torch_version_start: str | None = None, torch_version_end: str | None = None
) -> Callable[[_Symbolic], _Symbolic]:
    """Declare the function that follows to write an operator of torch.

    `torch.export` is tried first, and does not ask it: it is for what only the older exporter can write.
    """
    if torch_version_start is not None or torch_version_end is not None:
        raise OnwardError("register_symbolic takes no releases of torch here: compare torch.__version__ around it")

    def register(fn: _Symbolic) -> _Symbolic:
        CustomOpSymbolicRegistry.register(name, domain or "aten", fn)
        return fn

    return register
