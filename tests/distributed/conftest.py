"""The two processes of most tests here, started once: by whichever of pytest's own processes needs them first."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.distributed.launch import free_port, torchrun


class Two(NamedTuple):
    """What two processes have found in all scenarios, and where they have written."""

    folder: Path
    ranks: tuple[dict[str, Any], dict[str, Any]]

    def both(self, name: str) -> tuple[Any, Any]:
        """What each found in a scenario."""
        found = self.ranks[0][name], self.ranks[1][name]
        for each in found:
            assert not (isinstance(each, str) and each.startswith("Traceback")), each
        return found


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Two:
    pytest.importorskip("torch")
    from filelock import FileLock  # which torch needs, too

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "two"
    said = folder / "output.txt"
    with FileLock(f"{folder}.lock"):
        if not said.exists():
            folder.mkdir()
            arguments = ["-m", "tests.distributed.worker", str(folder)]
            ended = torchrun(arguments, folder, limit=300, NEXT_PORT=str(free_port()))
            said.write_text(ended.output)
    files = [folder / f"rank{rank}.pickle" for rank in (0, 1)]
    assert all(file.exists() for file in files), said.read_text()
    first, second = (pickle.loads(file.read_bytes()) for file in files)
    return Two(folder, (first, second))
