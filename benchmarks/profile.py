"""Where the time of a training step goes: `python -m benchmarks.profile cnn` prints it by operator, layer and node."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

from benchmarks import works

ROOT = Path(__file__).parent.parent
WARM_UP = 5


class Kernel(NamedTuple):
    """One run of one node."""

    node: str
    operator: str
    milliseconds: float
    shapes: str


class RecordedSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """A session that writes a profile of its own."""

    folder: Path
    opened: list[RecordedSession] = []  # noqa: RUF012

    def __init__(self, model: Any, options: onnxruntime.SessionOptions, **rest: Any) -> None:
        options.enable_profiling = True
        options.profile_file_prefix = str(self.folder / f"session{len(self.opened)}")
        super().__init__(model, options, **rest)
        self.opened.append(self)


def record(folder: Path, threads: int, steps: int) -> tuple[list[Kernel], float]:
    """The kernels of some training steps, and the time of a step without profiling, in ms."""
    from benchmarks.worker_ort import OnnxRuntime

    worker = OnnxRuntime(folder, threads)
    worker.import_builder()
    worker.build()
    plain = _time(worker.load(), steps)
    with tempfile.TemporaryDirectory() as profiles:
        RecordedSession.folder = Path(profiles)
        original, onnxruntime.InferenceSession = onnxruntime.InferenceSession, RecordedSession
        try:
            _time(worker.load(), steps)
        finally:
            onnxruntime.InferenceSession = original
        files = [session.end_profiling() for session in RecordedSession.opened]
        return [kernel for file in files for kernel in _kernels(file, steps)], plain


def _time(step: Callable[[int], Any], steps: int) -> float:
    for index in range(WARM_UP):
        step(index)
    start = time.perf_counter()
    for index in range(steps):
        step(index)
    return (time.perf_counter() - start) / steps * 1e3


def _kernels(file: str, steps: int) -> Iterator[Kernel]:
    """The kernels of the last steps of a profile; the first ones warm caches and memory up."""
    events = [e for e in json.loads(Path(file).read_text()) if e.get("cat") == "Node" and "kernel_time" in e["name"]]
    for event in events[len(events) * WARM_UP // (WARM_UP + steps) :]:
        arguments = event["args"]
        shapes = " ".join(
            "x".join(map(str, shape)) for entry in arguments.get("input_type_shape", []) for shape in entry.values()
        )
        name = event["name"].removesuffix("_kernel_time")
        yield Kernel(name, arguments["op_name"], event["dur"] / 1e3, shapes)


def layer(name: str, depth: int = 3) -> str:
    """What a node belongs to; nodes of the backward pass are called grad/<forward node>/<operator>."""
    parts = [part for part in name.split("/") if part]
    direction = {"grad": "backward", "update": "update"}.get(parts[0], "forward")
    parts = {"backward": parts[1:-1], "update": []}.get(direction, parts)
    return f"{direction} {'/'.join(parts[:depth])}"


def table(title: str, kernels: list[Kernel], key: Callable[[Kernel], str], steps: int, rows: int) -> str:
    times: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, int] = defaultdict(int)
    for kernel in kernels:
        times[key(kernel)] += kernel.milliseconds / steps
        counts[key(kernel)] += 1
    total = sum(times.values())
    lines = [f"{title:90} {'ms':>8} {'%':>6} {'runs':>7}"]
    for name, milliseconds in sorted(times.items(), key=lambda item: -item[1])[:rows]:
        share = 100 * milliseconds / total
        lines.append(f"{name[:90]:90} {milliseconds:8.3f} {share:6.1f} {counts[name] / steps:7.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=works.WORKS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--depth", type=int, default=3, help="how many parts of a node's name make a layer")
    parser.add_argument("--static", action="store_true", help="export with a fixed batch size")
    options = parser.parse_args()
    folder = ROOT / "out" / "bench" / options.work
    works.write(options.work, folder, static=options.static)
    kernels, milliseconds = record(folder, options.threads, options.steps)
    inside = sum(kernel.milliseconds for kernel in kernels) / options.steps
    print(
        f"{works.WORKS[options.work].title}: {milliseconds:.2f} ms a step, {inside:.2f} ms in kernels when profiled\n"
    )
    for title, key in (
        ("operator", lambda kernel: kernel.operator),
        ("layer", lambda kernel: layer(kernel.node, options.depth)),
        ("node", lambda kernel: f"{kernel.node} [{kernel.shapes}]"),
    ):
        print(table(title, kernels, key, options.steps, options.rows), end="\n\n")


if __name__ == "__main__":
    main()
