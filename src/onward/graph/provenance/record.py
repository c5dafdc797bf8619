"""The keys under which torch's newer exporter keeps its records, and how it writes names."""

from __future__ import annotations

import re

import onnx_ir as ir

# What a value of the program was: PARAMETER, BUFFER, CONSTANT_TENSOR, USER_INPUT.
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
# What it was called there: p_layers_0_bias for the parameter layers.0.bias.
ORIGINAL = "pkg.torch.onnx.original_node_name"
# The operation of the program that a node belongs to, with its arguments: %linear : ... (args = (%x, %p_weight), ...).
OPERATION = "pkg.torch.onnx.fx_node"
# The modules around it, from the outside, and the operation: ['', 'layers.0', 'layers.0.norm', 'layer_norm'].
SCOPES = "pkg.torch.onnx.name_scopes"
# Whether a parameter required a gradient; our own record (`onward.torch.export`).
REQUIRES_GRAD = "onward.torch.requires_grad"
# Which rules of the optimizer made a node.
RULES = "pkg.onnxscript.rewriter.rule_name"
# Which values the optimizer computed an initializer from, as a printed list of names.
FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"


def folded_from(value: ir.Value) -> list[str] | None:
    """The names that the optimizer computed an initializer from, without its own; None where it did not."""
    listed = value.metadata_props.get(FOLDED_FROM)
    if listed is None:
        return None
    # The exporter calls its own shape arithmetic val_<n>; torch's names are those of parameters, buffers and operators.
    return [name for name in re.findall(r"'([^']+)'", listed) if not re.fullmatch(r"val_\d+", name)]


def in_program(name: str) -> str:
    """What a parameter is called in the program, but for the p_ (b_ for a buffer) before it.

    As `torch._export.utils.placeholder_naming_pass` writes it.
    """
    stripped = name.removeprefix("L__self___") if name.startswith("L__self___") else name.removeprefix("self_")
    return without_dots(stripped)


def without_dots(name: str) -> str:
    """Part of such a name."""
    return re.sub("[^a-zA-Z0-9]", "_", name).lower()
