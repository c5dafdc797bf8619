"""`OrtGradientForwardBackward`: the class it makes, its attributes, and the numbers of both passes."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.testing import assert_allclose
from onnxruntime.capi._pybind_state import OrtValue, OrtValueVector
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, LogisticRegression

from onward.onnxcustom.training.ortgradient import OrtGradientForwardBackward, OrtGradientForwardBackwardFunction
from onward.onnxcustom.utils.onnx_helper import onnx_rename_weights
from onward.onnxcustom.utils.onnxruntime_helper import get_ort_device, numpy_to_ort_value
from onward.runtime.session import open_session
from tests.onnxcustom.models import data, linear, network

X, Y = data(20)
COEF, INTERCEPT = np.array([[0.1], [0.2], [0.3]], np.float32), np.array([0.5], np.float32)
DY = np.random.default_rng(0).normal(size=(20, 1)).astype(np.float32)


@pytest.fixture(scope="module")
def gradient() -> OrtGradientForwardBackward:
    return OrtGradientForwardBackward(linear(), debug=True)


def arrays(vector: Any) -> list[np.ndarray]:
    return [np.array(vector[index].numpy()) for index in range(len(vector))]


def test_attributes(gradient: OrtGradientForwardBackward) -> None:
    assert repr(gradient) == "OrtGradientForwardBackward(...)"
    for made in (gradient, pickle.loads(pickle.dumps(gradient))):
        kind: Any = made.cls_type_
        assert issubclass(kind, OrtGradientForwardBackwardFunction)
        assert kind.__name__.startswith("OrtGradientForwardBackwardFunction_")
        assert kind._onx_inp == kind._grad_input_names == ["X", "coef", "intercept"]
        assert kind._onx_out == kind._bw_fetches_names == ["X_grad", "coef_grad", "intercept_grad"]
        assert kind._weights_to_train == ["coef", "intercept"]
        assert kind._input_names == ["X"]
        assert kind._output_names == ["variable"]
        graph = kind._trained_onnx.graph
        assert [value.name for value in graph.input] == kind._onx_inp
        assert [value.name for value in graph.output] == kind._onx_out
        assert kind._trained_onnx is kind._trained_onnx, "made once"
        session = kind._sess_eval
        assert [value.name for value in session.get_inputs()] == ["X", "coef", "intercept"]
        expected = open_session(linear().SerializeToString()).run(None, {"X": X})[0]
        got = session.run(None, {"X": X, "coef": COEF, "intercept": INTERCEPT})[0]
        assert_allclose(got, expected, rtol=1e-6, atol=1e-7)  # weights that are inputs are not packed beforehand


def test_what_stands_below_can_be_used_by_hand(gradient: OrtGradientForwardBackward) -> None:
    from onward.session.agent import PartialGraphExecutionState

    kind: Any = gradient.cls_type_
    assert kind._graph_info.initializer_names_to_train == ["coef", "intercept"]
    assert kind._cache.count("coef") == 0
    state, outputs, gradients = PartialGraphExecutionState(), OrtValueVector(), OrtValueVector()
    kind._training_agent.run_forward(_vector([X, COEF, INTERCEPT]), outputs, state, kind._cache)
    kind._training_agent.run_backward(_vector([DY]), gradients, state)
    assert_allclose(arrays(outputs)[0], X @ COEF + INTERCEPT, rtol=1e-5)
    assert_allclose(arrays(gradients)[1], X.T @ DY, rtol=1e-5)


KINDS = {
    "arrays": lambda tensors: list(tensors),
    "values": lambda tensors: [numpy_to_ort_value(tensor) for tensor in tensors],
    "values of Python": lambda tensors: [onnxruntime.OrtValue.ortvalue_from_numpy(tensor) for tensor in tensors],
    "vector": lambda tensors: _vector(tensors),
    "mixed": lambda tensors: [tensors[0], *(numpy_to_ort_value(tensor) for tensor in tensors[1:])],
}


def _vector(tensors: Any) -> Any:
    vector = OrtValueVector()
    for tensor in tensors:
        vector.push_back(OrtValue.ortvalue_from_numpy(tensor, get_ort_device("cpu")))
    return vector


@pytest.mark.parametrize("kind", KINDS)
def test_both_passes(gradient: OrtGradientForwardBackward, kind: str) -> None:
    give = KINDS[kind]
    function = gradient.new_instance()
    inputs = give([X, COEF, INTERCEPT])
    expected = X @ COEF + INTERCEPT
    assert_allclose(arrays(function.forward(inputs))[0], expected, rtol=1e-5)
    with pytest.raises(RuntimeError, match="no tensors were saved"):
        _ = function.saved_tensors
    outputs = function.forward(inputs, training=True)
    assert isinstance(outputs, OrtValueVector)
    assert_allclose(arrays(outputs)[0], expected, rtol=1e-5)
    assert len(function.saved_tensors) == 3
    found = function.backward(give([DY]))
    assert isinstance(found, OrtValueVector)
    dx, dcoef, dintercept = arrays(found)
    assert_allclose(dx, DY @ COEF.T, rtol=1e-5)
    assert_allclose(dcoef, X.T @ DY, rtol=1e-5)
    assert_allclose(dintercept, [DY.sum()], rtol=1e-5)


def test_the_last_forward_pass_goes_back_first(gradient: OrtGradientForwardBackward) -> None:
    function = gradient.new_instance()
    function.forward([X, COEF, INTERCEPT], training=True)
    function.forward([2 * X, COEF, INTERCEPT], training=True)
    second, first = (arrays(function.backward([DY]))[1] for _ in range(2))
    assert_allclose(first, X.T @ DY, rtol=1e-5)
    assert_allclose(second, 2 * X.T @ DY, rtol=1e-5)
    with pytest.raises(RuntimeError, match="there is no forward pass to go back over"):
        function.backward([DY])


def test_instances_do_not_share_passes(gradient: OrtGradientForwardBackward) -> None:
    one, other = gradient.new_instance(), gradient.new_instance()
    one.forward([X, COEF, INTERCEPT], training=True)
    other.forward([3 * X, COEF, INTERCEPT], training=True)
    assert_allclose(arrays(one.backward([DY]))[1], X.T @ DY, rtol=1e-5)


def test_a_gradient_that_lost_its_axes_is_taken(gradient: OrtGradientForwardBackward) -> None:
    """Others hand over a row, or a vector; what could be meant in two ways is refused."""
    function = gradient.new_instance()
    for shape in ((1, 20), (20,), (20, 1, 1)):
        function.forward([X, COEF, INTERCEPT], training=True)
        assert_allclose(arrays(function.backward([DY.reshape(shape)]))[1], X.T @ DY, rtol=1e-5)
    wide = OrtGradientForwardBackward(_wide()).new_instance()
    wide.forward([X, np.ones((3, 2), np.float32)], training=True)
    with pytest.raises(RuntimeError, match=r"must have its shape \[20, 2\], not \[2, 20\]"):
        wide.backward([np.ones((2, 20), np.float32)])


def _wide() -> onnx.ModelProto:
    text = '<ir_version: 8, opset_import: ["" : 15]> g (float[N, 3] X) => (float[N, 2] Y) { Y = MatMul(X, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    return model


def test_what_is_refused(gradient: OrtGradientForwardBackward) -> None:
    for arguments, message in (
        ({"providers": ["NONE"]}, "unexpected provider 'NONE'"),
        ({"providers": "npu"}, "unexpected provider"),
        ({"providers": []}, "`providers` is empty"),
        ({"weights_to_train": []}, "weights_to_train is empty"),
        ({"weights_to_train": ["A"]}, "there is no initializer 'A'"),
        ({"weights_to_train": ["coef", "coef"]}, "must be unique"),
        ({"weights_to_train": ["intercept", "coef"]}, "alphabetical order, .* Use onnx_rename_weights"),
    ):
        with pytest.raises(ValueError, match=message):
            OrtGradientForwardBackward(linear(), **arguments)  # type: ignore[arg-type]
    swapped = linear()
    coef = swapped.graph.initializer.pop(0)
    swapped.graph.initializer.append(coef)
    with pytest.raises(ValueError, match=r"in the order of the graph.* Use onnx_rename_weights"):
        OrtGradientForwardBackward(swapped, ["coef", "intercept"])
    names = ["I0_intercept", "I2_coef"]
    assert OrtGradientForwardBackward(onnx_rename_weights(swapped)).weights_to_train == names
    function = gradient.new_instance()
    with pytest.raises(RuntimeError, match="there are 2 tensors, and the graph takes X, coef, intercept"):
        function.forward([X, COEF])
    with pytest.raises(NotImplementedError, match="tensor 1 is None"):
        function.forward([X, None, INTERCEPT])
    with pytest.raises(TypeError, match="tensor 0 is list"):
        function.forward([[1.0], COEF, INTERCEPT])
    function.forward([X, COEF, INTERCEPT], training=True)
    with pytest.raises(RuntimeError, match="there are 0 gradients, for the outputs variable"):
        function.backward([])


def test_providers_in_other_words() -> None:
    for given in (None, "cpu", ["CPUExecutionProvider"], SimpleNamespace(type="cpu", index=0)):
        assert OrtGradientForwardBackward(linear(), providers=given).providers == ["CPUExecutionProvider"]


def test_initializers(gradient: OrtGradientForwardBackward) -> None:
    array = gradient.get_initializer("coef")
    array[:] = 0
    assert (gradient.get_initializer("coef") == COEF).all(), "it is a copy"
    assert gradient.get_initializer("X", exc=False) is None
    with pytest.raises(RuntimeError, match="unable to find initializer 'X'"):
        gradient.get_initializer("X")


def test_saved_graphs(gradient: OrtGradientForwardBackward, tmp_path: Path) -> None:
    files = gradient.new_instance().save_onnx_graph(tmp_path)
    assert set(files) == {"_trained_onnx", "_optimized_pre_grad_model"}
    assert onnx.load(files["_optimized_pre_grad_model"]).graph.input[1].name == "coef"
    assert set(gradient.cls_type_.save_onnx_graph(bytes)) == set(files)


def test_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "onnxcustom"):
        function = OrtGradientForwardBackward(linear(), enable_logging=True).new_instance()
        function.forward([X, COEF, INTERCEPT])
    assert "[OrtGradientForwardBackward]" in caplog.text
    assert "weights_to_train=['coef', 'intercept']" in caplog.text


def converted(estimator: Any, X: np.ndarray, y: np.ndarray) -> onnx.ModelProto:
    from skl2onnx import to_onnx

    black = {"LinearRegressor", "LinearClassifier"}
    options = {"zipmap": False} if hasattr(estimator, "predict_proba") else None
    model = to_onnx(estimator.fit(X, y), X, black_op=black, options=options, target_opset=15)
    if options is not None:
        del model.graph.output[0]  # labels
    return model


def test_models_of_scikit_learn() -> None:
    """Rows of one and of many, of a regression and of a classification."""
    X, y = load_diabetes(return_X_y=True)
    X = X.astype(np.float32)
    linear = LinearRegression()
    logistic = LogisticRegression()
    for estimator, target in ((linear, y), (logistic, np.digitize(y, [100, 200]))):
        model = converted(estimator, X, target)
        made = OrtGradientForwardBackward(model)
        assert made.weights_to_train == ["coef", "intercept"]
        weights = [made.get_initializer(name) for name in made.weights_to_train]
        predict = estimator.predict if estimator is linear else estimator.predict_proba
        function = made.new_instance()
        for rows in (X[:1], X):
            got = arrays(function.forward([rows, *weights], training=True))[0]
            expected = predict(rows).reshape(got.shape)
            assert_allclose(got, expected, rtol=1e-3, atol=1e-4)  # float32 against float64, of numbers around 150
            assert [g.shape for g in arrays(function.backward([np.ones_like(got)]))] == [
                rows.shape,
                weights[0].shape,
                weights[1].shape,
            ]


def test_integers_have_no_gradient() -> None:
    """Embeddings take indices; weights come first then."""
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        words (int64[N] X) => (float[N, 2] Y, int64[N] same) { Y = Gather(table, X) same = Identity(X) }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((4, 2), np.float32), "table"))
    made: Any = OrtGradientForwardBackward(model)
    assert made.cls_type_._onx_inp == ["X", "table"]
    assert made.cls_type_._onx_out == ["table_grad"]
    function = made.new_instance()
    outputs = function.forward([np.array([1, 1, 3]), np.ones((4, 2), np.float32)], training=True)
    assert [array.shape for array in arrays(outputs)] == [(3, 2), (3,)]
    (table,) = arrays(function.backward([np.ones((3, 2), np.float32)]))
    assert table[:, 0].tolist() == [0, 2, 0, 1]


def test_gradients_are_those_of_the_whole_graph() -> None:
    """A network, against differences in its weights."""
    model = network()
    made = OrtGradientForwardBackward(model)
    weights = [made.get_initializer(name) for name in made.weights_to_train]
    function = made.new_instance()
    function.forward([X, *weights], training=True)
    found = arrays(function.backward([DY]))
    draw = np.random.default_rng(1)
    for index, (weight, slope) in enumerate(zip(weights, found[1:], strict=True)):
        direction = draw.normal(size=weight.shape).astype(np.float32)
        moved = [[*weights[:index], weight + h * direction, *weights[index + 1 :]] for h in (1e-2, -1e-2)]
        ahead, behind = (float((arrays(function.forward([X, *w]))[0] * DY).sum()) for w in moved)
        # float32: differences of sums of about 10 have four digits.
        assert_allclose((slope * direction).sum(), (ahead - behind) / 2e-2, rtol=2e-3, atol=2e-3)


def test_statistics_and_dropout() -> None:
    """What is neither fed nor trained: running statistics move in training, and count afterwards."""
    text = """
        <ir_version: 8, opset_import: ["" : 15]>
        norm (float[N, 3] X) => (float[N, 3] Y)
        <float[3] a_scale = {1, 1, 1}, float[3] b_bias = {0, 0, 0}, float[3] mean = {0, 0, 0}, float[3] var = {1, 1, 1},
         float ratio = {0.5}, bool mode = {1}>
        {
            h, m, v = BatchNormalization<training_mode = 1, momentum = 0.5>(X, a_scale, b_bias, mean, var)
            Y, mask = Dropout<seed = 1>(h, ratio, mode)
        }
    """
    model = onnx.parser.parse_model(text)
    names = ["a_scale", "b_bias"]
    function = OrtGradientForwardBackward(model, names).new_instance()
    rows = 5 + 2 * np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    dropped = [arrays(function.forward([rows, ones, zeros], training=True))[0] for _ in range(8)]
    assert all(0.3 < (found == 0).mean() < 0.7 for found in dropped)
    assert (dropped[0] == 0).tolist() != (dropped[1] == 0).tolist(), "each pass draws others"
    evaluated = arrays(function.forward([rows, ones, zeros]))[0]
    mean, var = rows.mean(axis=0) * (1 - 0.5**8), rows.var(axis=0) * (1 - 0.5**8) + 0.5**8
    assert_allclose(evaluated, (rows - mean) / np.sqrt(var + 1e-5), rtol=1e-3, atol=1e-3)
