"""Continue a sentence with an exported model: onnxruntime and numpy are all that it takes.

python examples/language_model/predict.py out/ort "the model"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime


def continuation(folder: Path, sentence: str, count: int = 10) -> str:
    """The sentence, and the words that the model finds likeliest to come next, one after the other."""
    if not (folder / "words.json").exists():
        raise SystemExit(f"{folder} is no folder in which train.py has written a model; it writes to out/<engine>")
    words = json.loads((folder / "words.json").read_text("utf-8"))
    numbers = {word: number for number, word in enumerate(words)}
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    found = [numbers.get(word, 0) for word in sentence.lower().split()]
    for _ in range(count):
        (scores, *_) = session.run(None, {source.name: np.array(found, np.int64).reshape(-1, 1)})
        found.append(int(scores[-1, 0, 1:].argmax()) + 1)  # anything but <unk>
    return " ".join(words[number] for number in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where train.py wrote the model")
    parser.add_argument("sentence", nargs="?", default="the")
    parser.add_argument("--count", type=int, default=10)
    settings = parser.parse_args()
    print(continuation(settings.folder, settings.sentence, settings.count))


if __name__ == "__main__":
    main()
