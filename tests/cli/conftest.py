"""Models and data as users have them."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onward.cli import main

Command = Callable[..., "Done"]


class Done:
    """What a command left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def onward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command in a folder of its own, in this process."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object, code: int = 0) -> Done:
        try:
            found = main([str(word) for word in words])
        except SystemExit as ended:
            found = int(str(ended.code))
        done = Done(found, *capsys.readouterr())
        assert found == code, done.err + done.out
        return done

    return run


def network(path: Path, inputs: str, outputs: str, body: str, seed: int = 0, **shapes: tuple[int, ...]) -> Path:
    """Write a model of a text, with random weights of these shapes."""
    random = np.random.default_rng(seed)
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> net ({inputs}) => ({outputs}) {{ {body} }}'
    )
    for name, shape in shapes.items():
        weight = (random.normal(size=shape) * 0.3).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    onnx.save(model, path)
    return path


def classifier(path: Path, features: int = 4, classes: int = 3, end: str = "scores = Identity(s)") -> Path:
    body = f"h = MatMul(x, w1)  r = Relu(h)  p = MatMul(r, w2)  s = Add(p, b2)  {end}"
    return network(
        path, f"float[N, {features}] x", f"float[N, {classes}] scores", body,
        w1=(features, 16), w2=(16, classes), b2=(classes,),
    )  # fmt: skip


def write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


def flowers(path: Path, rows: int = 120) -> Path:
    """Four numbers and the name of a kind, which the largest of the first three decides."""
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 4))
    kinds = np.array(["setosa", "versicolor", "virginica"])[x[:, :3].argmax(1)]
    lines = [[*(f"{value:.4f}" for value in row), kind] for row, kind in zip(x, kinds, strict=True)]
    return write_csv(path, ["a", "b", "c", "d", "species"], lines)


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000, bits: int = 16, channels: int = 1) -> None:
    """A WAV file, written by hand."""
    samples = np.repeat(samples[:, None], channels, axis=1).reshape(-1)
    if bits == 8:
        data = (samples * 127 + 128).round().astype(np.uint8).tobytes()
    elif bits == 24:
        data = b"".join(int(value).to_bytes(3, "little", signed=True) for value in (samples * (2**23 - 1)).round())
    elif bits == -32:
        data = samples.astype("<f4").tobytes()
    else:
        data = (samples * (2 ** (bits - 1) - 1)).round().astype(f"<i{bits // 8}").tobytes()
    width, kind = abs(bits) // 8, 3 if bits < 0 else 1
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * width * channels, width * channels, abs(bits))
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
