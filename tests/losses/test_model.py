"""Losses that are ONNX models."""

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onward import losses
from onward.errors import OnwardError, UnknownNameError
from onward.testing import check_loss, loss_model, run_on_runtime

from .torch_parity import labels, normal

WEIGHTED = """
<ir_version: 8, opset_import: ["" : {opset}]>
weighted (float[N, C] scores, float[N, C] wanted) => (float loss)
<float[1] scale = {{2}}>
{{
    d = Sub(scores, wanted)
    scaled = Mul(d, scale)
    square = Mul(scaled, d)
    loss = ReduceMean<keepdims = 0>(square)
}}
"""

BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
branches (float[N] x, float[N] t) => (float[1] loss)
{
    d = Sub(x, t)
    total = ReduceSum<keepdims = 0>(d)
    zero = Constant<value = float {0}>()
    positive = Greater(total, zero)
    loss = If (positive) <
        then_branch = then_graph () => (float[1] y) { s = Mul(d, d)  y = ReduceSum(s) },
        else_branch = else_graph () => (float[1] z) { s = Abs(d)  z = ReduceSum(s) }
    >
}
"""


def weighted(opset=17):
    return parser.parse_model(WEIGHTED.format(opset=opset))


def float32(loss, predictions, targets, **options):
    """Value of a loss model in the only type that it takes."""
    return run_on_runtime(*loss_model(loss, predictions, targets, dtype=np.float32, **options))["loss"]


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_value_and_gradient(opset):
    """Whatever is older is upgraded, the model of the loss or the graph it goes into."""
    loss = losses.from_model(weighted())
    x, t = normal(4, 3).astype(np.float32), normal(4, 3, seed=1).astype(np.float32)
    np.testing.assert_allclose(float32(loss, [x], [t], opset=opset), 2 * ((x - t) ** 2).mean(), rtol=1e-5)
    model, _ = loss_model(loss, [x], [t], dtype=np.float32, opset=opset)
    assert model.opset_import[0].version == max(opset, 17)


def test_check_loss_in_double():
    model = weighted()
    for tensor in (*model.graph.input, *model.graph.output):
        tensor.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([2.0]), "scale"))
    x, t = normal(4, 3), normal(4, 3, seed=1)
    check_loss(losses.from_model(model), [x], [t], 2 * ((x - t) ** 2).mean(), [(x - t) / 3], on_runtime=[])


def test_inputs_in_order_or_by_name():
    x, t = normal(2, 3).astype(np.float32), normal(2, 3, seed=1).astype(np.float32)
    reverse = losses.from_model(weighted(), targets=["scores"])
    assert losses.loss_signature(reverse).predictions == ("wanted",)
    np.testing.assert_allclose(float32(reverse, [x], {"scores": t}), 2 * ((x - t) ** 2).mean(), rtol=1e-5)
    given = losses.from_model(weighted())
    in_order = lambda op, a, b: given(op, a, b)  # noqa: E731
    by_name = lambda op, a, b: given(op, a, wanted=b)  # noqa: E731
    for loss in (in_order, by_name):
        np.testing.assert_allclose(float32(loss, [x], [t]), 2 * ((x - t) ** 2).mean(), rtol=1e-5)


def test_all_inputs_as_predictions():
    pair = losses.from_model(weighted(), targets=[])
    x, t = normal(2, 3).astype(np.float32), normal(2, 3, seed=1).astype(np.float32)
    np.testing.assert_allclose(float32(pair, [x, t], []), 2 * ((x - t) ** 2).mean(), rtol=1e-5)


def test_targets_take_the_dimensions_of_the_prediction():
    loss = losses.from_model(weighted())
    x = ir.Value(name="logits", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", 10]))
    target = losses.target_inputs(loss, [x])["wanted"]
    assert [str(dim) for dim in target.shape] == ["batch", "10"]
    assert target.name == "wanted"


def test_subgraphs_and_output_of_one_element():
    loss = losses.from_model(parser.parse_model(BRANCHES))
    x, t = normal(5).astype(np.float32), np.zeros(5, np.float32)
    for a in (x + 3, x - 3):
        expected = (a * a).sum() if a.sum() > 0 else np.abs(a).sum()
        value = float32(loss, [a], [t])
        assert value.shape == ()
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_used_twice_in_one_graph():
    """Names do not clash, and the model itself is left as it was."""
    source = parser.parse_model(BRANCHES)
    before = source.SerializeToString()
    loss = losses.from_model(source)

    def both(op, prediction, target):
        return loss(op, prediction, target) + loss(op, target, prediction)

    x, t = normal(5).astype(np.float32), np.zeros(5, np.float32)
    d = x - t
    expected = (d * d).sum() + np.abs(d).sum()
    np.testing.assert_allclose(float32(both, [x], [t]), expected, rtol=1e-5)
    assert source.SerializeToString() == before


def test_labels_and_losses_of_the_library():
    """A model of a loss of this library is a loss again."""
    x, y = normal(4, 3), labels(4, classes=3)
    cross_entropy = functools.partial(losses.cross_entropy, label_smoothing=0.1)
    model, feeds = loss_model(cross_entropy, [x], [y], dims="symbolic")
    expected = run_on_runtime(model, feeds)["loss"]
    check_loss(losses.from_model(model), [x], [y], expected, on_runtime=[])


def test_weights_are_no_parameters():
    """What the loss model holds is constant: the trainable parameters are those of the forward model."""
    model = weighted()
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([1, 2, 3]), "scale"))
    result, _ = loss_model(
        losses.from_model(model), [normal(2, 3)], [normal(2, 3).astype(np.float32)], dtype=np.float32
    )
    assert [tensor.name for tensor in result.graph.initializer] == ["const/1.0x2.0x3.0:float"]


def with_output(kind):
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[N] x, float[N] t) => ({kind} y) {{ y = Sub(x, t) }}'
    )


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: losses.from_model(with_output("float[N]")), OnwardError, "a loss is a floating-point scalar"),
        (
            lambda: losses.from_model(weighted(), output="lost"),
            UnknownNameError,
            r"no output 'lost'; it has \['loss'\]",
        ),
        (lambda: losses.from_model(weighted(), targets=["y"]), UnknownNameError, r"names \['y'\], but the inputs"),
        (
            lambda: losses.from_model(weighted(), targets=["scores", "wanted"]),
            OnwardError,
            "one must be the prediction",
        ),
        (
            lambda: loss_model(losses.from_model(weighted()), [normal(2, 3)], [np.zeros((2, 3), np.float32)]),
            OnwardError,
            "input 'scores' of the loss model has type FLOAT, but 'scores' has type DOUBLE; cast one of them",
        ),
        (
            lambda: loss_model(lambda op, x: losses.from_model(weighted())(op, x), [normal(2, 3)], []),
            OnwardError,
            r"the loss model has the inputs \['scores', 'wanted'\]; given were 1 values in order",
        ),
    ],
)
def test_errors(make, error, message):
    with pytest.raises(error, match=message):
        make()
