"""Record the golden trajectories again: `make record-golden`, which prepares onnxruntime-training for it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).parent))
import trajectory


def main() -> None:
    import onnxruntime
    from onnxruntime.training import api, artifacts, onnxblock

    onnxruntime.set_default_logger_severity(3)
    training = SimpleNamespace(api=api, artifacts=artifacts, onnxblock=onnxblock)
    for name in ("mlp", "cnn"):
        onnx.save(getattr(trajectory, name)(), str(trajectory.HERE / f"{name}.onnx"))
    for case in trajectory.CASES:
        result = trajectory.run(case, training)
        np.savez_compressed(trajectory.HERE / f"{case.name}.npz", **result)
        print(f"{case.name}: loss {result['losses'][0]:.4f} -> {result['losses'][-1]:.4f}")


if __name__ == "__main__":
    main()
