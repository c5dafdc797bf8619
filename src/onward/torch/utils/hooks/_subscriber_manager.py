"""Subscribers as hooks of torch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from onward.errors import OnwardError
from onward.torch.ortmodule.ortmodule import ORTModule
from onward.torch.orttrainer.refusal import InvalidValueError
from onward.torch.utils.hooks._subscriber_base import RuntimeStates, SubscriberBase
from onward.torch.utils.torch_io_helper import extract_data_and_schema, unflatten_data_using_schema

ORT_NO_INCREASE_GLOBAL_STEP = [False]


@contextlib.contextmanager
def no_increase_global_step() -> Iterator[None]:
    """Calls that are no steps: they are not counted, and nothing is written about them."""
    before = ORT_NO_INCREASE_GLOBAL_STEP[0]
    ORT_NO_INCREASE_GLOBAL_STEP[0] = True
    try:
        yield
    finally:
        ORT_NO_INCREASE_GLOBAL_STEP[0] = before


class _OfTheClassToo:
    """A method; called of the class, it is that of `GlobalSubscriberManager`, which was the only one up to 1.15."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method, self.__doc__ = method, method.__doc__

    def __get__(self, manager: SubscriberManager | None, owner: type) -> Callable[..., Any]:
        return functools.partial(self._method, GlobalSubscriberManager if manager is None else manager)


class SubscriberManager:
    """Lets subscribers see the layers of a module. Each call of the whole module is a step."""

    def __init__(self) -> None:
        self._run_ctx = RuntimeStates()
        self._handles: list[RemovableHandle] = []

    @property
    def _subscribers(self) -> list[SubscriberBase]:
        return self._run_ctx.global_states.subscribers

    @_OfTheClassToo
    def subscribe(self, module: nn.Module, subscribers: Sequence[SubscriberBase]) -> None:
        """Let these, and no others, see a module from now on; steps are counted from 0 again.

        An ORTModule around it leaves it to torch: hooks are Python, which graphs have not.
        """
        if not isinstance(module, nn.Module):
            raise InvalidValueError("module must be a torch.nn.Module instance")
        if not subscribers:
            raise OnwardError("No subscribers are registered.")
        for subscriber in subscribers:
            if not isinstance(subscriber, SubscriberBase):
                raise InvalidValueError("subscriber must be a SubscriberBase instance")
        for handle in self._handles:
            handle.remove()
        self._handles, self._run_ctx = [], RuntimeStates()
        self._subscribers.extend(dict.fromkeys(subscribers))
        root = module.module if isinstance(module, ORTModule) else module
        self._handles.append(root.register_forward_pre_hook(self._before_all, with_kwargs=True))
        self._register(root, depth=1)
        self._handles.append(root.register_forward_hook(self._after_all))

    def get_subscriber(self, subscriber_type: type) -> SubscriberBase:
        """The subscriber of a class."""
        for subscriber in self._subscribers:
            if isinstance(subscriber, subscriber_type):
                return subscriber
        raise OnwardError(f"Subscriber {subscriber_type} is not registered.")

    def get_run_context(self) -> RuntimeStates:
        """What subscribers are told."""
        return self._run_ctx

    def _register(self, module: nn.Module, depth: int) -> None:
        states = self._run_ctx.global_states
        index = len(states.module_to_module_index)
        states.module_to_module_index[module] = index
        states.module_index_to_depth[index] = depth
        for child in module.children():
            if child not in states.module_to_module_index:
                self._register(child, depth + 1)
        self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
        self._handles.append(module.register_forward_hook(self._after))

    def _running(self, module: nn.Module) -> list[SubscriberBase]:
        # A copy of the module has the hooks, too; it is another one.
        known = module in self._run_ctx.global_states.module_to_module_index
        return [subscriber for subscriber in self._subscribers if known and subscriber.runs(self._run_ctx)]

    def _before_all(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for subscriber in self._running(module):
            args, kwargs = subscriber.pre_forward_outmost_module_apply_impl(self._run_ctx, module, args, kwargs)
        return tuple(args), dict(kwargs)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for subscriber in self._running(module):
            args, kwargs = subscriber.pre_forward_module_apply_impl(self._run_ctx, module, args, kwargs)
            if _overrides(subscriber, "pre_forward_tensor_apply_impl"):
                tensors, schema = extract_data_and_schema((tuple(args), dict(kwargs)))
                seen = [
                    subscriber.pre_forward_tensor_apply_impl(self._run_ctx, module, index, tensor)
                    for index, tensor in enumerate(tensors)
                ]
                args, kwargs = unflatten_data_using_schema(seen, schema)
        return tuple(args), dict(kwargs)

    def _after(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        for subscriber in self._running(module):
            _, outputs = subscriber.post_forward_module_apply_impl(self._run_ctx, module, args, outputs)
            if _overrides(subscriber, "post_forward_tensor_apply_impl"):
                outputs = self._with_seen_tensors(subscriber, module, outputs)
        return outputs

    def _with_seen_tensors(self, subscriber: SubscriberBase, module: nn.Module, outputs: Any) -> Any:
        tensors, schema = extract_data_and_schema(outputs)
        seen: list[torch.Tensor] = [
            subscriber.post_forward_tensor_apply_impl(self._run_ctx, module, index, tensor)
            for index, tensor in enumerate(tensors)
        ]
        return unflatten_data_using_schema(seen, schema)

    def _after_all(self, module: nn.Module, args: Any, outputs: Any) -> Any:
        for subscriber in self._running(module):
            _, outputs = subscriber.post_forward_outmost_module_apply_impl(self._run_ctx, module, args, outputs)
        if module in self._run_ctx.global_states.module_to_module_index and not ORT_NO_INCREASE_GLOBAL_STEP[0]:
            self._run_ctx.global_states.execution_step += 1
        return outputs


GlobalSubscriberManager = SubscriberManager()


def _overrides(subscriber: SubscriberBase, method: str) -> bool:
    return getattr(type(subscriber), method) is not getattr(SubscriberBase, method)
