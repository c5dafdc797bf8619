"""How an optimizer is applied to the parameters of a state: small graphs over flat chunks, and their state.

The plan is stored in the metadata of the optimizer model. Pure Python: the device runtime reads it without onnx.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass

from onward import document
from onward.document import Document

METADATA_KEY = "onward.update_plan"
_VERSION = 1
_TITLE = "the update plan of the optimizer model"

# Inputs and outputs of an update kernel; a slot `mu` is the input `slot:mu` and the output `slot:mu.updated`.
PARAMETER, GRADIENT, LEARNING_RATE, STEP, GRAD_SCALE = "parameter", "gradient", "learning_rate", "step", "grad_scale"
SLOT, UPDATED = "slot:", ".updated"
# Input and output of the norm kernel.
COEFFICIENT = "coefficient"


@dataclass(frozen=True)
class SlotPlan:
    """See `onward.optim.Slot`."""

    initial: float
    scale: float


@dataclass(frozen=True)
class Kernel:
    """One graph, and the parameters that it updates."""

    parameters: tuple[str, ...]
    model: bytes


@dataclass(frozen=True)
class UpdatePlan:
    """What a runtime needs to apply an optimizer.

    Attributes:
        optimizer: its name.
        learning_rate: the one to start with.
        elementwise: whether kernels take any flat chunk of their parameters, or one whole parameter at a time.
        slots: the state of each parameter.
        kernels: every trained parameter belongs to one of them.
        norm: a graph from all gradients to the factor that they are multiplied with, if they are clipped together.
    """

    optimizer: str
    learning_rate: float
    elementwise: bool
    slots: dict[str, SlotPlan]
    kernels: tuple[Kernel, ...]
    norm: bytes | None = None

    def to_json(self) -> str:
        content = asdict(self)
        content["version"] = _VERSION
        for kernel in content["kernels"]:
            kernel["model"] = _text(kernel["model"])
        content["norm"] = None if self.norm is None else _text(self.norm)
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> UpdatePlan:
        """Read a plan of any origin."""
        content = document.parse(text, _TITLE)
        content.require_version(_VERSION)
        plan = cls(
            optimizer=content.text("optimizer"),
            learning_rate=content.number("learning_rate"),
            elementwise=content.flag("elementwise"),
            slots=content.mapping("slots", _slot),
            kernels=tuple(Kernel(tuple(k.texts("parameters")), _bytes(k, "model")) for k in content.list_of("kernels")),
            norm=_bytes(content, "norm") if content.has("norm") else None,
        )
        names = [name for kernel in plan.kernels for name in kernel.parameters]
        if len(set(names)) < len(names):
            raise content.damaged("a parameter would be updated twice")
        return plan


def _slot(content: Document, name: str) -> SlotPlan:
    slot = content.inside(name)
    return SlotPlan(initial=slot.number("initial"), scale=slot.number("scale"))


def _bytes(content: Document, key: str) -> bytes:
    try:
        return base64.b64decode(content.text(key), validate=True)
    except ValueError as error:
        raise content.damaged(f"{key!r} is no model ({error})") from error


def _text(model: bytes) -> str:
    return base64.b64encode(model).decode("ascii")
