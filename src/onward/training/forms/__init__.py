"""Other forms of forward nodes, chosen before differentiating: then their gradients have the better form too.

Values are preserved up to rounding; every test also passes without. Only nodes between trainable parameters and the
loss change: onnxruntime folds and fuses the others by itself, and graphs for evaluation stay as people wrote them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

from onward.autodiff.sweep import differentiable_path
from onward.graph.builder import Builder
from onward.graph.changing import changing
from onward.graph.inference import infer_shapes
from onward.graph.propagation import name_sizes
from onward.graph.replacement import Replacement, replace_node
from onward.training.forms.channels import put_channels_first
from onward.training.forms.depthwise import depthwise_convolution
from onward.training.forms.features import put_features_first
from onward.training.forms.pieces import rearranged
from onward.training.forms.pooling import maximum
from onward.training.forms.selection import select_before_moving
from onward.training.forms.statistics import batch_normalization
from onward.training.forms.types import say_types
from onward.training.forms.views import leading_to_doubt, scaled_before_turning, view
from onward.training.forms.zeros import drop_zeros

_FORMS: dict[str, Replacement] = {
    "BatchNormalization": batch_normalization,
    "Concat": rearranged,
    "Conv": depthwise_convolution,
    "Gather": select_before_moving,
    "MaxPool": maximum,
    "Mul": scaled_before_turning,
    "Reshape": view,
}
# Those that onnxruntime folds and packs when it loads the model, if their weights are frozen.
_WITH_WEIGHTS = ("BatchNormalization", "Conv")


def choose_forms(
    model: ir.Model, op: Builder, trainable: Collection[str], outputs: Sequence[ir.Value] | None = None
) -> None:
    """Replace nodes of `model` on the way from trainable parameters to `outputs`, in place.

    By default, that is the loss, its first output.
    """
    with changing(model.graph, trainable):
        _choose(model, op, trainable, outputs)


def _choose(model: ir.Model, op: Builder, trainable: Collection[str], outputs: Sequence[ir.Value] | None) -> None:
    graph = model.graph
    say_types(graph)
    name_sizes(graph)  # where sizes have names, gradients need not find out what was broadcast
    # Outputs by place: a node that is replaced is not the producer of its output any more.
    places = [0] if outputs is None else [index for index, value in enumerate(graph.outputs) if value in outputs]
    values = [value for value in (*graph.inputs, *graph.initializers.values()) if value.name in trainable]
    path, carrying = differentiable_path(graph, values, [graph.outputs[index] for index in places])
    drop_zeros(graph)
    for arrange in (put_channels_first, put_features_first):
        if arrange(op, path, carrying):
            infer_shapes(model)
            path, carrying = differentiable_path(graph, values, [graph.outputs[index] for index in places])
    changed, computed = False, leading_to_doubt(graph)
    for node in path:
        form = _FORMS.get(node.op_type) if node.domain == "" else None
        frozen = node.op_type in _WITH_WEIGHTS and not any(value in carrying for value in node.inputs[1:])
        if form is not None and not frozen and not (form is view and node in computed):
            changed |= replace_node(op, node, form)
    if changed:
        infer_shapes(model)  # rules ask for the shapes of what was emitted
