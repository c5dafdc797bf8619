"""Train the language model with ORTTrainer, with ORTModule, and with torch beside them.

python examples/language_model/train.py                       # on the documents of this repository
python examples/language_model/train.py --data wikitext-2     # on a copy of WikiText-2
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch
from engines import ENGINES, RATE, Engine
from model import TransformerModel
from predict import continuation
from torch import Tensor

from data import batches, columns, corpus


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with wiki.train.tokens or train.txt, and valid and test")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["ort", "ortmodule", "torch"])
    parser.add_argument("--epochs", type=positive, default=3)
    parser.add_argument("--batch-size", type=positive, default=20)
    parser.add_argument("--bptt", type=positive, default=35, help="words of each column in a batch")
    parser.add_argument("--emsize", type=positive, default=200)
    parser.add_argument("--nhid", type=positive, default=200)
    parser.add_argument("--nlayers", type=positive, default=2)
    parser.add_argument("--nhead", type=positive, default=2)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--limit", type=positive, help="batches of an epoch at most")
    parser.add_argument("--log-interval", type=positive, default=200, help="batches between two lines")
    parser.add_argument("--seed", type=int, default=1111)
    parser.add_argument("--start", default="the", help="what to continue with the trained model")
    parser.add_argument("--output", type=Path, default=Path("out"))
    settings = parser.parse_args()
    if settings.emsize % settings.nhead:
        parser.error(f"--emsize {settings.emsize} cannot be divided by --nhead {settings.nhead}")
    return settings


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def perplexity(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def train(engine: Engine, text: Tensor, epoch: int, settings: argparse.Namespace) -> float:
    """One epoch, with a line now and then; returns the seconds of a batch, without the first, which exports."""
    pieces = list(batches(text, settings.bptt))[: settings.limit]
    started = begun = time.perf_counter()
    total, counted = 0.0, 0
    for number, (data, targets) in enumerate(pieces, start=1):
        total += engine.step(data, targets).item() * len(data)
        counted += len(data)
        if number == 1:
            begun = time.perf_counter()
        if number % settings.log_interval == 0 or number == len(pieces):
            loss, elapsed = total / counted, (time.perf_counter() - started) / min(number, settings.log_interval)
            print(
                f"| epoch {epoch:3d} | {number:5d}/{len(pieces):5d} batches | lr {RATE:07.5f} | "
                f"ms/batch {elapsed * 1000:7.2f} | loss {loss:5.2f} | ppl {perplexity(loss):8.2f}",
                flush=True,
            )
            started, total, counted = time.perf_counter(), 0.0, 0
    return (time.perf_counter() - begun) / max(1, len(pieces) - 1)


def evaluate(engine: Engine, text: Tensor, settings: argparse.Namespace) -> float:
    """The mean loss of a word."""
    pieces = list(batches(text, settings.bptt))[: settings.limit]
    return sum(len(data) * engine.evaluate(data, targets).item() for data, targets in pieces) / sum(
        len(data) for data, _ in pieces
    )


Result = tuple[str, float, float]  # the engine, the loss of the test, seconds of a batch


def run(name: str, texts: dict[str, Tensor], words: list[str], settings: argparse.Namespace) -> Result:
    """Train with one engine, from the same weights as with the others."""
    torch.manual_seed(settings.seed)
    model = TransformerModel(
        len(words), settings.emsize, settings.nhead, settings.nhid, settings.nlayers, settings.dropout
    )
    print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {len(words):,} words")
    engine = ENGINES[name](model, len(words))
    seconds = 0.0
    for epoch in range(1, settings.epochs + 1):
        began = time.perf_counter()
        seconds = train(engine, texts["train"], epoch, settings)
        loss = evaluate(engine, texts["valid"], settings)
        print("-" * 89)
        print(
            f"| end of epoch {epoch:3d} | time: {time.perf_counter() - began:5.2f}s | valid loss {loss:5.2f} | "
            f"valid ppl {perplexity(loss):8.2f}"
        )
        print("-" * 89, flush=True)
    loss = evaluate(engine, texts["test"], settings)
    print("=" * 89)
    print(f"| End of training | test loss {loss:5.2f} | test ppl {perplexity(loss):8.2f}")
    print("=" * 89)
    folder = settings.output / name
    engine.export(folder / "model.onnx")
    (folder / "words.json").write_text(json.dumps(words), "utf-8")
    print(f"{folder / 'model.onnx'} continues: {continuation(folder, settings.start)}\n", flush=True)
    return name, loss, seconds


def main() -> None:
    settings = arguments()
    text = corpus(settings.data)
    sizes = {"train": settings.batch_size, "valid": 10, "test": 10}
    texts = {part: columns(getattr(text, part), size) for part, size in sizes.items()}
    for part, size in sizes.items():
        if len(texts[part]) < 2:
            raise SystemExit(
                f"the text for {part} has too few words for {size} columns; --batch-size divides that for train"
            )
    for name in settings.engines:  # before the work
        (settings.output / name).mkdir(parents=True, exist_ok=True)
    results = [run(name, texts, text.words, settings) for name in settings.engines]
    print("engine   test loss   test ppl   ms/batch")
    for name, loss, seconds in results:
        print(f"{name:8s} {loss:9.4f} {perplexity(loss):10.2f} {seconds * 1000:10.1f}")


if __name__ == "__main__":
    main()
