"""The notebooks run, from the first cell to the last; what they claim is asserted in their cells."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.real_models.download import NotAvailableError, _package

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PACKAGE = "rapidocr_onnxruntime==1.4.4"


def run(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in a folder of its own."""
    notebook = nbformat.read(path, as_version=4)
    # The kernel's own settings would be those of whoever runs the tests.
    environment = {**os.environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline", "IPYTHONDIR": str(folder)}
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment)
    return notebook


# Fine-tuning takes longest, and the other two show that notebooks and the package work.
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path.stem.startswith("2") else ()) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    source = path.read_text("utf-8")
    if PACKAGE in source:
        try:
            shutil.copy(_package(PACKAGE), tmp_path)
        except NotAvailableError as error:
            pytest.skip(str(error))
    if "digits_cnn.onnx" in source:
        shutil.copytree(ROOT / "examples" / "models", tmp_path / "examples" / "models")
    done = run(path, tmp_path)
    outputs = [output for cell in done.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    assert not [output for output in outputs if output.get("name") == "stderr"]
    if keep := os.environ.get("KEEP_NOTEBOOKS"):  # to look at them
        nbformat.write(done, Path(keep) / path.name)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_committed_without_outputs(path: Path) -> None:
    """So that changes can be read."""
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["1-first-training", "2-fine-tuning", "3-saliency-and-fgsm"]
