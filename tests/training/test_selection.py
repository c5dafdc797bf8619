"""Names and patterns of parameters."""

from __future__ import annotations

import onnx
import pytest

from onward import OnwardError
from onward.errors import UnknownNameError
from onward.graph.naming import matching
from onward.graph.prepare import prepare
from onward.training.selection import selected

NAMES = [
    "backbone.0.weight",
    "backbone.0.bias",
    "layers[0].weight",
    "layers[1].weight",
    "classifier.weight",
    "classifier.bias",
]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("classifier.weight", ["classifier.weight"]),
        (["classifier.bias", "backbone.0.bias"], ["backbone.0.bias", "classifier.bias"]),
        ("classifier.*", ["classifier.weight", "classifier.bias"]),
        (["*.bias", "classifier.*"], ["backbone.0.bias", "classifier.weight", "classifier.bias"]),
        ("layers[0].weight", ["layers[0].weight"]),
        ("layers[1].*", ["layers[1].weight"]),
        ("layers[*", ["layers[0].weight", "layers[1].weight"]),
        ("layers[[]?].weight", ["layers[0].weight", "layers[1].weight"]),
        ("[bc]*.bias", ["backbone.0.bias", "classifier.bias"]),
        ("*", NAMES),
        ((), []),
        ("running_mean", ["running_mean"]),
    ],
)
def test_patterns(patterns, expected: list[str]) -> None:
    assert matching("trainable", patterns, NAMES, {"running_mean": "a setting"}) == expected


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["clasifier.*"], "'clasifier.*' \\(is 'classifier.*' meant\\?\\)"),
        (["*.biass"], "'\\*.biass' \\(is '\\*.bias' meant\\?\\)"),
        (["classifier.wieght"], "is 'classifier.weight'.* meant"),
        (
            ["classifier.*", "head.*", "x"],
            "names 'head.*', 'x'. There is no parameter of that kind; there are 'backbone",
        ),
        (["running*"], "only 'running_mean', which is not trained unless it is named in full: a setting"),
        (["Classifier.*"], "is 'classifier.*' meant"),
    ],
)
def test_patterns_that_match_nothing(patterns: list[str], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        matching("trainable", patterns, NAMES, {"running_mean": "a setting"})


@pytest.mark.parametrize("wrong", [3, ["a", 3], b"a"])
def test_patterns_are_texts(wrong) -> None:
    with pytest.raises(OnwardError, match="`trainable` is a list of names or one name"):
        matching("trainable", wrong, NAMES)


MODEL = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    two_heads (float[N, 2] x) => (float[N, 2] y, float[N, 2] z)
    <float[2, 2] body_weight = {1, 2, 3, 4}, float[2] body_bias = {1, 2}, float[2, 2] head_weight = {1, 2, 3, 4},
     float[2, 2] other_weight = {1, 2, 3, 4}, float limit = {6}> {
        a = Gemm(x, body_weight, body_bias)
        h = Clip(a, , limit)
        y = MatMul(h, head_weight)
        z = MatMul(h, other_weight)
    }
""")


@pytest.fixture(scope="module")
def model():
    return prepare(MODEL)


def test_nothing_said_is_left_to_training(model) -> None:
    assert selected(model) is None


def test_trainable_and_frozen(model) -> None:
    loss = model.graph.outputs[0]
    assert selected(model, "head_*") == ["head_weight"]
    assert selected(model, frozen="body_*") == ["head_weight", "other_weight"]
    assert selected(model, frozen="body_*", loss=loss) == ["head_weight"]
    assert selected(model, "*", loss=loss) == ["body_weight", "body_bias", "head_weight"]
    assert selected(model, ["*_weight"], ["head_weight"], loss=loss) == ["body_weight"]
    assert selected(model, ["*"], ["limit"], loss=loss) == ["body_weight", "body_bias", "head_weight"]
    assert selected(model, ["limit", "head_weight"], loss=loss) == ["head_weight", "limit"]


def test_nothing_is_left(model) -> None:
    with pytest.raises(OnwardError, match=r"nothing to train: `frozen` holds all of them: 'body_weight'"):
        selected(model, frozen="*")
    with pytest.raises(OnwardError, match=r"nothing to train: `trainable` is empty"):
        selected(model, [])
    with pytest.raises(UnknownNameError, match=r"only 'other_weight', .* the loss does not depend on it"):
        selected(model, ["other_*"], loss=model.graph.outputs[0])
    with pytest.raises(UnknownNameError, match=r"only 'limit', .*: upper bound of Clip"):
        selected(model, ["lim*"])
