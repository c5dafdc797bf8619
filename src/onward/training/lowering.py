"""Other ways to write the same computation, chosen because onnxruntime runs them faster.

Values are preserved, as far as they are finite; every test also passes without. Runs last, when gradients exist
already, and on graphs that train: those for evaluation stay as people wrote them.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, constant_of, input_at
from onward.graph.replacement import Replacement, replace_node
from onward.graph.shapes import Dim, dims, rank

_MANY_CLASSES = 1024


def lower(op: Builder, forward: Collection[ir.Node] = ()) -> None:
    """Replace nodes of the graph of `op`, in place; `forward` are those of the user's model."""
    for node in list(op.graph):
        known = _LOWERINGS if node in forward else {**_LOWERINGS, **_BACKWARD_LOWERINGS}
        lowering = known.get(node.op_type) if node.domain == "" else None
        if lowering is not None:
            replace_node(op, node, lowering)


def _softmax_cross_entropy(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """NLL(LogSoftmax(x)) for scores `[N, C]` of many classes.

    onnxruntime runs the loss as the standard's function, whose LogSoftmax goes over the middle axis of `[N, C, 1]`: by
    way of transposing, three times slower for large C. With few classes it does not matter, and people who migrate
    look for the node in the training graph.
    """
    scores = node.inputs[0]
    if scores is None or rank(scores) != 2 or not _is_large((dims(scores) or ())[1]):
        return None
    log_prob = op.LogSoftmax(scores, axis=1)
    options = {"reduction": attribute(node, "reduction", "mean"), "ignore_index": attribute(node, "ignore_index", None)}
    loss = op.NegativeLogLikelihoodLoss(log_prob, node.inputs[1], input_at(node, 2), **options)
    return [loss, log_prob]


def _is_large(classes: Dim) -> bool:
    return isinstance(classes, int) and classes >= _MANY_CLASSES


def _mask(op: Builder, node: ir.Node) -> list[ir.Value] | None:
    """Where(mask, dy, 0) as dy times the mask: the gradient of Relu.

    onnxruntime's Where makes three passes by one thread. A masked infinity becomes a NaN, which is why this is for Relu
    only: there, a cotangent that is not finite means that training has diverged already. Other rules, and models, use
    Where to keep what is not finite away.
    """
    mask, x, other = node.inputs
    if mask is None or x is None or other is None or x.dtype != ir.DataType.FLOAT or not _is_sign_of_relu(mask):
        return None
    zero = constant_of(other)
    if zero is None or zero.size != 1 or zero.item() != 0:
        return None
    return [op.Mul(x, op.cast(mask, x.dtype))]


def _is_sign_of_relu(mask: ir.Value) -> bool:
    """Whether a mask is the result of a Relu, cast to booleans."""
    cast = mask.producer()
    source = None if cast is None or cast.op_type != "Cast" or cast.inputs[0] is None else cast.inputs[0].producer()
    return source is not None and source.op_type == "Relu"


_BACKWARD_LOWERINGS: dict[str, Replacement] = {"Where": _mask}
_LOWERINGS: dict[str, Replacement] = {"SoftmaxCrossEntropyLoss": _softmax_cross_entropy}
