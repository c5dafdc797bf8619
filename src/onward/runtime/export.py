"""Turn an evaluation graph and a state into a model for inference, without the onnx package."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime

from onward import plan
from onward.errors import OnwardError
from onward.ort_format import is_ort_format
from onward.runtime import valueproto, wire
from onward.runtime.files import replacing, write_bytes
from onward.runtime.session import InMemory, ModelSource, open_session, path_of, read_model
from onward.runtime.state import State
from onward.signature import METADATA_KEY, Role, Signature

_ALIGNMENT = 4096  # of tensors in a separate file, so that they can be mapped into memory

_ELEMENT_TYPES = {
    "float": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "string": 8, "bool": 9,
    "float16": 10, "double": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip


def export_for_inference(
    evaluation: ModelSource,
    state: State,
    target: str | os.PathLike[str],
    outputs: Sequence[str],
    options: onnxruntime.SessionOptions | None = None,
    *,
    borders: Mapping[str, bytes] | None = None,
) -> None:
    """Write the part of an evaluation graph that computes `outputs`, with the parameters of the state as constants.

    Models of more than 2 GB keep the parameters in a second file, ``<target>.data``.

    Args:
        borders: inputs and outputs (each a ValueInfoProto) that are to be described so; those of the inputs that the
            outputs do not depend on stay nevertheless. Others are left out.
    """
    if isinstance(outputs, (str, bytes)):
        raise TypeError(f"graph_output_names must be a list of names, not {outputs!r}")
    if not outputs:
        raise OnwardError("Expected a non empty vector of graph output names to export a model for inferencing.")
    content = read_model(evaluation, "evaluation model")
    if is_ort_format(content):
        raise OnwardError(
            f"{str(path_of(evaluation))!r} is in onnxruntime's own format, which cannot be edited; use the .onnx"
        )
    model, folder = wire.parse(content), path_of(evaluation).parent
    model.check_files(folder)
    borders, inputs = borders or {}, dict(model.inputs)
    truncate(model, list(dict.fromkeys(outputs)), folder, options)
    model.inputs = {
        name: borders.get(name, value) for name, value in inputs.items() if name in borders or name in model.inputs
    }
    model.outputs = {name: borders.get(name, value) for name, value in model.outputs.items()}
    for key in (METADATA_KEY, plan.METADATA_KEY):
        model.metadata.pop(key, None)
    arrays = {name: state.tensor(name) for name in (*state.trainable, *state.frozen)}
    arrays = {name: array for name, array in arrays.items() if name in model.inputs or name in model.initializers}
    for name in arrays:
        model.initializers.pop(name, None)
    rest = sum(map(len, model.parts())) + model.external_size()
    if rest + sum(array.nbytes for array in arrays.values()) < wire.LARGEST_MESSAGE:
        model.load_external(folder)
        model.freeze(arrays)
    else:
        _store_separately(model, arrays, Path(target), folder)
    write_bytes(target, *model.parts())


def for_prediction(
    evaluation: ModelSource, outputs: Sequence[str], options: onnxruntime.SessionOptions | None = None
) -> InMemory:
    """The part of an evaluation graph that computes `outputs`, to be run over a state."""
    model, path = wire.parse(read_model(evaluation, "evaluation model")), path_of(evaluation)
    signature = Signature.from_json(model.metadata[METADATA_KEY])
    truncate(model, list(outputs), path.parent, options)
    inputs = {name: role for name, role in signature.inputs.items() if name in model.inputs}
    made = Signature("prediction", inputs, dict.fromkeys(outputs, Role.OUTPUT))
    model.metadata[METADATA_KEY] = made.to_json()
    return InMemory(model.serialize(), path.with_name("prediction graph"))


def truncate(
    model: wire.WireModel, outputs: list[str], folder: Path, options: onnxruntime.SessionOptions | None
) -> None:
    """Leave only what these values, the new outputs, are computed from."""
    computed = {name for node in model.nodes for name in node.outputs}
    for name in outputs:
        if name not in computed:
            raise OnwardError(
                f"Expected graph output for inference graph {name} could not be found. Please regenerate the eval "
                f"graph. Its own outputs are {', '.join(model.outputs)}."
            )
    # What is described already need not be a tensor: scikit-learn's classifiers end in a list of dictionaries.
    unknown = [name for name in outputs if name not in model.outputs and model.type_of(name) is None]
    model.set_outputs(outputs, _infer(model, unknown, folder, options) if unknown else None)
    model.prune()


def _infer(
    model: wire.WireModel, names: list[str], folder: Path, options: onnxruntime.SessionOptions | None
) -> dict[str, bytes]:
    """Types and shapes of inner values, as onnxruntime finds them."""
    probe = wire.parse(model.serialize())
    probe.outputs = {name: valueproto.encode(name, None, None) for name in names}
    session = open_session(probe.serialize(), folder=folder, options=options)
    described = {}
    for value in session.get_outputs():
        kind = value.type.removeprefix("tensor(").removesuffix(")")
        if kind not in _ELEMENT_TYPES:
            raise OnwardError(f"{value.name!r} cannot be an output of the inference model: it is a {value.type}")
        described[value.name] = valueproto.encode(value.name, _ELEMENT_TYPES[kind], value.shape)
    return described


def _store_separately(model: wire.WireModel, arrays: dict[str, np.ndarray], target: Path, folder: Path) -> None:
    """Write the parameters into a file beside the model."""
    location = f"{target.name}.data"
    with replacing(target.with_name(location)) as file:
        for name, array in arrays.items():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            model.freeze_elsewhere(name, array, location, file.tell())
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        for name in model.external_names():
            if name not in arrays:
                file.write(bytes(-file.tell() % _ALIGNMENT))
                file.write(model.relocate(name, folder, location, file.tell()))
