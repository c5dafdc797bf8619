"""Data as users have it: pictures, parquet, missing values, rows beyond memory; and what is made of scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.cli.conftest import Command, network, write_csv

QUICK = ("--lr", "0.02", "--epochs", "3")


def _pictures(
    folder: Path, names: tuple[str, ...] = ("hell", "schwärzlich"), count: int = 8, mode: str = "RGB"
) -> None:
    """Bright and dark pictures."""
    random = np.random.default_rng(0)
    for name, level in zip(names, (200, 50, 120), strict=False):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = np.clip(random.normal(level, 10, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


def _brightness(path: Path, classes: int = 2) -> Path:
    body = "p = GlobalAveragePool(x) f = Flatten(p) s = MatMul(f, w) y = Add(s, b)"
    inputs, outputs = "float[N, 3, 16, 16] x", f"float[N, {classes}] y"
    return network(path, inputs, outputs, body, w=(3, classes), b=(classes,))


def test_broken_pictures(onward: Command, tmp_path: Path) -> None:
    model = _brightness(tmp_path / "m.onnx")
    _pictures(tmp_path / "pictures")
    whole = (tmp_path / "pictures" / "hell" / "0.png").read_bytes()
    (tmp_path / "pictures" / "hell" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "pictures" / "hell" / "text.jpg").write_text("no picture")
    error = onward("train", model, "--data", "pictures", *QUICK, code=2).err
    assert "cut.png' cannot be read: " in error
    assert "--broken skip leaves such files out" in error
    done = onward("train", model, "--data", "pictures", *QUICK, "--broken", "skip", "--json").json
    assert "left out, since they cannot be read: 'hell/cut.png', 'hell/text.jpg'" in done["notes"]
    assert done["classes"] == ["hell", "schwärzlich"]
    assert onward("predict", "out/trained.onnx", "--data", "pictures", "--json").json["rows"] == 16


def test_pictures_of_16_bits_are_not_cut_off(onward: Command, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, level in (("bright", 50000), ("dark", 20000)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for index in range(8):
            pixels = np.clip(random.normal(level, 500, (20, 24)), 0, 65535).astype(np.uint16)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{index}.png")
    words = ("--data", "pictures", "--lr", "0.3", "--epochs", 30, "--json")
    assert onward("train", _brightness(tmp_path / "m.onnx"), *words).json["validation"]["accuracy"] == 1.0


def test_parts_of_a_folder(onward: Command, tmp_path: Path) -> None:
    """The second part validates; a class that the first has not is an error that names it."""
    model = _brightness(tmp_path / "m.onnx")
    _pictures(tmp_path / "pictures" / "train")
    _pictures(tmp_path / "pictures" / "val", count=3)
    done = onward("train", model, "--data", "pictures", *QUICK, "--json").json
    assert "the folder has a part 'val', which is used for validation (--validation names another)" in done["notes"]
    (tmp_path / "pictures" / "val" / "hell").rename(tmp_path / "pictures" / "val" / "Hell")
    error = onward("train", model, "--data", "pictures", *QUICK, "--overwrite", code=2).err
    assert "has 'Hell', which is none of the classes hell, schwärzlich; is 'hell' meant?" in error


def test_scores_of_one_place(onward: Command, tmp_path: Path) -> None:
    """A last Conv gives [N, C, 1, 1], and tf2onnx writes it as [N, 1, 1, C]; it has no Softmax."""
    body = "p = GlobalAveragePool(x) c = Conv(p, k) y = Reshape(c, form)"
    model = network(tmp_path / "m.onnx", "float[N, 3, 16, 16] x", "float[N, 1, 1, 2] y", body, k=(2, 3, 1, 1))
    proto = onnx.load(model)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 1, 1, 2]), "form"))
    onnx.save(proto, model)
    _pictures(tmp_path / "pictures")
    words = ("--data", "pictures", "--lr", "0.3", "--epochs", 30, "--mean", "0.5", "--json")
    assert onward("train", model, *words).json["validation"]["accuracy"] == 1.0
    done = onward("predict", "out/trained.onnx", "--data", "pictures", "--json").json
    assert done["prediction"] == ["hell"] * 8 + ["schwärzlich"] * 8
    assert all(0.5 <= each <= 1 for each in done["confidence"])


def test_scores_of_several_places_are_refused(onward: Command, tmp_path: Path) -> None:
    model = network(
        tmp_path / "m.onnx", "float[N, 3, 16, 16] x", "float[N, 2, 16, 16] y", "y = Conv(x, k)", k=(2, 3, 1, 1)
    )
    _pictures(tmp_path / "pictures")
    error = onward("train", model, "--data", "pictures", code=2).err
    assert "is [N, 2, 16, 16]: scores for each of several places, but label 'label' has one class" in error


@pytest.mark.parametrize("offset", [100.0, 300_000.0])
def test_a_rate_in_spite_of_noise(onward: Command, tmp_path: Path, offset: float) -> None:
    """Batches differ by far more than a step changes them, and numbers are far from what the model says."""
    random = np.random.default_rng(3)
    x = random.normal(size=(600, 3))
    y = offset * (1 + 0.2 * x @ np.ones(3) + 0.3 * random.standard_t(3, size=600) * (random.random(600) < 0.3))
    data = write_csv(tmp_path / "d.csv", ["a", "b", "c", "y"], np.column_stack([x, y]).tolist())
    model = network(
        tmp_path / "m.onnx", "float[N, 3] x", "float[N, 1] p", "h = MatMul(x, w) p = Add(h, b)", w=(3, 1), b=(1,)
    )
    done = onward("train", model, "--data", data, "--json").json
    assert done["before"]["r2"] < -1
    assert done["validation"]["r2"] > 0.5


def test_pictures_that_do_not_fit_into_memory(onward: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read batch by batch, to the same weights; a file that breaks meanwhile is named."""
    from onward.cli.data import rows

    model = _brightness(tmp_path / "m.onnx")
    _pictures(tmp_path / "pictures")
    words = ("train", model, "--data", "pictures", *QUICK, "--batch-size", 5)
    onward(*words, "--out", "whole")
    whole = onward("predict", "whole/trained.onnx", "--data", "pictures").out
    monkeypatch.setattr(rows, "_IN_MEMORY", 1000)
    onward(*words, "--out", "lazy")
    assert Path("lazy/trained.onnx").read_bytes() == Path("whole/trained.onnx").read_bytes()
    assert onward("predict", "lazy/trained.onnx", "--data", "pictures").out == whole
    (tmp_path / "pictures" / "hell" / "3.png").write_bytes(b"no picture")
    assert "3.png' is no picture" in onward(*words, "--out", "broken", code=2).err


def test_parquet(onward: Command, tmp_path: Path) -> None:
    """Texts, truth values, dates, missing ones and lists."""
    arrow = pytest.importorskip("pyarrow")
    from datetime import date

    from pyarrow import parquet

    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    columns = {
        "id": list(range(60)),
        "row": [list(map(float, row)) for row in x[:, :2]],
        "c": [None if index == 7 else float(value) for index, value in enumerate(x[:, 2])],
        "day": [date(2024, 1, 1)] * 60,
        "good": [bool(row.sum() > 0) for row in x],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "d.parquet")
    body = "h = Concat<axis = 1>(row, c) p = MatMul(h, w) s = Add(p, b) y = Sigmoid(s)"
    inputs = "float[N, 2] row, float[N, 1] c"
    model = network(tmp_path / "m.onnx", inputs, "float[N, 1] y", body, w=(3, 1), b=(1,))
    assert "column 'c' has 1 missing values" in onward("train", model, "--data", "d.parquet", code=2).err
    words = ("--data", "d.parquet", "--missing", "drop", "--lr", "0.3", "--epochs", 20, "--json")
    done = onward("train", model, *words).json
    assert (done["label"], done["loss"]) == (["good"], "bce_with_logits")
    assert done["inputs"] == {"row": "cols:row", "c": "cols:c"}
    assert done["validation"]["accuracy"] > 0.85


def test_a_model_with_an_imputer_gets_missing_values(onward: Command, tmp_path: Path) -> None:
    opsets = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
    model = onnx.parser.parse_model(
        f"{opsets} net (float[N, 3] x) => (float[N, 1] y) {{ f = ai.onnx.ml.Imputer(x) y = MatMul(f, w) }}"
    )
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("imputed_value_floats", [0.0, 0.0, 0.0]))
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("replaced_value_float", float("nan")))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((3, 1), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    random = np.random.default_rng(0)
    x = random.normal(size=(80, 3))
    rows = [["" if random.random() < 0.1 else number for number in row] + [row.sum()] for row in x]
    data = write_csv(tmp_path / "d.csv", ["a", "b", "c", "y"], rows)
    done = onward("train", "m.onnx", "--data", data, "--lr", "0.1", "--epochs", 20, "--json").json
    assert (
        "missing values are left to the model, which has an Imputer (--missing drop leaves them out)" in done["notes"]
    )
    assert done["validation"]["r2"] > 0.6
