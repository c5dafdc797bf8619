"""Texts for models that take tokens: bytes, a tokenizer.json, rows of different length."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command, network, write_csv

SENTENCES = ("the cat sat on the mat", "a dog ran", "the dog sat on a cat", "mats and cats")


def language_model(path: Path, vocabulary: int) -> Path:
    """The next token from the last one alone."""
    inputs, outputs = "int64[N, T] input_ids, int64[N, T] attention_mask", f"float[N, T, {vocabulary}] logits"
    body = "e = Gather(w, input_ids) m = Cast<to = 1>(attention_mask) u = Unsqueeze(m, last) logits = Mul(e, u)"
    made = network(path, inputs, outputs, body, w=(vocabulary, vocabulary))
    return _with_axis(made)


def reader(path: Path, vocabulary: int) -> Path:
    """Two classes, from the mean of what is known of the tokens."""
    inputs = "int64[N, T] input_ids, int64[N, T] attention_mask"
    body = """e = Gather(w, input_ids) m = Cast<to = 1>(attention_mask) u = Unsqueeze(m, last) p = Mul(e, u)
        s = ReduceSum<keepdims = 0>(p, one) c = ReduceSum<keepdims = 1>(m, one) logits = Div(s, c)"""
    return _with_axis(network(path, inputs, "float[N, 2] logits", body, w=(vocabulary, 2)))


def _with_axis(path: Path) -> Path:
    import onnx

    model = onnx.load(path)
    for name, value in (("last", -1), ("one", 1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    onnx.save(model, path)
    return path


def test_a_text_file(onward: Command, tmp_path: Path) -> None:
    model = language_model(tmp_path / "m.onnx", 128)
    (tmp_path / "corpus.txt").write_text("abcdefgh" * 200)
    error = onward("train", model, "--data", "corpus.txt", code=2).err
    assert "'corpus.txt' is text, but the model takes tokens; say what makes these: --tokenizer" in error
    words = ("--tokenizer", "bytes", "--window", 16, "--lr", "0.3", "--epochs", 20, "--json")
    done = onward("train", model, "--data", "corpus.txt", *words).json
    assert done["label"] == ["next:tokens"]
    assert done["validation"]["accuracy"] == 1.0
    onward("predict", "out/trained.onnx", "--data", "corpus.txt", "-o", "p.npz")
    following = np.load("p.npz")["logits"].argmax(-1)
    assert bytes(following[0].tolist()) == b"bcdefghabcdefgha"
    onward("train", "--recipe", "out/recipe.toml", "--out", "again")
    assert Path("again/trained.onnx").read_bytes() == Path("out/trained.onnx").read_bytes()


def test_what_fills_rows_up_does_not_count(onward: Command, tmp_path: Path) -> None:
    """The loss of rows of different length is that of their own tokens."""
    model = language_model(tmp_path / "m.onnx", 128)
    data = write_csv(tmp_path / "d.csv", ["sentence", "number"], [[text, 1] for text in SENTENCES])
    words = ("--tokenizer", "bytes", "--label", "next:sentence", "--json")
    measured = onward("evaluate", model, "--data", data, *words).json

    import onnx

    table = onnx.numpy_helper.to_array(onnx.load(model).graph.initializer[0]).astype(np.float64)
    losses = []
    for text in SENTENCES:
        ids = list(text.encode())
        scores = table[ids[:-1]]
        losses += list(np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(ids) - 1), ids[1:]])
    assert measured["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_tokenizer_file(onward: Command, tmp_path: Path) -> None:
    """Classes of texts; the trained model knows its tokenizer."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.train_from_iterator(SENTENCES, tokenizers.trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    made.save(str(tmp_path / "tokenizer.json"))
    model = reader(tmp_path / "m.onnx", made.get_vocab_size())
    rows = [
        [f"{text} {other}", "animal" if "dog" in text else "thing"] for text in SENTENCES for other in SENTENCES[::3]
    ]
    data = write_csv(tmp_path / "d.csv", ["text", "about"], rows * 5)
    error = onward("train", model, "--data", data, code=2).err
    assert "'text' is text: --tokenizer tokenizer.json makes tokens of it" in error
    done = onward("train", model, "--data", data, "--tokenizer", ".", "--lr", "0.3", "--epochs", 60, "--json").json
    assert done["inputs"]["attention_mask"] == "cols:attention_mask"
    assert done["validation"]["accuracy"] == 1.0
    assert onward("predict", "out/trained.onnx", "--data", data, "--json").json["prediction"][0] == "thing"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is no tokenizer.json" in onward("predict", "out/trained.onnx", "--data", data, code=2).err
