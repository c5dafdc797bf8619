"""Losses as blocks: the right function with the right options on the right values. Formulas: tests/losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper

from onward import losses, onnxblock
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.onnxblock import loss as L  # noqa: N812  short, in a table
from tests.onnxblock.models import identity, mlp, names, operators, run

RNG = np.random.default_rng(7)
PREDICTION = RNG.standard_normal((5, 3)).astype(np.float32)
TARGET = RNG.standard_normal((5, 3)).astype(np.float32)
PROBABILITY = RNG.uniform(0.1, 0.9, (5, 3)).astype(np.float32)
SIGNS = np.sign(TARGET)
LABELS = np.array([0, 2, 1, 1, 0])
F = torch.nn.functional


class WithLoss(onnxblock.ForwardBlock):
    def __init__(self, loss: onnxblock.Block) -> None:
        super().__init__()
        self._loss = loss

    def build(self, *args: str, **kwargs: str) -> str:
        return self._loss(*args, **kwargs)


def with_loss(base: onnx.ModelProto, loss: onnxblock.Block, *args: str, **kwargs: str) -> onnx.ModelProto:
    block = WithLoss(loss)
    with onnxblock.base(base):
        block(*args, **kwargs)
    return block.to_model_proto()


def value_of(loss: onnxblock.Block, predictions: Sequence[np.ndarray], *targets: np.ndarray) -> np.ndarray:
    """The loss of these arrays, through a model with symbolic dimensions."""
    shape = [f"d{axis}" for axis in range(predictions[0].ndim)]
    kind = helper.np_dtype_to_tensor_dtype(predictions[0].dtype)
    base = identity(shape, kind, outputs=len(predictions))
    model = with_loss(base, loss, *names(base.graph.output))
    inputs = names(model.graph.input)
    assert len(inputs) == len(predictions) + len(targets)
    (value,) = run(model, dict(zip(inputs, [*predictions, *targets], strict=True))).values()
    assert value.dtype == predictions[0].dtype
    return value


def t(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


WEIGHT = np.array([0.5, 2.0, 1.5], np.float32)
x, y, p, signs, labels = (t(array) for array in (PREDICTION, TARGET, PROBABILITY, SIGNS, LABELS))
ONE = {
    "MSE": (L.MSELoss(), TARGET, F.mse_loss(x, y)),
    "MSE, sum": (L.MSELoss("sum"), TARGET, F.mse_loss(x, y, reduction="sum")),
    "MSE, none": (L.MSELoss("none"), TARGET, F.mse_loss(x, y, reduction="none")),
    "L1": (L.L1Loss(), TARGET, F.l1_loss(x, y)),
    "L1, none": (L.L1Loss("none"), TARGET, F.l1_loss(x, y, reduction="none")),
    "SmoothL1": (L.SmoothL1Loss(beta=0.5), TARGET, F.smooth_l1_loss(x, y, beta=0.5)),
    "Huber": (L.HuberLoss(delta=0.5), TARGET, F.huber_loss(x, y, delta=0.5)),
    "PoissonNLL": (L.PoissonNLLLoss(), PROBABILITY, F.poisson_nll_loss(x, p)),
    "BCEWithLogits": (L.BCEWithLogitsLoss(), PROBABILITY, F.binary_cross_entropy_with_logits(x, p)),
    "BCEWithLogits, weights": (
        L.BCEWithLogitsLoss(weight=WEIGHT, reduction="none", pos_weight=WEIGHT[::-1].copy()),
        PROBABILITY,
        F.binary_cross_entropy_with_logits(x, p, t(WEIGHT), reduction="none", pos_weight=t(WEIGHT[::-1])),
    ),
    "KLDiv": (L.KLDivLoss("batchmean"), PROBABILITY, F.kl_div(x, p, reduction="batchmean")),
    "Hinge": (L.HingeLoss(), SIGNS, torch.relu(1 - x * signs).mean()),
    "HingeEmbedding": (L.HingeEmbeddingLoss(margin=2.0), SIGNS, F.hinge_embedding_loss(x, signs, margin=2.0)),
    "SoftMargin": (L.SoftMarginLoss(), SIGNS, F.soft_margin_loss(x, signs)),
    "SoftCrossEntropy": (L.SoftCrossEntropyLoss(), PROBABILITY, F.cross_entropy(x, p)),
    "CrossEntropy": (L.CrossEntropyLoss(), LABELS, F.cross_entropy(x, labels)),
    "CrossEntropy, none": (L.CrossEntropyLoss(reduction="none"), LABELS, F.cross_entropy(x, labels, reduction="none")),
    "CrossEntropy, weights": (L.CrossEntropyLoss(weight=WEIGHT), LABELS, F.cross_entropy(x, labels, t(WEIGHT))),
    "CrossEntropy, ignored": (
        L.CrossEntropyLoss(ignore_index=1, label_smoothing=0.1),
        LABELS,
        F.cross_entropy(x, labels, ignore_index=1, label_smoothing=0.1),
    ),
    "NLL": (L.NLLLoss(weight=WEIGHT), LABELS, F.nll_loss(x, labels, t(WEIGHT))),
    "MultiMargin": (L.MultiMarginLoss(p=2), LABELS, F.multi_margin_loss(x, labels, p=2)),
    "Focal, 0": (L.FocalLoss(gamma=0.0), LABELS, F.cross_entropy(x, labels)),
    "BinaryFocal, 0": (
        L.BinaryFocalLoss(alpha=None, gamma=0.0),
        (SIGNS + 1) / 2,
        F.binary_cross_entropy_with_logits(x, (signs + 1) / 2),
    ),
}


@pytest.mark.parametrize("case", ONE)
def test_losses_equal_torch(case: str) -> None:
    block, target, expected = ONE[case]
    value = value_of(block, [PREDICTION], target)
    np.testing.assert_allclose(value, expected, rtol=2e-5, atol=1e-6)
    assert value.shape == tuple(expected.shape)


def test_probabilities() -> None:
    expected = F.binary_cross_entropy(p, (signs + 1) / 2, t(WEIGHT))
    np.testing.assert_allclose(value_of(L.BCELoss(weight=WEIGHT), [PROBABILITY], (SIGNS + 1) / 2), expected, rtol=1e-5)


def test_losses_of_several_values() -> None:
    other, third = TARGET, PROBABILITY
    cases = [
        (L.GaussianNLLLoss(), [PREDICTION, third], [TARGET], F.gaussian_nll_loss(x, y, p)),
        (L.CosineEmbeddingLoss(), [PREDICTION, other], [SIGNS[:, 0]], F.cosine_embedding_loss(x, y, signs[:, 0])),
        (L.TripletMarginLoss(), [PREDICTION, other, third], [], F.triplet_margin_loss(x, y, p)),
    ]
    for block, predictions, targets, expected in cases:
        np.testing.assert_allclose(value_of(block, predictions, *targets), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "block", [L.MSELoss(), L.L1Loss(), L.BCEWithLogitsLoss(), L.HuberLoss()], ids=lambda block: type(block).__name__
)
def test_double_models(block: onnxblock.Block) -> None:
    value = value_of(block, [PREDICTION.astype(np.float64)], PROBABILITY.astype(np.float64))
    np.testing.assert_allclose(value, value_of(block, [PREDICTION], PROBABILITY), rtol=1e-5)


def test_large_logits_stay_finite() -> None:
    """The original gives inf here."""
    logits = np.array([[30.0, -200.0, 500.0]], np.float32)
    np.testing.assert_allclose(value_of(L.BCEWithLogitsLoss(), [logits], np.zeros_like(logits)), 530 / 3)


# Which axis is the classes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_scores_of_sequences_have_the_classes_last(reduction: str) -> None:
    scores = RNG.standard_normal((2, 4, 3)).astype(np.float32)
    wanted = RNG.integers(0, 3, (2, 4))
    value = value_of(L.CrossEntropyLoss(weight=WEIGHT, reduction=reduction), [scores], wanted)
    expected = F.cross_entropy(t(scores).movedim(-1, 1), t(wanted), t(WEIGHT), reduction=reduction)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_scores_of_images_have_the_classes_first() -> None:
    scores = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    wanted = RNG.integers(0, 3, (2, 4, 5))
    expected = F.cross_entropy(t(scores), t(wanted))
    np.testing.assert_allclose(value_of(L.CrossEntropyLoss(), [scores], wanted), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", [L.CrossEntropyLoss, L.NLLLoss, L.FocalLoss, L.MultiMarginLoss])
def test_the_axis_can_be_said(kind: type[L.CrossEntropyLoss]) -> None:
    scores = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    wanted = RNG.integers(0, 3, (2, 4))
    first = value_of(kind(class_axis=1), [scores], wanted)
    last = value_of(kind(class_axis=-1), [np.moveaxis(scores, 1, -1)], wanted)
    np.testing.assert_allclose(first, last, rtol=1e-5)
    with pytest.raises(OnwardError, match="class_axis must be 1, -1 or None"):
        kind(class_axis=2)


def test_one_operator_with_two_outputs() -> None:
    model = with_loss(identity(["N", "S", 7]), L.CrossEntropyLoss(), "y")
    nodes = [node for node in model.graph.node if node.op_type == "SoftmaxCrossEntropyLoss"]
    assert [len(node.output) for node in nodes] == [2]
    assert "Transpose" not in operators(model)
    labels = model.graph.input[1]
    assert labels.name == "labels"
    assert [dim.dim_param for dim in labels.type.tensor_type.shape.dim] == ["N", "S"]


def test_wrong_class_weights() -> None:
    with onnxblock.base(mlp()), pytest.raises(OnwardError, match=r"one number a class, shape \[3\]"):
        L.CrossEntropyLoss(weight=[1.0, 2.0])("y")


# Targets --------------------------------------------------------------------------------------------------------------


def test_targets_become_inputs_of_any_name() -> None:
    model = with_loss(mlp(), L.MSELoss(), "y", target_name="wanted")
    assert names(model.graph.input) == ["x", "wanted"]
    assert names(model.graph.output) == ["onnx::loss::1"]
    assert model.graph.input[1].type == mlp().graph.output[0].type


def test_targets_that_exist_are_used() -> None:
    """Also a graph input that no node uses yet, which the original would create twice."""
    base = identity(["N", 3])
    base.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.INT64, ["N"]))
    model = with_loss(base, L.CrossEntropyLoss(), "y")
    assert names(model.graph.input) == ["x", "labels"]
    (value,) = run(model, {"x": PREDICTION, "labels": LABELS}).values()
    np.testing.assert_allclose(value, F.cross_entropy(x, labels), rtol=1e-5)


def test_a_value_is_not_its_own_target() -> None:
    with onnxblock.base(mlp()), pytest.raises(OnwardError, match="compare 'y' with itself"):
        L.MSELoss()("y", "y")


def test_targets_of_the_wrong_type() -> None:
    base = identity(["N", 3])
    base.graph.input.append(helper.make_tensor_value_info("labels", TensorProto.FLOAT, ["N"]))
    with onnxblock.base(base), pytest.raises(OnwardError, match="SoftmaxCrossEntropyLoss"):
        L.CrossEntropyLoss()("y")


def test_shapes_that_do_not_agree() -> None:
    base = identity([5, 3])
    base.graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, [5, 4]))
    with onnxblock.base(base), pytest.raises(OnwardError, match=r"'target' has shape \[5, 4\].* of shape \[5, 3\]"):
        L.MSELoss()("y")


def test_losses_of_inner_values() -> None:
    """The original wants a graph output."""
    model = with_loss(mlp(), L.MSELoss(), "hidden")
    feeds = {"x": RNG.standard_normal((2, 4)).astype(np.float32), "target": np.zeros((2, 8), np.float32)}
    assert run(model, feeds)["onnx::loss::1"] > 0


def test_values_that_do_not_exist() -> None:
    with onnxblock.base(mlp()), pytest.raises(LookupError, match="Could not find 'z'"):
        L.MSELoss()("z")


# Others ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [L.MSELoss, L.L1Loss, L.BCEWithLogitsLoss, L.CrossEntropyLoss])
def test_unknown_reductions(kind: type[L.MSELoss]) -> None:
    with pytest.raises(OnwardError, match="Reduction median not supported"):
        kind(reduction="median")


def test_models_of_old_opsets_are_upgraded_where_the_loss_needs_it() -> None:
    model = with_loss(mlp(opset=9), L.CrossEntropyLoss(), "y")
    assert model.opset_import[0].version == 12
    assert with_loss(mlp(opset=9), L.L1Loss(), "y").opset_import[0].version == 9
    feeds = {"x": RNG.standard_normal((5, 4)).astype(np.float32), "labels": LABELS}
    expected = run(with_loss(mlp(), L.CrossEntropyLoss(), "y"), feeds)
    assert run(model, feeds) == expected


def test_any_function_is_a_loss() -> None:
    def weighted(op: Builder, prediction: ir.Value, target: ir.Value, factor: ir.Value) -> ir.Value:
        return op.ReduceSum(factor * op.Abs(prediction - target), keepdims=0)

    value = value_of(L.FunctionLoss(weighted), [PREDICTION], TARGET, 2 * np.ones_like(TARGET))
    np.testing.assert_allclose(value, 2 * np.abs(PREDICTION - TARGET).sum(), rtol=1e-5)


def test_functions_take_targets_by_position_and_name() -> None:
    base = identity(["N", 3])
    assert names(with_loss(base, L.FunctionLoss(losses.mse), "y", "t1").graph.input) == ["x", "t1"]
    assert names(with_loss(base, L.FunctionLoss(losses.mse), "y", target="t2").graph.input) == ["x", "t2"]


def test_a_weighted_average_of_two_losses_of_the_same_block() -> None:
    loss, add, mul = L.MSELoss(), onnxblock.blocks.Add(), onnxblock.blocks.Mul()
    weights = [onnxblock.blocks.Constant(value) for value in (0.4, 0.6)]

    class Average(onnxblock.ForwardBlock):
        def build(self, first: str, second: str) -> str:
            return add(
                mul(weights[0](), loss(first, target_name="target1")),
                mul(weights[1](), loss(second, target_name="target2")),
            )

    block = Average()
    base = identity(["N", 3], outputs=2)
    with onnxblock.base(base):
        block("y0", "y1")
    feeds = {"x0": PREDICTION, "x1": TARGET, "target1": TARGET, "target2": PROBABILITY}
    (value,) = run(block.to_model_proto(), feeds).values()
    np.testing.assert_allclose(value.item(), 0.4 * F.mse_loss(x, y) + 0.6 * F.mse_loss(y, p), rtol=1e-5)
