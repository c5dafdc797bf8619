"""The names of `onnxruntime.training`: ours, or, when `ORT_TRAINING` is set, those of the original."""

from __future__ import annotations

import os
from typing import Any

import onnxruntime

from benchmarks.protocol import EPSILON, WEIGHT_DECAY, Step, Worker, serve

ORIGINAL = "ORT_TRAINING" in os.environ
if ORIGINAL:
    from onnxruntime.training import api
else:
    from onward import api
    from onward.runtime.compiled import is_available

    is_available()  # loads the compiler of update loops, as importing torch loads its kernels

onnxruntime.set_default_logger_severity(3)


class OnnxRuntime(Worker):
    def import_builder(self) -> None:
        import onnx

        if ORIGINAL:
            from onnxruntime.training import artifacts, onnxblock
        else:
            from onward import artifacts, onnxblock
        self._builder = onnx, artifacts, onnxblock

    def build(self) -> None:
        onnx, artifacts, onnxblock = self._builder
        artifacts.generate_artifacts(
            onnx.load(self.folder / "forward.onnx"),
            requires_grad=self.work["trainable"],
            frozen_params=self.work["frozen"],
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=onnxblock.optim.AdamW(eps=EPSILON, weight_decay=WEIGHT_DECAY),
            artifact_directory=str(self._artifacts()),
        )

    def load(self) -> Step:
        folder = self._artifacts()
        state = api.CheckpointState.load_checkpoint(str(folder / "checkpoint"))
        module = api.Module(str(folder / "training_model.onnx"), state, session_options=self._options())
        optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), module)
        optimizer.set_learning_rate(self.work["learning_rate"])
        module.train()
        x, y = self.x, self.y

        def step(index: int) -> Any:
            loss = module(x[index % len(x)], y[index % len(y)])
            optimizer.step()
            module.lazy_reset_grad()
            return loss

        return step

    def _options(self) -> onnxruntime.SessionOptions:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.log_severity_level = 3
        return options

    def _artifacts(self) -> Any:
        folder = self.folder / ("original" if ORIGINAL else "onward")
        folder.mkdir(exist_ok=True)
        return folder


if __name__ == "__main__":
    serve(OnnxRuntime)
