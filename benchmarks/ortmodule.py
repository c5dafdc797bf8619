"""ORTModule against the module itself in eager torch: `python -m benchmarks.ortmodule mlp lm --quick`.

Both train from the same weights with the same random numbers, forward, backward and torch's own optimizer; their losses
have to agree first. Then rounds of steps go by turns in one process. The first call, which exports, builds and compares
the graphs, and the memory are measured in processes of their own.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.modules import CASES, ROOT
from benchmarks.protocol import EPSILON, WEIGHT_DECAY, forget_peak, memory
from benchmarks.report import processor, table
from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from onward.torch.ortmodule.plan import Plan

CHECKED_STEPS = 4
LOSS_TOLERANCE = 2e-3  # as in benchmarks.run
RATE = 1e-5  # small, for the same reason
MEMORY_STEPS = 10
SIDES = ("torch", "ORTModule")
Step = Callable[[int], Tensor]


def step_of(case: str, side: str) -> tuple[Step, torch.nn.Module]:
    """A training step, which returns its loss, and the module."""
    module: torch.nn.Module = CASES[case].module()
    if side == "ORTModule":
        module = ORTModule(module)
    loss_of = CASES[case].prepare()
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, eps=EPSILON, weight_decay=WEIGHT_DECAY, fused=True)

    def step(index: int) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module, index)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    return step, module


def alone(case: str, side: str) -> dict[str, float]:
    """Of this process: the seconds of the first call and what they went to, and MiB at most of later steps."""
    step, module = step_of(case, side)
    loaded = memory("VmRSS")
    found: dict[str, float] = {}
    if isinstance(module, ORTModule):
        # What the first export of a process loads and keeps, whatever it exports.
        start = time.perf_counter()
        torch.sum(ORTModule(torch.nn.Linear(1, 1))(torch.ones(2, 1))).backward()  # type: ignore[no-untyped-call]
        found = {"exporter": time.perf_counter() - start, "exporter_mib": memory("VmRSS") - loaded}
    start = time.perf_counter()
    step(0)
    if isinstance(module, ORTModule) and not _plans(module):
        step(1)  # modules that note something at their first call, as BERT does, are exported at the second
    found["first"] = time.perf_counter() - start
    if isinstance(module, ORTModule):
        (plan,) = _plans(module)
        found |= plan.seconds
    found["first_mib"] = memory("VmHWM") - loaded
    step(1)
    forget_peak()
    for index in range(MEMORY_STEPS):
        step(index)
    return found | {"mib": memory("VmHWM") - loaded}


def _plans(module: ORTModule) -> list[Plan]:
    return [plan for plans in module._runner.plans.values() for plan in plans.values() if isinstance(plan, Plan)]


@dataclass(frozen=True)
class Row:
    """What was measured of one case, by sides."""

    milliseconds: dict[str, list[float]]
    processor: dict[str, list[float]]  # milliseconds of all threads
    alone: dict[str, dict[str, float]]

    @property
    def ratio(self) -> float:
        return _ratio(self.milliseconds)

    @property
    def processor_ratio(self) -> float:
        return _ratio(self.processor)

    def time(self, side: str) -> str:
        values = self.milliseconds[side]
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _ratio(times: dict[str, list[float]]) -> float:
    """Of neighbours, because the machine is not always equally fast."""
    return statistics.median(ours / theirs for theirs, ours in zip(*(times[side] for side in SIDES), strict=True))


def measure(case: str, rounds: int, seconds: float, threads: int) -> Row:
    steps = {side: step_of(case, side)[0] for side in SIDES}
    losses = {}
    for side, step in steps.items():
        torch.manual_seed(1)
        losses[side] = [float(step(index)) for index in range(CHECKED_STEPS)]
    for ours, theirs in zip(losses["ORTModule"], losses["torch"], strict=True):
        if not abs(ours - theirs) < LOSS_TOLERANCE * abs(theirs):
            raise SystemExit(f"{case}: wrong loss, {losses['ORTModule']} instead of {losses['torch']}")
    counts = {side: max(3, round(seconds / _time(step, 3)[0])) for side, step in steps.items()}
    wall: dict[str, list[float]] = {side: [] for side in SIDES}
    processor: dict[str, list[float]] = {side: [] for side in SIDES}
    for index in range(rounds):
        for side in SIDES if index % 2 else reversed(SIDES):
            _time(steps[side], 1)
            took, used = _time(steps[side], counts[side])
            wall[side].append(took * 1e3)
            processor[side].append(used * 1e3)
    return Row(wall, processor, {side: _alone(case, side, threads) for side in SIDES})


def _time(step: Step, count: int) -> tuple[float, float]:
    """Seconds of a step, on the clock and of all threads."""
    start, used = time.perf_counter(), time.process_time()
    for index in range(count):
        step(index)
    return (time.perf_counter() - start) / count, (time.process_time() - used) / count


def _alone(case: str, side: str, threads: int) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.ortmodule", case, "--alone", side, "--threads", str(threads)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if run.returncode:
        raise SystemExit(f"{case}: {run.stderr}")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def page(rows: dict[str, Row], threads: int) -> str:
    times, first, room = [], [], []
    for name, row in rows.items():
        title, target = CASES[name].title, CASES[name].target
        ours, theirs = row.alone["ORTModule"], row.alone["torch"]
        times.append(
            [title, *(row.time(side) for side in SIDES), f"{row.ratio:.2f}", f"{row.processor_ratio:.2f}", target]
        )
        spans = [f"{ours[span]:.2f}" for span in ("export", "build", "comparison")]
        first.append([title, f"{theirs['first']:.2f}", f"{ours['first']:.2f}", *spans, f"{ours['exporter']:.2f}"])
        mib = [f"{side['mib']:.0f}" for side in (theirs, ours)]
        room.append([title, *mib, f"{ours['exporter_mib']:.0f}", f"{ours['first_mib']:.0f}"])
    return "\n".join(
        [
            f"# ORTModule, {datetime.date.today().isoformat()}",
            "",
            f"{processor()}, {threads} threads, float32; load of the machine over the last minute "
            f"{os.getloadavg()[0]:.1f}. Training mode, forward, backward and torch's fused AdamW; median (least to "
            "most) of rounds by turns. Ratios are ORTModule's by those of the module in eager torch: lower is better.",
            "",
            table(["step, ms", *SIDES, "ratio", "of processor time", "target"], times),
            "",
            table(
                ["first step, s", *SIDES, "of it export", "build", "comparison", "before: exporters"],
                first,
            ),
            "",
            table(["peak memory above the module, MiB", *SIDES, "of it exporters", "of our first call"], room),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round of each side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="few and short rounds, to see that it works")
    parser.add_argument("--alone", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, help="folder for the table; by default that of results, if it has all cases"
    )
    # `make bench` gives the options of all benchmarks to each; these have values, which are no cases.
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--peers", help=argparse.SUPPRESS)
    options, _ = parser.parse_known_args()
    if options.only:
        options.cases = [name for name in options.only.split(",") if name in CASES]
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"there is no {unknown[0]!r}; there are {', '.join(CASES)}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    torch.set_num_threads(options.threads)
    warnings.simplefilter("error", FallbackWarning)  # or torch would be compared with torch
    if options.alone:
        print(json.dumps(alone(options.cases[0], options.alone)))
        return
    if options.quick:
        options.rounds, options.seconds = 3, 0.2
    rows: dict[str, Row] = {}
    problems: list[str] = []
    for name in options.cases or CASES:
        try:
            row = measure(name, options.rounds, options.seconds, options.threads)
        except FallbackWarning as warning:
            problems.append(f"{CASES[name].title}: {warning}")
            continue
        rows[name] = row
        first = row.alone["ORTModule"]["first"]
        print(
            f"{name}: torch {row.time('torch')} ms | ORTModule {row.time('ORTModule')} ms | ratio {row.ratio:.2f}, "
            f"of processor time {row.processor_ratio:.2f} | first step {first:.2f} s",
            flush=True,
        )
    text = "\n".join([page(rows, options.threads), *problems])
    out = options.out or (None if options.cases or options.quick else ROOT / "benchmarks" / "results")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{datetime.date.today().isoformat()}-ortmodule.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
