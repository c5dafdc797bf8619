"""Two phases against the one graph: `python -m benchmarks.phases transformer mlp`.

Both compute the gradients of the same loss from the same batches, by turns. Printed are the median times, the median of
the ratios of neighbours, and the bytes that are kept between the phases.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from benchmarks import works
from benchmarks.worker_ort import OnnxRuntime
from onward import api
from onward.runtime.two_phase import TwoPhases
from onward.training.phases import phases

WARM_UP = 3
Step = Callable[[int], tuple[np.ndarray, dict[str, Any]]]  # the loss, and some gradients


def one_graph(folder: Path, threads: int) -> Step:
    """The training graph of artifacts, without an update."""
    worker = OnnxRuntime(folder, threads)
    worker.import_builder()
    worker.build()
    made = folder / "onward"
    state = api.CheckpointState.load_checkpoint(str(made / "checkpoint"))
    module = api.Module(str(made / "training_model.onnx"), state, session_options=_options(threads))
    module.train()

    def step(index: int) -> tuple[np.ndarray, dict[str, Any]]:
        loss = module(worker.x[index % len(worker.x)], worker.y[index % len(worker.y)])
        module.lazy_reset_grad()
        gradients = module._model.gradients
        return np.asarray(loss), {name: gradients[name] for name in worker.work["trainable"]}

    return step


def two_phases(folder: Path, threads: int) -> tuple[Step, TwoPhases]:
    """A forward and a backward graph of the model with its loss."""
    worker = OnnxRuntime(folder, threads)
    made = phases(_with_loss(folder / "forward.onnx"), trainable=worker.work["trainable"], outputs=["loss"])
    pair = TwoPhases(made.forward.SerializeToString(), made.backward.SerializeToString(), options=_options(threads))
    weights = {name: onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy()) for name, tensor in made.weights.items()}
    one = np.ones((), np.float32)

    def step(index: int) -> tuple[np.ndarray, dict[str, Any]]:
        result = pair.forward(
            {"x": worker.x[index % len(worker.x)], "labels": worker.y[index % len(worker.y)], **weights}
        )
        weights.update(result.statistics)
        step.kept = _bytes(result.state.values or {}, {*weights, "x", "labels"})  # type: ignore[attr-defined]
        return result.outputs["loss"].numpy(), pair.backward(result.state, {"loss": one})

    return step, pair


def _bytes(values: dict[str, Any], others: set[str]) -> int:
    return sum(value.tensor_size_in_bytes() for name, value in values.items() if name not in others)


def _with_loss(path: Path) -> onnx.ModelProto:
    model = onnx.load(path)
    graph = model.graph
    graph.node.append(helper.make_node("SoftmaxCrossEntropyLoss", [graph.output[0].name, "labels"], ["loss"]))
    graph.input.append(helper.make_tensor_value_info("labels", onnx.TensorProto.INT64, ["tokens"]))
    graph.output.insert(0, helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return model


def _options(threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def compare(name: str, threads: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        works.write(name, folder)
        first, (second, _) = one_graph(folder, threads), two_phases(folder, threads)
        _check(first, second)
        for index in range(WARM_UP):
            first(index), second(index)
        pairs = [(_time(first, index), _time(second, index)) for index in range(rounds)]
    ratio = statistics.median(two / one for one, two in pairs)
    one, two = (statistics.median(times) * 1e3 for times in zip(*pairs, strict=True))
    kept = second.kept / 2**20  # type: ignore[attr-defined]
    return f"{name:12} one graph {one:8.2f} ms   two phases {two:8.2f} ms   ratio {ratio:.3f}   kept {kept:.1f} MiB"


def _check(first: Step, second: Step) -> None:
    """The same loss and gradients; running statistics begin equal in both."""
    (loss, gradients), (again, others) = first(0), second(0)
    np.testing.assert_allclose(again, loss, rtol=1e-4)
    for name, gradient in gradients.items():
        scale = np.abs(gradient).max() + 1e-6
        np.testing.assert_allclose(others[name].numpy(), gradient, atol=2e-2 * scale, err_msg=name)


def _time(step: Step, index: int) -> float:
    start = time.perf_counter()
    step(index)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("works", nargs="*", default=["transformer"], help=f"of {', '.join(works.WORKS)}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    for name in given.works or ["transformer"]:
        print(compare(name, given.threads, given.rounds), flush=True)


if __name__ == "__main__":
    main()
