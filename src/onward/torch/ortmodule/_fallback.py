"""When torch takes over: the exceptions that lead there, and the policy that says which of them do.

The names are those of `onnxruntime.training.ortmodule._fallback`.
"""

from __future__ import annotations

import os
from enum import IntFlag

from onward.errors import OnwardError, OnwardWarning

POLICY_VARIABLE = "ORTMODULE_FALLBACK_POLICY"
RETRY_VARIABLE = "ORTMODULE_FALLBACK_RETRY"


class FallbackWarning(OnwardWarning):
    """torch runs a module, or some calls of it, in place of onnxruntime."""


class ORTModuleFallbackException(OnwardError):  # noqa: N818  the original's name
    """Why a module cannot run on onnxruntime."""


class ORTModuleInitException(ORTModuleFallbackException):
    """Something that ORTModule needs is not installed."""


class ORTModuleDeviceException(ORTModuleFallbackException):
    """Parameters or inputs are where ORTModule cannot use them."""


class ORTModuleIOError(ORTModuleFallbackException):
    """Arguments or results of `forward` are of a kind that graphs do not have."""


class ORTModuleTorchModelException(ORTModuleFallbackException):
    """The module does what a graph cannot."""


class AttributesChanged(ORTModuleTorchModelException):
    """The first calls of a module change its attributes; later ones may not."""


class ORTModuleONNXModelException(ORTModuleFallbackException):
    """torch could not export the module, or its graph cannot be differentiated or run."""


class _FallbackPolicy(IntFlag):
    """What is left to torch, by what went wrong."""

    FALLBACK_DISABLE = 1
    FALLBACK_FORCE_TORCH_FORWARD = 2
    FALLBACK_FORCE_TORCH_BACKWARD = 4
    FALLBACK_UNSUPPORTED_DEVICE = 8
    FALLBACK_UNSUPPORTED_DATA = 16
    FALLBACK_UNSUPPORTED_TORCH_MODEL = 32
    FALLBACK_UNSUPPORTED_ONNX_MODEL = 64
    FALLBACK_BAD_INITIALIZATION = 128

    def is_set(self, policy: _FallbackPolicy) -> bool:
        """Whether all of `policy` is part of this one."""
        return policy in self

    def is_disabled(self) -> bool:
        """Whether everything is raised."""
        return _FallbackPolicy.FALLBACK_DISABLE in self

    def leaves_to_torch(self, error: ORTModuleFallbackException) -> bool:
        """Whether torch runs the module after this error."""
        if self.is_disabled():
            return False
        forced = _FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD | _FallbackPolicy.FALLBACK_FORCE_TORCH_BACKWARD
        return bool(self & forced) or any(kind in _POLICIES and _POLICIES[kind] in self for kind in type(error).__mro__)


_POLICIES: dict[type[ORTModuleFallbackException], _FallbackPolicy] = {
    ORTModuleFallbackException: _FallbackPolicy.FALLBACK_FORCE_TORCH_FORWARD,
    ORTModuleInitException: _FallbackPolicy.FALLBACK_BAD_INITIALIZATION,
    ORTModuleDeviceException: _FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE,
    ORTModuleIOError: _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA,
    ORTModuleTorchModelException: _FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL,
    ORTModuleONNXModelException: _FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL,
}
ORTMODULE_FALLBACK_POLICY = (
    _FallbackPolicy.FALLBACK_UNSUPPORTED_DEVICE
    | _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    | _FallbackPolicy.FALLBACK_UNSUPPORTED_TORCH_MODEL
    | _FallbackPolicy.FALLBACK_UNSUPPORTED_ONNX_MODEL
)


def policy_of_environment() -> _FallbackPolicy:
    """The policy that `ORTMODULE_FALLBACK_POLICY` names, one or several joined by ``|``; or the default."""
    text = os.environ.get(POLICY_VARIABLE, "").strip()
    if not text:
        return ORTMODULE_FALLBACK_POLICY
    policy = _FallbackPolicy(0)
    for name in text.split("|"):
        if name.strip() not in _FallbackPolicy.__members__:
            raise OnwardError(
                f"{POLICY_VARIABLE} is {text!r}; it takes {', '.join(_FallbackPolicy.__members__)}, or several of them "
                "joined by |"
            )
        policy |= _FallbackPolicy[name.strip()]
    return policy


def without_frames(error: ORTModuleFallbackException) -> ORTModuleFallbackException:
    """The error, in place, without what was going on: it is kept, and there were arguments and copies of the module."""
    found: BaseException | None = error
    while found is not None and found.__traceback__ is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


def retries() -> bool:
    """Whether `ORTMODULE_FALLBACK_RETRY` asks to try again at every call what has failed before."""
    return os.environ.get(RETRY_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
