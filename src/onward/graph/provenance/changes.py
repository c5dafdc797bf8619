"""What an exporter changed, in words."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

import onnx_ir as ir

Use = tuple[ir.Node, int]

EXPORT = "onward.torch.export(module, args, path)"
_LONGEST = 6


@dataclass(frozen=True)
class Changes:
    """What an exporter made of the parameters of a module.

    Attributes:
        shared: each tensor that stands for several parameters -> these by name, the one that it is called after first,
            and where each is used.
        lost: parameters that no tensor holds: biases that were zero, and those that others were computed from.
        untied: parameters that are several tensors now, which training would move apart.
        folded_norms: modules whose BatchNormalization was folded into the layer before.
        frozen_norms: modules that normalise by the batch in torch, and by their running statistics in the file.
        padded: tables of embeddings with a row for padding, which torch does not train.
        renamed: tensors that hold a weight under another name, transposed or reshaped.
        remedy: how to export instead.
    """

    shared: dict[ir.Value, dict[str, list[Use]]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    untied: dict[str, list[str]] = field(default_factory=dict)
    folded_norms: list[str] = field(default_factory=list)
    frozen_norms: list[str] = field(default_factory=list)
    padded: list[str] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    remedy: str = ""

    def __bool__(self) -> bool:
        """Whether training the file would train another model than torch had."""
        return bool(self.shared or self.lost or self.untied or self.folded_norms or self.frozen_norms or self.padded)

    def among(self, trained: Collection[str]) -> Changes:
        """Without what does not matter as long as only these tensors are trained."""
        return replace(
            self,
            shared={value: names for value, names in self.shared.items() if value.name in trained},
            lost=[],
            untied={name: copies for name, copies in self.untied.items() if any(copy in trained for copy in copies)},
            folded_norms=[],
            padded=[name for name in self.padded if name in trained],
        )

    def sentences(self) -> list[str]:
        """A sentence for each kind of change."""
        said = []
        if self.shared:
            count = sum(len(names) for names in self.shared.values())
            names = max(self.shared.values(), key=len)
            said.append(
                f"{count} parameters of equal values were merged into {_counted(len(self.shared), 'tensor')}, which "
                f"keeps them equal: {_listed(names)} are one"
            )
        if self.lost:
            gone = _counted(len(self.lost), "parameter")
            were = "was" if len(self.lost) == 1 else "were"
            said.append(f"{gone} {were} dropped or computed into others, and cannot be trained: {_listed(self.lost)}")
        if self.untied:
            name, copies = next(iter(self.untied.items()))
            said.append(f"tied parameters were copied and would drift apart: {name} is {_listed(copies)}")
        if self.folded_norms:
            said.append(f"BatchNorm was folded into the layer before it: {_listed(self.folded_norms)}")
        if self.frozen_norms:
            said.append(
                "BatchNorm was in training mode, and is written in inference mode, so that its running statistics stay "
                f"as they are: {_listed(self.frozen_norms)}"
            )
        if self.padded:
            said.append(
                "the row of an embedding that stands for padding is trained, which torch does not do: "
                f"{_listed(self.padded)}"
            )
        return [f"{words[:1].upper()}{words[1:]}." for words in said]

    def message(self) -> str:
        """All of it, and what to do."""
        return " ".join(["torch's exporter changed the model.", *self.sentences(), self.advice()])

    def advice(self) -> str:
        """What to do."""
        if not self.shared:
            return f"{self.remedy}."
        return (
            f"{self.remedy}. Merged parameters get tensors of their own again by separate_shared=True of "
            "Trainer, generate_artifacts and training_step."
        )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LONGEST} more" if len(listed) > _LONGEST else ""
    return ", ".join(listed[:_LONGEST]) + more
