"""The example of a language model trains, with every engine the same."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "language_model"
SMALL = "--emsize 8 --nhid 8 --nlayers 1 --dropout 0 --bptt 6 --batch-size 4 --epochs 2 --limit 4 --log-interval 2"


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the training shows for a text in the form of WikiText-2, and where it wrote the models."""
    folder = tmp_path_factory.mktemp("wikitext")
    sentence = " = Cats = \n\n The cat sat on the mat , and <unk> saw it . \n"
    for part, times in (("train", 30), ("valid", 12), ("test", 12)):
        (folder / f"wiki.{part}.tokens").write_text(sentence * times, "utf-8")
    arguments = [
        "--data",
        str(folder),
        *SMALL.split(),
        "--output",
        str(folder / "out"),
        "--engines",
        "ort",
        "ortmodule",
        "torch",
    ]
    return run("train.py", *arguments), folder / "out"


def test_the_log(trained: tuple[str, Path]) -> None:
    shown, _ = trained
    assert (
        len(re.findall(r"^\| epoch +\d \| +\d/ +4 batches \| lr 0\.00100 \| ms/batch +\S+ \| loss", shown, re.M)) == 12
    )
    assert len(re.findall(r"^\| end of epoch +\d \| time: +\S+s \| valid loss +\S+ \| valid ppl", shown, re.M)) == 6
    assert len(re.findall(r"^\| End of training \| test loss +\S+ \| test ppl", shown, re.M)) == 3
    assert shown.count("-" * 89) == 12
    losses = [float(loss) for loss in re.findall(r"batches .* \| loss +(\S+)", shown)]
    assert losses[:4] == losses[4:8] == losses[8:]
    assert losses[3] < losses[0]


def test_engines_agree(trained: tuple[str, Path]) -> None:
    shown, _ = trained
    losses = [float(loss) for loss in re.findall(r"^(?:ort|ortmodule|torch) +(\S+) +\S+ +\S+$", shown, re.M)]
    assert losses == pytest.approx(losses[-1:] * 3, abs=2e-4)


@pytest.mark.parametrize("engine", ["ort", "ortmodule", "torch"])
def test_exported_models_continue_sentences(engine: str, trained: tuple[str, Path]) -> None:
    shown, folder = trained
    words = json.loads((folder / engine / "words.json").read_text("utf-8"))
    assert words[:4] == ["<unk>", "<pad>", "<sos>", "<eos>"]
    assert {"cat", "cats", "=", ","} <= set(words)
    found = run("predict.py", str(folder / engine), "The cat", "--count", "3").split()
    assert found[:2] == ["the", "cat"]
    assert len(found) == 5
    assert set(found) <= set(words)
    assert "continues: the " in shown


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("predict.py", "nowhere", "nowhere is no folder in which train.py has written a model"),
        ("train.py", "--limit 0", "argument --limit: 0 is less than 1"),
        ("train.py", "--nhead 3", "--emsize 200 cannot be divided by --nhead 3"),
        ("train.py", "--batch-size 10000000", "the text for train has too few words for 10000000 columns"),
        ("train.py", "--data nowhere", "nowhere has neither wiki.train.tokens nor train.txt"),
    ],
)
def test_mistakes(script: str, arguments: str, message: str) -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE / script), *arguments.split()], capture_output=True, text=True)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_all_engines_on_our_own_documents(tmp_path: Path) -> None:
    small = [*SMALL.replace("--limit 4", "--limit 20").split(), "--output", str(tmp_path)]
    shown = run("train.py", *small, "--engines", "ort", "legacy", "torch")
    losses = [float(loss) for loss in re.findall(r"^(?:ort|legacy|torch) +(\S+) +\S+ +\S+$", shown, re.M)]
    assert losses == pytest.approx(losses[:1] * 3, abs=5e-4)
