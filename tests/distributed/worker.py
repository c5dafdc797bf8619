"""One of several processes that run scenarios, one start for all.

Usage, by torchrun: worker.py <folder>, which runs the examples, too; or with the names of scenarios.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch.distributed

from onward.torch import Distributed
from tests.distributed.launch import ROOT
from tests.distributed.scenarios import SCENARIOS, SHARDED
from tests.distributed.scenarios.modules import MODULES

EXAMPLES = {"ortmodule.py": ["--epochs", "4"], "train.py": ["--epochs", "4", "--output", "."]}


def example(name: str) -> str:
    """What an example prints, run as a program."""
    sys.argv = [name, *EXAMPLES[name]]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(ROOT / "examples" / "distributed" / name), run_name="__main__")
    return said.getvalue()


def calls(folder: Path) -> dict[str, Callable[[], Any]]:
    """All that is run, by name."""
    strategies = {False: Distributed(timeout=60), True: Distributed(timeout=60, sharded=True)}
    named: dict[str, Callable[[], Any]] = {}
    for name, run in SCENARIOS.items():
        named[name] = lambda run=run, name=name: run(strategies[name in SHARDED], place(folder, name))
    return {**named, **MODULES}


def place(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(exist_ok=True)
    return made


def found_in(folder: Path, names: Collection[str] = ()) -> dict[str, Any]:
    """What this process finds in all scenarios, or in those that are named; a traceback where one fails."""
    found = {}
    for name, call in calls(folder).items():
        if names and name not in names:
            continue
        began = time.monotonic()
        try:
            found[name] = call()
        except BaseException:
            found[name] = traceback.format_exc()
        print(f"{time.monotonic() - began:6.2f} s  {name}", flush=True)
    return found


def write(folder: Path, found: dict[str, Any]) -> None:
    (folder / f"rank{torch.distributed.get_rank()}.pickle").write_bytes(pickle.dumps(found))


def main(folder: Path, *names: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    warnings.simplefilter("error")  # that torch runs a module in place of onnxruntime is one
    found: dict[str, Any] = {}
    if not names:
        found["ortmodule.py"] = example("ortmodule.py")
        # torchrun lets processes find each other once; who has left comes back at another place.
        os.environ.update(MASTER_PORT=os.environ["NEXT_PORT"], TORCHELASTIC_USE_AGENT_STORE="False")
        found["train.py"] = example("train.py")
    write(folder, {**found, **found_in(folder, names)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
