"""The domains of onnxruntime's own operators, and which of them no rewriter is for."""

from __future__ import annotations

from onward.graph.rewriting.registry import Domain

_FLOAT_MODEL = "Start from the model before it was quantised, or use its QDQ form (quant_format=QuantFormat.QDQ)."
_NOT_FUSED = "Start from the model before it was optimized, which has standard operators in this place."

MICROSOFT = Domain("com.microsoft", advice=_NOT_FUSED)
rewrites = MICROSOFT.rewrites

# Blocked or channels-last layouts that onnxruntime chooses for the machine on which it optimizes a model.
for _name in ("com.microsoft.nchwc", "com.ms.internal.nhwc"):
    Domain(
        _name,
        others="its layout is made for one machine. Save the optimized model with ORT_ENABLE_EXTENDED instead of "
        "ORT_ENABLE_ALL, or start from the model before it was optimized.",
    )

MICROSOFT.refuses(
    """DynamicQuantizeLSTM DynamicQuantizeMatMul MatMulInteger16 MatMulIntegerToFloat MulInteger QAttention
    QEmbedLayerNormalization QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool
    QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QOrderedAttention
    QOrderedGelu QOrderedLayerNormalization QOrderedLongformerAttention QOrderedMatMul ReduceSumInteger""",
    f"It computes with integers. {_FLOAT_MODEL}",
)
MICROSOFT.refuses(
    "MatMulBnb4 MatMulFpQ4 MatMulNBitsMlp MatMulNBitsQkv QMoE",
    "Its weights are packed in a layout of its own. Start from the model before its weights were quantised, or "
    "quantise it with MatMulNBits.",
)
MICROSOFT.refuses(
    """DecoderAttention DecoderMaskedMultiHeadAttention DecoderMaskedSelfAttention LongformerAttention MoE
    PackedAttention PackedMultiHeadAttention PagedAttention RemovePadding RestorePadding SparseAttention""",
    _NOT_FUSED,
)
MICROSOFT.refuses(
    "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    "It generates text in a loop of its own. Train the decoder that is inside it.",
)
