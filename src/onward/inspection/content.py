"""What a report consists of: plain data, in the order in which it is printed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onward.inspection.render import html, text

# rule: a gradient rule of onward; custom rule: one that somebody registered with `onward.vjp`.
# straight-through: a rule that takes rounding for the identity.
# function: expanded by the function body of the standard; model function: by the one that the model brings along.
# rewritten: replaced by standard operators first (fused operators of onnxruntime).
# constant: no derivative flows through it. integer: refused, arithmetic on quantised integers. missing: no rule.
How = Literal[
    "rule",
    "custom rule",
    "straight-through",
    "function",
    "model function",
    "rewritten",
    "constant",
    "integer",
    "missing",
]

# model: cannot be read as it is (external data, invalid). opset: the runtime does not accept it.
# operator: no rule, or refused. rule: a rule says that it cannot. output, parameters: nothing to differentiate.
# type: it has a gradient, but nothing to run it.
Kind = Literal["model", "opset", "operator", "rule", "output", "parameters", "type"]

Dim = int | str | None


@dataclass(frozen=True)
class Versions:
    """The versions of the model, and those that the installed onnxruntime accepts."""

    opset: int
    ir_version: int
    domains: dict[str, int]
    newest_opset: int
    newest_ir_version: int
    training_opset: int | None  # of the graphs that onward makes from the model; None where it cannot

    @property
    def accepted(self) -> bool:
        """Whether the installed onnxruntime loads the model as it is."""
        return self.opset <= self.newest_opset and self.ir_version <= self.newest_ir_version


@dataclass(frozen=True)
class Input:
    """An input (or output) of the model; a dimension is a size, a symbol, or None where nothing is known of it."""

    name: str
    dtype: str
    shape: list[Dim] | None
    has_default: bool = False

    @property
    def dynamic(self) -> bool:
        """Whether its shape is decided by what is fed."""
        return self.shape is None or not all(isinstance(dim, int) for dim in self.shape)


@dataclass(frozen=True)
class Operator:
    """An operator, how often it occurs (in branches, loop bodies and model functions too), and how it is treated."""

    name: str
    count: int
    how: How
    blocks: bool  # whether a gradient would have to pass where it cannot


@dataclass(frozen=True)
class Blocker:
    """Why there is no gradient, or none that runs, where, and what to do about it."""

    kind: Kind
    reason: str
    remedy: str
    operator: str | None = None
    nodes: list[str] = field(default_factory=list)
    parameters: list[str] = field(default_factory=list)  # trainable ones whose gradient would have to pass here


@dataclass(frozen=True)
class Parameter:
    """A constant of the model, and whether training changes it."""

    name: str
    dtype: str
    shape: list[int]
    size: int
    nbytes: int
    trainable: bool
    reason: str
    source: str  # initializer, input with default, Constant node, subgraph, external data
    used_by: list[str]


@dataclass(frozen=True)
class Mode:
    """Whether a Dropout or BatchNormalization is in training mode, and what it does when onward trains."""

    node: str
    operator: str
    mode: Literal["training", "evaluation", "decided at run time"]
    effect: str


@dataclass(frozen=True)
class Flops:
    """Estimated floating-point operations of one training step; a multiplication with its addition counts as two.

    Attributes:
        dims: the size that each dynamic dimension was given, or taken to have.
        assumed: those of them that nobody gave.
        uncertain: operators that have a dimension which only data decides; it counts as 1.
        backward: None where there is no gradient.
    """

    forward: int
    backward: int | None
    optimizer: int
    dims: dict[str, int]
    assumed: list[str]
    uncertain: list[str]

    @property
    def total(self) -> int:
        """Of a whole step, as far as it is known."""
        return self.forward + (self.backward or 0) + self.optimizer


@dataclass(frozen=True)
class State:
    """Bytes that training keeps: what is trained, its gradients, the slots of the optimizer, and what stays frozen.

    `activations` are results of forward operators that the backward pass uses, for the sizes in `Flops.dims`.
    """

    parameters: int
    gradients: int
    optimizer: int
    frozen: int
    activations: int | None
    optimizer_name: str

    @property
    def total(self) -> int:
        """Of all but the activations."""
        return self.parameters + self.gradients + self.optimizer + self.frozen


@dataclass(frozen=True)
class Report:
    """What `onward.check` found; print it, or read its parts."""

    name: str
    versions: Versions
    inputs: list[Input]
    outputs: list[Input]
    differentiated: list[str]  # the outputs that gradients start from
    operators: list[Operator]
    blockers: list[Blocker]
    parameters: list[Parameter]
    modes: list[Mode]
    flops: Flops | None
    state: State
    notes: list[str]
    changes: list[str] = field(default_factory=list)  # what the exporter made of the model, and what to do about it

    @property
    def ok(self) -> bool:
        """Whether `onward.gradient` with the same arguments gives a model."""
        return not self.blockers

    @property
    def trainable(self) -> list[Parameter]:
        """The parameters that training changes."""
        return [parameter for parameter in self.parameters if parameter.trainable]

    @property
    def dynamic_dims(self) -> dict[str, list[str]]:
        """Symbol, or `input[axis]` for a dimension without one, -> the inputs and axes where it occurs."""
        places: dict[str, list[str]] = {}
        for value in self.inputs:
            for axis, dim in enumerate(value.shape or []):
                if not isinstance(dim, int):
                    place = f"{value.name}[{axis}]"
                    places.setdefault(dim or place, []).append(place)
        return places

    def to_dict(self) -> dict[str, Any]:
        """The report as dictionaries, lists, strings and numbers, as JSON has them."""
        return {"ok": self.ok, **asdict(self), "dynamic_dims": self.dynamic_dims}

    def text(self, limit: int | None = 12) -> str:
        """The report as aligned text, with at most `limit` lines in long lists (None: all)."""
        return text(self, limit)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html(self)
