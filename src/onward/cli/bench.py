"""`onward bench`: how long a training step takes, and how much memory."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward import losses
from onward.cli.model import ModelView
from onward.graph.builder import Builder
from onward.runtime.session import open_session
from onward.trainer.memory import resident_memory
from onward.trainer.trainer import Trainer

Array = np.ndarray[Any, Any]


@losses.targets()
def mean_square(op: Builder, prediction: ir.Value) -> ir.Value:
    """The mean of the squares of an output: a loss for any model, which costs next to nothing."""
    return op.ReduceMean(prediction * prediction, keepdims=0)


def bench(view: ModelView, feeds: Mapping[str, Array], *, optimizer: str, steps: int) -> dict[str, Any]:
    """Seconds and bytes: of building the graphs, of inference, and of a step of training."""
    before = resident_memory() or 0
    content, folder = view.path.read_bytes(), view.path.parent
    session = open_session(content, folder=folder)
    inference = _median(lambda: session.run(None, dict(feeds)), steps)
    began = time.perf_counter()
    output = view.numbers(None).scores
    trainer = Trainer(view.source, mean_square, optimizer, loss_inputs=[output])
    build = time.perf_counter() - began
    trained = sum(x.size for x in trainer.snapshot().values())
    step = _median(lambda: trainer.train_step(dict(feeds)), steps)
    memory = (resident_memory() or 0) - before
    return {
        "numbers": trained,
        "build_seconds": build,
        "inference_seconds": inference,
        "step_seconds": step,
        "memory_bytes": max(memory, 0),
        "torch_step_seconds": _by_torch(view, feeds, output, optimizer, steps),
    }


def _median(run: Callable[[], object], steps: int) -> float:
    run()  # the first one plans memory
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _by_torch(view: ModelView, feeds: Mapping[str, Array], output: str, optimizer: str, steps: int) -> float | None:
    """The same step by torch, if it is installed together with what reads ONNX files for it."""
    import importlib

    try:
        torch = importlib.import_module("torch")
        convert = importlib.import_module("onnx2torch").convert
    except ImportError:
        return None
    try:
        module = convert(str(view.path)).train()
        inputs = [torch.from_numpy(np.array(array)) for array in feeds.values()]
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}.get(optimizer, torch.optim.AdamW)
        updates = kind(module.parameters(), lr=1e-6)
        position = list(view.outputs).index(output) if output in view.outputs else 0

        def step() -> None:
            updates.zero_grad()
            found = module(*inputs)
            chosen = found[position] if isinstance(found, (tuple, list)) else found
            (chosen * chosen).mean().backward()
            updates.step()

        return _median(step, steps)
    except Exception:  # whatever the converter does not know: there is nothing to compare with
        return None
