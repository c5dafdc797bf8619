"""Tiny models of Hugging Face's families, made from configurations, with arguments for a number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Arguments = Callable[[int], dict[str, Any]]
_WORDS, _LENGTH = 50, 7


def _text(rows: int) -> dict[str, Tensor]:
    length = _LENGTH + rows
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {"input_ids": torch.randint(3, _WORDS, (rows, length)), "attention_mask": mask}


def _class(rows: int) -> dict[str, Tensor]:
    return {**_text(rows), "labels": torch.arange(rows) % 2}


def _tokens(rows: int) -> dict[str, Tensor]:
    given = _text(rows)
    return {**given, "labels": given["input_ids"] % 2}


def _words(rows: int) -> dict[str, Tensor]:
    given = _text(rows)
    return {**given, "labels": given["input_ids"]}


def _translation(rows: int) -> dict[str, Tensor]:
    return {**_text(rows), "labels": torch.randint(3, _WORDS, (rows, 5))}


def _picture(rows: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 16, 16), "labels": torch.arange(rows) % 2}


def _map(rows: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 32, 32), "labels": torch.randint(2, (rows, 32, 32))}


def _sound(rows: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(rows, 400), "labels": torch.arange(rows) % 2}


def _speech(rows: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(rows, 8, 20), "labels": torch.randint(3, _WORDS, (rows, 5))}


def _pairs(rows: int) -> dict[str, Any]:
    return {**_text(rows), "pixel_values": torch.randn(rows, 3, 16, 16), "return_loss": True}


_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_BERT = {**_SIZES, "vocab_size": _WORDS, "max_position_embeddings": 32}
_SMALL_EMBEDDING = {**_BERT, "embedding_size": 8}
_CAUSAL = {**_BERT, "use_cache": False, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
_GROUPED = {**_CAUSAL, "num_key_value_heads": 1}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_GPT = {"vocab_size": _WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False}
_DISTIL = {
    "vocab_size": _WORDS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32
}  # fmt: skip
_T5 = {
    "vocab_size": _WORDS, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0, "use_cache": False,
}  # fmt: skip
_BART = {
    "vocab_size": _WORDS, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "use_cache": False,
    "decoder_start_token_id": 2, "pad_token_id": 1,
}  # fmt: skip
_WHISPER = {
    **_BART, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32, "decoder_start_token_id": 1,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip
_OPT = {
    "vocab_size": _WORDS, "hidden_size": 16, "ffn_dim": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 32, "word_embed_proj_dim": 16, "use_cache": False,
}  # fmt: skip
_VIT = {**_SIZES, "image_size": 16, "patch_size": 8}
_SWIN = {
    "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2], "window_size": 4
}  # fmt: skip
_CLIP = {
    "text_config": {**_BERT, "projection_dim": 8, "eos_token_id": 49}, "vision_config": {**_VIT, "projection_dim": 8},
    "projection_dim": 8,
}  # fmt: skip
_SEGFORMER = {
    "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 8, "num_labels": 2,
}  # fmt: skip
_WAV2VEC = {
    **_SIZES, "vocab_size": _WORDS, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [8, 3],
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0, "layerdrop": 0.0, "classifier_proj_size": 8,
}  # fmt: skip

# Model -> its configuration, and its arguments for a number of rows.
FAMILIES: dict[str, tuple[dict[str, Any], Arguments]] = {
    "BertForSequenceClassification": (_BERT, _class),
    "BertForMaskedLM": (_BERT, _words),
    "RobertaForTokenClassification": (_BERT, _tokens),
    "DistilBertForMaskedLM": (_DISTIL, _words),
    "AlbertForMaskedLM": (_SMALL_EMBEDDING, _words),
    "ElectraForSequenceClassification": (_SMALL_EMBEDDING, _class),
    "MPNetForMaskedLM": (_BERT, _words),
    "FNetForMaskedLM": (_BERT, lambda rows: {k: v for k, v in _words(rows).items() if k != "attention_mask"}),
    "XLNetLMHeadModel": (
        {"vocab_size": _WORDS, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}, _words
    ),
    "DebertaForMaskedLM": ({**_BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}, _words),
    "XLMWithLMHeadModel": ({"n_words": _WORDS, "emb_dim": 16, "n_layers": 2, "n_heads": 2}, _words),
    "SqueezeBertForMaskedLM": (
        {**_BERT, "embedding_size": 16, "q_groups": 2, "k_groups": 2, "v_groups": 2, "intermediate_groups": 2}, _words
    ),
    "MobileBertForMaskedLM": (
        {**_BERT, "embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8}, _words
    ),
    "ConvBertForMaskedLM": ({**_BERT, "embedding_size": 8, "conv_kernel_size": 3, "head_ratio": 1}, _words),
    "ModernBertForMaskedLM": (
        {**_CAUSAL, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2, "global_attn_every_n_layers": 2}, _words
    ),
    "GPT2LMHeadModel": (_GPT, _words),
    "CodeGenForCausalLM": ({**_GPT, "rotary_dim": 4, "n_head": 4}, _words),
    "Gemma2ForCausalLM": ({**_GROUPED, "head_dim": 8, "sliding_window": 4}, _words),
    "CohereForCausalLM": (_GROUPED, _words),
    "GPTNeoXForCausalLM": (_CAUSAL, _words),
    "BloomForCausalLM": (
        {"vocab_size": _WORDS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "use_cache": False}, _words
    ),
    "OPTForCausalLM": (_OPT, _words),
    "LlamaForCausalLM": (_CAUSAL, _words),
    "MistralForCausalLM": ({**_GROUPED, "sliding_window": 4}, _words),
    "Qwen2ForCausalLM": (_GROUPED, _words),
    "Qwen3ForCausalLM": ({**_GROUPED, "head_dim": 8}, _words),
    "GemmaForCausalLM": ({**_GROUPED, "head_dim": 8}, _words),
    "PhiForCausalLM": (_CAUSAL, _words),
    "MambaForCausalLM": (
        {"vocab_size": _WORDS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1, "use_cache": False}, _words
    ),
    "MixtralForCausalLM": ({**_GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2}, _words),
    "Qwen2MoeForCausalLM": (
        {**_GROUPED, **_EXPERTS, "shared_expert_intermediate_size": 8, "output_router_logits": True}, _words
    ),
    "PhimoeForCausalLM": ({**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}, _words),
    "GptOssForCausalLM": (
        {**_GROUPED, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}, _words
    ),
    "T5ForConditionalGeneration": (_T5, _translation),
    "BartForConditionalGeneration": ({**_BART, "max_position_embeddings": 32}, _translation),
    "MarianMTModel": ({**_BART, "max_position_embeddings": 32, "decoder_start_token_id": 1}, _translation),
    "WhisperForConditionalGeneration": (_WHISPER, _speech),
    "CLIPModel": (_CLIP, _pairs),
    "ViTForImageClassification": (_VIT, _picture),
    "DeiTForImageClassification": (_VIT, _picture),
    "BeitForImageClassification": (_VIT, _picture),
    "Dinov2ForImageClassification": ({**_VIT, "mlp_ratio": 2}, _picture),
    "SwinForImageClassification": (_SWIN, _picture),
    "Swinv2ForImageClassification": (_SWIN, _picture),
    "ConvNextForImageClassification": (
        {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2}, _picture
    ),
    "ResNetForImageClassification": (
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}, _picture
    ),
    "SegformerForSemanticSegmentation": (_SEGFORMER, _map),
    "Wav2Vec2ForSequenceClassification": (_WAV2VEC, _sound),
}  # fmt: skip
