"""What each input and output of a generated graph is for.

The roles are stored in the model's metadata as JSON, so that any program, in any language, can drive the graph without
guessing from names. Pure Python: the device runtime reads it without onnx.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

from onward import document
from onward.document import Document

METADATA_KEY = "onward.signature"
# Nodes whose name begins so refuse what a graph must not take; the rest of the name says what it must be.
CHECK = "check: "
_VERSION = 1
_TITLE = "the signature of the model, which says what its inputs and outputs are for,"


class Role(str, Enum):
    """The purpose of one graph input or output."""

    INPUT = "input"  # what the model itself takes
    TARGET = "target"  # what the loss takes besides
    PARAMETER = "parameter"  # trained
    BUFFER = "buffer"  # changed by the forward pass, not by the optimizer: running statistics
    SLOT = "slot"  # state of the optimizer that belongs to one parameter
    FROZEN = "frozen"  # not trained, where it is an input nevertheless
    GRADIENT = "gradient"
    WEIGHT = "weight"  # what the gradients of this pass are multiplied with
    ACTIVATION = "activation"  # what a forward graph keeps for the backward graph that belongs to it
    RESET = "reset"  # whether gradients replace (true) or join (false) what the gradient buffers hold
    LEARNING_RATE = "learning_rate"
    STEP = "step"  # the number of this update, from 1
    SEED = "seed"  # of what the graph draws at random
    PASS = "pass"  # the number of this forward and backward pass: each draws other numbers
    LOSS = "loss"
    OUTPUT = "output"
    FLAG = "flag"


@dataclass(frozen=True)
class Signature:
    """Roles of all inputs and outputs of a graph.

    `links` says what a value belongs to: the parameter of a gradient or of a slot, and for every output that is the
    next value of a state, the input that it replaces in the next step.
    """

    kind: str
    inputs: dict[str, Role]
    outputs: dict[str, Role]
    links: dict[str, str] = field(default_factory=dict)
    slots: dict[str, float] = field(default_factory=dict)  # initial value of each kind of slot
    kinds: dict[str, str] = field(default_factory=dict)  # of each slot, where slots are inputs of their own
    # State inputs of which every element begins as this number: slots and seeds. The others begin as in the model.
    initial: dict[str, float] = field(default_factory=dict)
    parameters: list[str] = field(default_factory=list)  # all of the checkpoint, frozen ones too, in the model's order

    def input_names(self, *roles: Role) -> list[str]:
        return [name for name, role in self.inputs.items() if role in roles]

    def output_names(self, *roles: Role) -> list[str]:
        return [name for name, role in self.outputs.items() if role in roles]

    def to_json(self) -> str:
        return json.dumps(
            {
                "version": _VERSION,
                "kind": self.kind,
                "inputs": {name: role.value for name, role in self.inputs.items()},
                "outputs": {name: role.value for name, role in self.outputs.items()},
                "links": self.links,
                "slots": self.slots,
                "kinds": self.kinds,
                "initial": self.initial,
                "parameters": self.parameters,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Read a signature of any origin; what is damaged or makes no sense is refused here, not where it is used."""
        content = document.parse(text, _TITLE)
        content.require_version(_VERSION)
        signature = cls(
            kind=content.text("kind"),
            inputs=content.mapping("inputs", _role),
            outputs=content.mapping("outputs", _role),
            links=content.mapping("links", Document.text),
            slots=content.mapping("slots", Document.number),
            kinds=content.mapping("kinds", Document.text) if "kinds" in content else {},
            initial=content.mapping("initial", Document.number) if "initial" in content else {},
            parameters=content.texts("parameters") if "parameters" in content else [],
        )
        for values in (signature.inputs, signature.outputs):
            for name, role in values.items():
                if role is Role.GRADIENT and name not in signature.links:
                    raise content.damaged(f"it does not say what the gradient {name!r} belongs to")
        for name in signature.output_names(Role.BUFFER):
            if signature.inputs.get(signature.links.get(name, "")) is not Role.BUFFER:
                raise content.damaged(f"it does not say which buffer {name!r} replaces")
        return signature


def _role(content: Document, name: str) -> Role:
    role = content.text(name)
    if role not in set(Role):
        raise content.damaged(f"{role!r} is not a role that a value can have")
    return Role(role)
