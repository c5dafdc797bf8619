"""What a trainer knows about its training, put together for a report."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata

from onward import __version__
from onward.report.content import Training
from onward.report.figure import duration, shown, size
from onward.trainer.description import program
from onward.trainer.history import History
from onward.trainer.memory import resident_memory
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
    *,
    title: str,
    recipe: str,
    better: Mapping[str, bool],
) -> Training:
    """All that can be told.

    Args:
        better: of each metric whether more is better.
    """
    return Training(
        title=title,
        course=history,
        facts=_facts(model, history, better),
        recipe=recipe,
        origin=_origin(model),
    )


def _facts(model: TrainedModel, history: History, better: Mapping[str, bool]) -> dict[str, str]:
    facts: dict[str, str] = {}
    last = history.epochs[-1] if history.epochs else {}
    for name, value in last.items():
        validated = name.removeprefix("val_")
        if name in ("epoch", "seconds", "rate") or not isinstance(value, (int, float)) or f"val_{name}" in last:
            continue
        facts[f"{validated} (validation)" if name != validated else f"{name} (training)"] = shown(value)
    facts["epochs"] = shown(len(history))
    facts["steps"] = shown(len(history.losses))
    known = [seconds for seconds in history.seconds if not math.isnan(seconds)]
    if known:
        facts["time"] = duration(sum(known))
    counts = dict.fromkeys(("trained", "frozen"), 0)
    for _, what, _, shape in model.parameters():
        counts[what] = counts.get(what, 0) + math.prod(shape)
    facts["numbers trained"] = shown(counts["trained"])
    facts["numbers frozen"] = shown(counts["frozen"])
    return facts


def _origin(model: TrainedModel) -> dict[str, str]:
    """Versions and machine."""
    memory = resident_memory()
    return {
        "written": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "onward": __version__,
        **{name: metadata.version(name) for name in _PACKAGES},
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "processors": str(os.cpu_count() or "unknown"),
        "providers": ", ".join(str(p if isinstance(p, str) else p[0]) for p in model.module.providers),
        **({} if memory is None else {"memory of this process": size(memory)}),
    }
