"""What a trainer knows about its training, put together for a report."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata

from onward import __version__
from onward.report.content import Fact, Training
from onward.report.course import best
from onward.report.figure import duration, shown, size
from onward.report.results import Results
from onward.trainer.comparison import Comparison
from onward.trainer.description import program
from onward.trainer.history import History
from onward.trainer.trained import TrainedModel

_PACKAGES = ("onnxruntime", "onnx", "onnx_ir", "numpy")


def recipe_of(arguments: Mapping[str, str], fits: Sequence[Mapping[str, str]]) -> str:
    """The program that trains like this."""
    lines = ["import onward", "", program("trainer = onward.Trainer", arguments, positional=2)]
    lines += [program("trainer.fit", fit, positional=2 if "targets" in fit else 1) for fit in fits]
    return "\n".join(lines)


def training_of(
    model: TrainedModel,
    history: History,
    comparisons: Sequence[Comparison],
    results: Results | str,
    *,
    title: str,
    recipe: str,
) -> Training:
    """All that can be told."""
    return Training(
        title=title,
        course=history,
        facts=[*_measured(history, comparisons), *_totals(model, history)],
        results=results,
        movements=model.movements(),
        structure=model.structure(),
        recipe=recipe,
        origin=_origin(model),
    )


def _measured(history: History, comparisons: Sequence[Comparison]) -> Iterator[Fact]:
    """The loss and the metrics of the last epoch: of validation where there are any; and the best of all epochs."""
    last = history.epochs[-1] if history.epochs else {}
    higher = {each.metric.name: bool(each.metric.higher_is_better) for each in comparisons}
    for name, value in last.items():
        base = name.removeprefix("val_")
        if base not in ("loss", *higher) or not isinstance(value, (int, float)) or f"val_{name}" in last:
            continue
        top = best(history, name, higher.get(base, False))
        note = "" if top is None or len(history) < 2 else f"best {shown(top[name])} in epoch {top['epoch'] + 1}"
        yield Fact(f"{base} ({'training' if base == name else 'validation'})", shown(value), note)


def _totals(model: TrainedModel, history: History) -> Iterator[Fact]:
    steps = len(history.losses)
    yield Fact("epochs", shown(len(history)), f"{shown(steps)} steps")
    known = [seconds for seconds in history.seconds if not math.isnan(seconds)]
    if known:
        yield Fact("time of steps", duration(sum(known)), f"half take at most {duration(statistics.median(known))}")
    peak = max((sample.memory for sample in history.samples), default=math.nan)
    if not math.isnan(peak):
        yield Fact("memory of the process", size(peak), "at most, while training")
    counts: Counter[str] = Counter()
    for _, kind, _, shape in model.parameters():
        counts[kind] += math.prod(shape)
    yield Fact("trained numbers", shown(counts["trained"]), f"{shown(counts['frozen'])} frozen")


def _origin(model: TrainedModel) -> dict[str, str]:
    """Versions and machine."""
    return {
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "onward": __version__,
        **{name: metadata.version(name) for name in _PACKAGES},
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "processors": str(os.cpu_count() or "unknown"),
        "providers": ", ".join(str(p if isinstance(p, str) else p[0]) for p in model.module.providers),
    }
