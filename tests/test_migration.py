"""Scripts written for onnxruntime-training run with one line changed, or with one line added.

The programs below use the API the way its documentation shows it. They run in a process of their own: once with the
imports of onward, once with those of the original after `import onward.as_onnxruntime_training`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.onnxblock.models import mlp, model, two_heads, weights

OWN = """
import onward.onnxblock as onnxblock
from onward import artifacts
from onward.api import CheckpointState, LinearLRScheduler, Module, Optimizer
"""
ORIGINAL = """
import onward.as_onnxruntime_training
import onnxruntime.training.onnxblock as onnxblock
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
"""

GENERATE = """
import onnx
base_model = onnx.load("model.onnx")
requires_grad = ["weight1", "bias1", "weight2", "bias2"]
frozen_params = ["weight3", "bias3"]
artifacts.generate_artifacts(base_model, requires_grad=requires_grad, frozen_params=frozen_params,
                             loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW)
"""

# A block that does not call super().__init__(), as the one in the documentation.
CUSTOM_LOSS = """
import onnx
class WeightedSum(onnxblock.Block):
    def __init__(self):
        self._losses = [onnxblock.loss.MSELoss(), onnxblock.loss.MSELoss()]
        self._weights = [onnxblock.blocks.Constant(0.4), onnxblock.blocks.Constant(0.6)]
        self._add = onnxblock.blocks.Add()
        self._mul = onnxblock.blocks.Mul()

    def build(self, first, second):
        return self._add(
            self._mul(self._weights[0](), self._losses[0](first, target_name="target1")),
            self._mul(self._weights[1](), self._losses[1](second, target_name="target2")),
        )

artifacts.generate_artifacts(onnx.load("two_heads.onnx"),
                             requires_grad=["weight1", "bias1", "weight2", "bias2"], frozen_params=["weight3", "bias3"],
                             loss=WeightedSum(), optimizer=artifacts.OptimType.AdamW)
import numpy as np
state = CheckpointState.load_checkpoint("checkpoint")
module = Module("training_model.onnx", state, "eval_model.onnx")
optimizer = Optimizer("optimizer_model.onnx", module)
optimizer.set_learning_rate(0.05)
data = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
assert module.input_names() == ["x", "target1", "target2"]
losses = []
for _ in range(20):
    losses.append(module(data, data[:, :3], data[:, :2]).item())
    optimizer.step()
    module.lazy_reset_grad()
assert losses[-1] < 0.5 * losses[0], losses
"""

LOOP = """
import numpy as np
artifacts.generate_artifacts("mlp.onnx", loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW,
                             requires_grad=["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
                             additional_output_names=["y"], artifact_directory="out", prefix="net_")
state = CheckpointState.load_checkpoint("out/net_checkpoint")
module = Module("out/net_training_model.onnx", state, "out/net_eval_model.onnx")
optimizer = Optimizer("out/net_optimizer_model.onnx", module)
scheduler = LinearLRScheduler(optimizer, 2, 100, 0.05)
rng = np.random.default_rng(0)
data = rng.standard_normal((64, 4)).astype(np.float32)
labels = (data[:, 0] > 0).astype(np.int64) + (data[:, 1] > 0)
module.train()
for _ in range(60):
    loss, scores = module(data, labels)
    optimizer.step()
    scheduler.step()
    module.lazy_reset_grad()
module.eval()
loss, scores = module(data, labels)
assert (scores.argmax(1) == labels).mean() > 0.9
CheckpointState.save_checkpoint(state, "out/trained", include_optimizer_state=True)
module.export_model_for_inferencing("out/inference.onnx", ["y"])
import onnxruntime
session = onnxruntime.InferenceSession("out/inference.onnx", providers=["CPUExecutionProvider"])
np.testing.assert_allclose(session.run(None, {"x": data})[0], scores, rtol=1e-5, atol=1e-6)
"""

BLOCKS = """
import onnx
class MyForward(onnxblock.ForwardBlock):
    def __init__(self):
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, loss_input_name):
        return self.loss(loss_input_name)


class Training(onnxblock.TrainingBlock):
    def __init__(self):
        super().__init__()
        self.loss = onnxblock.loss.CrossEntropyLoss()

    def build(self, loss_input_name):
        return self.loss(loss_input_name)

model = onnx.load("mlp.onnx")
forward, training = MyForward(), Training()
training.requires_grad("fc1.weight")
training.requires_grad("fc2.weight", False)
for block in (forward, training):
    with onnxblock.base(model) as accessor:
        loss_name = block(model.graph.output[0].name)
        assert loss_name == accessor.model.graph.output[0].name
training_model, eval_model = training.to_model_proto()
trainable, frozen = training.parameters()
assert [p.name for p in trainable + frozen] == ["fc1.weight", "fc2.weight"]
onnxblock.save_checkpoint(training.parameters(), "from_blocks")
onnxblock.load_checkpoint_to_model("from_blocks", model)
with onnxblock.empty_base() as accessor:
    onnxblock.optim.AdamW(clip_grad=onnxblock.optim.ClipGradNorm(1.0))(training.parameters())
    onnx.checker.check_model(accessor.model)
"""

PROGRAMS = {"artifacts": GENERATE, "custom loss": CUSTOM_LOSS, "training loop": LOOP, "blocks": BLOCKS}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A directory with the models that the programs load."""
    three = {"weight1": (4, 8), "bias1": (8,), "weight2": (8, 8), "bias2": (8,), "weight3": (8, 3), "bias3": (3,)}
    layers = [
        onnx.helper.make_node("Gemm", [source, f"weight{i}", f"bias{i}"], [target])
        for i, (source, target) in enumerate((("x", "a"), ("a", "b"), ("b", "y")), 1)
    ]
    onnx.save(model(layers, {"x": ["N", 4]}, {"y": ["N", 3]}, weights(three)), tmp_path / "model.onnx")
    onnx.save(two_heads(), tmp_path / "two_heads.onnx")
    onnx.save(mlp(), tmp_path / "mlp.onnx")
    return tmp_path


def run(program: str, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", program], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("imports", [OWN, ORIGINAL], ids=["own names", "names of the original"])
def test_programs_run(name: str, imports: str, folder: Path) -> None:
    done = run(imports + PROGRAMS[name], folder, "-W", "error")
    assert done.returncode == 0, done.stderr
    if name == "artifacts":
        made = {"training_model.onnx", "eval_model.onnx", "checkpoint", "optimizer_model.onnx"}
        assert made <= {path.name for path in folder.iterdir()}
