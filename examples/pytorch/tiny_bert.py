"""What the examples in this folder train: a tiny BERT made from a configuration, and sentences made of numbers."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from onward.torch import ORTModule

WORDS, START, PADDING = 32, 1, 0


def bert(engine: str) -> nn.Module:
    """A BERT with two classes; the same one for each engine."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, num_labels=2, initializer_range=0.2,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    return ORTModule(model) if engine == "onnxruntime" else model


def sentences(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sentences of six to eight words, in one of two languages: their class, to be told by the words."""
    source = torch.Generator().manual_seed(seed)
    half = (WORDS - START) // 2
    found = []
    for number in range(count):
        language = number % 2
        words = START + 1 + half * language + torch.randint(half, (6 + number % 3,), generator=source)
        words[0] = START
        found.append({"input_ids": words, "labels": torch.tensor(language)})
    return found


def batch(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Sentences of one length: short ones are padded, and the padding is masked."""
    ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=PADDING)
    labels = torch.stack([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long(), "labels": labels}
