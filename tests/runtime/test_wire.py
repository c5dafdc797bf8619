"""Editing serialized models without onnx; onnx says whether it was done right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onward.errors import InvalidModelError
from onward.runtime import valueproto, wire
from tests.api import toys

BRANCH = """<ir_version: 8, opset_import: ["" : 17]>
branch (float[N, 3] x, bool flag) => (float[N, 3] y, float[N, 3] z) {
    y = If (flag) <
        then_branch = yes () => (float[N, 3] t) { t = Mul(x, inside) },
        else_branch = no () => (float[N, 3] u) { u = Neg(x) }
    >
    z = Mul(x, outside)
}"""


def branch() -> onnx.ModelProto:
    return toys.with_weights(BRANCH, {"inside": (3,), "outside": (3,)})


@pytest.mark.parametrize("model", [toys.mlp(), toys.cnn(), branch()], ids=["mlp", "cnn", "branch"])
def test_a_model_survives(model: onnx.ModelProto) -> None:
    onnx.helper.set_model_props(model, {"key": "value"})
    inferred = onnx.shape_inference.infer_shapes(model)
    assert onnx.load_from_string(wire.parse(inferred.SerializeToString()).serialize()) == inferred


def test_prune_keeps_what_subgraphs_capture() -> None:
    model = wire.parse(branch().SerializeToString())
    model.set_outputs(["y"])
    model.prune()
    result = onnx.load_from_string(model.serialize())
    assert [node.op_type for node in result.graph.node] == ["If"]
    assert [tensor.name for tensor in result.graph.initializer] == ["inside"]
    assert [value.name for value in result.graph.input] == ["x", "flag"]
    onnx.checker.check_model(result, full_check=True)


def test_types() -> None:
    model = wire.parse(onnx.shape_inference.infer_shapes(toys.mlp()).SerializeToString())
    assert model.type_of("input") == (1, ("N", 4))
    assert model.type_of("hidden") == (1, ("N", 5))
    assert model.type_of("fc1.weight") == (1, (5, 4))
    assert model.type_of("nothing") is None
    described = onnx.ValueInfoProto.FromString(valueproto.encode("v", 7, [3, "M", None]))
    assert described.name == "v"
    assert described.type.tensor_type.elem_type == onnx.TensorProto.INT64
    assert [dim.WhichOneof("value") for dim in described.type.tensor_type.shape.dim] == ["dim_value", "dim_param", None]


@pytest.mark.parametrize("dtype", ["float16", "float64", "int64", "bool", "uint8"])
def test_freeze(dtype: str) -> None:
    model = wire.parse(toys.mlp().SerializeToString())
    array = np.arange(6).reshape(2, 3).astype(dtype)
    model.freeze({"new": array, "scalar": array[0, 0] * np.ones((), dtype)})
    tensors = {t.name: t for t in onnx.load_from_string(model.serialize()).graph.initializer}
    found = numpy_helper.to_array(tensors["new"])
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    assert numpy_helper.to_array(tensors["scalar"]).shape == ()
    assert model.holds("new", array, Path())
    assert not model.holds("new", array[::-1], Path())


def test_external_data(tmp_path: Path) -> None:
    original = toys.mlp()
    onnx.save(original, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    expected = {t.name: numpy_helper.to_array(t) for t in toys.mlp().graph.initializer}
    model = wire.parse((tmp_path / "m.onnx").read_bytes())
    assert model.external_names() == list(expected)
    assert model.external_size() == sum(array.nbytes for array in expected.values())
    assert all(model.holds(name, array, tmp_path) for name, array in expected.items())
    assert not model.holds("fc1.weight", expected["fc1.weight"] + 1, tmp_path)
    with pytest.raises(InvalidModelError, match=r"the contents of initializer 'fc1\.weight' are not in"):
        model.load_external(tmp_path / "elsewhere")
    model.load_external(tmp_path)
    loaded = onnx.load_from_string(model.serialize())
    for tensor in loaded.graph.initializer:
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected[tensor.name])
    onnx.checker.check_model(loaded)


def test_what_is_no_model() -> None:
    content = toys.mlp().SerializeToString()
    for damaged in (content[:-5], b"text, and not a model", b"\xff" * 40):
        with pytest.raises(InvalidModelError, match="not an ONNX model, or a damaged one"):
            wire.parse(damaged)
