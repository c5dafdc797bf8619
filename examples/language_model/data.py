"""Texts as numbers: one long row of words, cut into columns that are read side by side."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
PARTS = ("train", "valid", "test")
SPECIAL = ["<unk>", "<pad>", "<sos>", "<eos>"]


def tokens(line: str) -> list[str]:
    """Words in lower case, and punctuation, as torchtext's tokenizer for basic English."""
    line = re.sub(r"([.,()!?'])", r" \1 ", line.lower().replace('"', ""))
    return re.sub(r"[;:]", " ", line).split()


@dataclass(frozen=True)
class Corpus:
    """The words of the training part, and all parts as numbers of words."""

    words: list[str]
    train: Tensor
    valid: Tensor
    test: Tensor


def corpus(folder: Path | None = None) -> Corpus:
    """WikiText-2, or other texts, of a folder (`wiki.train.tokens` or `train.txt`, and so on); else our documents."""
    lines = own_documents() if folder is None else {part: _lines(folder, part) for part in PARTS}
    parts = {part: [word for line in lines[part] for word in [*tokens(line), "<eos>"]] for part in PARTS}
    counted = Counter(word for word in parts["train"] if word not in SPECIAL)
    words = [*SPECIAL, *sorted(counted, key=lambda word: (-counted[word], word))]
    numbers = {word: number for number, word in enumerate(words)}
    rows = (torch.tensor([numbers.get(word, 0) for word in parts[part]]) for part in PARTS)
    return Corpus(words, *rows)


def own_documents() -> dict[str, list[str]]:
    """The documents of this repository, without code: eight of ten paragraphs to train, two to validate and test."""
    found: dict[str, list[str]] = {part: [] for part in PARTS}
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for number, paragraph in enumerate(text.split("\n\n")):
            part = {8: "valid", 9: "test"}.get(number % 10, "train")
            found[part] += [line for line in paragraph.splitlines() if line.strip()]
    return found


def _lines(folder: Path, part: str) -> Iterable[str]:
    for name in (f"wiki.{part}.tokens", f"{part}.txt"):
        if (folder / name).exists():
            return (folder / name).read_text("utf-8").splitlines()
    raise SystemExit(f"{folder} has neither wiki.{part}.tokens nor {part}.txt")


def columns(row: Tensor, count: int) -> Tensor:
    """`[length, count]`: each column is a piece of the text, and what does not fill them is left out."""
    return row[: len(row) // count * count].view(count, -1).t().contiguous()


def batches(text: Tensor, length: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of at most so many rows, and the words that come next."""
    for start in range(0, len(text) - 1, length):
        end = min(start + length, len(text) - 1)
        yield text[start:end], text[start + 1 : end + 1]
