"""`onnxcustom.utils`: initializers, names, losses in graphs, rewriting, devices, text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnxruntime.capi import _pybind_state
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from onward.errors import OnwardError
from onward.onnxcustom.utils import measure_time, str_ortvalue
from onward.onnxcustom.utils.onnx_helper import (
    add_initializer,
    dtype_to_var_type,
    get_onnx_opset,
    onnx_rename_weights,
    proto_type_to_dtype,
    replace_initializers_into_onnx,
)
from onward.onnxcustom.utils.onnx_rewriter import _unique_name, onnx_rewrite_operator, unreduced_onnx_loss
from onward.onnxcustom.utils.onnxruntime_helper import (
    device_to_providers,
    get_ort_device,
    get_ort_device_from_session,
    get_ort_device_type,
    numpy_to_ort_value,
    ort_device_to_string,
    provider_to_device,
)
from onward.onnxcustom.utils.orttraining_helper import _rewrite_op_no_grad, add_loss_output, get_train_initializer
from onward.runtime.session import open_session
from tests.onnxcustom.models import data, linear


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    return open_session(model.SerializeToString()).run(None, feeds)


def predict(model: onnx.ModelProto, X: np.ndarray) -> np.ndarray:
    return run(model, {"X": X})[0]


# Initializers -------------------------------------------------------------------------------------------------------


def test_integer_initializers_are_no_weights() -> None:
    found = get_train_initializer(linear())
    assert list(found) == ["coef", "intercept"]
    array, tensor = found["coef"]
    assert array.shape == (3, 1)
    assert tensor.name == "coef"


def test_weights_are_renamed_in_their_order() -> None:
    model = linear()
    before = predict(model, data()[0])
    assert onnx_rename_weights(model) is model, "in place"
    assert [tensor.name for tensor in model.graph.initializer] == ["I0_coef", "I1_intercept", "I2_shape_tensor"]
    assert (predict(model, data()[0]) == before).all()


def test_ten_weights_have_numbers_of_two_digits() -> None:
    model = linear()
    for index in range(7):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, np.float32), f"w{index}"))
    names = [tensor.name for tensor in onnx_rename_weights(model).graph.initializer]
    assert names[0] == "I00_coef"
    assert names[-1] == "I09_w6"
    assert names == sorted(names)


def test_weights_are_renamed_where_branches_use_them() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        branches (float[N] X, bool go) => (float[N] Y)
        <float[1] a = {2.0}, float[1] b = {3.0}>
        {
            Y = If(go) <
                then_branch = then_graph () => (float[N] p) { p = Mul(X, a) },
                else_branch = else_graph () => (float[N] q) { a = Neg(b) q = Mul(X, a) }
            >
        }
    """
    model = onnx_rename_weights(onnx.parser.parse_model(text))
    X = np.ones(2, np.float32)
    assert run(model, {"X": X, "go": np.array(True)})[0].tolist() == [2, 2]
    assert run(model, {"X": X, "go": np.array(False)})[0].tolist() == [-3, -3]


def test_initializers_are_added_and_replaced_in_copies() -> None:
    model = linear()
    more = add_initializer(model, "other", np.ones(2, np.float32))
    assert [tensor.name for tensor in more.graph.initializer][-1] == "other"
    with pytest.raises(ValueError, match="has an initializer 'coef' already"):
        add_initializer(model, "coef", np.ones(2, np.float32))
    X = data()[0]
    coef = np.ones((3, 1), np.float32)
    device = get_ort_device("cpu")
    kinds = [coef, onnxruntime.OrtValue.ortvalue_from_numpy(coef), numpy_to_ort_value(coef, device)]
    kinds.append(onnx.numpy_helper.from_array(coef, "something"))
    for value in kinds:
        replaced = replace_initializers_into_onnx(model, {"coef": value})
        assert_allclose(predict(replaced, X), X.sum(axis=1, keepdims=True) + 0.5, rtol=1e-5)
    assert (onnx.numpy_helper.to_array(model.graph.initializer[0]) != 1).all(), "the model is not changed"
    with pytest.raises(RuntimeError, match="unable to find initializer 'weight' in"):
        replace_initializers_into_onnx(model, {"weight": coef})


def test_types_and_opsets() -> None:
    assert get_onnx_opset(linear()) == 15
    with pytest.raises(ValueError, match="no opset of domain 'H'"):
        get_onnx_opset(linear(), "H")
    assert proto_type_to_dtype(onnx.TensorProto.FLOAT) is np.float32
    assert proto_type_to_dtype("tensor(double)") is np.float64
    with pytest.raises(ValueError, match="unexpected type 9"):
        proto_type_to_dtype(onnx.TensorProto.BOOL)
    assert dtype_to_var_type(np.float32).__name__ == "FloatTensorType"
    with pytest.raises(ValueError, match="unexpected dtype"):
        dtype_to_var_type(np.int8)


# Losses in graphs ---------------------------------------------------------------------------------------------------

WEIGHTED = [None, "weight"]


@pytest.mark.parametrize("weight_name", WEIGHTED)
@pytest.mark.parametrize("score", ["squared_error", "l2", "absolute_error", "l1", "elastic"])
def test_losses_weigh_rows(score: str, weight_name: str | None) -> None:
    X, y = data()
    w = np.random.default_rng(1).random(len(y)).astype(np.float32)
    feeds = {"X": X, "label": y[:, None]} | ({} if weight_name is None else {weight_name: w})
    model = add_loss_output(linear(), score, weight_name=weight_name)
    assert [value.name for value in model.graph.input] == list(feeds)
    assert [value.name for value in model.graph.output] == ["loss", "variable"]
    loss, prediction = run(model, feeds)
    d = prediction - y[:, None]
    rows = {"s": d**2, "a": abs(d), "e": 0.5 * abs(d) + 0.5 * d**2}[{"l2": "s", "l1": "a"}.get(score, score[0])]
    assert loss.shape == (1, 1)
    assert_allclose(loss, (rows * (1 if weight_name is None else w[:, None])).sum(), rtol=1e-5)
    assert (prediction == predict(linear(), X)).all()


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize("opset", [8, 11, 13, 18, 21])
def test_losses_in_any_opset(opset: int, domain: str) -> None:
    X, y = data()
    model = linear()
    model.opset_import[0].CopyFrom(onnx.helper.make_opsetid(domain, opset))
    if opset == 8:
        model.ir_version = 3
        declared = {"coef": [3, 1], "intercept": [1]}
        for name, shape in declared.items():
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
        model.graph.input.append(onnx.helper.make_tensor_value_info("shape_tensor", onnx.TensorProto.INT64, [2]))
    expected = run(add_loss_output(linear(), "elastic"), {"X": X, "label": y[:, None]})[0]
    lossy = add_loss_output(model, "elastic")
    assert get_onnx_opset(lossy) == opset
    got = open_session(lossy.SerializeToString()).run(["loss"], {"X": X, "label": y[:, None]})[0]
    assert_allclose(got, expected, rtol=1e-5)


def test_options_of_a_loss_and_names() -> None:
    X, y = data()
    model = add_loss_output(linear(), "elastic", loss_name="l", label_name="t", l1_weight=0.1, l2_weight=0.9)
    loss, prediction = run(model, {"X": X, "t": y[:, None]})
    d = prediction - y[:, None]
    assert_allclose(loss, (0.1 * abs(d) + 0.9 * d**2).sum(), rtol=1e-5)


def test_penalties_of_a_loss() -> None:
    X, y = data()
    plain = run(add_loss_output(linear()), {"X": X, "label": y[:, None]})[0]
    coef = np.array([0.1, 0.2, 0.3])
    for penalty, extra in (
        ({"coef": 0.7}, 0.7 * (coef**2).sum()),
        ({"coef": {"l1": 0.3}}, 0.3 * coef.sum()),
        ({"coef": {"l1": 0.3, "l2": 2.0}, "intercept": {"l2": 4}}, 0.3 * coef.sum() + 2 * (coef**2).sum() + 1),
    ):
        loss = run(add_loss_output(linear(), penalty=penalty), {"X": X, "label": y[:, None]})[0]
        assert_allclose(loss, plain + extra, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot both be 0 or None in the penalty of 'coef'"):
        add_loss_output(linear(), penalty={"coef": {"l1": 0, "l2": None}})
    with pytest.raises(ValueError, match="names 'koef', which is neither"):
        add_loss_output(linear(), penalty={"koef": 0.1})


def classifier() -> tuple[onnx.ModelProto, np.ndarray, np.ndarray, LogisticRegression]:
    from skl2onnx import to_onnx

    X, y = load_breast_cancer(return_X_y=True)
    X = ((X - X.mean(axis=0)) / X.std(axis=0))[:100].astype(np.float32)
    y = y[:100].astype(np.int64)
    fitted = LogisticRegression().fit(X, y)
    options = {"zipmap": False}
    return to_onnx(fitted, X, black_op={"LinearClassifier"}, options=options, target_opset=15), X, y, fitted


def test_log_loss_is_scikit_learns() -> None:
    model, X, y, fitted = classifier()
    expected = log_loss(y, fitted.predict_proba(X))
    for index in (1, -1, "probabilities"):
        lossy = add_loss_output(model, "log", output_index=index)
        assert lossy.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.INT64
        loss, _ = run(lossy, {"X": X, "label": y[:, None]})
        assert_allclose(loss, [[expected]], rtol=1e-4)
    w = np.random.default_rng(0).random(len(y)).astype(np.float32)
    weighted = add_loss_output(model, "log", output_index=1, weight_name="weight")
    loss, _ = run(weighted, {"X": X, "label": y[:, None], "weight": w})
    assert_allclose(loss, [[log_loss(y, fitted.predict_proba(X), sample_weight=w) * w.mean()]], rtol=1e-4)


def test_probabilities_are_clipped() -> None:
    text = '<ir_version: 8, opset_import: ["" : 15]> g (double[N, 2] X) => (double[N, 2] Y) { Y = Identity(X) }'
    model = add_loss_output(onnx.parser.parse_model(text), "log", eps=1e-6)
    x1 = np.array([0, 0, 0.2, 0.5, 0.8, 1, 1])
    y = np.array([0, 1, 0, 1, 1, 1, 0])
    p = np.clip(x1, 1e-6, 1 - 1e-6)
    loss, _ = run(model, {"X": np.stack([1 - x1, x1], axis=1), "label": y[:, None]})
    assert_allclose(loss, [[-((1 - y) * np.log(1 - p) + y * np.log(p)).mean()]], rtol=1e-6)


def test_an_inner_label_makes_way() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        g (float[N, 1] X) => (float[N, 1] Y) { label = Neg(X) Y = Neg(label) }
    """
    X = np.ones((3, 1), np.float32)
    assert run(add_loss_output(onnx.parser.parse_model(text)), {"X": X, "label": 3 * X})[0].tolist() == [[12]]


def test_what_a_loss_is_refused_for() -> None:
    model, *_ = classifier()
    with pytest.raises(NotImplementedError, match="score_name='hinge' is not known; use one of 'squared_error'"):
        add_loss_output(linear(), "hinge")
    with pytest.raises(ValueError, match="which of the outputs"):
        add_loss_output(model, "log")
    with pytest.raises(ValueError, match="unable to find output 'p'"):
        add_loss_output(model, "log", output_index="p")
    with pytest.raises(ValueError, match="there are 2 outputs"):
        add_loss_output(model, "log", output_index=2)
    with pytest.raises(TypeError, match="an integer or a string, not float"):
        add_loss_output(model, "log", output_index=1.0)
    with pytest.raises(TypeError, match="a loss needs numbers of floating point"):
        add_loss_output(model, output_index=0)
    with pytest.raises(ValueError, match="has a value 'X' already"):
        add_loss_output(linear(), label_name="X")
    with pytest.raises(ValueError, match="choose another `loss_name`"):
        add_loss_output(linear(), loss_name="variable")
    with pytest.raises(OnwardError):
        add_loss_output(model, "log")


def test_metadata_stays() -> None:
    model = linear()
    onnx.helper.set_model_props(model, {"info": "kept"})
    assert {entry.key: entry.value for entry in add_loss_output(model).metadata_props}["info"] == "kept"


# Rewriting ----------------------------------------------------------------------------------------------------------


def test_an_operator_is_replaced_everywhere() -> None:
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        twice (float[N] X, bool go) => (float[N] Y)
        {
            r = Reciprocal(X)
            one = Reciprocal(r)
            Y = If(go) <
                then_branch = then_graph () => (float[N] p) { p = Reciprocal(one) },
                else_branch = else_graph () => (float[N] q) { q = Neg(one) }
            >
        }
    """
    model = onnx.parser.parse_model(text)
    body = """
        <ir_version: 8, opset_import: ["" : 15]>
        body (float[N] X) => (float[N] Y) <float[1] one = {1.0}> { t = Div(one, X) Y = Identity(t) }
    """
    X = np.array([2.0, 4.0], np.float32)
    rewritten = onnx_rewrite_operator(model, "Reciprocal", onnx.parser.parse_model(body))
    assert "Reciprocal" not in str(rewritten)
    assert "Reciprocal" in str(model)
    assert run(rewritten, {"X": X, "go": np.array(True)})[0].tolist() == [0.5, 0.25]
    assert "Reciprocal" in str(
        onnx_rewrite_operator(model, "Reciprocal", onnx.parser.parse_model(body), recursive=False)
    )
    add = '<ir_version: 8, opset_import: ["" : 15]> g (float[N] X) => (float[N] Y) { Y = Add(X, X) }'
    with pytest.raises(ValueError, match="replaces Add has 1 inputs, the node '' 2"):
        onnx_rewrite_operator(onnx.parser.parse_model(add), "Add", onnx.parser.parse_model(body))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_reciprocals_are_divisions(kind: str) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 15]> g ({kind}[N] X) => ({kind}[N] Y) {{ Y = Reciprocal(X) }}'
    model = _rewrite_op_no_grad(onnx.parser.parse_model(text))
    assert [node.op_type for node in model.graph.node] == ["Div"]
    X = np.array([2.0, 4.0], {"float": np.float32, "double": np.float64}[kind])
    assert run(model, {"X": X})[0].tolist() == [0.5, 0.25]


def test_unique_names() -> None:
    taken: set[str] = set()
    assert [_unique_name(taken, name) for name in "uuuvv"] == ["u", "u_2", "u_3", "v", "v_2"]
    assert taken == {"u", "u_2", "u_3", "v", "v_2"}


def test_what_has_no_single_sum_has_no_loss_of_rows() -> None:
    with pytest.raises(RuntimeError, match="found were 0"):
        unreduced_onnx_loss(linear())


# Devices and text ---------------------------------------------------------------------------------------------------


def test_devices() -> None:
    for text, canonical in {"cpu": "cpu", "gpu": "cuda", "cuda:0": "cuda", "gpu:1": "cuda:1"}.items():
        assert ort_device_to_string(get_ort_device(text)) == canonical
    device = get_ort_device("cpu")
    assert get_ort_device(device) is device
    assert get_ort_device_type("cuda") == 1
    assert get_ort_device_type(device) == 0
    assert provider_to_device("CUDAExecutionProvider") == "cuda"
    assert device_to_providers("cpu") == ["CPUExecutionProvider"]
    assert device_to_providers("gpu") == ["CUDAExecutionProvider"]
    assert device_to_providers("cuda:1") == [("CUDAExecutionProvider", {"device_id": 1})]
    session = open_session(linear().SerializeToString())
    assert ort_device_to_string(get_ort_device_from_session(session)) == "cpu"
    for function, wrong, error in (
        (provider_to_device, "NONE", ValueError),
        (get_ort_device, "tpu", ValueError),
        (get_ort_device, "cuda:x", ValueError),
        (get_ort_device, 3, TypeError),
        (get_ort_device_type, ["cpu"], TypeError),
        (get_ort_device_type, "upc", ValueError),
        (ort_device_to_string, "cpu", TypeError),
        (device_to_providers, "NONE", ValueError),
    ):
        with pytest.raises(error):
            function(wrong)


def test_values_have_memory_of_their_own() -> None:
    array = np.zeros(3, np.float32)
    value = numpy_to_ort_value(array)
    assert isinstance(value, _pybind_state.OrtValue)
    array[0] = 1
    assert value.numpy().tolist() == [0, 0, 0]
    assert numpy_to_ort_value(np.array(2.0, np.float32)).shape() == []
    assert (numpy_to_ort_value(np.arange(6.0).reshape(2, 3).T).numpy() == np.arange(6.0).reshape(2, 3).T).all()


def test_values_as_text() -> None:
    array = np.array([[0, 1, 4, 4.5]], np.float32)
    expected = "device=Cpu dtype=dtype('float32') shape=(1, 4) value=[0.0, 1.0, 4.0, 4.5]"
    assert str_ortvalue(numpy_to_ort_value(array)) == expected
    assert str_ortvalue(onnxruntime.OrtValue.ortvalue_from_numpy(array)) == expected
    assert str_ortvalue(numpy_to_ort_value(np.arange(100))).endswith("value=[0, 1, 2, 3, 4, '...', 95, 96, 97, 98, 99]")


def test_time() -> None:
    measured = measure_time("x + 1", {"x": 1}, repeat=3, number=2, div_by_number=True)
    assert list(measured) == ["average", "deviation", "min_exec", "max_exec", "repeat", "number"]
    assert 0 <= measured["min_exec"] <= measured["average"] <= measured["max_exec"]
