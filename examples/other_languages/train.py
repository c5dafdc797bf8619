"""Train a folder of `onward.edge.export` with onnxruntime and numpy alone: python train.py FOLDER [STEPS]"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime

folder, steps = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20
manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
session = onnxruntime.InferenceSession(str(folder / manifest["files"]["step"]["file"]))
outputs = [output.name for output in session.get_outputs()]

# The checkpoint is a safetensors file: the length of a header, the header, and the bytes of the tensors.
content = (folder / manifest["files"]["checkpoint"]["file"]).read_bytes()
start = 8 + int.from_bytes(content[:8], "little")
header = json.loads(content[8:start])


def initial(entry):
    """Parameters and statistics begin as the checkpoint says, slots of the optimizer with a number."""
    if entry["name"] not in header:
        return np.full(entry["shape"], entry["initial"], entry["type"])
    begin, end = header[entry["name"]]["data_offsets"]
    return np.frombuffer(content[start + begin : start + end], entry["type"]).reshape(entry["shape"])


def step(state, batch, count):
    """One update: the loss before it, and the state after it."""
    numbers = [(manifest["learning_rate"], manifest["optimizer"]["learning_rate"]), (manifest["step"], count)]
    if manifest["seed"]:  # what Dropout draws from
        numbers.append((manifest["seed"], manifest["seed"]["initial"]))
    scalars = {entry["name"]: np.array(value, entry["type"]) for entry, value in numbers}
    results = dict(zip(outputs, session.run(outputs, {**state, **batch, **scalars}), strict=True))
    return float(results[manifest["loss"]["name"]]), {e["name"]: results[e["next"]] for e in manifest["state"]}


# Your data belongs here: an array for each of manifest["inputs"] and manifest["targets"].
rows = 6
x, target = manifest["inputs"][0], manifest["targets"][0]
shape = [rows, *x["shape"][1:]]
batch = {
    x["name"]: np.sin(np.arange(np.prod(shape))).astype(x["type"]).reshape(shape),
    target["name"]: (np.arange(rows) % 3).astype(target["type"]),
}

state = {entry["name"]: initial(entry) for entry in manifest["state"]}
first, _ = step(state, batch, 1)
other, _ = step({name: value + value.dtype.type(0.1) for name, value in state.items()}, batch, 1)
if first == other:
    raise SystemExit("the state that is fed does not count: this runtime ignores it")
for count in range(1, steps + 1):
    loss, state = step(state, batch, count)
    print(f"{loss:.9g}")
