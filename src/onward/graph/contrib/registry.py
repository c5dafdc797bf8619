"""How rewriters are declared, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onward.graph.builder import Builder
from onward.graph.nodes import attribute, describe, input_at

DOMAIN = "com.microsoft"
# Blocked or channels-last layouts that onnxruntime chooses for the machine on which it optimizes a model.
LAYOUT_DOMAINS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")

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


REWRITERS: dict[str, Rewriter] = {}

_FLOAT_MODEL = "Start from the model before it was quantised, or use its QDQ form (quant_format=QuantFormat.QDQ)."
_NOT_FUSED = "Start from the model before it was optimized, which has standard operators in this place."

# Operators that no rewriter is for, and what to do about them.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        """DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat MulInteger QAttention
        QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool
        QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QOrderedAttention
        QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul ReduceSumInteger
        """.split(),
        f"It computes with integers. {_FLOAT_MODEL}",
    ),
    **dict.fromkeys(
        "MatMulBnb4 MatMulFpQ4 MatMulNBitsMlp MatMulNBitsQkv QMoE".split(),
        "Its weights are packed in a layout of its own. Start from the model before its weights were quantised, or "
        "quantise it with MatMulNBits.",
    ),
    **dict.fromkeys(
        """DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention LongformerAttention MoE
        PackedAttention PackedMultiHeadAttention PagedAttention RemovePadding RestorePadding SparseAttention""".split(),
        _NOT_FUSED,
    ),
    **dict.fromkeys(
        "BeamSearch GreedySearch Sampling WhisperBeamSearch".split(),
        "It generates text in a loop of its own. Train the decoder that is inside it.",
    ),
}


def rewrites(
    *op_types: str,
    reads: str = "",
    only: Mapping[str, int | float | str] | None = None,
    without: Mapping[int, str] | None = None,
    needs: str = "",
) -> Callable[[Function], Function]:
    """Declare what operators are in terms of standard ones.

    Args:
        op_types: operators of `com.microsoft`.
        reads: the attributes that the function honours, or that do not change what is computed.
        only: attributes that may have no other value than this one.
        without: inputs, by index, that may not be given.
        needs: what else is refused, for documents; the function itself raises RefusedError.
    """

    def register(function: Function) -> Function:
        entry = Rewriter(function, frozenset(reads.split()), only or {}, without or {}, needs)
        REWRITERS.update(dict.fromkeys(op_types, entry))
        return function

    return register


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
    node.metadata_props[_REFUSAL] = f"{describe(node)}: {reason}. {_NOT_FUSED}"


def refusal(node: ir.Node) -> str | None:
    """Why a node was not rewritten and what to do, for operators of onnxruntime that onward knows."""
    if _REFUSAL in node.metadata_props:
        return node.metadata_props[_REFUSAL]
    if node.domain in LAYOUT_DOMAINS:
        return (
            f"{describe(node)}: its layout is made for one machine. Save the optimized model with ORT_ENABLE_EXTENDED "
            "instead of ORT_ENABLE_ALL, or start from the model before it was optimized."
        )
    if node.domain == DOMAIN and node.op_type in REFUSED:
        return f"{describe(node)}: {REFUSED[node.op_type]}"
    return None
