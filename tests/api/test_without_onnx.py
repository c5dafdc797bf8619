"""A device needs numpy and onnxruntime to train, and neither onnx nor anything that builds graphs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"onnx", "onnx_ir", "onnxscript", "ml_dtypes", "torch", "sklearn", "safetensors"}:
            raise ImportError(f"{name} is not installed on this device")

sys.meta_path.insert(0, Absent())
from pathlib import Path
import numpy as np
from onward.api import CheckpointState, CosineLRScheduler, Module, Optimizer

folder, odtc = map(Path, sys.argv[1:])
state = CheckpointState.load_checkpoint(folder / "checkpoint")
module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
optimizer = Optimizer(folder / "optimizer_model.onnx", module)
scheduler = CosineLRScheduler(optimizer, 2, 30, 0.1)
random = np.random.default_rng(0)
inputs, labels = random.normal(size=(6, 4)).astype(np.float32), random.integers(0, 3, 6)
losses = []
for step in range(30):
    losses.append(float(module(inputs, labels)))
    optimizer.step()
    scheduler.step()
    module.lazy_reset_grad()
assert losses[-1] < losses[0] / 2, losses
CheckpointState.save_checkpoint(state, folder / "saved", include_optimizer_state=True)
CheckpointState.load_checkpoint(folder / "saved")
CheckpointState.save_checkpoint(state, folder / "saved", include_optimizer_state=True, format="onnxruntime")
CheckpointState.load_checkpoint(folder / "saved")
CheckpointState.load_checkpoint(odtc)
module.export_model_for_inferencing(folder / "model.onnx", ["output"])
built = {name for name in sys.modules if name.startswith(("onnx.", "onnx_ir", "onward.graph", "onward.training"))}
assert not built, built
print("trained")
"""


def test_training_without_onnx(mlp_folder: Path, tmp_path: Path) -> None:
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (tmp_path / name).write_bytes((mlp_folder / name).read_bytes())
    recorded = Path(__file__).parents[1] / "data" / "ort-1.19.2-mlp-adamw"
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path), str(recorded)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.stdout == "trained\n", run.stderr
