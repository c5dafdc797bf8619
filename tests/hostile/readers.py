"""Every function that reads files, as something to be given damaged ones."""

from __future__ import annotations

import base64
import functools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx

import onward
from onward import artifacts, plan, signature
from onward.api import CheckpointState, Module, Optimizer
from onward.errors import OnwardError
from onward.losses import from_model
from onward.runtime import checkpoint, odtc, tensorfile, wire
from tests.api import toys
from tests.hostile import models
from tests.hostile.mutation import Mutator, mutate_bytes, mutate_json, mutate_model, mutate_words


@dataclass(frozen=True)
class Reader:
    """What reads a file, whole ones to start from, and ways to damage them."""

    originals: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], object]
    mutators: tuple[Mutator, ...]

    def damaged(self, seed: int) -> bytes:
        """One of the originals, damaged; the same for the same seed."""
        rng = random.Random(seed)
        return rng.choice(self.mutators)(rng, rng.choice(self.originals()))


def _file(content: bytes, folder: Path, name: str = "file") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


# Checkpoints ---------------------------------------------------------------------------------------------------------


def mutate_header(rng: random.Random, content: bytes) -> bytes:
    """Change what a safetensors file says about its tensors, with the length of the header right or not."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = mutate_json(rng, content[8:end].decode()).encode("utf-8", "surrogatepass")
    length = rng.choice([0, 1, len(header) + 1, 2**31, 2**63, *[len(header)] * 40])
    return length.to_bytes(8, "little") + header + content[end:]


@functools.cache
def _checkpoints() -> list[bytes]:
    folder = models.scratch()
    run = toys.Run.open(models.trained())
    run.train(2)
    state = run.state._state
    checkpoint.save(state, folder / "full", include_optimizer=True)
    checkpoint.save(state, folder / "plain")
    checkpoint.save(state, folder / "nominal", nominal=True)
    return [(folder / name).read_bytes() for name in ("full", "full", "plain", "nominal")]


@functools.cache
def _odtc_checkpoints() -> list[bytes]:
    folder = models.scratch()
    run = toys.Run.open(models.trained())
    run.train(2)
    run.state.properties["epoch"] = 3
    run.state.properties["name"] = "x"
    odtc.save(run.state._state, folder / "full", include_optimizer=True)
    odtc.save(run.state._state, folder / "nominal", nominal=True)
    data = Path(__file__).parents[1] / "data"
    recorded = [
        data / f"ort-{release}-mlp-{kind}" for release in ("1.17.3", "1.19.2") for kind in ("adamw", "generated")
    ]
    return [path.read_bytes() for path in (folder / "full", folder / "nominal", *recorded)]


def _load_and_resume(content: bytes, folder: Path) -> None:
    """What users do with a checkpoint: one step of training, and saving it again."""
    state = CheckpointState.load_checkpoint(_file(content, folder))
    assert repr(state)
    files = models.trained()
    module = Module(files / "training_model.onnx", state, files / "eval_model.onnx")
    optimizer = Optimizer(files / "optimizer_model.onnx", module)
    if not state._state.nominal:
        module(*toys.batch())
        optimizer.step()
    CheckpointState.save_checkpoint(state, folder / "again", include_optimizer_state=True)


def _read_tensors(content: bytes, folder: Path) -> None:
    with tensorfile.TensorFile(_file(content, folder)) as file:
        for name in file.types:
            file.read(name)


# Models at run time --------------------------------------------------------------------------------------------------


def _edit(content: bytes, folder: Path) -> None:
    """Everything that the runtime does to a serialized model."""
    model = wire.parse(content)
    model.check_files(folder)
    for name in (*model.inputs, *model.outputs, *model.initializers, *model.value_info):
        model.type_of(name)
    model.external_size()
    for name, array in models.WEIGHTS.items():
        model.holds(name, array, folder)
    model.load_external(folder)
    model.set_outputs(list(model.outputs)[:1])
    model.prune()
    wire.parse(model.serialize())


def _train(content: bytes, folder: Path) -> None:
    files = models.trained()
    state = CheckpointState.load_checkpoint(files / "checkpoint")
    module = Module(_file(content, folder), state, files / "eval_model.onnx")
    module(*toys.batch())
    assert repr(module)


def _evaluate(content: bytes, folder: Path) -> None:
    files = models.trained()
    state = CheckpointState.load_checkpoint(files / "checkpoint")
    module = Module(files / "training_model.onnx", state, _file(content, folder))
    module.eval()(*toys.batch())
    module.export_model_for_inferencing(folder / "exported.onnx", ["output"])


def _optimize(content: bytes, folder: Path) -> None:
    files = models.trained()
    state = CheckpointState.load_checkpoint(files / "checkpoint")
    module = Module(files / "training_model.onnx", state)
    optimizer = Optimizer(_file(content, folder), module)
    module(*toys.batch())
    optimizer.step()


def mutate_metadata(rng: random.Random, content: bytes) -> bytes:
    """Change the signature or the plan of a model, and the kernels in the plan."""
    model = onnx.ModelProto.FromString(content)
    entry = rng.choice(model.metadata_props)
    if entry.key == plan.METADATA_KEY and rng.random() < 0.5:
        update = plan.UpdatePlan.from_json(entry.value)
        text = entry.value
        for kernel in update.kernels:
            damaged = rng.choice([mutate_model, mutate_bytes])(rng, kernel.model)
            text = text.replace(base64.b64encode(kernel.model).decode(), base64.b64encode(damaged).decode())
        entry.value = text
    else:
        entry.value = mutate_json(rng, entry.value)
    return model.SerializeToString()


def _artifact(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(models.trained() / name).read_bytes()]


def _signature(content: bytes, _: Path) -> None:
    signature.Signature.from_json(content.decode("utf-8", "replace"))


def _plan(content: bytes, _: Path) -> None:
    plan.UpdatePlan.from_json(content.decode("utf-8", "replace"))


@functools.cache
def _metadata(name: str, key: str) -> list[bytes]:
    model = onnx.load(models.trained() / name)
    return [entry.value.encode() for entry in model.metadata_props if entry.key == key]


def _mutate_document(rng: random.Random, content: bytes) -> bytes:
    return mutate_json(rng, content.decode()).encode("utf-8", "surrogatepass")


# Models to differentiate ---------------------------------------------------------------------------------------------


def _differentiate(content: bytes, folder: Path) -> None:
    path = _file(content, folder, "model.onnx")
    onward.gradient(path)


def _differentiate_inputs(content: bytes, _: Path) -> None:
    """A proto, with respect to everything that has a gradient."""
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception:  # not onward's
        return
    names = [value.name for value in model.graph.input if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT]
    onward.gradient(model, wrt=list(dict.fromkeys(names))[:3])


def _check(content: bytes, folder: Path) -> None:
    assert str(onward.check(_file(content, folder, "model.onnx")))


def _generate(content: bytes, folder: Path) -> None:
    path = _file(content, folder, "model.onnx")
    artifacts.generate_artifacts(
        path, loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.AdamW, artifact_directory=folder / "made"
    )


def _as_loss(content: bytes, folder: Path) -> None:
    from_model(_file(content, folder, "model.onnx"))


def _planted(content: bytes, _: Path) -> None:
    """A reader that is wrong in every way that there is, to see whether that is noticed."""
    kind = content[0] % 5
    if kind == 1:
        raise KeyError("planted")
    if kind == 2:
        os.abort()
    if kind == 3:
        raise OnwardError("as it should be")
    if kind == 4:
        assert len(bytearray(2**40))


READERS = {
    "planted": Reader(lambda: [b"0"], _planted, (lambda rng, _: bytes([rng.randrange(256)]),)),
    "safetensors": Reader(_checkpoints, _read_tensors, (mutate_bytes, mutate_header)),
    "checkpoint": Reader(_checkpoints, _load_and_resume, (mutate_bytes, mutate_header, mutate_header)),
    "odtc": Reader(_odtc_checkpoints, _load_and_resume, (mutate_bytes, mutate_words)),
    "signature": Reader(
        lambda: _metadata("training_model.onnx", signature.METADATA_KEY), _signature, (mutate_bytes, _mutate_document)
    ),
    "plan": Reader(
        lambda: _metadata("optimizer_model.onnx", plan.METADATA_KEY), _plan, (mutate_bytes, _mutate_document)
    ),
    "wire": Reader(models.serialized, _edit, (mutate_bytes, mutate_model)),
    "training model": Reader(_artifact("training_model.onnx"), _train, (mutate_bytes, mutate_model, mutate_metadata)),
    "eval model": Reader(_artifact("eval_model.onnx"), _evaluate, (mutate_bytes, mutate_model, mutate_metadata)),
    "optimizer model": Reader(_artifact("optimizer_model.onnx"), _optimize, (mutate_bytes, mutate_metadata)),
    "gradient": Reader(models.serialized, _differentiate, (mutate_bytes, mutate_model, mutate_model)),
    "gradient of inputs": Reader(models.serialized, _differentiate_inputs, (mutate_model,)),
    "check": Reader(models.serialized, _check, (mutate_bytes, mutate_model, mutate_model)),
    "generate_artifacts": Reader(models.serialized, _generate, (mutate_bytes, mutate_model, mutate_model)),
    "node cases": Reader(models.node_cases, _differentiate_inputs, (mutate_model,)),
    "loss model": Reader(models.losses, _as_loss, (mutate_bytes, mutate_model)),
}
