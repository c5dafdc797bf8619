"""`ORTModule`: a torch module whose forward and backward passes run on stock onnxruntime."""

from __future__ import annotations

import inspect
import logging
import threading
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch
from torch import nn

from onward.errors import OnwardError, OnwardWarning, warn
from onward.torch.ortmodule._execution import TorchModule
from onward.torch.ortmodule._fallback import (
    AttributesChanged,
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    policy_of_environment,
    retries,
    without_frames,
)
from onward.torch.ortmodule._logger import logger_of
from onward.torch.ortmodule.call import DTYPES, FLAT, Call, Caller
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.fixing import FixedTensors
from onward.torch.ortmodule.options import DebugOptions, LogLevel, RuntimeOptions
from onward.torch.ortmodule.plan import Plan, build
from onward.torch.ortmodule.precision import autocast_type, rehearse_call

# Beyond as many graphs, a module is one that each call makes a new graph of, which takes seconds: torch is faster.
_MOST_PLANS = 32
_UNSETTLED_CALLS = 2  # modules may write down at their first calls what they have found out
_FAILED_SIZES = 2  # of no others: what fails for these, which takes seconds each, is not tried for each batch
_VERIFIED_SIZES = 2  # a graph is compared with torch for the first sizes, and for the first other ones

_OWN = frozenset(
    {
        "_module",
        "_options",
        "_policy",
        "_plans",
        "_latest",
        "_caller",
        "_fixed",
        "_state",
        "_states",
        "_numbers",
        "_reason",
        "_unsettled",
        "_lock",
        "_signature",
        "_torch_module",
        "_runtime",
    }
)
# accelerate keeps the forward that it replaces there, and looks for it in the dictionary of the very object.
_ABOUT_THE_WRAPPER = frozenset({"_original_forward"})
# Libraries write down which class of model these are called on: the module's.
_OF_THE_MODULE = frozenset({"save_pretrained", "push_to_hub"})
# Methods of torch that ORTModule has of its own, or that work on the tensors which it shares with the module.
_OF_TORCH = ("buffers", "load_state_dict", "named_buffers", "named_parameters", "parameters", "state_dict", "zero_grad")
_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class FallbackWarning(OnwardWarning):
    """torch runs a module, or some calls of it, in place of onnxruntime."""


class ORTModule(nn.Module):
    """A module that computes what `module` does, and its gradients, on onnxruntime.

    It is exported when it is first called, and again for calls of another kind: other types, ranks or structures of
    arguments, other modes, other attributes. Parameters and buffers are those of `module`, under the same names. What
    cannot be exported, or turns out to compute something else, torch runs, after a warning that says why.

    Args:
        module: the module.
        debug_options: what to log and which graphs to write to files.
    """

    def __init__(self, module: nn.Module, debug_options: DebugOptions | None = None) -> None:
        if not isinstance(module, nn.Module):
            raise TypeError(f"an ORTModule is made of a torch.nn.Module, not of {type(module).__name__}")
        if debug_options is not None and not isinstance(debug_options, DebugOptions):
            raise TypeError(f"debug_options must be DebugOptions, not {type(debug_options).__name__}")
        if isinstance(module, ORTModule):
            module = module.module
        self._attach(module, debug_options or DebugOptions())
        try:
            _require_one_device(module)
            if isinstance(module, nn.DataParallel):
                raise ORTModuleTorchModelException(
                    "ORTModule is not compatible with torch.nn.DataParallel. Wrap the ORTModule in "
                    "torch.nn.parallel.DistributedDataParallel instead."
                )
        except ORTModuleFallbackException as error:
            self.__dict__["_reason"] = error
            if not self._policy.leaves_to_torch(error):
                raise
        _warn_of_collisions(module, logger_of(type(module).__name__, self._options.log_level))

    def _attach(self, module: nn.Module, options: DebugOptions) -> None:
        self.__dict__["_module"] = module
        super().__init__()
        self.__dict__ |= {
            # The very dictionaries of the module: what torch does with names and tensors, it does with the module's.
            **{name: getattr(module, name) for name in _SHARED},
            "_options": options,
            "_policy": policy_of_environment(),
            "_plans": {},
            "_latest": {},  # the one that ran last, by mode
            "_torch_module": TorchModule(self),
            "_state": None,  # of the module at its last call
            "_states": {},  # a number for each kind of it
            "_numbers": {},
            "_reason": None,
            "_unsettled": 0,
            "_lock": threading.RLock(),
            "_signature": inspect.signature(module.forward),
            "_runtime": RuntimeOptions(),
        }
        self.__dict__["_fixed"] = FixedTensors()
        self.__dict__["_caller"] = Caller(self._signature, self._fixed)
        self.__dict__["forward"] = _forward_of(self, module)

    @property
    def module(self) -> nn.Module:
        """The module itself."""
        found: nn.Module = self.__dict__["_module"]
        return found

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the module: libraries ask what they may do with a model by `isinstance`. `type` is ORTModule."""
        return type(self.__dict__.get("_module", self))

    @property
    def training(self) -> bool:
        """The mode of the module."""
        return self.module.training

    @training.setter
    def training(self, mode: bool) -> None:
        module = self.module
        if "_options" in self.__dict__:  # not while this object is being made
            module.training = mode

    def _is_training(self) -> bool:
        return self.training and torch.is_grad_enabled()

    # What runs.

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_followed(args, kwargs):
            return self.module(*args, **kwargs)
        try:
            if isinstance(self._reason, ORTModuleFallbackException):
                raise without_frames(self._reason)
            return self._run_graph(args, kwargs)
        except ORTModuleFallbackException as error:
            self._leave_to_torch(error)
            without_frames(error)
            return self.module(*args, **kwargs)

    def runs_on_onnxruntime(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a call with these arguments runs on onnxruntime; if not, torch runs it. Exports what is needed."""
        try:
            self._find(args, kwargs)
        except ORTModuleFallbackException as error:
            without_frames(error)
            return False
        return True

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, Call, Fingerprint, Hashable]:
        call = self._caller.call(args, kwargs)
        state, kind = self._current_state()
        key = (call.key, kind, torch.is_grad_enabled(), torch.get_default_dtype(), autocast_type())
        found = self._plans.get(key, {}).get(call.sizes)
        if isinstance(found, Plan):
            return found, call, state, key
        _require_usable(call, state)
        plan = self._plan(key, call)
        # Empty if a number has turned out to vary, or a decision to be made by one; then the call is another one.
        return self._find(args, kwargs) if isinstance(plan, tuple) else (plan, call, state, key)

    def _current_state(self) -> tuple[Fingerprint, int]:
        """The module as it is, and a number for all states that the same graphs serve."""
        last: tuple[Fingerprint, int] | None = self._state
        if last is None or not last[0].is_current():
            found = Fingerprint(self.module)
            last = found, self._states.setdefault(found.key, len(self._states))
            self.__dict__["_state"] = last
        return last

    def _run_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan, call, state, key = self._find(args, kwargs)
        self._latest[plan.is_training] = plan
        try:
            if call.sizes not in plan.verified and len(plan.verified) < _VERIFIED_SIZES:
                self._verify_again(plan, call)
            return plan(call, state)
        except ORTModuleFallbackException as error:
            self._plans[key][call.sizes] = error
            raise
        except OnwardError as error:
            # Either torch says what is wrong with the arguments, or it goes on where onnxruntime cannot.
            raise ORTModuleONNXModelException(str(error)) from error

    def _plan(self, key: Hashable, call: Call) -> Plan | tuple[()]:
        """The plan for this call, a new one if there is none."""
        by_sizes = self._plans.setdefault(key, {})
        found = by_sizes.get(call.sizes)
        if isinstance(found, Plan):
            return found
        with self._lock:
            if found is None or retries():
                found = by_sizes[call.sizes] = self._new_plan(by_sizes, call)
        if isinstance(found, ORTModuleFallbackException):
            raise found
        if found == ():
            del by_sizes[call.sizes]
        return found

    def _new_plan(
        self, by_sizes: dict[Any, Plan | ORTModuleFallbackException], call: Call
    ) -> Plan | ORTModuleFallbackException | tuple[()]:
        for other in by_sizes.values():
            if isinstance(other, Plan) and other.guards.accept(call.sizes):
                return other
        if self._learn_numbers(call) or self._fixed.has_too_many(call):
            return ()
        failures = [
            other
            for other in by_sizes.values()
            if isinstance(other, ORTModuleFallbackException) and not isinstance(other, AttributesChanged)
        ]
        if len(failures) == len(by_sizes) >= _FAILED_SIZES and not retries():
            return failures[-1]
        if len({id(plan) for plans in self._plans.values() for plan in plans.values()}) >= _MOST_PLANS:
            return ORTModuleTorchModelException(
                f"each of {_MOST_PLANS} calls needed a graph of its own: sizes, numbers or attributes that the module "
                "makes decisions with are different each time"
            )
        logger = logger_of(type(self.module).__name__, self._options.log_level)
        logger.info("exporting %s", type(self.module).__name__)
        if self._options.log_level <= LogLevel.INFO:
            _warn_of_constants(call)
        try:
            known = any(isinstance(other, Plan) for other in by_sizes.values())
            plan = build(self.module, self._signature, call, self._options, self._runtime, any_image=known)
            spans = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in plan.seconds.items())
            logger.info("made graphs of %s: %s", type(self.module).__name__, spans)
            logger.debug("%s written by %s, for sizes %s", type(self.module).__name__, plan.exporter, plan.guards)
            return plan
        except AttributesChanged as error:
            self.__dict__["_unsettled"] += 1
            if self._unsettled > _UNSETTLED_CALLS:
                self.__dict__["_reason"] = error
            return error
        except ORTModuleONNXModelException as error:
            return () if self._fixed.fix(self.module, self._signature, call) else error
        except ORTModuleFallbackException as error:
            return error

    def _learn_numbers(self, call: Call) -> bool:
        """Whether a number among the arguments is seen to vary now; it is data from then on."""
        varies = False
        for place, number in call.numbers.items():
            if self._numbers.setdefault(place, number) != number and place not in self._caller.varying:
                self._caller.varying.add(place)
                varies = True
        return varies

    def _verify_again(self, plan: Plan, call: Call) -> None:
        plan.verify(rehearse_call(self.module, self._signature, call), Fingerprint(self.module))

    def _leave_to_torch(self, error: ORTModuleFallbackException) -> None:
        if isinstance(error, AttributesChanged) and self._reason is None:
            return
        if not self._policy.leaves_to_torch(error):
            raise error
        if self.__dict__["_reason"] is None or (self._reason is error and not getattr(error, "_said", False)):
            error._said = True  # type: ignore[attr-defined]
            if self._reason is None:
                self.__dict__["_reason"] = str(error)
            warn(
                f"Fallback to PyTorch due to exception: torch runs {type(self.module).__name__} where ORTModule "
                f"cannot: {type(error).__name__}: {error}. "
                "Results are the same. ORTMODULE_FALLBACK_POLICY=FALLBACK_DISABLE raises an error instead.",
                FallbackWarning,
            )

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
            or "_options" not in self.__dict__
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
        left_out = {
            "forward",
            *_ABOUT_THE_WRAPPER,
            "_unsettled",
            "_plans",
            "_latest",
            "_torch_module",
            "_caller",
            "_fixed",
            "_state",
            "_states",
            "_numbers",
            "_lock",
            "_signature",
            "_reason",
            "_policy",
            *_SHARED,
        }
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __reduce_ex__(self, protocol: Any) -> Any:
        # The inherited one and pickle do not agree on the class.
        return _blank, (type(self),), self.__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._attach(state["_module"], state["_options"])
        self.__dict__ |= {name: value for name, value in state.items() if name not in ("_module", "_options")}

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
        return f"ORTModule({type(self.module).__name__})"

    def extra_repr(self) -> str:
        return self.module.extra_repr()


def _blank(kind: type[ORTModule]) -> ORTModule:
    """An object for `__setstate__`."""
    return kind.__new__(kind)


def _forward_of(wrapper: ORTModule, module: nn.Module) -> Callable[..., Any]:
    """`forward` with the signature of the module's, as a method: libraries wrap its function, and bind that again."""

    def forward(self: ORTModule, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs)

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


def _warn_of_constants(call: Call) -> None:
    kinds = [type(leaf) for place, leaf in enumerate(call.leaves) if place not in call.places and leaf is not None]
    for kind in dict.fromkeys(kinds):
        warn(
            f"Received input of type {kind} which may be treated as a constant by ORT by default. "
            "Each value of it may need graphs of its own: numbers become data when they change, nothing else does"
        )


def _is_followed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch is following the operations of a module around this one, to export or to compile it."""
    if torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._functorch.maybe_current_level() is not None:
        return True
    if FLAT.issuperset(map(type, args)) and FLAT.issuperset(map(type, kwargs.values())):
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    leaves = torch.utils._pytree.tree_leaves((args, kwargs))
    return any(isinstance(leaf, FakeTensor) for leaf in leaves)


def _several_devices(devices: set[torch.device]) -> ORTModuleDeviceException:
    error = ORTModuleDeviceException("ORTModule supports a single device per model")
    error.add_note(f"This one is on {', '.join(sorted(map(str, devices)))}.")
    return error


def _require_one_device(module: nn.Module) -> None:
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices) > 1:
        raise _several_devices(devices)


def _require_usable(call: Call, state: Fingerprint) -> None:
    """Refuse, before anything is exported, devices and types that graphs do not run on."""
    devices = {tensor.device for tensor in state.tensors}
    if len(devices) > 1:
        raise _several_devices(devices)
    for tensor in (*call.tensors, *state.tensors):
        if tensor.device.type != "cpu":
            if len(devices) == 1 and tensor.device not in devices:
                raise ORTModuleDeviceException(
                    f"Input argument to forward found on device {tensor.device}, "
                    f"but expected it to be on module device {next(iter(devices))}."
                )
            raise ORTModuleDeviceException(f"ORTModule runs on the CPU; there is a tensor on {tensor.device}")
        if tensor.layout is not torch.strided or tensor.dtype not in DTYPES:
            raise ORTModuleTorchModelException(f"there is a tensor of type {tensor.dtype}, {tensor.layout}")
