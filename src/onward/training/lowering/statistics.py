"""Gradients of batch normalisation that need not compute its statistics again."""

from __future__ import annotations

import onnx_ir as ir

from onward.autodiff.registry import Cotangents
from onward.autodiff.rules import normalization as rules
from onward.graph.builder import Builder
from onward.graph.nodes import attribute


def batch_normalization(op: Builder, node: ir.Node, dy: ir.Value | None, *dstatistics: ir.Value | None) -> Cotangents:
    """The rule of BatchNormalization, by the statistics that a node returns, where these are those of the batch."""
    if not _returns_those_of_batch(node):
        return rules.batch_normalization(op, node, dy, *dstatistics)
    mean, variance = (op.forward_output(node, index) for index in (1, 2))
    return rules.batch_training(op, node, rules.batch_groups(op, node, mean, variance), dy, *dstatistics[:2])


def _returns_those_of_batch(node: ir.Node) -> bool:
    """Whether the new statistics have nothing of the given ones (momentum 0), as `onward.training.forms` writes it.

    onnxruntime may write the new ones where the given ones are: safe only where nobody else has those.
    """
    alone = all(
        given.producer() is not None and len(given.uses()) == 1 for given in node.inputs[3:] if given is not None
    )
    return alone and attribute(node, "training_mode", 0) == 1 and attribute(node, "momentum", 0.9) == 0
