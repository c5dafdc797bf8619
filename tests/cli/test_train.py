"""`onward train` and what it leaves, on the kinds of data that users have."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.cli.conftest import Command, classifier, flowers, network, write_csv, write_wav

QUICK = ("--lr", "0.02", "--epochs", "3")


def weights(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def test_csv_with_names_of_classes(onward: Command, tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "m.onnx"), flowers(tmp_path / "flowers.csv")
    done = onward("train", model, "--data", data, "--lr", "0.05", "--epochs", "15", "--json").json
    assert done["label"] == ["species"]
    assert done["inputs"] == {"x": "cols:a,b,c,d"}
    assert done["classes"] == ["setosa", "versicolor", "virginica"]
    assert done["loss"] == "cross_entropy"
    assert done["validation"]["accuracy"] > 0.8 > done["before"]["accuracy"]
    trained = onnx.load("out/trained.onnx")
    metadata = {entry.key: entry.value for entry in trained.metadata_props}
    assert json.loads(metadata["onward.classes"]) == done["classes"]
    # The trained model says itself what data it takes.
    measured = onward("evaluate", "out/trained.onnx", "--data", data, "--json").json
    assert measured["rows"] == 120
    assert measured["accuracy"] > 0.8
    onward("predict", "out/trained.onnx", "--data", data, "-o", "p.csv")
    lines = Path("p.csv").read_text().splitlines()
    assert lines[0].startswith("row,prediction,confidence,scores[0]")
    truth = [line.rpartition(",")[2] for line in data.read_text().splitlines()[1:]]
    right = np.mean([line.split(",")[1] == kind for line, kind in zip(lines[1:], truth, strict=True)])
    assert right == pytest.approx(measured["accuracy"])
    # So it does where the label is what is not known.
    bare = tmp_path / "bare.csv"
    bare.write_text("".join(line.rpartition(",")[0] + "\n" for line in data.read_text().splitlines()))
    onward("predict", "out/trained.onnx", "--data", bare, "-o", "bare-p.csv")
    assert Path("bare-p.csv").read_text() == Path("p.csv").read_text()


def test_recipe_gives_the_same_weights(onward: Command, tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "m.onnx"), flowers(tmp_path / "flowers.csv")
    onward("train", model, "--data", data, "--epochs", "2", "--clip", "1", "--schedule", "cosine", "--out", "a")
    onward("train", "--recipe", "a/recipe.toml", "--out", "b")
    first, second = weights(Path("a/trained.onnx")), weights(Path("b/trained.onnx"))
    assert all(np.array_equal(array, second[name]) for name, array in first.items())
    assert any(not np.array_equal(array, weights(model)[name]) for name, array in first.items())
    # A change of the data is named.
    data.write_text(data.read_text().replace("setosa", "sativa", 1))
    done = onward("train", "--recipe", "a/recipe.toml", "--out", "c", code=2)
    assert "'flowers.csv' has changed since 'a/recipe.toml' was written; --allow-changes" in done.err


def test_a_training_is_not_written_over(onward: Command, tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "m.onnx"), flowers(tmp_path / "flowers.csv")
    onward("train", model, "--data", data, *QUICK)
    assert "--resume out goes on" in onward("train", model, "--data", data, *QUICK, code=2).err
    onward("train", model, "--data", data, *QUICK, "--overwrite")
    assert onward("train", "--resume", "out", "--epochs", "5", "--json").json["epochs"] == 5


def test_regression_and_several_labels(onward: Command, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 3))
    y = x @ random.normal(size=(3, 2)) + 1
    rows = [[number, *row, *target] for number, (row, target) in enumerate(zip(x, y, strict=True))]
    data = write_csv(tmp_path / "d.csv", ["id", "a", "b", "c", "p", "q"], rows)
    model = network(
        tmp_path / "m.onnx", "float[N, 3] x", "float[N, 2] y", "h = MatMul(x, w) y = Add(h, b)", w=(3, 2), b=(2,)
    )
    done = onward("train", model, "--data", data, "--label", "p,q", "--epochs", "20", "--json").json
    assert done["loss"] == "mse"
    assert done["inputs"] == {"x": "cols:a,b,c"}
    assert "'id' numbers the rows, and is left out" in done["notes"]
    assert done["validation"]["r2"] > 0.9


def test_pictures_and_a_new_head(onward: Command, tmp_path: Path) -> None:
    """Bright and dark pictures of two sizes, in a folder for each class; the model had five classes."""
    random = np.random.default_rng(0)
    for name, level in (("bright", 200), ("dark", 50), ("middle", 125)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for index in range(12):
            pixels = np.clip(random.normal(level, 10, (20 + index % 2, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{index}.png")
    pooled = "p = GlobalAveragePool(x) f = Flatten(p)"
    body = f"{pooled} h = MatMul(f, w1) a = Add(h, b1) r = Relu(a) s = MatMul(r, w2) y = Softmax(s)"
    shapes = {"w1": (3, 16), "b1": (16,), "w2": (16, 2)}
    model = network(tmp_path / "m.onnx", "float[N, 3, 16, 16] x", "float[N, 2] y", body, **shapes)
    done = onward("train", model, "--data", "pictures", code=2)
    assert "has 3 classes (bright, dark, middle), but the model has 2 outputs; --new-head 3" in done.err
    done = onward(
        "train", model, "--data", "pictures", "--new-head", 3, "--mean", "0.5", "--std", "0.5", "--epochs", 40,
        "--lr", "0.03", "--batch-size", 8, "--json",
    ).json  # fmt: skip
    assert done["classes"] == ["bright", "dark", "middle"]
    assert done["validation"]["accuracy"] == 1.0
    shown = onward("predict", "out/trained.onnx", "--data", "pictures").out.splitlines()
    assert shown[0].startswith("row,image,prediction,confidence")
    assert all(line.split(",")[1].startswith(line.split(",")[2] + "/") for line in shown[1:])


@pytest.mark.parametrize("form", ["samples", "spectrogram"])
def test_key_words(onward: Command, tmp_path: Path, form: str) -> None:
    """Tones of two heights, in files of several rates, widths and channels."""
    random = np.random.default_rng(0)
    for name, pitch in (("high", 900.0), ("low", 200.0)):
        for index, (bits, rate) in enumerate(
            zip((8, 16, 24, 32, -32, 16, 16, 16), (8000,) * 6 + (16000, 8000), strict=True)
        ):
            time = np.arange(rate // (4 if index == 7 else 2)) / rate
            tone = 0.5 * np.sin(2 * np.pi * pitch * time + random.uniform(0, 6))
            write_wav(tmp_path / "sounds" / name / f"{index}.wav", tone, rate, bits, 2 if index == 5 else 1)
    if form == "samples":
        body = "c = Conv<strides = [4]>(x, k) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p) y = MatMul(f, w)"
        model = network(tmp_path / "m.onnx", "float[N, 1, T] x", "float[N, 2] y", body, k=(8, 1, 32), w=(8, 2))
    else:
        body = "m = ReduceMean<axes = [2], keepdims = 0>(x) y = MatMul(m, w)"
        model = network(tmp_path / "m.onnx", "float[N, 20, T] x", "float[N, 2] y", body, w=(20, 2))
    done = onward("train", model, "--data", "sounds", "--epochs", 30, "--lr", "0.02", "--batch-size", 4, "--json").json
    assert done["validation"]["accuracy"] == 1.0
    notes = " ".join(done["notes"])
    assert "2 of 16 sounds are resampled to 8000 samples a second" in notes
    assert "2 sounds have several channels" in notes
    assert "2 shorter ones get silence at the end" in notes


@pytest.mark.parametrize("shape", ["rows", "one long row"])
def test_language_model(onward: Command, tmp_path: Path, shape: str) -> None:
    """Tokens that count upwards: the next one is certain."""
    ids = (np.arange(40)[:, None] + np.arange(9)) % 7
    np.savez(tmp_path / "ids.npz", ids=ids if shape == "rows" else np.arange(400) % 7)
    model = network(tmp_path / "m.onnx", "int64[N, T] tokens", "float[N, T, 7] y", "y = Gather(w, tokens)", w=(7, 7))
    done = onward("train", model, "--data", "ids.npz", "--epochs", 30, "--lr", "0.3", "--window", 8, "--json").json
    assert done["label"] == ["next:ids"]
    assert done["validation"]["accuracy"] == 1.0
    assert done["validation"]["perplexity"] < 1.2
    onward("predict", "out/trained.onnx", "--data", "ids.npz", "-o", "p.npz")
    following = np.load("p.npz")["y"].argmax(-1)
    assert following.shape == ((40, 9) if shape == "rows" else (50, 8))
    assert np.array_equal(following[0], (np.arange(following.shape[1]) + 1) % 7)


WRONG = {
    "model": (["m.onx", "--data", "flowers.csv"], "there is no model file at 'm.onx'; is 'm.onnx' meant?"),
    "data": (["m.onnx", "--data", "flower.csv"], "there is no data at 'flower.csv'; is 'flowers.csv' meant?"),
    "label": (["m.onnx", "--data", "flowers.csv", "--label", "specis"], "has no column 'specis'; it has 'a'"),
    "input": (["m.onnx", "--data", "flowers.csv", "--input", "z=a"], "the model has no input 'z'; it has 'x'"),
    "shape": (["m.onnx", "--data", "flowers.csv", "--input", "x=cols:0-2"], "takes [N, 4], but cols:a,b,c is"),
    "text": (["m.onnx", "--data", "flowers.csv", "--input", "x=cols:a,b,c,species", "--label", "d"], "is text"),
    "count": (["m.onnx", "--data", "flowers.csv", "--label", "a"], "4 in each row, but 3 columns"),
    "loss": (["m.onnx", "--data", "flowers.csv", "--loss", "crossentropy"], "there is no loss 'crossentropy'"),
    "rate": (["m.onnx", "--data", "flowers.csv", "--lr", "fast"], "--lr is a number or auto, not 'fast'"),
    "classes": (["m.onnx", "--data", "flowers.csv", "--classes", "setosa,rosa"], "but the classes are"),
    "train": (["m.onnx", "--data", "flowers.csv", "--train", "head.*"], "head.*"),
    "kind": (["m.onnx", "--data", "m.onnx"], "is data of an unknown kind; give npz, npy, csv"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_one_line(onward: Command, tmp_path: Path, mistake: str) -> None:
    classifier(tmp_path / "m.onnx")
    flowers(tmp_path / "flowers.csv")
    words, said = WRONG[mistake]
    done = onward("train", *words, "--epochs", "1", code=2)
    error = done.err[done.err.index("error: ") :]
    assert said in error
    assert error.count("\n") == 1
    assert not Path("out").exists()


def test_missing_values(onward: Command, tmp_path: Path) -> None:
    model = classifier(tmp_path / "m.onnx")
    data = flowers(tmp_path / "flowers.csv")
    lines = data.read_text().splitlines()
    lines[3] = "," + lines[3].partition(",")[2]
    data.write_text("\n".join(lines))
    done = onward("train", model, "--data", data, *QUICK, code=2)
    assert "column 'a' has 1 missing values, the first in row 2; --missing drop" in done.err
    notes = onward("train", model, "--data", data, *QUICK, "--missing", "drop", "--json").json["notes"]
    assert "1 of 120 rows have missing values, and are left out" in notes


def test_the_report_names_classes_and_columns(onward: Command, tmp_path: Path) -> None:
    model, data = classifier(tmp_path / "m.onnx"), flowers(tmp_path / "flowers.csv")
    onward("train", model, "--data", data, *QUICK)
    page = Path("out/report.html").read_text()
    assert page.count("virginica") > 10  # the matrix and the examples, not only the recipe
    assert "a 0." in page or "a -0." in page


def test_low_rank_pairs(onward: Command, tmp_path: Path) -> None:
    """They and a new last layer are trained, and are in the model that is written; an adapter holds pairs only."""
    model, data = classifier(tmp_path / "m.onnx", classes=5), flowers(tmp_path / "flowers.csv")
    words = ("train", model, "--data", data, "--lora", 2, "--lr", "0.05", "--epochs", 15, "--json")
    done = onward(*words, "--new-head", "auto").json
    assert done["validation"]["accuracy"] > 0.8
    before, after = weights(model), weights(Path("out/trained.onnx"))
    assert np.linalg.matrix_rank(after["w1"] - before["w1"], tol=1e-5) == 2
    assert after["head.weight"].shape == (16, 3)
    measured = onward("evaluate", "out/trained.onnx", "--data", data, "--json").json
    assert measured["accuracy"] > 0.8
    assert "holds low-rank pairs only" in onward("export", "out", "-o", "a.onnx_adapter", code=2).err
    onward(*words, "--lora-layers", "w1", "--out", "pairs")
    onward("export", "pairs", "-o", "a.onnx_adapter")
    assert Path("a.base.onnx").is_file()
    assert "train with --lora" in _adapter_of_a_plain_training(onward, model, data)


def _adapter_of_a_plain_training(onward: Command, model: Path, data: Path) -> str:
    onward("train", model, "--data", data, *QUICK, "--out", "plain")
    return onward("export", "plain", "-o", "b.onnx_adapter", code=2).err
