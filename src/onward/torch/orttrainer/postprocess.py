"""Passes over exported models, which programs run in `_extra_postprocess`; the names of the original.

The original needed them: torch of its time wrote no names of nodes and no sizes of some Expands, and kernels were for
fused operators. Here a model is trained as it is, and onnxruntime fuses by itself. So all but `add_name` give it back.
"""

from __future__ import annotations

import onnx

__all__ = [
    "add_name",
    "fix_expand_shape",
    "fix_expand_shape_pt_1_5",
    "fuse_softmaxNLL_to_softmaxCE",
    "layer_norm_transform",
    "run_postprocess",
]


def add_name(model: onnx.ModelProto) -> onnx.ModelProto:
    """Name each node by its operator and its number."""
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def run_postprocess(model: onnx.ModelProto) -> onnx.ModelProto:
    """All passes."""
    return add_name(model)


def layer_norm_transform(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as it is, which computes the same."""
    return model


fuse_softmaxNLL_to_softmaxCE = layer_norm_transform  # noqa: N816  the original's name
fix_expand_shape = fix_expand_shape_pt_1_5 = layer_norm_transform
