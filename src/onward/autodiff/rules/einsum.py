"""Einsum."""

from __future__ import annotations

import string

import onnx_ir as ir

from onward.autodiff.registry import vjp
from onward.autodiff.rules.placement import extent, joined
from onward.graph.builder import Builder
from onward.graph.nodes import attribute
from onward.graph.shapes import Dim, dims, rank

Row = list[ir.Value | None]


@vjp("Einsum")
def einsum(op: Builder, node: ir.Node, dy: ir.Value) -> Row:
    """Each operand's cotangent is an Einsum of dy with the other operands: for "ij,jk->ik", dx0 = "ik,jk->ij"."""
    operands = list(node.inputs)
    terms, result, dots = parse(attribute(node, "equation", ""), [rank(x) for x in operands])
    sizes = _sizes(terms, operands)
    cotangents: Row = []
    for index, (x, term) in enumerate(zip(operands, terms, strict=True)):
        others = [(t, other) for i, (t, other) in enumerate(zip(terms, operands, strict=True)) if i != index]
        distinct = "".join(dict.fromkeys(term))
        # Letters that only this operand has were summed over: the cotangent is the same for all their values.
        elsewhere = set(result).union(*(t for t, _ in others))
        lonely = [letter for letter in distinct if letter not in elsewhere]
        dx = _contract(op, dy, result, others, "".join(letter for letter in distinct if letter in elsewhere), dots)
        if lonely:
            shape = joined(op, [extent(op, x, term.index(c)) if c in lonely else 1 for c in distinct])
            dx = op.Expand(op.Unsqueeze(dx, [distinct.index(letter) for letter in lonely]), shape)
        if term != distinct:
            dx = _to_diagonal(op, dx, x, term)
        if any(letter in dots and _may_be_stretched(sizes[letter], size) for letter, size in _pairs(term, x)):
            dx = op.sum_to(dx, x, [None if letter in dots else size for letter, size in _pairs(term, x)])
        cotangents.append(dx)
    return cotangents


def parse(equation: str, ranks: list[int]) -> tuple[list[str], str, str]:
    """The terms of the operands and of the result, with the dots replaced by letters, and those letters."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    widths = [ndim - len(term.replace("...", "")) for term, ndim in zip(terms, ranks, strict=True) if "..." in term]
    dots = "".join(free[: max(widths, default=0)])

    def spelled(term: str, width: int) -> str:
        return term.replace("...", dots[len(dots) - width :])  # aligned at the right, as in broadcasting

    if not arrow:
        letters = left.replace("...", "").replace(",", "")
        right = "..." + "".join(sorted(letter for letter in letters if letters.count(letter) == 1))
    spelled_terms = [
        spelled(term, ndim - len(term.replace("...", ""))) if "..." in term else term
        for term, ndim in zip(terms, ranks, strict=True)
    ]
    return spelled_terms, spelled(right, len(dots)), dots


def _pairs(term: str, x: ir.Value) -> list[tuple[str, Dim]]:
    """Each letter of a term with its size in that operand."""
    return list(zip(term, dims(x) or (), strict=True))


def _sizes(terms: list[str], operands: list[ir.Value]) -> dict[str, list[Dim]]:
    """The sizes that the operands have for each letter."""
    sizes: dict[str, list[Dim]] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, size in _pairs(term, x):
            sizes.setdefault(letter, []).append(size)
    return sizes


def _may_be_stretched(sizes: list[Dim], own: Dim) -> bool:
    """Whether an operand may have size 1 where another has more, which the standard allows under dots only."""
    differ = len(set(sizes)) > 1 or (None in sizes and len(sizes) > 1)
    return differ and (own == 1 or not isinstance(own, int))


def _contract(
    op: Builder, dy: ir.Value, result: str, others: list[tuple[str, ir.Value]], core: str, dots: str
) -> ir.Value:
    """The Einsum of dy and the other operands, without one where less will do."""
    if not others:
        order = [result.index(letter) for letter in core]
        return dy if order == sorted(order) else op.Transpose(dy, perm=order)
    if not result:
        return _product(op, others, core, dots) * dy
    return _product(op, [(result, dy), *others], core, dots)


def _product(op: Builder, factors: list[tuple[str, ir.Value]], core: str, dots: str) -> ir.Value:
    if len(factors) == 1 and factors[0][0] == core:
        return factors[0][1]
    equation = ",".join(term for term, _ in factors) + "->" + core
    if dots and dots in core:
        equation = equation.replace(dots, "...")  # letters do not broadcast
    return op.Einsum(*(x for _, x in factors), equation=equation)


def _to_diagonal(op: Builder, dx: ir.Value, x: ir.Value, term: str) -> ir.Value:
    """A letter that an operand repeats selects a diagonal; its cotangent is zero elsewhere."""
    ndim = len(set(term))
    for axis, letter in enumerate(term):
        first = term.index(letter)
        if first == axis:
            continue
        # The axes up to here are those of the term; those that follow are still one for each letter.
        dx, ndim = op.Unsqueeze(dx, [axis]), ndim + 1
        numbers = op.Range(0, op.size(x, [axis]), 1)
        rows = op.Reshape(numbers, [-1 if other == first else 1 for other in range(ndim)])
        columns = op.Reshape(numbers, [-1 if other == axis else 1 for other in range(ndim)])
        dx = op.Where(op.Equal(rows, columns), dx, 0)
    return dx
