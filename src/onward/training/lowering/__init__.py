"""Other ways to write the same computation, chosen because onnxruntime runs them faster.

Values are preserved, as far as they are finite; every test also passes without. For graphs that train only: those for
evaluation stay as people wrote them.

Gradients of some operators are written in another form at once: `faster_rules`. A rule in here says what the one of
`onward.autodiff.rules` does, knows for which shapes it is faster, and leaves the others to that. Single nodes are
replaced last, when gradients exist already: `lower`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import onnx_ir as ir

from onward.autodiff.preference import preferring
from onward.autodiff.registry import Rule
from onward.autodiff.rules import conv, indexing, normalization, pool
from onward.autodiff.rules import softmax as softmax_rules
from onward.graph.builder import Builder
from onward.graph.replacement import Replacement, replace_node
from onward.training.lowering import (
    convolution,
    expansions,
    losses,
    masks,
    pooling,
    products,
    reductions,
    scattering,
    slices,
    softmax,
    statistics,
    table,
)
from onward.training.lowering.slopes import leading_to_infinite_slopes

_RULES: list[tuple[Rule, Rule]] = [
    (conv.conv, convolution.conv),
    (conv.conv_transpose, convolution.conv_transpose),
    (indexing.gather, table.gather),
    (normalization.batch_normalization, statistics.batch_normalization),
    (pool.average_pool, pooling.average_pool),
    (softmax_rules.softmax, softmax.softmax),
]


def faster_rules() -> AbstractContextManager[None]:
    """Inside, gradients are written in the forms that are faster."""
    return preferring(_RULES)


def _first_of(*lowerings: Replacement) -> Replacement:
    """The first of several lowerings that knows better."""

    def lowering(op: Builder, node: ir.Node) -> Sequence[ir.Value] | None:
        return next((found for one in lowerings if (found := one(op, node)) is not None), None)

    return lowering


_LOWERINGS: dict[str, Replacement] = {
    "AveragePool": pooling.mean,
    "SoftmaxCrossEntropyLoss": losses.softmax_cross_entropy,
    "Where": softmax.zeros_for_nan,
}
# Of nodes that we have written ourselves.
_BACKWARD_LOWERINGS: dict[str, Replacement] = {
    "Add": _first_of(slices.tiles, scattering.scattered_term),
    "ReduceSum": reductions.sum_of_rows,
    "ScatterElements": pooling.scattered_maximum,
    "Sum": _first_of(slices.tiles, reductions.sum_by_pairs),
}

# And of what these have become.
_AFTERWARDS: dict[str, Replacement] = {
    **dict.fromkeys(expansions.BROADCASTING, expansions.needless_expansions),
    "Gemm": products.scaled_operand,
    "MatMul": products.scaled_operand,
    "Shape": products.shape_of_scaled,
    "Transpose": products.transposed_product,
}


def lower(op: Builder, forward: Collection[ir.Node] = (), given: Collection[ir.Value] = ()) -> None:
    """Replace nodes of the graph of `op`, in place.

    Args:
        op: of the graph.
        forward: the nodes of the user's model, and of the loss.
        given: values whose cotangents come from outside.
    """
    steep = leading_to_infinite_slopes(op.graph, forward, given)
    masking: dict[str, Replacement] = {"Where": functools.partial(masks.mask, steep=steep)}
    for own, everywhere in (({**_BACKWARD_LOWERINGS, **masking}, _LOWERINGS), (_AFTERWARDS, {})):
        for node in list(op.graph):
            known = everywhere if node in forward else {**everywhere, **own}
            lowering = known.get(node.op_type) if node.domain == "" else None
            if lowering is not None:
                replace_node(op, node, lowering)
