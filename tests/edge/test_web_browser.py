"""onward-web in a real Chromium: packed and installed as npm does it, bundled by vite, in the page and in its worker.

Needs `npm ci` in web/ (`make test-web` does it) and Debian's chromium.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from safetensors.numpy import load_file

from onward.edge import Training
from tests.edge.web_models import needs_web, run_node

pytestmark = [
    *needs_web,
    pytest.mark.skipif(
        shutil.which(os.environ.get("CHROMIUM", "/usr/bin/chromium")) is None, reason="needs Debian's chromium"
    ),
    pytest.mark.usefixtures("built"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def consumer(built: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A project that has installed the package, with a page that vite has built; and the files of the package."""
    project = tmp_path_factory.mktemp("consumer")
    return project, json.loads(run_node("test/consumer.mjs", project))


@pytest.fixture(scope="module")
def happened(
    consumer: tuple[Path, list[str]], folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """What the page did, and where the files are that it gave."""
    out = tmp_path_factory.mktemp("browser") / "out"
    return json.loads(run_node("test/browser.mjs", consumer[0], folder("convolutional").parent, out)), out


def test_the_package_has_what_it_needs_and_nothing_else(consumer: tuple[Path, list[str]]) -> None:
    _, files = consumer
    assert {"package.json", "README.md", "LICENSE", "dist/index.js", "dist/index.d.ts", "dist/worker.js"} <= set(files)
    assert {Path(name).suffix for name in files} == {".json", ".md", "", ".js", ".ts"}
    assert all(name.startswith("dist/") or name in ("package.json", "README.md", "LICENSE") for name in files)


def test_trains_as_python_does_across_a_reload(
    happened: tuple[dict[str, Any], Path], folder: Callable[[str], Path]
) -> None:
    result, out = happened
    batch = load_file(folder("convolutional").parent / "batch")
    training = Training(folder("convolutional"))
    expected = [training.step(batch).loss for _ in range(10)]
    losses = [*result["again"]["losses"], *result["rest"]["losses"]]
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5 * expected[0])
    assert result["first"] == result["again"]  # in the page and in a worker
    assert (result["none"], result["resumed"], result["rest"]["stepCount"]) == (None, 5, 10)
    assert result["forgotten"] is True
    # What the page saved goes on in Python, and what it exported is a model.
    training.load(f"{out}.safetensors")
    assert training.step_count == 10
    (predicted,) = onnxruntime.InferenceSession(f"{out}.onnx", providers=["CPUExecutionProvider"]).run(
        None, {name: batch[name] for name in batch if name != "labels"}
    )
    (expected_output,) = training.predict({name: batch[name] for name in batch if name != "labels"}).values()
    np.testing.assert_allclose(predicted, expected_output, rtol=1e-4, atol=1e-5)


def test_the_page_stays_responsive(happened: tuple[dict[str, Any], Path]) -> None:
    """A page that trains itself stands still for a step; one with a worker does not."""
    result, _ = happened
    for where in ("here", "responsive"):
        assert result[where]["progress"] == 2
    step = result["here"]["milliseconds"] / 2
    assert result["here"]["pause"] > 0.5 * step
    assert result["responsive"]["pause"] < 0.5 * min(step, result["responsive"]["milliseconds"] / 2)


def test_errors_cross_the_worker(happened: tuple[dict[str, Any], Path]) -> None:
    result, _ = happened
    assert result["refused"] == {"message": "the labels labels must be from 0 to 2, but there is 7", "known": True}
    assert result["unknown"] == {"message": "there is no input wrong; a batch has input, labels", "known": True}
    assert result["function"].startswith("functions and generators cannot be sent to a worker")
    assert result["missing"].endswith("/nowhere/manifest.json cannot be had: 404 Not Found")
    assert result["complaints"] == []


def test_training_can_be_stopped(happened: tuple[dict[str, Any], Path]) -> None:
    stopped = happened[0]["stopped"]
    assert stopped["result"]["stopped"] is True
    assert 3 <= len(stopped["result"]["losses"]) == stopped["last"] < 1000


def test_workers_end(happened: tuple[dict[str, Any], Path]) -> None:
    result, _ = happened
    assert (result["workersBefore"], result["workers"], result["workersAfterReload"]) == (0, 1, 0)
    assert (result["leaked"], result["workersAfterDispose"]) == (0, 0)
    assert result["disposed"] == "this training was disposed of"


WEBGPU = {
    "newest": ["perceptron", "convolutional", "recurrent"],
    "jsep": ["perceptron"],
    "oldest": ["perceptron", "convolutional"],
}


@pytest.mark.parametrize("variant", WEBGPU)
def test_webgpu_is_right_or_refused(
    variant: str, consumer: tuple[Path, list[str]], folder: Callable[..., Path]
) -> None:
    """On SwiftShader, with the package's own provider, the older one that it still has, and that of the oldest package.

    onnxruntime-web 1.20 computes the gradient of a convolution's weight wrongly: training is refused at the first step.
    """
    works = {name: folder(name, "webgpu") for name in WEBGPU[variant]}
    places = [place.parent for place in works.values()]
    result = json.loads(run_node("test/webgpu.mjs", consumer[0], variant, 5, *places, timeout=500))
    if result["adapter"] is None:
        pytest.skip("this Chromium offers no WebGPU")
    for (name, place), found in zip(works.items(), result["results"], strict=True):
        if (variant, name) == ("oldest", "convolutional"):
            assert "WebGPU computes 4.weight.mu wrongly here" in found["error"]
            continue
        training, batch = Training(place), load_file(place.parent / "batch")
        expected = [training.step(batch).loss for _ in range(5)]
        np.testing.assert_allclose(found["losses"], expected, rtol=1e-5)
        assert found["ignored"] == []
