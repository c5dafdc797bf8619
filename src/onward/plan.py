"""How an optimizer is applied to the parameters of a state: small graphs over flat chunks, and their state.

The plan is stored in the metadata of the optimizer model. Pure Python: the device runtime reads it without onnx.
"""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass

METADATA_KEY = "onward.update_plan"
_VERSION = 1

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
        content = json.loads(text)
        return cls(
            optimizer=content["optimizer"],
            learning_rate=content["learning_rate"],
            elementwise=content["elementwise"],
            slots={name: SlotPlan(**slot) for name, slot in content["slots"].items()},
            kernels=tuple(Kernel(tuple(k["parameters"]), base64.b64decode(k["model"])) for k in content["kernels"]),
            norm=None if content["norm"] is None else base64.b64decode(content["norm"]),
        )


def _text(model: bytes) -> str:
    return base64.b64encode(model).decode("ascii")
