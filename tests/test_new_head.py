"""`onward.new_head`: every form of a last layer is found, replaced, and can be trained to new classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import OnwardError
from onward.errors import UnknownNameError

RNG = np.random.default_rng(0)
HIDDEN, OLD, NEW = 6, 4, 7


def array(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.normal(size=shape).astype(dtype)


def model_of(
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    *,
    x: tuple = ("N", HIDDEN),
    outputs: dict[str, tuple | None] | None = None,
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    ml: bool = False,
    integers: tuple[str, ...] = (),
) -> onnx.ModelProto:
    outputs = outputs if outputs is not None else {"y": ("N", OLD)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, x)],
        [
            helper.make_tensor_value_info(name, TensorProto.INT64 if name in integers else dtype, shape)
            for name, shape in outputs.items()
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(kind: str, inputs: str, output: str, **attributes) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(" "), output.split(), name=f"{output.split()[0]}_node", **attributes)


def constant(name: str, value) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)), name=f"{name}_c")


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def weights_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def sizes(value: onnx.ValueInfoProto) -> list:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


W = array(HIDDEN, OLD)
B = array(OLD)
X = array(3, HIDDEN)
IMAGE = ("N", HIDDEN, 5, 5)
CONV = array(OLD, HIDDEN, 1, 1)

# Nodes, weights, options; and the shape of the input that it is run with.
FORMS: dict[str, tuple] = {
    "Gemm": ([node("Gemm", "x w b", "y")], {"w": W, "b": B}, {}),
    "Gemm, transposed": ([node("Gemm", "x w b", "y", transB=1)], {"w": W.T.copy(), "b": B}, {}),
    "Gemm without a bias": ([node("Gemm", "x w", "y")], {"w": W}, {}),
    "Gemm with a row as bias": ([node("Gemm", "x w b", "y", alpha=0.5)], {"w": W, "b": B[None]}, {}),
    "Gemm of one number": ([node("Gemm", "x w b", "y")], {"w": W[:, :1], "b": B[:1]}, {"outputs": {"y": ("N", 1)}}),
    "MatMul": ([node("MatMul", "x w", "y")], {"w": W}, {}),
    "MatMul and Add": ([node("MatMul", "x w", "m"), node("Add", "m b", "y")], {"w": W, "b": B}, {}),
    "Add the other way": ([node("MatMul", "x w", "m"), node("Add", "b m", "y")], {"w": W, "b": B}, {}),
    "MatMul with a Transpose": (
        [node("Transpose", "w", "t", perm=[1, 0]), node("MatMul", "x t", "m"), node("Add", "m b", "y")],
        {"w": W.T.copy(), "b": B},
        {},
    ),
    "constants": ([constant("w", W), constant("b", B), node("Gemm", "x w b", "y")], {}, {}),
    "sequences": (
        [node("MatMul", "x w", "m"), node("Add", "m b", "y")],
        {"w": W, "b": B},
        {"x": ("N", "T", HIDDEN), "outputs": {"y": ("N", "T", OLD)}},
    ),
    "Softmax": ([node("Gemm", "x w b", "s"), node("Softmax", "s", "y", axis=1)], {"w": W, "b": B}, {}),
    "scores and probabilities": (
        [node("Gemm", "x w b", "s"), node("LogSoftmax", "s", "y", axis=1)],
        {"w": W, "b": B},
        {"outputs": {"s": ("N", OLD), "y": ("N", OLD)}},
    ),
    "labels and probabilities": (
        [node("Gemm", "x w b", "s"), node("Softmax", "s", "y"), node("ArgMax", "s", "label", axis=1, keepdims=0)],
        {"w": W, "b": B},
        {"outputs": {"label": ("N",), "y": ("N", OLD)}, "integers": ("label",)},
    ),
    "Softmax by hand": (
        [
            node("Gemm", "x w b", "s"),
            node("ReduceMax", "s", "top", axes=[1]),
            node("Sub", "s top", "d"),
            node("Exp", "d", "e"),
            node("ReduceSum", "e axes", "sum"),
            node("Div", "e sum", "y"),
        ],
        {"w": W, "b": B, "axes": np.array([1])},
        {},
    ),
    "temperature": (
        [node("Gemm", "x w b", "s"), node("Div", "s t", "d"), node("Sigmoid", "d", "y")],
        {"w": W, "b": B, "t": np.float32(2)},
        {},
    ),
    "Conv, pooled": (
        [
            node("Conv", "x w b", "c", kernel_shape=[1, 1]),
            node("Relu", "c", "r"),
            node("GlobalAveragePool", "r", "p"),
            node("Flatten", "p", "y"),
        ],
        {"w": CONV, "b": B},
        {"x": IMAGE},
    ),
    "Conv behind pooling": (
        [node("GlobalAveragePool", "x", "p"), node("Conv", "p w b", "c"), node("Reshape", "c shape", "y")],
        {"w": CONV, "b": B, "shape": np.array([-1, OLD])},
        {"x": IMAGE},
    ),
    "Conv and Add": (
        [
            node("GlobalAveragePool", "x", "p"),
            node("Conv", "p w", "c"),
            node("Add", "c b", "a"),
            node("Squeeze", "a axes", "y"),
        ],
        {"w": CONV, "b": B.reshape(1, OLD, 1, 1), "axes": np.array([2, 3])},
        {"x": IMAGE},
    ),
    "Conv as tf2onnx has it": (
        [
            node("GlobalAveragePool", "x", "p"),
            node("Conv", "p w b", "c"),
            node("Transpose", "c", "t", perm=[0, 2, 3, 1]),
            node("Reshape", "t shape", "r"),
            node("Softmax", "r", "y", axis=-1),
        ],
        {"w": CONV, "b": B, "shape": np.array([-1, OLD])},
        {"x": IMAGE},
    ),
    "segmentation": (
        [node("Conv", "x w b", "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        {"w": array(OLD, HIDDEN, 3, 3), "b": B},
        {"x": IMAGE, "outputs": {"y": ("N", OLD, 5, 5)}},
    ),
    "segmentation, resized": (
        [node("Conv", "x w b", "c"), node("Resize", "c  scales", "y"), node("ArgMax", "y", "label", axis=1)],
        {"w": CONV, "b": B, "scales": np.array([1, 1, 2, 2], np.float32)},
        {"x": IMAGE, "outputs": {"y": ("N", OLD, 10, 10), "label": ("N", 1, 10, 10)}, "integers": ("label",)},
    ),
    "a shape that is put together": (
        [
            node("Conv", "x w b", "c"),
            node("GlobalMaxPool", "c", "p"),
            node("Shape", "p", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axes", "u"),
            node("Concat", "u k", "shape", axis=0),
            node("Reshape", "p shape", "y"),
        ],
        {"w": CONV, "b": B, "zero": np.array(0), "axes": np.array([0]), "k": np.array([OLD])},
        {"x": IMAGE},
    ),
    "a shape as tf2onnx has it": (
        [
            node("Reshape", "x rows", "f"),
            node("MatMul", "f w", "m"),
            node("Shape", "x", "s"),
            node("Cast", "s", "i", to=TensorProto.INT32),
            node("Gather", "i free", "g"),
            node("Concat", "g k", "c", axis=0),
            node("Cast", "c", "shape", to=TensorProto.INT64),
            node("Reshape", "m shape", "r"),
            node("Add", "r b", "y"),
        ],
        {"w": W, "b": B, "rows": np.array([-1, HIDDEN]), "free": np.array([0, 1]), "k": np.array([OLD], np.int32)},
        {"x": ("N", "T", HIDDEN), "outputs": {"y": ("N", "T", OLD)}},
    ),
    "rows that are laid out": (
        [
            node("Reshape", "x rows", "f"),
            node("Gemm", "f w b", "m"),
            node("Shape", "x", "s"),
            node("Gather", "s free", "g"),
            node("Concat", "g k", "shape", axis=0),
            node("Reshape", "m shape", "y"),
        ],
        {"w": W, "b": B, "rows": np.array([-1, HIDDEN]), "free": np.array([0, 1]), "k": np.array([-1])},
        {"x": ("N", "T", HIDDEN), "outputs": {"y": ("N", "T", OLD)}},
    ),
    "a loss behind": (
        [
            node("Gemm", "x w b", "s"),
            node("ArgMax", "x", "l", axis=1, keepdims=0),
            node("Clip", "l low high", "labels"),
            node("SoftmaxCrossEntropyLoss", "s labels", "loss y"),
        ],
        {"w": W, "b": B, "low": np.array(0), "high": np.array(OLD - 1)},
        {"outputs": {"loss": (), "y": ("N", OLD)}},
    ),
    "an LSTM behind a state": (
        [
            node("LSTM", "x lw lr", "o h c", hidden_size=HIDDEN),
            node("Squeeze", "o axes", "q"),
            node("MatMul", "q w", "m"),
            node("Add", "m b", "y"),
        ],
        {
            "lw": array(1, 4 * HIDDEN, HIDDEN),
            "lr": array(1, 4 * HIDDEN, HIDDEN),
            "axes": np.array([1]),
            "w": W,
            "b": B,
        },
        {"x": (5, "N", HIDDEN), "outputs": {"y": (5, "N", OLD), "h": (1, "N", HIDDEN)}},
    ),
    "a shape that is left open": (
        [node("GlobalAveragePool", "x", "p"), node("Conv", "p w b", "c"), node("Reshape", "c shape", "y")],
        {"w": CONV, "b": B, "shape": np.array([0, -1])},
        {"x": IMAGE},
    ),
    "rows that are folded": (
        [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Reshape", "a shape", "y")],
        {"w": W, "b": B, "shape": np.array([-1, OLD])},
        {"x": ("N", "T", HIDDEN), "outputs": {"y": ("M", OLD)}},
    ),
    "a bias behind a Reshape": (
        [node("MatMul", "x w", "m"), node("Reshape", "m shape", "r"), node("Add", "r b", "y")],
        {"w": W, "b": B, "shape": np.array([-1, OLD])},
        {},
    ),
    "classes that are moved": (
        [
            node("MatMul", "x w", "m"),
            node("Unsqueeze", "m axes", "u"),
            node("Transpose", "u", "t", perm=[0, 2, 1]),
            node("Squeeze", "t last", "s"),
            node("Identity", "s", "i"),
            node("Clip", "i", "y"),
        ],
        {"w": W, "axes": np.array([1]), "last": np.array([-1])},
        {},
    ),
    "half precision": (
        [node("Gemm", "x w b", "y")],
        {"w": W.astype(np.float16), "b": B.astype(np.float16)},
        {"dtype": TensorProto.FLOAT16},
    ),
    "double precision": (
        [node("Gemm", "x w b", "y")],
        {"w": W.astype(np.float64), "b": B.astype(np.float64)},
        {"dtype": TensorProto.DOUBLE},
    ),
    "opset 7": ([node("Gemm", "x w b", "s"), node("Softmax", "s", "y", axis=1)], {"w": W, "b": B}, {"opset": 7}),
    "opset 9": (
        [
            node("MatMul", "x w", "m"),
            node("Add", "m b", "a"),
            node("Unsqueeze", "a", "u", axes=[2]),
            node("Squeeze", "u", "y", axes=[2]),
        ],
        {"w": W, "b": B},
        {"opset": 9},
    ),
    "opset 11": ([node("Gemm", "x w b", "s"), node("Dropout", "s", "y")], {"w": W, "b": B}, {"opset": 11}),
    "opset 26": ([node("Gemm", "x w b", "s"), node("Softmax", "s", "y")], {"w": W, "b": B}, {"opset": 26}),
}


def built(form: str) -> onnx.ModelProto:
    nodes, weights, options = FORMS[form]
    return model_of([onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes], weights, **options)


def feed(model: onnx.ModelProto) -> np.ndarray:
    kind = model.graph.input[0].type.tensor_type
    shape = [size if isinstance(size, int) else 3 for size in sizes(model.graph.input[0])]
    return array(*shape, dtype=helper.tensor_dtype_to_np_dtype(kind.elem_type))


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    model = built(form)
    before = model.SerializeToString()
    made = onward.new_head(model, classes=NEW, seed=1)
    assert model.SerializeToString() == before
    onnx.checker.check_model(made.model, full_check=True)
    has_bias = "b" in str(FORMS[form][0]) and form not in ("MatMul", "Gemm without a bias", "classes that are moved")
    assert made.parameters == ["head.weight", "head.bias"][: 2 if has_bias else 1]
    stored = weights_of(made.model)
    assert not {"w", "b"} & stored.keys()
    old = OLD if form != "Gemm of one number" else 1
    for value, was in zip(made.model.graph.output, model.graph.output, strict=True):
        expected = [NEW if size == old else size for size in sizes(was)]
        assert sizes(value) == expected, value.name
    x = feed(model)
    for result, was, value in zip(run(made.model, x=x), run(model, x=x), made.model.graph.output, strict=True):
        assert result.dtype == was.dtype
        assert list(result.shape) == [NEW if size == old else size for size in was.shape], value.name
    # With the old numbers in it, the new layer of as many classes is the old one.
    again = onward.new_head(model, classes=old)
    _set(again.model, model, again.parameters)
    for result, was in zip(run(again.model, x=x), run(model, x=x), strict=True):
        np.testing.assert_array_equal(result, was)


def _set(model: onnx.ModelProto, origin: onnx.ModelProto, names: list[str]) -> None:
    constants = {n.output[0]: n.attribute[0].t for n in origin.graph.node if n.op_type == "Constant"}
    old = {**weights_of(origin), **{name: numpy_helper.to_array(t) for name, t in constants.items()}}
    for tensor in model.graph.initializer:
        if tensor.name in names:
            value = old["w" if tensor.name.endswith("weight") else "b"]
            if value.shape != tuple(tensor.dims):
                value = value.T if value.ndim == 2 else value.reshape(tuple(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))


def test_models_of_onnx_ir_stay_as_they_are() -> None:
    for form in FORMS:
        model = ir.from_proto(built(form))
        before = ir.to_proto(model).SerializeToString()
        first, second = (onward.new_head(model, classes=NEW).model for _ in range(2))
        assert ir.to_proto(model).SerializeToString() == before
        assert first.SerializeToString() == second.SerializeToString()


def test_the_same_numbers_in_every_form() -> None:
    made = [
        onward.new_head(built(form), classes=NEW, seed=3) for form in ("Gemm", "Gemm, transposed", "MatMul and Add")
    ]
    first, second, third = (weights_of(each.model) for each in made)
    np.testing.assert_array_equal(first["head.weight"], second["head.weight"].T)
    np.testing.assert_array_equal(first["head.weight"], third["head.weight"])
    np.testing.assert_array_equal(first["head.bias"], third["head.bias"])
    assert not np.array_equal(
        first["head.weight"], weights_of(onward.new_head(built("Gemm"), NEW, seed=4).model)["head.weight"]
    )


def test_first_values_are_those_of_torch() -> None:
    """Uniform with the bound of torch's Linear and Conv2d, which is 1/sqrt(the numbers that go into each result)."""
    torch = pytest.importorskip("torch")
    for form, module, kernel in (
        ("Gemm", torch.nn.Linear(HIDDEN, 4000), 1),
        ("segmentation", torch.nn.Conv2d(HIDDEN, 4000, 3), 9),
    ):
        stored = weights_of(onward.new_head(built(form), classes=4000).model)
        bound = 1 / np.sqrt(HIDDEN * kernel)
        for name, parameter in module.named_parameters():
            ours, theirs = stored[f"head.{name}"], parameter.detach().numpy()
            assert abs(ours).max() <= bound * (1 + 1e-6)
            assert abs(ours).max() > 0.98 * bound
            assert ours.std() == pytest.approx(theirs.std(), rel=0.05)
            assert abs(ours.mean()) < 0.05 * bound


def test_files_and_external_data(tmp_path) -> None:
    model = model_of(
        [node("MatMul", "x v", "h"), *built("Gemm").graph.node], {"v": array(HIDDEN, HIDDEN), "w": W, "b": B}
    )
    model.graph.node[1].input[0] = "h"
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    made = onward.new_head(path, classes=NEW)
    np.testing.assert_array_equal(weights_of(made.model)["v"], weights_of(onnx.load(path))["v"])
    assert run(made.model, x=X)[0].shape == (3, NEW)


def test_old_files_list_weights_as_inputs() -> None:
    model = built("opset 7")
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    made = onward.new_head(model, classes=NEW)
    onnx.checker.check_model(made.model)
    assert [value.name for value in made.model.graph.input] == ["x", "head.weight", "head.bias"]
    assert run(made.model, x=X)[0].shape == (3, NEW)


def test_functions_are_looked_into() -> None:
    body = helper.make_function(
        "local", "Classifier", ["f", "v", "c"], ["s"], [node("Gemm", "f v c", "s")], [helper.make_opsetid("", 17)]
    )
    call = helper.make_node("Classifier", ["x", "w", "b"], ["y"], domain="local")
    model = model_of([call], {"w": W, "b": B})
    model.functions.append(body)
    model.opset_import.append(helper.make_opsetid("local", 1))
    made = onward.new_head(model, classes=NEW)
    assert run(made.model, x=X)[0].shape == (3, NEW)


def test_a_weight_with_another_user_stays() -> None:
    """As an embedding that is tied to the last layer."""
    table = array(OLD, HIDDEN)
    nodes = [
        node("Gather", "e x", "h"),
        node("Transpose", "e", "t", perm=[1, 0]),
        node("MatMul", "h t", "y"),
    ]
    model = model_of(nodes, {"e": table}, x=("N", "T"), outputs={"y": ("N", "T", OLD)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    made = onward.new_head(model, classes=NEW)
    np.testing.assert_array_equal(weights_of(made.model)["e"], table)
    assert made.parameters == ["head.weight"]
    assert run(made.model, x=np.array([[0, 1, 3]]))[0].shape == (1, 3, NEW)


def test_a_shape_with_another_user_stays() -> None:
    nodes = [
        node("Reshape", "x shape", "h"),
        node("Gemm", "h w b", "s"),
        node("Reshape", "s shape", "y"),
    ]
    model = model_of(nodes, {"w": array(OLD, OLD), "b": B, "shape": np.array([-1, OLD])}, x=("N", OLD))
    made = onward.new_head(model, classes=NEW)
    assert run(made.model, x=array(3, OLD))[0].shape == (3, NEW)


def test_names_are_new() -> None:
    nodes = [node("Gemm", "x head.bias", "h"), node("Gemm", "h w b", "y")]
    made = onward.new_head(model_of(nodes, {"head.bias": array(HIDDEN, HIDDEN), "w": W, "b": B}), classes=NEW)
    assert made.parameters == ["head2.weight", "head2.bias"]
    renamed = [node("Gemm", "x head.weight head.bias", "y")]
    made = onward.new_head(model_of(renamed, {"head.weight": W, "head.bias": B}), classes=NEW)
    assert made.parameters == ["head.weight", "head.bias"]
    made = onward.new_head(built("Gemm"), classes=NEW, name="fresh")
    assert made.parameters == ["fresh.weight", "fresh.bias"]


# What cannot be told -------------------------------------------------------------------------------------------------

TWO = (
    [node("Gemm", "x v", "h"), node("Gemm", "h w b", "y"), node("Gemm", "h u", "z")],
    {"v": array(HIDDEN, HIDDEN), "w": W, "b": B, "u": array(HIDDEN, 9)},
    {"outputs": {"y": ("N", OLD), "z": ("N", 9)}},
)


@pytest.mark.parametrize("name", ["z_node", "u", "z"])
def test_layers_are_named(name: str) -> None:
    model = model_of(TWO[0], TWO[1], **TWO[2])
    made = onward.new_head(model, classes=NEW, layer=name)
    old, new = run(model, x=X), run(made.model, x=X)
    np.testing.assert_array_equal(old[0], new[0])
    assert new[1].shape == (3, NEW)
    assert [sizes(value) for value in made.model.graph.output] == [["N", OLD], ["N", NEW]]


def behind(*nodes: onnx.NodeProto, **weights: np.ndarray) -> onnx.ModelProto:
    integers = ("y",) if "l" in weights else ()
    made = [node("Gemm", "x w b", "s"), *nodes]
    return model_of(made, {"w": W, "b": B, **weights}, outputs={"y": None}, integers=integers)


quantised = {"q": np.ones((HIDDEN, OLD), np.int8), "scale": np.float32(0.1), "zero": np.int8(0)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: onward.new_head(model_of(TWO[0], TWO[1], **TWO[2]), 3),
            "several last layers: 'y' comes out of Gemm node 'y_node' \\(6 -> 4\\), weight 'w'; 'z' comes out of "
            "Gemm node 'z_node' \\(6 -> 9\\), weight 'u'. These layers could be meant \\(name one as `layer`",
        ),
        (
            lambda: onward.new_head(model_of(TWO[0], TWO[1], **TWO[2]), 3, layer="v"),
            "Gemm node 'y_node' comes behind Gemm node 'h_node'",
        ),
        (lambda: onward.new_head(built("Gemm"), 3, layer="y_nod"), "is 'y_node' meant\\? These layers could be meant"),
        (lambda: onward.new_head(built("Softmax"), 3, layer="y_node"), "no layer with a weight of its own but Softmax"),
        (
            lambda: onward.new_head(model_of([node("Relu", "x", "y")], {}), 3),
            "no output of the model comes out of a layer",
        ),
        (
            lambda: onward.new_head(model_of([node("MatMul", "x x", "y")], {}, x=("N", "N")), 3),
            "come out of MatMul node 'y_node', which is no layer with a constant weight. The model has no Gemm",
        ),
        (
            lambda: onward.new_head(
                model_of([node("DequantizeLinear", "q scale zero", "w"), node("MatMul", "x w", "y")], quantised), 3
            ),
            "MatMul node 'y_node' \\(6 -> 4\\), weight 'q' cannot be replaced by a new layer: its weight is quantised",
        ),
        (
            lambda: onward.new_head(behind(node("Gather", "s i", "y", axis=1), i=np.array([0, 2])), 3),
            "treat all classes alike",
        ),
        (lambda: onward.new_head(behind(node("Mul", "s v", "y"), v=B), 3), "'v' has a number for each of 4"),
        (
            lambda: onward.new_head(
                behind(node("BatchNormalization", "s one zero zero one", "y"), one=np.ones(OLD, np.float32), zero=B), 3
            ),
            "BatchNormalization node 'y_node' comes behind Gemm node 's_node'",
        ),
        (
            lambda: onward.new_head(behind(node("Reshape", "s shape", "y"), shape=np.array([-1])), 3),
            "does not say which is their axis",
        ),
        (
            lambda: onward.new_head(behind(node("Reshape", "s shape", "y"), shape=np.array([-1, 2, 2])), 3),
            "the new shape \\[-1, 2, 2\\] does not say which is their axis",
        ),
        (
            lambda: onward.new_head(
                behind(node("ArgMax", "s", "a", axis=1, keepdims=0), node("Gather", "l a", "y"), l=np.arange(OLD)), 3
            ),
            "it takes the number of a class, maybe to look up its label",
        ),
        (
            lambda: onward.new_head(
                model_of(
                    [node("Gemm", "x w", "s"), node("Squeeze", "s axes", "y")], {"w": W[:, :1], "axes": np.array([1])}
                ),
                3,
            ),
            "it takes away their axis, because there is one only",
        ),
        (lambda: onward.new_head(built("Gemm"), 0), "`classes` is the number of classes, at least 1, not 0"),
        (lambda: onward.new_head(built("Gemm"), "3"), "`classes` is the number of classes"),
    ],
)
def test_what_cannot_be_told(make, message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        make()


def test_unknown_names_are_a_kind_of_their_own() -> None:
    with pytest.raises(UnknownNameError):
        onward.new_head(built("Gemm"), 3, layer="fc")


def test_classifiers_of_scikit_learn_are_refused() -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    x, y = array(40, HIDDEN), np.arange(40) % 3
    linear = to_onnx(LogisticRegression().fit(x, y), x[:1], target_opset=17)
    with pytest.raises(OnwardError, match="its weights and labels are attributes, as scikit-learn's are"):
        onward.new_head(linear, 5)
    network = to_onnx(
        MLPClassifier((4,), max_iter=3000, tol=1).fit(x, y), x[:1], target_opset=17, options={"zipmap": False}
    )
    with pytest.raises(OnwardError, match="depends on the number of classes: it "):
        onward.new_head(network, 5)


LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))
QUICK = ("light_squeezenet.onnx", "light_shufflenet.onnx")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[] if path.name in QUICK else [pytest.mark.slow]) for path in LIGHT],
)
def test_architectures_of_imagenet(path: Path) -> None:
    """The files that onnx has for its own tests: opset 9, IR 3, and weights that are one number repeated."""
    made = onward.new_head(path, classes=NEW)
    onnx.checker.check_model(made.model)
    assert made.parameters == ["head.weight", "head.bias"]
    old = onnx.load(path)
    stored = weights_of(old)
    image = next(value for value in old.graph.input if value.name not in stored)
    x = {image.name: np.zeros(sizes(image), np.float32)}
    before, after = run(old, **x)[0], run(made.model, **x)[0]
    assert before.shape[:2] == (1, 1000)
    assert after.shape == (1, NEW, *before.shape[2:])
