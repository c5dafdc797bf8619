"""The results of a run as text, as a page and as a picture."""

from __future__ import annotations

import datetime
import math
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.run import Result
    from benchmarks.works import Work

Row = Mapping[str, "Result"]

# What messages of peers mean.
_MEANINGS = {
    "i < node_->OutputDefs().size() was false": "refuses to build: LayerNormalization without its optional outputs",
}


def time_ratio(row: Row) -> float:
    """Our time by that of the fastest peer."""
    others = [result.median for name, result in row.items() if name != "onward" and result.milliseconds]
    return row["onward"].median / min(others) if others and "onward" in row else math.nan


def memory_ratio(row: Row, peer: str) -> float:
    """Our peak memory by that of a peer."""
    return row["onward"].mib / row[peer].mib if peer in row and "onward" in row else math.nan


def line(work: Work, row: Row) -> str:
    """One work in one line, as it is printed while the rest still runs."""
    parts = [
        f"{name} {result.median:.2f} ms, {result.mib:.0f} MiB"
        if result.milliseconds
        else f"{name}: {_short(result.problem)}"
        for name, result in row.items()
    ]
    return f"  {' | '.join(parts)} | ratio {_number(time_ratio(row))} (target {_goal(work) or 'none'})"


def write(
    rows: Mapping[str, Row], works: Mapping[str, Work], titles: Mapping[str, str], folder: Path, threads: int
) -> str:
    """Write the page and the picture; returns the page."""
    folder.mkdir(parents=True, exist_ok=True)
    day = datetime.date.today().isoformat()
    text = _page(rows, works, titles, threads, day)
    (folder / f"{day}.md").write_text(text)
    if "torch" in titles:
        _picture(rows, works, titles, folder / f"{day}.png")
    return text


def _page(rows: Mapping[str, Row], works: Mapping[str, Work], titles: Mapping[str, str], threads: int, day: str) -> str:
    others = {peer: title for peer, title in titles.items() if peer != "onward"}
    builders = {peer: title for peer, title in titles.items() if peer != "torch"}
    times: list[list[object]] = []
    memory: list[list[object]] = []
    building: list[list[object]] = []
    for name, row in rows.items():
        work = works[name]
        times.append([work.title, *(_time(row[peer]) for peer in titles), _number(time_ratio(row)), _goal(work)])
        ratios = [_number(memory_ratio(row, peer)) for peer in others]
        memory.append([work.title, *(_number(row[peer].mib, 0) for peer in titles), *ratios])
        building.append([work.title, *(_number(row[peer].build_seconds) for peer in builders)])
    return "\n".join(
        [
            f"# Training steps with AdamW, {day}",
            "",
            f"{processor()}, {threads} threads, float32, {_versions()}; load of the machine over the last minute "
            f"{os.getloadavg()[0]:.1f}. Median (least to most) of alternating rounds; memory is the peak above the "
            "loaded program. Ratios are our time by the fastest peer's and our memory by each peer's: lower is better.",
            "",
            table(["step, ms", *titles.values(), "ratio", "target"], times),
            "",
            table(["peak memory, MiB", *titles.values(), *(f"by {title}" for title in others.values())], memory),
            "",
            table(["building the artifacts, s", *builders.values()], building),
            "",
        ]
    )


def processor() -> str:
    for entry in Path("/proc/cpuinfo").read_text().splitlines():
        if entry.startswith("model name"):
            return entry.partition(":")[2].strip()
    return platform.machine()


def _versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "torch"))


def table(header: list[str], rows: list[list[object]]) -> str:
    cells = [header, ["---"] * len(header), *([str(cell).replace("|", "/") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _time(result: Result) -> str:
    if not result.milliseconds:
        return _short(result.problem)
    low, high = min(result.milliseconds), max(result.milliseconds)
    return f"{result.median:.2f} ({low:.2f} to {high:.2f})"


def _short(problem: str, limit: int = 160) -> str:
    words = next((meaning for text, meaning in _MEANINGS.items() if text in problem), " ".join(problem.split()))
    return words if len(words) <= limit else f"{words[:limit]} ..."


def _goal(work: Work) -> str:
    return "" if math.isnan(work.target) else str(work.target)


def _number(value: float, digits: int = 2) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def _picture(rows: Mapping[str, Row], works: Mapping[str, Work], titles: Mapping[str, str], path: Path) -> None:
    """Bars of each peer's time by PyTorch's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 1 + 0.8 * len(rows)), layout="constrained")
    height = 0.8 / len(titles)
    for index, (peer, title) in enumerate(titles.items()):
        values = [
            row[peer].median / row["torch"].median if "torch" in row else row[peer].median for row in rows.values()
        ]
        places = [place + index * height for place in range(len(rows))]
        bars = axes.barh(places, [0 if math.isnan(value) else value for value in values], height, label=title)
        axes.bar_label(bars, [f" {_number(value) or 'no'}" for value in values])
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(rows))], [works[name].title for name in rows])
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("time of a training step by PyTorch's (lower is better)")
    axes.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
