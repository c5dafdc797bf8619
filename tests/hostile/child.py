"""Give damaged files to a reader, in a process of its own: it may need little memory and time, and must not die.

python -m tests.hostile.child READER 0 100       the first hundred
python -m tests.hostile.child READER 42 --file F writes the bytes of one of them, to look at
"""

from __future__ import annotations

import base64
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

MEMORY = 6 * 2**30  # of addresses, of which onnxruntime and its threads reserve two before they do anything
CPU_SECONDS = 15.0  # for one file; the fastest machine is not the one that tests run on


def run(jobs: list[tuple[str, int, int]]) -> None:
    """Print ``begin <number of the job> <seed>`` and ``end ...``, with what was wrong in between."""
    from tests.hostile.readers import READERS

    # onnxruntime and its neighbours print what they like.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name, first, _ in jobs:
        READERS[name].damaged(first)  # whole files are made without limits
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")  # numpy's, on numbers that are none
    for number, (name, first, last) in enumerate(jobs):
        for seed in range(first, last):
            content = READERS[name].damaged(seed)
            print("begin", number, seed, flush=True, file=answers)
            problem = judge(READERS[name].read, content)
            if problem is not None:
                print("problem", number, seed, base64.b64encode(problem.encode()).decode(), flush=True, file=answers)
            print("end", number, seed, flush=True, file=answers)


def judge(read: Callable[[bytes, Path], object], content: bytes) -> str | None:
    """What is wrong with how a reader takes a file: anything but success and OnwardError, and taking long."""
    start = time.process_time()
    try:
        outcome(read, content)
    except BaseException:
        return traceback.format_exc(limit=-6)
    seconds = time.process_time() - start
    return f"it took {seconds:.0f} s" if seconds > CPU_SECONDS else None


def outcome(read: Callable[[bytes, Path], object], content: bytes) -> str:
    """Whether a file is read or refused."""
    from onward.errors import OnwardError

    with tempfile.TemporaryDirectory(prefix="onward-hostile-") as folder:
        try:
            read(content, Path(folder))
        except OnwardError:
            return "refused"
    return "read"


def main(arguments: list[str]) -> None:
    if "--file" in arguments:
        from tests.hostile.readers import READERS

        name, seed, _, path = arguments
        Path(path).write_bytes(READERS[name].damaged(int(seed)))
        return
    names, firsts, lasts = (arguments[place::3] for place in range(3))
    run([(name, int(first), int(last)) for name, first, last in zip(names, firsts, lasts, strict=True)])


if __name__ == "__main__":
    main(sys.argv[1:])
