"""Which graphs run a call of a module: those that are there, new ones, or none, and then torch does."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from onward.errors import OnwardError, warn
from onward.torch.ortmodule._fallback import (
    AttributesChanged,
    FallbackWarning,
    ORTModuleDeviceException,
    ORTModuleFallbackException,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    policy_of_environment,
    retries,
    without_frames,
)
from onward.torch.ortmodule._logger import logger_of
from onward.torch.ortmodule.call import DTYPES, Call, Caller, Sizes
from onward.torch.ortmodule.construction import build
from onward.torch.ortmodule.fingerprint import Fingerprint
from onward.torch.ortmodule.fixing import FixedTensors
from onward.torch.ortmodule.options import DebugOptions, LogLevel, RuntimeOptions
from onward.torch.ortmodule.plan import Plan
from onward.torch.ortmodule.precision import autocast_type, rehearse_call
from onward.torch.ortmodule.surroundings import apart, is_followed
from onward.torch.room import give_back

# Beyond as many graphs, a module is one that each call makes a new graph of, which takes seconds: torch is faster.
_MOST_PLANS = 32
# In succession: modules may write down at their first calls what they have found out, and whenever a sequence is longer
# than all before, more of a table.
_UNSETTLED_CALLS = 4
_FAILED_SIZES = 2  # of no others: what fails for these, which takes seconds each, is not tried for each batch
_VERIFIED_SIZES = 2  # a graph is compared with torch for the first sizes, and for the first other ones

# Graphs, or why there are none; empty if the call is to be seen as one of another kind.
Found = Plan | ORTModuleFallbackException | tuple[()]


class Runner:
    """Runs the calls of one module.

    Attributes:
        module: the module.
        options: what to log and which graphs to write to files.
        runtime: how to export and to run.
        policy: what is left to torch.
        signature: that of the module's `forward`.
        plans: graphs, or why there are none, by kinds of calls and then by sizes.
        latest: the graphs that ran last, by whether they are of training.
        state: the module at its last call, and a number for all states that the same graphs serve.
        reason: why torch runs some calls, as it was said; an exception if it runs all of them.
    """

    def __init__(self, module: nn.Module, options: DebugOptions, runtime: RuntimeOptions) -> None:
        self.module, self.options, self.runtime = module, options, runtime
        self.policy = policy_of_environment()
        self.signature = inspect.signature(module.forward)
        self.plans: dict[Hashable, dict[Sizes, Found]] = {}
        self.latest: dict[bool, Plan] = {}
        self.state: tuple[Fingerprint, int] | None = None
        self.reason: ORTModuleFallbackException | str | None = None
        self._states: dict[Hashable, int] = {}
        self._numbers: dict[Hashable, int | float] = {}
        self._unsettled = 0
        self._fixed = FixedTensors()
        self._caller = Caller(self.signature, self._fixed)
        self._lock = threading.RLock()

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the module returns for these arguments."""
        if is_followed(args, kwargs):
            return self.module(*args, **kwargs)
        try:
            if isinstance(self.reason, ORTModuleFallbackException):
                raise without_frames(self.reason)
            return self._run_graph(args, kwargs)
        except ORTModuleFallbackException as error:
            self._leave_to_torch(error)
            without_frames(error)
            return self.module(*args, **kwargs)

    def can(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether onnxruntime runs a call with these arguments; exports what is needed."""
        try:
            self._find(args, kwargs)
        except ORTModuleFallbackException as error:
            without_frames(error)
            return False
        return True

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Plan, Call, Fingerprint, Hashable]:
        call = self._caller.call(args, kwargs)
        state, kind = self._current_state()
        flags = self._fixed.values(self.module)
        key = (call.key, kind, flags, torch.is_grad_enabled(), torch.get_default_dtype(), autocast_type())
        found = self.plans.get(key, {}).get(call.sizes)
        if isinstance(found, Plan):
            return found, call, state, key
        _require_usable(call, state)
        plan = self._plan(key, call)
        # Empty if a number has turned out to vary, or a decision to be made by one; then the call is another one.
        return self._find(args, kwargs) if isinstance(plan, tuple) else (plan, call, state, key)

    def _current_state(self) -> tuple[Fingerprint, int]:
        """The module as it is, and a number for all states that the same graphs serve."""
        last = self.state
        if last is None or not last[0].is_current():
            if any(map(is_lazy, (*self.module.parameters(), *self.module.buffers()))):
                raise AttributesChanged("its tensors get their sizes when it is called for the first time")
            found = Fingerprint(self.module)
            last = found, self._states.setdefault(found.key, len(self._states))
            self.state = last
        return last

    def _run_graph(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan, call, state, key = self._find(args, kwargs)
        self.latest[plan.is_training] = plan
        try:
            if call.sizes not in plan.verified and len(plan.verified) < _VERIFIED_SIZES:
                self._verify_again(plan, call)
            return plan(call, state)
        except ORTModuleFallbackException as error:
            self.plans[key][call.sizes] = error
            raise
        except OnwardError as error:
            # Either torch says what is wrong with the arguments, or it goes on where onnxruntime cannot.
            raise ORTModuleONNXModelException(str(error)) from error

    def _plan(self, key: Hashable, call: Call) -> Plan | tuple[()]:
        """The plan for this call, a new one if there is none."""
        by_sizes = self.plans.setdefault(key, {})
        with self._lock:
            found = by_sizes.get(call.sizes)  # another thread may have made it meanwhile
            if found is None or (retries() and not isinstance(found, Plan)):
                with apart():
                    found = by_sizes[call.sizes] = self._new_plan(by_sizes, call)
        if isinstance(found, ORTModuleFallbackException):
            raise found
        if found == ():
            del by_sizes[call.sizes]
        return found

    def _new_plan(self, by_sizes: dict[Sizes, Found], call: Call) -> Found:
        for other in by_sizes.values():
            if isinstance(other, Plan) and other.guards.accept(call.sizes):
                return other
        if self._learn_numbers(call) or self._fixed.has_too_many(self.module, call):
            return ()
        failures = [
            other
            for other in by_sizes.values()
            if isinstance(other, ORTModuleFallbackException) and not isinstance(other, AttributesChanged)
        ]
        if len(failures) == len(by_sizes) >= _FAILED_SIZES and not retries():
            return failures[-1]
        if len({id(plan) for plans in self.plans.values() for plan in plans.values()}) >= _MOST_PLANS:
            return ORTModuleTorchModelException(
                f"each of {_MOST_PLANS} calls needed a graph of its own: sizes, numbers or attributes that the module "
                "makes decisions with are different each time"
            )
        logger = logger_of(type(self.module).__name__, self.options.log_level)
        logger.info("exporting %s", type(self.module).__name__)
        if self.options.log_level <= LogLevel.INFO:
            _warn_of_constants(call)
        try:
            known = any(isinstance(other, Plan) for other in by_sizes.values())
            call = replace(call, flags=self._fixed.flags)
            plan = build(self.module, self.signature, call, self.options, self.runtime, any_image=known)
            spans = ", ".join(f"{what} {seconds:.2f} s" for what, seconds in plan.seconds.items())
            logger.info("made graphs of %s: %s", type(self.module).__name__, spans)
            logger.debug("%s written by %s, for sizes %s", type(self.module).__name__, plan.exporter, plan.guards)
            self._unsettled = 0
            return plan
        except AttributesChanged as error:
            self._unsettled += 1
            if self._unsettled > _UNSETTLED_CALLS:
                self.reason = error
            return error
        except ORTModuleONNXModelException as error:
            return () if self._fixed.fix(self.module, self.signature, call) else error
        except ORTModuleFallbackException as error:
            return error
        finally:
            give_back()

    def _learn_numbers(self, call: Call) -> bool:
        """Whether a number among the arguments is seen to vary now; it is data from then on."""
        varies = False
        for place, number in call.numbers.items():
            if self._numbers.setdefault(place, number) != number and place not in self._caller.varying:
                self._caller.varying.add(place)
                varies = True
        return varies

    def _verify_again(self, plan: Plan, call: Call) -> None:
        with apart():
            plan.verify(rehearse_call(self.module, self.signature, call), Fingerprint(self.module))
        give_back()

    def _leave_to_torch(self, error: ORTModuleFallbackException) -> None:
        if isinstance(error, AttributesChanged) and self.reason is None:
            return
        if not self.policy.leaves_to_torch(error):
            raise error
        if self.reason is None or retries() or (self.reason is error and not getattr(error, "_said", False)):
            error._said = True  # type: ignore[attr-defined]
            if self.reason is None:
                self.reason = str(error)
            warn(
                f"Fallback to PyTorch due to exception: torch runs {type(self.module).__name__} where ORTModule "
                f"cannot: {type(error).__name__}: {error}. "
                "Results are the same. ORTMODULE_FALLBACK_POLICY=FALLBACK_DISABLE raises an error instead.",
                FallbackWarning,
            )


def _warn_of_constants(call: Call) -> None:
    kinds = [type(leaf) for place, leaf in enumerate(call.leaves) if place not in call.places and leaf is not None]
    for kind in dict.fromkeys(kinds):
        warn(
            f"Received input of type {kind} which may be treated as a constant by ORT by default. "
            "Each value of it may need graphs of its own: numbers become data when they change, nothing else does"
        )


def _several_devices(devices: set[torch.device]) -> ORTModuleDeviceException:
    error = ORTModuleDeviceException("ORTModule supports a single device per model")
    error.add_note(f"This one is on {', '.join(sorted(map(str, devices)))}.")
    return error


def require_one_device(module: nn.Module) -> None:
    """Refuse a module whose tensors are on several devices."""
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
