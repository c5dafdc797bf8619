"""What each input and output of a generated graph is for.

The roles are stored in the model's metadata as JSON, so that any program, in any language, can drive the graph without
guessing from names. Pure Python: the device runtime reads it without onnx.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

METADATA_KEY = "onward.signature"
_VERSION = 1


class Role(str, Enum):
    """The purpose of one graph input or output."""

    INPUT = "input"  # what the model itself takes
    TARGET = "target"  # what the loss takes besides
    PARAMETER = "parameter"  # trained
    BUFFER = "buffer"  # changed by the forward pass, not by the optimizer: running statistics
    SLOT = "slot"  # state of the optimizer that belongs to one parameter
    GRADIENT = "gradient"
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
                "initial": self.initial,
                "parameters": self.parameters,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Signature:
        content = json.loads(text)
        return cls(
            kind=content["kind"],
            inputs={name: Role(role) for name, role in content["inputs"].items()},
            outputs={name: Role(role) for name, role in content["outputs"].items()},
            links=content["links"],
            slots=content["slots"],
            initial=content.get("initial", {}),
            parameters=content.get("parameters", []),
        )
