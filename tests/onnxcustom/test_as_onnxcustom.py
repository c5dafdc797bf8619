"""`import onward.as_onnxcustom`: the modules under their old names, lazily, and never over the original."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULES = [
    "training",
    "utils",
    *(
        f"training.{name}"
        for name in (
            "data_loader excs grad_helper optimizers optimizers_partial ortgradient sgd_learning_loss "
            "sgd_learning_penalty sgd_learning_rate"
        ).split()
    ),
    *(
        f"utils.{name}"
        for name in (
            "benchmark onnx_function onnx_helper onnx_orttraining onnx_rewriter onnxruntime_helper orttraining_helper "
            "print_helper"
        ).split()
    ),
]


def run(program: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, cwd=folder)


def test_modules_are_those_of_onward() -> None:
    program = "import onward.as_onnxcustom, importlib, onnxcustom, onward.onnxcustom\n"
    program += "assert onnxcustom is onward.onnxcustom\n"
    program += f"for name in {MODULES!r}:\n"
    program += "    old, new = (importlib.import_module(f'{p}.{name}') for p in ('onnxcustom', 'onward.onnxcustom'))\n"
    program += "    assert old is new, name\n"
    program += "    assert old.__spec__.name == f'onward.onnxcustom.{name}', old.__spec__\n"
    program += "assert onnxcustom.__max_supported_opset__ == onnxcustom.get_max_opset() == 15\n"
    program += "from onnxcustom.training import ConvergenceError, ConvergenceWarning, EvaluationError, ProviderError\n"
    program += "from onnxcustom.utils import str_ortvalue, measure_time\n"
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_is_not_found() -> None:
    done = run("import onward.as_onnxcustom, onnxcustom.utils.nothing")
    assert "No module named 'onnxcustom.utils.nothing'" in done.stderr


def test_nothing_is_loaded_before_it_is_used() -> None:
    program = "import sys, onward.as_onnxcustom\n"
    program += "assert not [name for name in sys.modules if name.startswith(('onnx', 'numpy', 'onward.onnxcustom'))]\n"
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_the_original_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "onnxcustom").mkdir()
    (tmp_path / "onnxcustom" / "__init__.py").touch()
    done = run("import onward.as_onnxcustom", tmp_path)
    assert "onnxcustom is installed already; onward does not replace it" in done.stderr
