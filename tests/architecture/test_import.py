"""`import onward` is cheap: nothing heavy is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = "numpy onnx onnx_ir onnxruntime torch sklearn matplotlib tqdm".split()


def loaded_after(code: str, *flags: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, *flags, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    loaded = loaded_after("import onward; onward.__version__; dir(onward)")
    assert "onward" in loaded
    assert not loaded & set(HEAVY)
    assert not {name for name in loaded if name.startswith("onward.")}


def test_gradient_needs_no_runtime() -> None:
    """Graphs are built without onnxruntime, torch and the rest: they may run elsewhere."""
    loaded = loaded_after("import onward; onward.gradient", "-W", "error")
    assert "onward.autodiff.gradient" in loaded
    assert not loaded & {"onnxruntime", "torch", "sklearn", "matplotlib"}


def test_every_public_name_can_be_loaded() -> None:
    import onward

    assert onward.__all__ == sorted(onward.__all__)
    assert dir(onward) == onward.__all__
    for name in onward.__all__:
        assert getattr(onward, name).__name__ in (name, f"onward.{name}")


def test_submodules_are_loaded_when_asked_for() -> None:
    loaded = loaded_after("import onward; onward.artifacts.generate_artifacts; onward.onnxblock.blocks.Add")
    assert {"onward.artifacts", "onward.onnxblock"} <= loaded
    assert not loaded & {"torch", "sklearn", "matplotlib"}


def test_unknown_names_are_attribute_errors() -> None:
    import onward

    with pytest.raises(AttributeError, match="module 'onward' has no attribute 'gradients'"):
        onward.gradients  # noqa: B018
