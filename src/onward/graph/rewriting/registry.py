"""How rewriters are declared, domain by domain, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, describe, input_at

Outputs = ir.Value | Sequence[ir.Value | None]
Function = Callable[[Builder, ir.Node], Outputs]


class RefusedError(Exception):
    """This node cannot be rewritten. It stays as it is, and the message is shown if a derivative has to pass it."""


@dataclass(frozen=True)
class Rewriter:
    """What an operator is in terms of standard ones: a function ``(op, node) -> outputs``, and what it leaves out."""

    function: Function
    reads: frozenset[str]
    only: Mapping[str, int | float | str] = field(default_factory=dict)
    without: Mapping[int, str] = field(default_factory=dict)
    needs: str = ""

    def limits(self) -> str:
        """What a model may not use, for documents."""
        attributes = [f"`{name}` other than {value!r}" for name, value in self.only.items()]
        inputs = [f"input `{name}`" for name in self.without.values()]
        return "; ".join([*attributes, *inputs, *([self.needs] if self.needs else [])])


DOMAINS: dict[str, Domain] = {}


@dataclass(frozen=True)
class Domain:
    """A domain whose operators are rewritten to standard ones.

    Attributes:
        name: as models import it.
        advice: what to do about a node that its rewriter refuses.
        others: what to say of operators that neither a rewriter nor a refusal is for; None to say nothing.
        rewriters: what operators are in terms of standard ones.
        refused: operators that no rewriter is for, and what to do about them.
    """

    name: str
    advice: str = ""
    others: str | None = None
    rewriters: dict[str, Rewriter] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        DOMAINS[self.name] = self

    def rewrites(
        self,
        *op_types: str,
        reads: str = "",
        only: Mapping[str, int | float | str] | None = None,
        without: Mapping[int, str] | None = None,
        needs: str = "",
    ) -> Callable[[Function], Function]:
        """Declare what operators are in terms of standard ones.

        Args:
            op_types: operators of the domain.
            reads: the attributes that the function honours, or that do not change what is computed.
            only: attributes that may have no other value than this one.
            without: inputs, by index, that may not be given.
            needs: what else is refused, for documents; the function itself raises RefusedError.
        """

        def register(function: Function) -> Function:
            entry = Rewriter(function, frozenset(reads.split()), only or {}, without or {}, needs)
            self.rewriters.update(dict.fromkeys(op_types, entry))
            return function

        return register

    def refuses(self, op_types: str, remedy: str) -> None:
        """Declare operators, named in one string, that no rewriter is for, and what to do about them."""
        self.refused.update(dict.fromkeys(op_types.split(), remedy))


def rewriter_of(node: ir.Node) -> Rewriter | None:
    """What the operator of a node is in terms of standard ones, where that is known."""
    domain = DOMAINS.get(node.domain)
    return None if domain is None else domain.rewriters.get(node.op_type)


def refuse_what_is_left_out(node: ir.Node, rewriter: Rewriter) -> None:
    """Raise RefusedError if a node uses what its rewriter does not know."""
    for name in node.attributes:
        value = attribute(node, name, None)
        if name in rewriter.only:
            if value != rewriter.only[name]:
                raise RefusedError(f"its attribute {name} is {value!r}, and only {rewriter.only[name]!r} is supported")
        elif name not in rewriter.reads:
            raise RefusedError(f"its attribute {name} is not known")
    for index, name in rewriter.without.items():
        if input_at(node, index) is not None:
            raise RefusedError(f"its input {name} (number {index}) is not supported")


_REFUSAL = "onward.refused"


def note_refusal(node: ir.Node, reason: str) -> None:
    """Remember, also across files, why a node was not rewritten."""
    node.metadata_props[_REFUSAL] = f"{describe(node)}: {reason}. {DOMAINS[node.domain].advice}"


def refusal(node: ir.Node) -> str | None:
    """Why a node was not rewritten and what to do, for operators that onward knows."""
    if _REFUSAL in node.metadata_props:
        return node.metadata_props[_REFUSAL]
    domain = DOMAINS.get(node.domain)
    remedy = None if domain is None else domain.refused.get(node.op_type, domain.others)
    return None if remedy is None else f"{describe(node)}: {remedy}"
