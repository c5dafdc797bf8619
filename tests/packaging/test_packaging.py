"""The wheel and the sdist: what is in them, what they say, and that they work where nothing else is installed."""

from __future__ import annotations

import email.message
import email.parser
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import onward

ROOT = Path(__file__).parents[2]
# What each extra makes importable.
EXTRAS = {
    "cli": "onward.cli",
    "sklearn": "onward.sklearn",
    "torch": "onward.torch",
    "report": "onward.report",
    "fast": "onward.runtime.compiled",
    "docs": "mkdocs",
    "federated": "onward.federated",
}
SMALL = 3e6  # bytes of the wheel


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built of a copy: building leaves files behind."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


def described(built: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel(built)) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.parser.Parser().parsestr(archive.read(name).decode("utf-8"))


def test_the_wheel_has_all_of_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(wheel(built)) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        scripts = archive.read(next(name for name in archive.namelist() if name.endswith("entry_points.txt")))
    files = (path for path in (ROOT / "src" / "onward").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert names == {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert "onward/py.typed" in names
    assert "onward = onward.cli:main" in scripts.decode("utf-8")
    assert wheel(built).stat().st_size < SMALL


def test_the_sdist_has_what_building_needs(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/onward/py.typed", "src/onward/__init__.py"} <= names


def test_what_it_says_of_itself(built: Path) -> None:
    said = described(built)
    assert said["Name"] == "onward"
    assert said["Version"] == onward.__version__  # which is written there, and nowhere else
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text("utf-8")
    assert said["Requires-Python"] == ">=3.10"
    assert said["License-Expression"] == "Apache-2.0"
    classifiers = said.get_all("Classifier", [])
    assert "Typing :: Typed" in classifiers
    assert "Operating System :: OS Independent" in classifiers
    for version in ("3.10", "3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in classifiers
    assert set(EXTRAS) <= set(said.get_all("Provides-Extra", []))
    needed = [Requirement(text) for text in said.get_all("Requires-Dist", [])]
    default = {requirement.name for requirement in needed if requirement.marker is None}
    assert {name.replace("_", "-") for name in default} == {"numpy", "onnx", "onnx-ir", "onnxruntime"}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras(extra: str, built: Path) -> None:
    """What the tests run with is what an extra asks for, and its part can be imported."""
    needed = [Requirement(text) for text in described(built).get_all("Requires-Dist", [])]
    own = [each for each in needed if each.marker is not None and each.marker.evaluate({"extra": extra})]
    assert own
    for requirement in own:
        assert metadata.version(requirement.name) in requirement.specifier, str(requirement)
    importlib.import_module(EXTRAS[extra])


@pytest.mark.slow
def test_a_fresh_environment(built: Path, tmp_path: Path) -> None:
    """The wheel and the packages it names, and nothing else: gradient, Trainer, lora."""
    # With the sources on the path, pip would take them for the installed package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python")
    install = [python, "-m", "pip", "install", "--quiet", str(wheel(built))]
    done = subprocess.run(install, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    program = Path(__file__).with_name("first_use.py")
    run = [python, "-W", "error", str(program)]
    done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"onward {onward.__version__} on Python")
