"""Files that were found to hang, to fill the memory, or to raise what is not an OnwardError."""

from __future__ import annotations

import importlib
import json
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors
import safetensors.numpy
from onnx import TensorProto, helper

import onward
from onward import artifacts, plan, signature
from onward.api import CheckpointState, Module, Optimizer
from onward.errors import InvalidModelError, OnwardError
from onward.runtime import checkpoint, odtc, tensorfile, wire
from onward.runtime.odtc_schema import IDENTIFIER, load_table
from onward.runtime.protobuf import Budget, fields, varint
from tests.api import toys
from tests.hostile import models


@contextmanager
def within(seconds: float, megabytes: float) -> Iterator[None]:
    """Little processor time, which does not depend on who else is at work, and little memory."""
    tracemalloc.start()
    start = time.process_time()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < seconds
    assert peak < megabytes * 2**20


# ODTC ----------------------------------------------------------------------------------------------------------------


def offsets(builder: Any, items: list[int]) -> int:
    builder.StartVector(4, len(items), 4)
    for item in reversed(items):
        builder.PrependUOffsetTRelative(item)
    return int(builder.EndVector())


def shared_tables(count: int) -> bytes:
    """Groups that are all one, of states that are all one, of momentums that are all one: count^3 tensors."""
    builder = importlib.import_module("flatbuffers").Builder(0)
    tensor, state = load_table("Tensor"), load_table("ParameterOptimizerState")
    group, module, root = load_table("OptimizerGroup"), load_table("ModuleState"), load_table("Checkpoint")
    name = builder.CreateString("w")
    tensor.TensorStartDimsVector(builder, 0)
    dims = builder.EndVector()
    raw = builder.CreateNumpyVector(np.zeros(4, np.uint8))
    tensor.TensorStart(builder)
    tensor.TensorAddName(builder, name)
    tensor.TensorAddDataType(builder, 1)
    tensor.TensorAddDims(builder, dims)
    tensor.TensorAddRawData(builder, raw)
    momentums = offsets(builder, [tensor.TensorEnd(builder)] * count)
    state.ParameterOptimizerStateStart(builder)
    state.ParameterOptimizerStateAddParamName(builder, name)
    state.ParameterOptimizerStateAddMomentums(builder, momentums)
    states = offsets(builder, [state.ParameterOptimizerStateEnd(builder)] * count)
    group.OptimizerGroupStart(builder)
    group.OptimizerGroupAddOptimizerStates(builder, states)
    groups = offsets(builder, [group.OptimizerGroupEnd(builder)] * count)
    nothing = offsets(builder, [])
    module.ModuleStateStart(builder)
    module.ModuleStateAddRequiresGradParams(builder, nothing)
    module.ModuleStateAddFrozenParams(builder, nothing)
    parameters = module.ModuleStateEnd(builder)
    root.CheckpointStart(builder)
    root.CheckpointAddVersion(builder, 2)
    root.CheckpointAddModuleState(builder, parameters)
    root.CheckpointAddOptimizerGroups(builder, groups)
    builder.Finish(root.CheckpointEnd(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


@pytest.mark.parametrize("count", [45, 1000])
def test_odtc_tables_that_are_shared(count: int, tmp_path: Path) -> None:
    content = shared_tables(count)
    assert len(content) < 15_000
    (tmp_path / "checkpoint").write_bytes(content)
    with within(seconds=5, megabytes=20), pytest.raises(OnwardError, match="Checkpoint verification failed"):
        checkpoint.load(tmp_path / "checkpoint")


def test_odtc_tensors_that_share_one_place_in_the_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(odtc, "_EXTERNAL_FROM", 0)
    size = 777_776
    odtc.save(onward_state({name: np.ones((2, size // 2), np.uint8) for name in "abc"}), tmp_path / "checkpoint")
    content = (tmp_path / "checkpoint").read_bytes()
    for index in (1, 2):
        assert content.count(struct.pack("<q", index * size)) == 1
        content = content.replace(struct.pack("<q", index * size), struct.pack("<q", 0))
    (tmp_path / "checkpoint").write_bytes(content)
    data = odtc.external_path(tmp_path / "checkpoint")
    data.write_bytes(data.read_bytes()[:size])
    with pytest.raises(OnwardError, match="has not as many bytes as its tensors"):
        checkpoint.load(tmp_path / "checkpoint")


def onward_state(arrays: dict[str, np.ndarray]) -> Any:
    from onward.runtime.state import State

    return State(arrays, {})


# Protobuf ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 400_000,
        b"\x3a" + b"\xff" * 400_000,
        b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00",
    ],
    ids=["a number without end", "a length without end", "a number of eleven bytes"],
)
def test_protobuf_that_never_ends(content: bytes) -> None:
    with within(seconds=2, megabytes=1), pytest.raises(InvalidModelError, match="not an ONNX model, or a damaged one"):
        wire.parse(content)


def test_only_so_many_fields_are_looked_at() -> None:
    with pytest.raises(ValueError, match="it has millions of parts"):
        list(fields(memoryview(b"\x10\x01" * 11), Budget(fields=10)))
    assert len(list(fields(memoryview(b"\x10\x01" * 10), Budget(fields=10)))) == 10


def nested(depth: int) -> bytes:
    """Subgraphs in subgraphs."""
    graph = b""
    for _ in range(depth):
        attribute = b"\x32" + varint(len(graph)) + graph
        node = b"\x2a" + varint(len(attribute)) + attribute
        graph = b"\x0a" + varint(len(node)) + node
    return b"\x3a" + varint(len(graph)) + graph


def test_subgraphs_nested_deeply(tmp_path: Path) -> None:
    content = nested(5000)
    with pytest.raises(InvalidModelError, match="nested too deeply"):
        wire.parse(content)
    (tmp_path / "model.onnx").write_bytes(content)
    for read in (onward.gradient, onward.check, artifacts.generate_artifacts):
        with pytest.raises(InvalidModelError, match="not a readable ONNX model"):
            read(tmp_path / "model.onnx")


# safetensors ---------------------------------------------------------------------------------------------------------


def safetensors_file(header: dict[str, Any] | str, data: bytes = b"") -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


WHOLE = {"a": entry([4], 0, 4), "b": entry([4], 4, 8)}
SAFETENSORS = {
    "whole": (WHOLE, 8),
    "in another order": ({"b": WHOLE["b"], "a": WHOLE["a"]}, 8),
    "empty tensors": ({"e": entry([0], 0, 0), "a": entry([4], 0, 4), "f": entry([2, 0], 4, 4)}, 4),
    "no tensors": ({}, 0),
    "overlap": ({"a": entry([4], 0, 4), "b": entry([4], 2, 6)}, 8),
    "the same place twice": ({"a": entry([4], 0, 4), "b": entry([4], 0, 4)}, 4),
    "a hole": ({"a": entry([4], 0, 4), "b": entry([4], 5, 9)}, 9),
    "a hole before": ({"a": entry([4], 4, 8)}, 8),
    "bytes after": (WHOLE, 9),
    "too few bytes": (WHOLE, 7),
    "backwards": ({"a": entry([4], 4, 0)}, 4),
    "negative": ({"a": entry([4], -4, 0)}, 4),
    "another size": ({"a": entry([3], 0, 4)}, 4),
    "a negative size": ({"a": entry([-1, -4], 0, 4)}, 4),
    "a huge size": ({"a": entry([2**62, 4], 0, 0)}, 0),
    "a product beyond 64 bits": ({"a": entry([2**32, 2**32], 0, 0)}, 0),
    "sizes that are floats": ({"a": entry([4.0], 0, 4)}, 4),  # type: ignore[list-item]
    "sizes that are truths": ({"a": entry([True, 4], 0, 4)}, 4),
    "three offsets": ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]}}, 4),
    "no shape": ({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, 4),
    "an unknown type": ({"a": entry([4], 0, 4, "X9")}, 4),
    "texts that are numbers": ({"__metadata__": {"a": 1}}, 0),
    "texts that are a list": ({"__metadata__": ["a"]}, 0),
    "no object": ("[1, 2]", 0),
    "half a character": ('{"\\ud800": {"dtype": "U8", "shape": [], "data_offsets": [0, 1]}}', 1),
    "a name twice": ('{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": {"dtype":"U8","shape":[1],'
                     '"data_offsets":[0,1]}}', 1),
}  # fmt: skip
# The package keeps one of two entries of a name. Which one a program sees should not depend on the program.
STRICTER = {"a name twice"}


@pytest.mark.parametrize("name", SAFETENSORS)
def test_safetensors_rules_are_those_of_the_package(name: str, tmp_path: Path) -> None:
    header, size = SAFETENSORS[name]
    path = tmp_path / "file"
    path.write_bytes(safetensors_file(header, bytes(size)))
    assert reads(path) == (package_reads(path) and name not in STRICTER)


def reads(path: Path) -> bool:
    try:
        with tensorfile.TensorFile(path) as file:
            for name in file.types:
                file.read(name)
    except OnwardError:
        return False
    return True


def package_reads(path: Path) -> bool:
    try:
        safetensors.numpy.load(path.read_bytes())
    except Exception:  # it has several
        return False
    return True


def test_damaged_safetensors_are_read_if_the_package_reads_them(tmp_path: Path) -> None:
    from tests.hostile.readers import READERS

    path = tmp_path / "file"
    both = []
    for seed in range(600):
        path.write_bytes(READERS["safetensors"].damaged(seed))
        ours, theirs = reads(path), package_reads(path)
        # The package has types that checkpoints do not have, so that it may read more; never less.
        assert theirs or not ours, seed
        both.append((ours, theirs))
    assert both.count((False, True)) < 12
    assert both.count((True, True)) > 20


def test_hundreds_of_tensors_in_one_place(tmp_path: Path) -> None:
    size = 2**20
    header = {f"w{index}": entry([size], 0, size) for index in range(300)}
    header["__metadata__"] = {"format": checkpoint.FORMAT, "version": "1"}
    (tmp_path / "checkpoint").write_bytes(safetensors_file(header, bytes(size)))
    with (
        within(seconds=5, megabytes=20),
        pytest.raises(OnwardError, match=r"is damaged: 'w1', U8 \[1048576\], should be at"),
    ):
        checkpoint.load(tmp_path / "checkpoint")


# Documents -----------------------------------------------------------------------------------------------------------

DOCUMENTS = [
    "", "{", "null", "[]", "1", '"text"', "{}", "[" * 100_000, '{"a":' * 100_000, "1" * 5000, "{\"version\": 1e999}",
    '{"version": 1, "version": 1}', '{"version": "1"}', '{"version": 99}', "NaN", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
@pytest.mark.parametrize("read", [signature.Signature.from_json, plan.UpdatePlan.from_json])
def test_documents_that_are_none(read: Any, text: str) -> None:
    with pytest.raises(OnwardError, match=r"is damaged|was written by a newer onward"):
        read(text)


def replaced(text: str, key: str, value: Any) -> str:
    content = json.loads(text)
    content[key] = value
    return json.dumps(content)


@pytest.fixture(scope="module")
def documents() -> dict[str, str]:
    found = {}
    for name in ("training_model.onnx", "optimizer_model.onnx"):
        found.update({prop.key: prop.value for prop in onnx.load(models.trained() / name).metadata_props})
    return found


@pytest.mark.parametrize("key", ["kind", "inputs", "outputs", "links", "slots", "parameters"])
@pytest.mark.parametrize("value", [None, 1, "x", [1], {"x": "y"}, {"x": 1}, {"x": None}, {"\ud800": "input"}])
def test_damaged_signatures(key: str, value: Any, documents: dict[str, str]) -> None:
    text = replaced(documents[signature.METADATA_KEY], key, value)
    fine = [("kind", "x"), ("links", {"x": "y"}), ("slots", {"x": 1})]
    if (key, value) in fine[2:]:
        signature.Signature.from_json(text)
    elif (key, value) not in fine:
        with pytest.raises(OnwardError, match=r"the signature of the model.* is damaged"):
            signature.Signature.from_json(text)


@pytest.mark.parametrize("key", ["optimizer", "learning_rate", "elementwise", "slots", "kernels", "norm"])
@pytest.mark.parametrize("value", ["!", [1], [{"parameters": ["w"], "model": "ä"}], {"x": 1}, {"x": {"initial": 1}}])
def test_damaged_plans(key: str, value: Any, documents: dict[str, str]) -> None:
    if (key, value) == ("optimizer", "!"):
        return
    with pytest.raises(OnwardError, match="the update plan of the optimizer model is damaged"):
        plan.UpdatePlan.from_json(replaced(documents[plan.METADATA_KEY], key, value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", "x"), ("version", "[]"), ("trainable", "{}"), ("trainable", "[1]"), ("trainable", "["),
        ("frozen", "null"), ("properties", "[]"), ("properties", '{"a": []}'), ("optimizer", "[]"),
        ("optimizer", '{"step": -1}'), ("random", '{"seed": 1e300, "passes": 0}'), ("nominal", "{}"),
        ("nominal", '{"w": {"dtype": "F32", "shape": [-1]}}'), ("trainable", '["w", "missing"]'),
    ],
)  # fmt: skip
def test_damaged_metadata_of_checkpoints(key: str, value: str, tmp_path: Path) -> None:
    checkpoint.save(onward_state({"w": np.ones(3, np.float32)}), tmp_path / "checkpoint")
    content = (tmp_path / "checkpoint").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"][key] = value
    (tmp_path / "checkpoint").write_bytes(safetensors_file(header, content[8 + length :]))
    with pytest.raises(OnwardError, match="is damaged"):
        checkpoint.load(tmp_path / "checkpoint")


def test_a_plan_of_kernels_that_are_no_models(tmp_path: Path, documents: dict[str, str]) -> None:
    content = json.loads(documents[plan.METADATA_KEY])
    for kernel in content["kernels"]:
        kernel["model"] = "AAAA"
    model = onnx.load(models.trained() / "optimizer_model.onnx")
    helper.set_model_props(model, {plan.METADATA_KEY: json.dumps(content)})
    (tmp_path / "optimizer_model.onnx").write_bytes(model.SerializeToString())
    state = CheckpointState.load_checkpoint(models.trained() / "checkpoint")
    module = Module(models.trained() / "training_model.onnx", state)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    module(*toys.batch())
    with pytest.raises(InvalidModelError):
        optimizer.step()


def test_a_training_model_without_results(tmp_path: Path, documents: dict[str, str]) -> None:
    content = json.loads(documents[signature.METADATA_KEY])
    kept = {name: role for name, role in content["outputs"].items() if role not in ("loss", "output")}
    model = onnx.load(models.trained() / "training_model.onnx")
    helper.set_model_props(model, {signature.METADATA_KEY: json.dumps({**content, "outputs": kept})})
    (tmp_path / "training_model.onnx").write_bytes(model.SerializeToString())
    state = CheckpointState.load_checkpoint(models.trained() / "checkpoint")
    with pytest.raises(OnwardError, match="none of its outputs is said to be a loss or a result"):
        Module(tmp_path / "training_model.onnx", state)


# Models --------------------------------------------------------------------------------------------------------------


def with_tensor(**fields: Any) -> onnx.ModelProto:
    model = toys.mlp()
    tensor = model.graph.initializer[0]
    for name, value in fields.items():
        if isinstance(value, list):
            del getattr(tensor, name)[:]
            getattr(tensor, name).extend(value)
        else:
            setattr(tensor, name, value)
    return model


def with_node(op_type: str, inputs: list[str], **attributes: Any) -> onnx.ModelProto:
    model = toys.mlp()
    model.graph.node[1].CopyFrom(helper.make_node(op_type, inputs, ["active"], **attributes))
    return model


def with_opset(version: int, domain: str = "") -> onnx.ModelProto:
    model = toys.mlp()
    model.opset_import.add(domain=domain, version=version)
    if domain == "":
        del model.opset_import[0]
    return model


def recurrent(hidden_size: int) -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(models.serialized()[7])
    assert model.graph.node[0].op_type == "LSTM"
    model.graph.node[0].attribute[0].i = hidden_size
    return model


def without_body() -> onnx.ModelProto:
    model = onnx.ModelProto.FromString(models.serialized()[4])
    del model.graph.node[-1].attribute[:]
    assert model.graph.node[-1].op_type == "Loop"
    return model


def with_function(opset: int) -> onnx.ModelProto:
    """The opset of the function, to be moved to that of the model, is an ordinary one."""
    model = with_opset(opset)
    node = helper.make_node("Relu", ["x"], ["y"])
    model.functions.append(helper.make_function("local", "layer", ["x"], ["y"], [node], [helper.make_opsetid("", 17)]))
    model.opset_import.add(domain="local", version=1)
    model.graph.node[1].CopyFrom(helper.make_node("layer", ["hidden"], ["active"], domain="local"))
    return model


def with_reference() -> onnx.ModelProto:
    model = with_node("If", ["hidden"])
    for name in ("then_branch", "else_branch"):
        model.graph.node[1].attribute.add(name=name, type=onnx.AttributeProto.GRAPH, ref_attr_name="nowhere")
    return model


MODELS = {
    "a layer wider than its weights": recurrent(2**31),
    "a loop without a body": without_body(),
    "a tensor of negative size": with_tensor(dims=[-5, -4]),
    "a tensor of huge size": with_tensor(dims=[2**40, 2**40]),
    "a tensor of 100 dimensions": with_tensor(dims=[1] * 98 + [5, 4]),
    "a tensor of too few bytes": with_tensor(raw_data=b"12"),
    "a tensor without a type": with_tensor(data_type=0),
    "a tensor of a type that is none": with_tensor(data_type=99),
    "a tensor of texts": with_tensor(data_type=TensorProto.STRING),
    "a node without inputs": with_node("Relu", []),
    "a node of a negative axis": with_node("Concat", ["hidden", "hidden"], axis=-9),
    "a transposition that is none": with_node("Transpose", ["hidden"], perm=[0, 0]),
    "an attribute of another type": with_node("Softmax", ["hidden"], axis="x"),
    "an equation that onnx hangs on": with_node("Einsum", ["hidden"], equation="ij!->ij"),
    "a convolution of zero groups": with_node("Conv", ["hidden", "fc1.weight"], group=0),
    "a circle": with_node("Relu", ["output"]),
    "a value from nowhere": with_node("Relu", ["nowhere"]),
    "a huge opset": with_opset(2**62),
    "a huge opset of a model with functions": with_function(2**31 - 1),
    "a branch that is an attribute of nothing": with_reference(),
    "a huge opset of another domain": with_opset(2**62, "acme"),
    "a negative opset": with_opset(-1),
}


@pytest.mark.parametrize("name", MODELS)
def test_damaged_models(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(MODELS[name].SerializeToString())
    for given in (path, MODELS[name]):
        with pytest.raises(OnwardError):
            onward.gradient(given)
        with pytest.raises(OnwardError):
            artifacts.generate_artifacts(given, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path / "made")
        try:
            report = onward.check(given)
        except OnwardError:
            continue
        assert report.blockers


def test_names_that_are_no_texts(tmp_path: Path) -> None:
    content = toys.mlp().SerializeToString().replace(b"Relu", b"R\xff\xfeu")
    (tmp_path / "model.onnx").write_bytes(content)
    for read in (onward.gradient, onward.check):
        with pytest.raises(InvalidModelError):
            read(tmp_path / "model.onnx")
    with pytest.raises(InvalidModelError):
        wire.parse(content)
