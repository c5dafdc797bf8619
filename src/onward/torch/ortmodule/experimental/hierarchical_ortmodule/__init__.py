"""`HierarchicalORTModule`: onnxruntime for those parts of a module that can be exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from onward.torch.ortmodule.options import DebugOptions
from onward.torch.ortmodule.ortmodule import ORTModule
from onward.torch.ortmodule.rehearsal import shadow

__all__ = ["HierarchicalORTModule"]

_Calls = dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]]


class _IteratedORTModule(ORTModule):
    """The ORTModule of a part that is called several times, with arguments of different kinds: graphs for each."""


class HierarchicalORTModule(nn.Module):
    """A module whose parts run on onnxruntime: the largest that can be exported, each an ORTModule of its own.

    Which ones that are, the first call shows. What is left runs in torch, without a warning.
    """

    def __init__(self, module: nn.Module, debug_options: DebugOptions | None = None) -> None:
        super().__init__()
        self._original_module = module
        self._options = debug_options
        self._is_divided = False

    @property
    def module(self) -> nn.Module:
        """The module itself, its parts wrapped."""
        return self._original_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_divided:
            calls = _calls(self._original_module, args, kwargs)
            self._original_module = self._divided(self._original_module, "", calls)
            self._is_divided = True
        return self._original_module(*args, **kwargs)

    def _divided(self, module: nn.Module, path: str, calls: _Calls) -> nn.Module:
        if path in calls:  # nobody calls containers, a ModuleList for instance
            kind = ORTModule if len(calls[path]) == 1 else _IteratedORTModule
            wrapped = kind(module, self._options)
            if all(wrapped.runs_on_onnxruntime(*args, **kwargs) for args, kwargs in calls[path]):
                return wrapped
        for name, child in list(module.named_children()):
            setattr(module, name, self._divided(child, f"{path}.{name}" if path else name, calls))
        return module

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original_module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self._original_module.load_state_dict(*args, **kwargs)


def _calls(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Calls:
    """What each part is called with when the module is, once for each kind of arguments."""
    copy, found, kinds = shadow(module), _Calls(), set[tuple[str, str]]()

    def record(name: str) -> Any:
        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kind = str([_kind(leaf) for leaf in pytree.tree_leaves((args, kwargs))])
            if (name, kind) not in kinds:
                kinds.add((name, kind))
                found.setdefault(name, []).append((args, kwargs))

        return before

    for name, child in copy.named_modules():
        child.register_forward_pre_hook(record(name), with_kwargs=True)
    with torch.random.fork_rng(devices=[]):
        copy(*args, **kwargs)
    return found


def _kind(leaf: Any) -> Any:
    return (leaf.dtype, leaf.ndim) if isinstance(leaf, torch.Tensor) else type(leaf)
