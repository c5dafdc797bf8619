"""`ORTModule`: a torch module whose forward and backward passes run on stock onnxruntime."""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from onward.torch.ortmodule._execution import TorchModule
from onward.torch.ortmodule._fallback import ORTModuleFallbackException, ORTModuleTorchModelException
from onward.torch.ortmodule._logger import logger_of
from onward.torch.ortmodule.options import DebugOptions, RuntimeOptions
from onward.torch.ortmodule.runner import Runner, require_one_device

_OWN = frozenset({"_module", "_runner", "_torch_module"})
# accelerate keeps the forward that it replaces there, and looks for it in the dictionary of the very object.
_ABOUT_THE_WRAPPER = frozenset({"_original_forward"})
# Libraries write down which class of model these are called on, or look into it: the module's.
_OF_THE_MODULE = frozenset({"generate", "push_to_hub", "save_pretrained"})
# Methods of torch that ORTModule has of its own, or that work on the tensors which it shares with the module.
_OF_TORCH = ("buffers", "load_state_dict", "named_buffers", "named_parameters", "parameters", "state_dict", "zero_grad")
_WITHOUT = "_without_operators"  # in a class that has the operators of a module: the one without
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class ORTModule(nn.Module):
    """A module that computes what `module` does, and its gradients, on onnxruntime.

    It is exported when it is first called, and again for calls of another kind: other types, ranks or structures of
    arguments, other modes, other attributes. Parameters and buffers are those of `module`, under the same names. What
    cannot be exported, or turns out to compute something else, torch runs, after a warning that says why.

    Args:
        module: the module.
        debug_options: what to log and which graphs to write to files.
    """

    def __new__(cls, module: nn.Module, debug_options: DebugOptions | None = None) -> ORTModule:
        return _blank(cls, type(module.module if isinstance(module, ORTModule) else module))

    def __init__(self, module: nn.Module, debug_options: DebugOptions | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"an ORTModule is made of a torch.nn.Module, not of {type(module).__name__}")
        if debug_options is not None and not isinstance(debug_options, DebugOptions):
            raise TypeError(f"debug_options must be DebugOptions, not {type(debug_options).__name__}")
        if isinstance(module, ORTModule):
            module = module.module
        self._attach(module, debug_options or DebugOptions(), RuntimeOptions())
        runner = self._runner
        try:
            require_one_device(module)
            if isinstance(module, nn.DataParallel):
                raise ORTModuleTorchModelException(
                    "ORTModule is not compatible with torch.nn.DataParallel. Wrap the ORTModule in "
                    "torch.nn.parallel.DistributedDataParallel instead."
                )
        except ORTModuleFallbackException as error:
            runner.reason = error
            if not runner.policy.leaves_to_torch(error):
                raise
        _warn_of_collisions(module, logger_of(type(module).__name__, runner.options.log_level))

    def _attach(self, module: nn.Module, options: DebugOptions, runtime: RuntimeOptions) -> None:
        self.__dict__["_module"] = module
        super().__init__()
        self.__dict__ |= {
            # The very dictionaries of the module: what torch does with names and tensors, it does with the module's.
            **{name: getattr(module, name) for name in _SHARED},
            "_runner": Runner(module, options, runtime),
            "_torch_module": TorchModule(self),
            "forward": _forward_of(self, module),
        }

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        found: nn.Module = self.__dict__["_module"]
        return found

    @property
    def __class__(self) -> type:
        """The class of the module: libraries ask what they may do with a model by `isinstance`. `type` is ORTModule."""
        return type(self.__dict__.get("_module", self))

    @__class__.setter
    def __class__(self, kind: type) -> None:
        raise ORTModuleTorchModelException(
            f"ORTModule cannot become a {kind.__name__}: whatever changes the class of a module, as fully_shard does, "
            "changes what it computes, or the places of its parameters. Give it the module instead, which torch then "
            "runs; to train in several processes on onnxruntime, use DistributedDataParallel(ORTModule(module))"
        )

    @property
    def training(self) -> bool:
        """The mode of the module."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        module = self.module
        if "_runner" in self.__dict__:  # not while this object is being made
            module.training = mode

    def _is_training(self) -> bool:
        return self.training and torch.is_grad_enabled()

    # What runs.

    def runs_on_onnxruntime(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call with these arguments runs on onnxruntime; if not, torch runs it. Exports what is needed."""
        return self._runner.can(args, kwargs)

    # What torch asks of modules, where the shared dictionaries do not answer it.

    def __getattr__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            raise AttributeError(name)
        module = self.module
        method = _own_method(module, name)
        return getattr(module, name) if method is None else types.MethodType(method, self)

    def __setattr__(self, name: str, value: Any) -> None:
        if (
            name in _OWN
            or name in _SHARED
            or name in _ABOUT_THE_WRAPPER
            or "_runner" not in self.__dict__
            or name in self.__dict__
            or hasattr(type(self), name)
            # A method of the user is bound to this object; another one in its place is this object's, too.
            or _own_method(self.module, name) is not None
        ):
            object.__setattr__(self, name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__:
            object.__delattr__(self, name)
        else:
            delattr(self.module, name)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *dir(self.module)})

    def __getstate__(self) -> dict[str, Any]:
        left_out = {"forward", "_runner", "_torch_module", *_ABOUT_THE_WRAPPER, *_SHARED}
        kept = {name: value for name, value in self.__dict__.items() if name not in left_out}
        return {**kept, "_options": self._runner.options, "_runtime": self._runner.runtime}

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The inherited one and pickle do not agree on the class.
        return _blank, (vars(type(self)).get(_WITHOUT, type(self)), type(self.module)), self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        of_this = ("_module", "_options", "_runtime")
        self._attach(*(state[name] for name in of_this))
        self.__dict__ |= {name: value for name, value in state.items() if name not in of_this}

    def train(self, mode: bool = True) -> ORTModule:
        self.module.train(mode)
        return self

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def modules(self, remove_duplicate: bool = True) -> Iterator[nn.Module]:
        for _, module in self.named_modules(remove_duplicate=remove_duplicate):
            yield module

    def apply(self, fn: Callable[[nn.Module], None]) -> ORTModule:
        self.module.apply(fn)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # Called on behalf of a module around this one.
        self.module._load_from_state_dict(*args, **kwargs)

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.module._save_to_state_dict(*args, **kwargs)

    def _apply(self, *args: Any, **kwargs: Any) -> ORTModule:
        self.module._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        return self

    def add_module(self, name: str, module: nn.Module | None) -> None:
        raise ORTModuleTorchModelException("ORTModule does not support adding modules to it; add them to `.module`.")

    def register_module(self, name: str, module: nn.Module | None) -> None:
        self.add_module(name, module)

    def _replicate_for_data_parallel(self) -> Any:
        raise ORTModuleTorchModelException(
            "ORTModule is not compatible with torch.nn.DataParallel. Use torch.nn.parallel.DistributedDataParallel."
        )

    def _get_name(self) -> str:
        """The module's: Hugging Face's Trainer tells by it whose labels it has to shift."""
        return self.module._get_name()  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        return f"ORTModule({self.module!r})"

    def extra_repr(self) -> str:
        return self.module.extra_repr()


def _blank(kind: type[ORTModule], of: type) -> ORTModule:
    """An object for `__init__` or `__setstate__`, of a module of some class."""
    return object.__new__(_with_operators(kind, of))  # type: ignore[arg-type]  # of its instances it knows __hash__


@functools.cache
def _with_operators(kind: type[ORTModule], of: type) -> type[ORTModule]:
    """A class of the same name that has the operators of the module's: Python looks for them in classes only.

    Those of containers, `net[0]` and `len(net)`; that nothing else has them is how programs tell containers.
    """
    names = [name for name in dir(of) if name.startswith("__") and name.endswith("__") and not hasattr(nn.Module, name)]
    methods = {name: method for name in names if isinstance(method := getattr(of, name), types.FunctionType)}
    if not methods:
        return kind
    own = {name: _delegated(method) for name, method in methods.items()}
    return type(kind.__name__, (kind,), {**own, _WITHOUT: kind, "__module__": kind.__module__})


def _delegated(method: types.FunctionType) -> Callable[..., Any]:
    @functools.wraps(method)
    def delegated(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
        return method(self.module, *args, **kwargs)

    return delegated


def _forward_of(wrapper: ORTModule, module: nn.Module) -> Callable[..., Any]:
    """`forward` with the signature of the module's, as a method: libraries wrap its function, and bind that again."""

    def forward(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
        return self._runner(args, kwargs)

    # Not by functools.wraps: what unwraps it must not arrive at the module's own forward.
    forward.__doc__ = module.forward.__doc__
    given = inspect.signature(module.forward)
    own = inspect.Parameter("ort_module", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = given.replace(parameters=[own, *given.parameters.values()])  # type: ignore[attr-defined]
    return types.MethodType(forward, wrapper)


def _own_method(module: nn.Module, name: str) -> Callable[..., Any] | None:
    """A method that the user wrote; on the wrapper, its calls of `self(...)` run on onnxruntime, too."""
    if name in module.__dict__ or name.startswith("_") or name in _OF_THE_MODULE:
        return None
    found = inspect.getattr_static(type(module), name, None)
    if not isinstance(found, types.FunctionType) or hasattr(nn.Module, name):
        return None
    # `super()` and private names want an object of the class itself.
    return None if "__class__" in found.__code__.co_freevars else found


def _warn_of_collisions(module: nn.Module, logger: logging.Logger) -> None:
    names = [name for name in vars(module) if name in _OWN | {"module"}]
    names += [name for name in ("module",) if name in module._modules or hasattr(type(module), name)]
    names += [name for name in _OF_TORCH if getattr(type(module), name) is not getattr(nn.Module, name)]
    for name in sorted(set(names)):
        logger.warning(
            "%s's %s collides with ORTModule's attribute name. Of the ORTModule it is ORTModule's; use `.module.%s`",
            type(module).__name__,
            name,
            name,
        )
