"""One of several processes that run all scenarios. Usage: python -m tests.distributed.worker <folder>."""

from __future__ import annotations

import pickle
import signal
import sys
import traceback
from pathlib import Path

from onward.torch import Distributed
from tests.distributed.scenarios import SCENARIOS, SHARDED


def main(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    strategies = {False: Distributed(timeout=60), True: Distributed(timeout=60, sharded=True)}
    rank = strategies[False].rank
    found = {}
    for name, run in SCENARIOS.items():
        place = folder / name
        place.mkdir(exist_ok=True)
        try:
            found[name] = run(strategies[name in SHARDED], place)
        except BaseException:
            found[name] = traceback.format_exc()
    (folder / f"rank{rank}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
