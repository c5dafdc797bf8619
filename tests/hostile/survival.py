"""Run readers over damaged files in processes that may hang or die, and say which file did it."""

from __future__ import annotations

import base64
import queue
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[2]
WALL_SECONDS = 120.0  # without a word from the child: it hangs, even on a busy machine


Job = tuple[str, int, int]  # a reader, and the seeds of its files: from, to
Problems = dict[tuple[str, int], str]  # by reader and seed


def problems(*jobs: Job, most: int = 20) -> Problems:
    """What went wrong."""
    found: Problems = {}
    waiting = list(jobs)
    while waiting and len(found) < most:
        number, seed, died = _run(waiting, found)
        if died is None:
            break
        reader, _, last = waiting[number]
        found[reader, seed] = died
        waiting = [job for job in [(reader, seed + 1, last), *waiting[number + 1 :]] if job[1] < job[2]]
    return found


def told(found: Problems) -> str:
    """What to look at: the bytes of each file can be written again."""
    return "\n".join(
        f"python -m tests.hostile.child {reader!r} {seed} --file damaged\n{said}"
        for (reader, seed), said in found.items()
    )


def _run(jobs: list[Job], found: Problems) -> tuple[int, int, str | None]:
    """Run one child; the job and the seed that it began last, and how it died if it did."""
    arguments = [str(part) for job in jobs for part in job]
    command = [sys.executable, "-m", "tests.hostile.child", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    said: list[str] = []
    threads = [
        threading.Thread(target=_pass_on, args=(process.stdout, lines.put)),
        threading.Thread(target=_pass_on, args=(process.stderr, lambda line: said.append(line or ""))),
    ]
    for thread in threads:
        thread.start()
    number, seed, running, hung = 0, 0, False, False
    while True:
        try:
            line = lines.get(timeout=WALL_SECONDS)
        except queue.Empty:
            hung = True
            break
        if line is None:
            break
        kind, *rest = line.split()
        number, seed, running = int(rest[0]), int(rest[1]), kind != "end"
        if kind == "problem":
            found[jobs[number][0], seed] = base64.b64decode(rest[2]).decode()
    if hung:
        process.kill()
    code = process.wait()
    for thread in threads:
        thread.join()
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    if hung:
        return number, seed, f"it hung for {WALL_SECONDS:.0f} s"
    if code == 0:
        return number, seed, None
    if not running:
        raise AssertionError(f"the child failed between two files:\n{''.join(said)[-3000:]}")
    return number, seed, f"the process died with {code}: {''.join(said)[-2000:]}"


def _pass_on(stream: object, take: object) -> None:
    for line in stream:  # type: ignore[attr-defined]
        take(line)  # type: ignore[operator]
    take(None)  # type: ignore[operator]
