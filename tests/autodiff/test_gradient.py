"""The contract of `onward.gradient`, clause by clause; the mathematics of each operator is tested in rules/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.testing import run_on_runtime

W1 = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]], np.float32)
B1 = np.array([0.1, 0.2, -0.3], np.float32)
X = np.array([[1.0, 2.0], [-3.0, 0.5], [0.25, -1.0], [2.0, 2.0]], np.float32)


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model in onnx's text form, with initializers added."""
    parsed = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER + text)
    parsed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.checker.check_model(parsed, full_check=True)
    return parsed


HEADER = '<ir_version: 8, opset_import: ["" : 17]>'


def linear() -> onnx.ModelProto:
    """loss = sum(tanh(x w + b)); z is the layer before the activation."""
    return model(
        """linear (float[N, 2] x) => (float loss, float[N, 3] z) {
            product = MatMul(x, w)
            z = Add(product, b)
            y = Tanh(z)
            loss = ReduceSum<keepdims=0>(y)
        }""",
        w=W1,
        b=B1,
    )


def dz() -> np.ndarray:
    return 1 - np.tanh(X @ W1 + B1) ** 2


def inputs_of(result: onnx.ModelProto) -> list[str]:
    return [value.name for value in result.graph.input]


def outputs_of(result: onnx.ModelProto) -> list[str]:
    return [value.name for value in result.graph.output]


def initializers_of(result: onnx.ModelProto) -> set[str]:
    return {tensor.name for tensor in result.graph.initializer}


def run(result: onnx.ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    """Run a gradient model after checking what is promised of every one of them."""
    onnx.checker.check_model(result, full_check=True)
    assert {entry.domain for entry in result.opset_import} == {""}
    assert {node.domain for node in result.graph.node} <= {""}
    assert not result.functions
    return run_on_runtime(result, feeds)


def close(got: np.ndarray, wanted: object) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


# wrt ----------------------------------------------------------------------------------------------------------------


def test_wrt_none_is_every_trainable_parameter() -> None:
    result = onward.gradient(linear())
    assert inputs_of(result) == ["x"]
    assert outputs_of(result) == ["loss", "z", "w_grad", "b_grad"]
    got = run(result, x=X)
    close(got["loss"], np.tanh(X @ W1 + B1).sum())
    close(got["z"], X @ W1 + B1)
    close(got["w_grad"], X.T @ dz())
    close(got["b_grad"], dz().sum(axis=0))


@pytest.mark.parametrize("wrt", [["b", "w", "x"], ("x", "b", "w"), ["w"], "b"])
def test_wrt_names_initializers_and_inputs_and_orders_the_gradients(wrt: list[str] | str) -> None:
    result = onward.gradient(linear(), wrt=wrt)
    assert outputs_of(result)[2:] == [f"{name}_grad" for name in ([wrt] if isinstance(wrt, str) else wrt)]
    wanted = {"x_grad": dz() @ W1.T, "w_grad": X.T @ dz(), "b_grad": dz().sum(axis=0)}
    for name, grad in run(result, x=X).items():
        if name in wanted:
            close(grad, wanted[name])


def test_wrt_names_the_output_of_a_constant_node() -> None:
    forward = model(
        """constants (float[N, 2] x) => (float loss) {
            w = Constant<value = float[2] {3.0, -2.0}>()
            y = Mul(x, w)
            loss = ReduceSum<keepdims=0>(y)
        }"""
    )
    close(run(onward.gradient(forward, wrt=["w"]), x=X)["w_grad"], X.sum(axis=0))
    assert outputs_of(onward.gradient(forward)) == ["loss", "w_grad"]
    as_input = onward.gradient(forward, wrt=["w"], parameters="inputs")
    assert inputs_of(as_input) == ["x", "w"]
    got = run(as_input, x=X, w=np.ones(2, np.float32))
    close(got["loss"], X.sum())
    close(got["w_grad"], X.sum(axis=0))


def test_wrt_names_a_weight_that_a_subgraph_captures() -> None:
    forward = model(
        """captured (bool flag, float[2] x) => (float[2] y) {
            y = If (flag) <
                then_branch = yes () => (float[2] a) { a = Mul(x, w) },
                else_branch = no () => (float[2] b) { b = Sub(x, w) }
            >
        }""",
        w=np.array([3, 4], np.float32),
    )
    result = onward.gradient(forward, wrt=["w", "x"])
    x, dy = np.array([5, 6], np.float32), np.array([1, 10], np.float32)
    got = run(result, flag=np.array(True), x=x, y_grad=dy)
    close(got["w_grad"], dy * x)
    close(got["x_grad"], dy * [3, 4])
    got = run(result, flag=np.array(False), x=x, y_grad=dy)
    close(got["w_grad"], -dy)
    close(got["x_grad"], dy)


def test_wrt_names_a_weight_inside_a_branch() -> None:
    """An initializer or Constant of a subgraph is named like any other."""
    forward = model(
        """inside (bool flag, float[2] x) => (float[2] y) {
            y = If (flag) <
                then_branch = yes () => (float[2] a) { v = Constant<value = float[2] {3.0, 4.0}>() a = Mul(x, v) },
                else_branch = no () => (float[2] b) { b = Neg(x) }
            >
        }"""
    )
    result = onward.gradient(forward, wrt=["v"])
    x, dy = np.array([5, 6], np.float32), np.array([1, 10], np.float32)
    close(run(result, flag=np.array(True), x=x, y_grad=dy)["v_grad"], dy * x)
    close(run(result, flag=np.array(False), x=x, y_grad=dy)["v_grad"], [0, 0])


def test_wrt_names_an_inner_value() -> None:
    close(run(onward.gradient(linear(), wrt=["z"]), x=X)["z_grad"], dz())


def test_wrt_and_of_are_read_once() -> None:
    result = onward.gradient(linear(), wrt=(name for name in ("b", "w")), of=(name for name in ("loss", "z")))
    assert outputs_of(result) == ["loss", "z", "b_grad", "w_grad"]
    assert inputs_of(result) == ["x", "z_grad"]


def test_wrt_empty_leaves_the_model_as_it_is() -> None:
    assert outputs_of(onward.gradient(linear(), wrt=[])) == ["loss", "z"]


# of -----------------------------------------------------------------------------------------------------------------


def test_of_a_non_scalar_output_takes_its_cotangent_as_input() -> None:
    result = onward.gradient(linear(), of="z")
    assert inputs_of(result) == ["x", "z_grad"]
    assert outputs_of(result) == ["loss", "z", "w_grad", "b_grad"]
    cotangent = np.arange(12, dtype=np.float32).reshape(4, 3)
    got = run(result, x=X, z_grad=cotangent)
    close(got["w_grad"], X.T @ cotangent)
    close(got["b_grad"], cotangent.sum(axis=0))


def test_of_an_inner_value_makes_it_an_output() -> None:
    gradient = onward.gradient(linear(), wrt=["b"], of="y")
    assert [value.name for value in gradient.graph.output] == ["loss", "z", "y", "b_grad"]
    seed = np.arange(12, dtype=np.float32).reshape(4, 3)
    results = run_on_runtime(gradient, {"x": X, "y_grad": seed})
    np.testing.assert_allclose(results["y"], np.tanh(X @ W1 + B1), rtol=1e-5)
    np.testing.assert_allclose(results["b_grad"], (seed * dz()).sum(0), rtol=1e-4)


def test_of_a_list_adds_the_gradients() -> None:
    result = onward.gradient(linear(), of=["z", "loss"])
    assert inputs_of(result) == ["x", "z_grad"]
    cotangent = np.arange(12, dtype=np.float32).reshape(4, 3)
    close(run(result, x=X, z_grad=cotangent)["w_grad"], X.T @ (cotangent + dz()))


def test_of_several_non_scalar_outputs_takes_cotangents_in_their_order() -> None:
    forward = model("two (float[2] x) => (float[2] a, float[2] b) { a = Exp(x) b = Neg(x) }")
    result = onward.gradient(forward, wrt=["x"], of=["b", "a"])
    assert inputs_of(result) == ["x", "b_grad", "a_grad"]
    x, da, db = (np.array(v, np.float32) for v in ([0.5, 1], [2, 3], [5, 7]))
    close(run(result, x=x, a_grad=da, b_grad=db)["x_grad"], da * np.exp(x) - db)


@pytest.mark.parametrize("shape", ["", "[1]", "[1, 1]"])
def test_an_output_of_one_element_needs_no_cotangent(shape: str) -> None:
    forward = model(f"one (float{shape} x) => (float{shape} y) {{ y = Exp(x) }}")
    result = onward.gradient(forward, wrt=["x"])
    assert inputs_of(result) == ["x"]
    x = np.full([1] * (len(shape.split(",")) if shape else 0), 0.5, np.float32)
    close(run(result, x=x)["x_grad"], np.exp(x))


def test_an_output_of_unknown_size_takes_a_cotangent() -> None:
    """A batch of one looks like a scalar only while it runs."""
    forward = model("batch (float[N] x) => (float[N] y) { y = Exp(x) }")
    result = onward.gradient(forward, wrt=["x"])
    assert inputs_of(result) == ["x", "y_grad"]
    one = np.ones(1, np.float32)
    close(run(result, x=one, y_grad=2 * one)["x_grad"], 2 * np.exp(one))


def test_outputs_that_depend_on_each_other() -> None:
    """z is an output, and the input of the node that makes the next output: both cotangents reach w."""
    result = onward.gradient(linear(), wrt=["b"], of=["loss", "z"])
    got = run(result, x=X, z_grad=np.ones((4, 3), np.float32))
    close(got["b_grad"], (dz() + 1).sum(axis=0))


# parameters ---------------------------------------------------------------------------------------------------------


def test_parameters_stay_initializers() -> None:
    result = onward.gradient(linear(), wrt=["w"])
    assert inputs_of(result) == ["x"]
    assert {"w", "b"} <= initializers_of(result)


def test_parameters_become_inputs() -> None:
    result = onward.gradient(linear(), wrt=["b", "w"], of="z", parameters="inputs")
    assert inputs_of(result) == ["x", "z_grad", "b", "w"]
    assert not {"w", "b"} & initializers_of(result)
    got = run(result, x=X, z_grad=np.ones((4, 3), np.float32), b=2 * B1, w=W1)
    close(got["z"], X @ W1 + 2 * B1)
    close(got["b_grad"], [4, 4, 4])


def test_only_differentiated_parameters_become_inputs() -> None:
    result = onward.gradient(linear(), wrt=["w", "x"], parameters="inputs")
    assert inputs_of(result) == ["x", "w"]
    assert "b" in initializers_of(result)


def test_an_input_with_a_default_value() -> None:
    """An initializer that is an input too can be fed or not; with parameters="inputs" it must be fed."""
    forward = linear()
    forward.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [3]))
    result = onward.gradient(forward, wrt=["b"])
    assert inputs_of(result) == ["x", "b"]
    close(run(result, x=X)["b_grad"], dz().sum(axis=0))
    session = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    (fed,) = session.run(["b_grad"], {"x": X, "b": 0 * B1})
    close(fed, (1 - np.tanh(X @ W1) ** 2).sum(axis=0))
    required = onward.gradient(forward, wrt=["b"], parameters="inputs")
    assert inputs_of(required) == ["x", "b"]
    assert "b" not in initializers_of(required)


# Zeros --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["initializers", "inputs"])
def test_a_name_without_influence_gets_zeros(parameters: str) -> None:
    forward = model(
        """unused (float[N, 2] x, float[N, 3] other) => (float loss, float[N, 3] copy) {
            copy = Identity(other)
            y = Mul(x, w)
            loss = ReduceSum<keepdims=0>(y)
        }""",
        w=np.ones(2, np.float32),
        spare=np.ones((2, 5), np.float32),
        scalar=np.array(3, np.float32),
    )
    wrt = ["other", "spare", "w", "scalar"]
    result = onward.gradient(forward, wrt=wrt, parameters=parameters)
    assert outputs_of(result) == ["loss", "copy", "other_grad", "spare_grad", "w_grad", "scalar_grad"]
    weights = {"spare": np.ones((2, 5), np.float32), "w": np.ones(2, np.float32), "scalar": np.array(3, np.float32)}
    got = run(result, x=X, other=np.ones((4, 3), np.float32), **weights)
    close(got["other_grad"], np.zeros((4, 3)))
    close(got["spare_grad"], np.zeros((2, 5)))
    close(got["scalar_grad"], 0)
    close(got["w_grad"], X.sum(axis=0))


def test_influence_through_operators_without_derivative_is_zero() -> None:
    forward = model("steps (float[N] x) => (float loss) { y = Floor(x) loss = ReduceSum<keepdims=0>(y) }")
    close(run(onward.gradient(forward, wrt=["x"]), x=X[0])["x_grad"], [0, 0])


def test_half_and_double_models() -> None:
    for numpy_type, name in ((np.float16, "float16"), (np.float64, "double")):
        forward = model(
            f"typed ({name}[N] x) => ({name} loss) {{ y = Mul(x, w) loss = ReduceSum<keepdims=0>(y) }}",
            w=np.array([2, 3], numpy_type),
        )
        result = onward.gradient(forward, wrt=["w", "x"])
        got = run(result, x=X[0].astype(numpy_type))
        assert got["w_grad"].dtype == numpy_type
        close(got["w_grad"], X[0])


# Sharing ------------------------------------------------------------------------------------------------------------


def test_one_initializer_in_several_nodes_and_twice_in_one() -> None:
    forward = model(
        """shared (float[2] x) => (float loss) {
            square = Mul(w, w)
            a = Mul(x, w)
            b = Add(square, a)
            c = Mul(b, w)
            loss = ReduceSum<keepdims=0>(c)
        }""",
        w=np.array([2, -1], np.float32),
    )
    x, w = np.array([3, 5], np.float32), np.array([2, -1], np.float32)
    close(run(onward.gradient(forward), x=x)["w_grad"], 3 * w**2 + 2 * x * w)


def test_a_value_used_many_times() -> None:
    uses = 20
    lines = "\n".join(f"t{i} = Mul(h, c{i})" for i in range(uses))
    terms = ", ".join(f"t{i}" for i in range(uses))
    forward = model(
        f"many (float[2] x) => (float loss) {{ h = Exp(x) {lines} s = Sum({terms}) loss = ReduceSum<keepdims=0>(s) }}",
        **{f"c{i}": np.array([i, 1], np.float32) for i in range(uses)},
    )
    x = np.array([0.5, -1], np.float32)
    close(run(onward.gradient(forward, wrt=["x"]), x=x)["x_grad"], np.exp(x) * [sum(range(uses)), uses])


# Outputs that no node makes -----------------------------------------------------------------------------------------


def test_an_output_that_is_an_input() -> None:
    forward = model("passed (float[2] x) => (float[2] x, float[2] y) { y = Exp(x) }")
    result = onward.gradient(forward, wrt=["x"], of=["x", "y"])
    assert outputs_of(result) == ["x", "y", "x_grad"]
    # The gradient has the name first; the cotangent of the output of the same name gives way.
    assert inputs_of(result) == ["x", "x_grad_1", "y_grad"]
    x, one = np.array([0.5, -1], np.float32), np.ones(2, np.float32)
    close(run(result, x=x, x_grad_1=2 * one, y_grad=3 * one)["x_grad"], 2 + 3 * np.exp(x))


@pytest.mark.parametrize("parameters", ["initializers", "inputs"])
def test_an_output_that_is_an_initializer(parameters: str) -> None:
    w = np.array([2, 3], np.float32)
    forward = model("stored (float[2] x) => (float[2] y, float[2] w) { y = Mul(x, w) }", w=w)
    result = onward.gradient(forward, wrt=["w"], of=["y", "w"], parameters=parameters)
    assert outputs_of(result) == ["y", "w", "w_grad"]
    x, one = np.array([0.5, -1], np.float32), np.ones(2, np.float32)
    got = run(result, x=x, w=w, y_grad=one, w_grad_1=10 * one)
    close(got["w"], w)
    close(got["w_grad"], x + 10)


def test_two_outputs_with_the_same_gradient() -> None:
    """One value may not have two public names."""
    forward = model("sum (float[2] a, float[2] b) => (float loss) { s = Add(a, b) loss = ReduceSum<keepdims=0>(s) }")
    got = run(onward.gradient(forward, wrt=["a", "b"]), a=X[0], b=X[0])
    close(got["a_grad"], [1, 1])
    close(got["b_grad"], [1, 1])


# Names --------------------------------------------------------------------------------------------------------------


def test_inner_values_give_way_to_public_names() -> None:
    forward = model(
        """named (float[2] x) => (float[2] y) {
            w_grad = Mul(x, w)
            y_grad = Exp(w_grad)
            y = Neg(y_grad)
        }""",
        w=np.array([2, 3], np.float32),
    )
    result = onward.gradient(forward)
    assert inputs_of(result) == ["x", "y_grad"]
    assert outputs_of(result) == ["y", "w_grad"]
    x, one = np.array([0.5, -1], np.float32), np.ones(2, np.float32)
    close(run(result, x=x, y_grad=one)["w_grad"], -x * np.exp(x * [2, 3]))


def test_public_names_that_are_taken_get_a_number() -> None:
    forward = model("taken (float[2] x, float[2] x_grad) => (float[2] y) { y = Mul(x, x_grad) }")
    result = onward.gradient(forward, wrt=["x", "x_grad"])
    assert inputs_of(result) == ["x", "x_grad", "y_grad"]
    assert outputs_of(result) == ["y", "x_grad_1", "x_grad_grad"]


def test_nodes_without_names_and_odd_names() -> None:
    forward = model("odd (float[2] x) => (float[2] y) { y = Mul(x, w) }", w=np.array([2, 3], np.float32))
    forward.graph.initializer[0].name = "层/weight:0 (copy)"
    forward.graph.node[0].input[1] = "层/weight:0 (copy)"
    result = onward.gradient(forward)
    assert outputs_of(result) == ["y", "层/weight:0 (copy)_grad"]
    close(run(result, x=X[0], y_grad=X[1])["层/weight:0 (copy)_grad"], X[0] * X[1])


def test_backward_nodes_are_named_after_forward_nodes() -> None:
    forward = linear()
    forward.graph.node[2].name = "activation"
    names = [node.name for node in onward.gradient(forward).graph.node if node.name]
    assert [name for name in names if name.startswith("grad/activation/")]
    assert [name for name in names if name.startswith("grad/product/")]
    assert len(set(names)) == len(names)


# The caller's model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["initializers", "inputs"])
def test_the_callers_proto_is_untouched(parameters: str) -> None:
    forward = linear()
    before = forward.SerializeToString(deterministic=True)
    onward.gradient(forward, wrt=["w", "x"], of=["z", "loss"], parameters=parameters)
    assert forward.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("parameters", ["initializers", "inputs"])
def test_the_callers_ir_model_is_untouched(parameters: str) -> None:
    forward = ir.serde.deserialize_model(linear())
    values = dict(ir.convenience.create_value_mapping(forward.graph))
    state = {name: (value.type, str(value.shape), value.const_value) for name, value in values.items()}
    before = ir.serde.serialize_model(forward).SerializeToString(deterministic=True)
    result = onward.gradient(forward, wrt=["w", "x"], of=["z", "loss"], parameters=parameters)
    assert isinstance(result, onnx.ModelProto)
    assert ir.serde.serialize_model(forward).SerializeToString(deterministic=True) == before
    assert {n: (v.type, str(v.shape), v.const_value) for n, v in values.items()} == state
    assert not any(value.meta for value in values.values())


def test_every_kind_of_model_gives_the_same_gradient(tmp_path: Path) -> None:
    forward = linear()
    path = tmp_path / "model.onnx"
    onnx.save(forward, path)
    results = [onward.gradient(m) for m in (forward, ir.serde.deserialize_model(forward), path, str(path))]
    assert len({result.SerializeToString(deterministic=True) for result in results}) == 1


def test_metadata_of_the_model_is_kept() -> None:
    forward = linear()
    forward.producer_name = "somebody"
    forward.doc_string = "a model"
    helper.set_model_props(forward, {"author": "somebody else"})
    result = onward.gradient(forward)
    assert (result.producer_name, result.doc_string) == ("somebody", "a model")
    assert {entry.key: entry.value for entry in result.metadata_props}["author"] == "somebody else"


# Files --------------------------------------------------------------------------------------------------------------


def test_external_data_by_path(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(before) == {"model.onnx", "weights.bin"}
    for kind in (path, str(path), Path(*path.parts)):
        result = onward.gradient(kind)
        assert not any(tensor.external_data for tensor in result.graph.initializer)
        close(run(result, x=X)["w_grad"], X.T @ dz())
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_external_data_in_a_loaded_ir_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    loaded = ir.load(path)
    close(run(onward.gradient(loaded), x=X)["w_grad"], X.T @ dz())
    assert isinstance(loaded.graph.initializers["w"].const_value, ir.ExternalTensor)


ROWS, COLUMNS = 2**26 + 1, 8  # of float32, just above 2 GB


def large_model(folder: Path) -> Path:
    """loss = sum(table[index] * scale), with a table of more than 2 GB that takes no space on disk."""
    forward = model(
        """large (int64[N] index) => (float loss) {
            row = Gather(table, index)
            y = Mul(row, scale)
            loss = ReduceSum<keepdims=0>(y)
        }""",
        table=np.zeros((2, COLUMNS), np.float32),
        scale=np.arange(COLUMNS, dtype=np.float32),
    )
    table = forward.graph.initializer[0]
    table.ClearField("raw_data")
    table.dims[:] = [ROWS, COLUMNS]
    size = 4 * ROWS * COLUMNS
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "0"), ("length", str(size))):
        table.external_data.add(key=key, value=value)
    with open(folder / "table.bin", "wb") as file:
        file.write(np.ones(COLUMNS, np.float32).tobytes())  # the first row; the rest stays a hole of zeros
        file.truncate(size)
    path = folder / "large.onnx"
    path.write_bytes(forward.SerializeToString())
    return path


def test_above_2_gb_by_path(tmp_path: Path) -> None:
    """The result cannot hold the weights, so it refers to the files of the original and is saved beside them."""
    result = onward.gradient(large_model(tmp_path), wrt=["scale"])
    beside = tmp_path / "gradient.onnx"
    onnx.save(result, beside)
    assert beside.stat().st_size < 10_000
    onnx.checker.check_model(str(beside), full_check=True)
    session = onnxruntime.InferenceSession(str(beside), providers=["CPUExecutionProvider"])
    loss, scale_grad = session.run(None, {"index": np.array([0, ROWS - 1, 0])})
    close(loss, 2 * sum(range(COLUMNS)))
    close(scale_grad, [2] * COLUMNS)


def test_above_2_gb_with_parameters_as_inputs(tmp_path: Path) -> None:
    """The weight leaves the model, so nothing of the large file is read."""
    result = onward.gradient(large_model(tmp_path), wrt=["table"], parameters="inputs")
    assert inputs_of(result) == ["index", "table"]
    assert result.ByteSize() < 10_000
    onnx.checker.check_model(result, full_check=True)


# Results ------------------------------------------------------------------------------------------------------------


def test_gradient_of_a_gradient() -> None:
    """loss = x^3: 3 x^2, 6 x, 6."""
    forward = model("cube (float x) => (float loss) { s = Mul(x, x) loss = Mul(s, x) }")
    first = onward.gradient(forward, wrt=["x"])
    second = onward.gradient(first, wrt=["x"], of="x_grad")
    third = onward.gradient(second, wrt=["x"], of="x_grad_1")
    assert outputs_of(third) == ["loss", "x_grad", "x_grad_1", "x_grad_2"]
    got = run(third, x=np.array(5, np.float32))
    assert [float(value) for value in got.values()] == [125, 75, 30, 6]


def test_gradient_of_a_gradient_finds_the_same_parameters() -> None:
    first = onward.gradient(linear())
    second = onward.gradient(first)
    assert outputs_of(second) == [*outputs_of(first), "w_grad_1", "b_grad_1"]


def test_hessian_vector_product() -> None:
    """The cotangent of a gradient is the vector of a Hessian-vector product, and has its own gradient."""
    first = onward.gradient(linear(), wrt=["b"])
    second = onward.gradient(first, wrt=["b"], of="b_grad")
    assert inputs_of(second) == ["x", "b_grad_grad"]
    v = np.array([1, -2, 3], np.float32)
    y = np.tanh(X @ W1 + B1)
    close(run(second, x=X, b_grad_grad=v)["b_grad_1"], v * (-2 * y * (1 - y**2)).sum(axis=0))


def test_building_twice_gives_the_same_bytes() -> None:
    assert onward.gradient(linear(), of=["z", "loss"]) == onward.gradient(linear(), of=["z", "loss"])
    first, second = (onward.gradient(linear()).SerializeToString() for _ in range(2))
    assert first == second


@pytest.mark.parametrize("opset", range(11, 24))
def test_the_opset_of_the_model_is_kept_where_it_suffices(opset: int) -> None:
    text = f"""<ir_version: 7, opset_import: ["" : {opset}]>
    kept (float[N, 2] x) => (float[N, 3] y) {{ product = MatMul(x, w) z = Add(product, b) y = Tanh(z) }}"""
    result = onward.gradient(model(text, w=W1, b=B1))
    assert [(entry.domain, entry.version) for entry in result.opset_import] == [("", opset)]
    cotangent = np.ones((4, 3), np.float32)
    close(run(result, x=X, y_grad=cotangent)["w_grad"], X.T @ dz())


def test_the_opset_rises_where_it_must() -> None:
    """Summing over axes found at run time needs ReduceSum-13."""
    text = """<ir_version: 7, opset_import: ["" : 11]>
    rises (float[N, M] x, float[K, L] s) => (float[P, Q] y) { y = Mul(x, s) }"""
    forward = model(text)
    result = onward.gradient(forward, wrt=["s"])
    assert [(entry.domain, entry.version) for entry in result.opset_import] == [("", 13)]
    got = run(result, x=X, s=np.ones((1, 2), np.float32), y_grad=np.ones((4, 2), np.float32))
    close(got["s_grad"], X.sum(axis=0, keepdims=True))


def test_ir_version_that_the_runtime_accepts() -> None:
    forward = linear()
    forward.ir_version = onnx.IR_VERSION
    run(onward.gradient(forward), x=X)


def test_initializers_of_old_files_are_inputs_too() -> None:
    """Before IR version 4 every initializer had to be listed as an input; nobody feeds those."""
    forward = linear()
    forward.ir_version = 3
    for name, array in (("w", W1), ("b", B1)):
        forward.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape))
    result = onward.gradient(forward)
    assert inputs_of(result) == ["x"]
    close(run(result, x=X)["w_grad"], X.T @ dz())


def test_the_long_name_of_the_default_domain() -> None:
    forward = linear()
    forward.opset_import[0].domain = "ai.onnx"
    close(run(onward.gradient(forward), x=X)["w_grad"], X.T @ dz())


def test_a_model_of_another_domain_only() -> None:
    """It need not import the default domain, which the gradient does."""
    text = """<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]>
    scaled (float[2] x, float[2] z) => (float[2] y, float[2] z) { y = ai.onnx.ml.Normalizer(x) }"""
    result = onward.gradient(onnx.parser.parse_model(text), wrt=["z"], of="z")
    onnx.checker.check_model(result, full_check=True)
    assert outputs_of(result) == ["y", "z", "z_grad"]


def test_model_local_functions_are_inlined() -> None:
    forward = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        outer (float[N, 2] x) => (float loss) {
            y = local.Layer(x, w)
            loss = ReduceSum<keepdims=0>(y)
        }
        <domain: "local", opset_import: ["" : 17]>
        Layer (a, b) => (c) { p = MatMul(a, b) c = Tanh(p) }"""
    )
    forward.graph.initializer.append(numpy_helper.from_array(W1, "w"))
    got = run(onward.gradient(forward), x=X)
    close(got["w_grad"], X.T @ (1 - np.tanh(X @ W1) ** 2))


def test_unknown_rank() -> None:
    """A model whose input has no shape at all still has a gradient where rules need no rank."""
    forward = model(
        "ranked (float[N, M] x) => (float[N, M] y) { s = Mul(x, w) y = Exp(s) }", w=np.array([2], np.float32)
    )
    for value in (forward.graph.input[0], forward.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    result = onward.gradient(forward, wrt=["w"])
    # onnx's checker wants every output to have a rank, which the caller's model lacks too; onnxruntime does not.
    got = run_on_runtime(result, {"x": X, "y_grad": np.ones_like(X)})
    close(got["w_grad"], [(X * np.exp(2 * X)).sum()])


def test_wrong_annotations_are_not_believed() -> None:
    forward = linear()
    forward.graph.value_info.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, [7, 9, 11]))
    close(run(onward.gradient(forward), x=X)["w_grad"], X.T @ dz())


def test_runs_from_the_file_that_onnx_saves(tmp_path: Path) -> None:
    """What the README shows: save the result, and run the file in a process that knows nothing of onward."""
    path = tmp_path / "gradient.onnx"
    onnx.save(onward.gradient(linear()), path)
    code = (
        "import sys, numpy, onnxruntime; session = onnxruntime.InferenceSession(sys.argv[1]); "
        "print(session.run(['b_grad'], {'x': numpy.zeros((4, 2), 'float32')})[0].tolist()); "
        "assert 'onward' not in sys.modules"
    )
    printed = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    close(np.array(eval(printed)), 4 * (1 - np.tanh(B1) ** 2))
