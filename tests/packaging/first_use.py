"""What has to work with nothing but the default install: a program, run by a fresh environment."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import onward

OPTIONAL = "torch sklearn pandas tqdm typer rich altair vl_convert flwr matplotlib llvmlite".split()


def main() -> None:
    assert "site-packages" in onward.__file__, f"this is not the installed package: {onward.__file__}"
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 3] y) { h = MatMul(x, w) r = Tanh(h) y = MatMul(r, v) }
    """)
    random = np.random.default_rng(0)
    for name, shape in {"w": (4, 16), "v": (16, 3)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name))
    x = random.normal(size=(200, 4)).astype(np.float32)
    labels = np.argmax(x[:, :3], axis=1)

    gradient = onward.gradient(model)
    assert [value.name for value in gradient.graph.output] == ["y", "w_grad", "v_grad"]
    trainer = onward.Trainer(model, "cross_entropy", learning_rate=0.02, metrics=["accuracy"])
    assert trainer.fit(x, labels, epochs=10, progress=False)["accuracy"][-1] > 0.8
    adapted = onward.lora(model, "*", rank=2)
    onward.Trainer(adapted.model, "cross_entropy").fit(x, labels, progress=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer.export(Path(folder) / "trained.onnx")
        assert (Path(folder) / "trained.onnx").stat().st_size > 0
    assert not [name for name in OPTIONAL if name in sys.modules], "the default install needs none of these"
    print(f"onward {onward.__version__} on Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
