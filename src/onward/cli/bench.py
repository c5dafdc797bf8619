"""`onward bench`: how long a training step takes, and how much memory."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from onward import losses
from onward.cli.model import ModelView
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.runtime.session import open_session
from onward.testing.running import run_on_runtime
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
        **_by_torch(view, feeds, output, optimizer, steps),
    }


def _median(run: Callable[[], object], steps: int) -> float:
    run()  # the first one plans memory
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _by_torch(view: ModelView, feeds: Mapping[str, Array], output: str, optimizer: str, steps: int) -> dict[str, Any]:
    """The same step by torch, or why there is none: few files can be read for it."""
    try:
        torch, convert = (importlib.import_module(name) for name in ("torch", "onnx2torch"))
    except Exception as error:  # torchvision, which onnx2torch needs, raises anything if it is for another torch
        reason = f"pip install torch torchvision onnx2torch ({_line(error)})"
        return {"torch_step_seconds": None, "torch_absent": reason}
    try:
        module = convert.convert(ir.to_proto(view.prepared.clone()))
        position = list(view.outputs).index(output) if output in view.outputs else 0
        step = _torch_step(torch, module, feeds, position, optimizer, view)
        return {"torch_step_seconds": _median(step, steps), "torch_absent": None}
    except Exception as error:  # whatever the converter does not know: there is nothing to compare with
        return {"torch_step_seconds": None, "torch_absent": f"onnx2torch cannot read this model ({_line(error)})"}


def _torch_step(
    torch: Any, module: Any, feeds: Mapping[str, Array], position: int, optimizer: str, view: ModelView
) -> Callable[[], None]:
    """A step by torch of what computes the same."""
    inputs = [torch.from_numpy(np.array(array)) for array in feeds.values()]

    def forward() -> Any:
        found = module(*inputs)
        return found[position] if isinstance(found, (tuple, list)) else found

    ours = run_on_runtime(ir.to_proto(view.prepared.clone()), dict(feeds))[list(view.outputs)[position]]
    theirs = forward().detach().numpy()
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(np.abs(ours).max())):
        raise OnwardError("its outputs are others than those of onnxruntime")
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}.get(optimizer, torch.optim.AdamW)
    updates = kind(module.parameters(), lr=1e-6)

    def step() -> None:
        updates.zero_grad()
        (forward() ** 2).mean().backward()
        updates.step()

    return step


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]
