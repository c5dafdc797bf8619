"""Operators of classic models: rewritten, they compute what onnxruntime's kernels do, and have the right gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onward
from onward.errors import MissingRuleError, NotDifferentiableError
from onward.graph.ml import ML
from onward.graph.parameters import parameters
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime
from tests.graph.contrib import FLOAT, INT64, Array, model_of
from tests.scikit_learn.agreement import check_gradient, check_same_results

STRING = TensorProto.STRING
LABELS = (INT64, FLOAT)  # the types of a classifier's outputs
NAMES = (STRING, FLOAT)

_random = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return _random.normal(size=shape).astype(np.float32)


def numbers(*shape: int) -> list[float]:
    return normal(*shape).reshape(-1).tolist()


X = normal(6, 4)
POSITIVE = np.abs(X) + np.float32(0.1)
INTEGERS = _random.integers(-5, 5, (6, 4))


def linear(width: int, **more: Any) -> dict[str, Any]:
    return {"coefficients": numbers(width, 4), "intercepts": numbers(width), **more}


def probabilities(width: int, **more: Any) -> dict[str, Any]:
    """Scores between 0 and 1, for PROBIT."""
    coefficients = (np.abs(normal(width, 4)) / 40).reshape(-1).tolist()
    return {"coefficients": coefficients, "intercepts": [0.3] * width, "post_transform": "PROBIT", **more}


def vectors(kernel: str, params: list[float], count: int = 5, **more: Any) -> dict[str, Any]:
    return {
        "coefficients": numbers(count),
        "kernel_params": params,
        "kernel_type": kernel,
        "n_supports": count,
        "rho": [0.3],
        "support_vectors": numbers(count, 4),
        **more,
    }


def machine(kernel: str, params: list[float], per_class: list[int], **more: Any) -> dict[str, Any]:
    classes, count = len(per_class), sum(per_class)
    return {
        "classlabels_ints": list(range(10, 10 + classes)),
        "coefficients": numbers(classes - 1, count),
        "kernel_params": params,
        "kernel_type": kernel,
        "rho": numbers(classes * (classes - 1) // 2),
        "support_vectors": numbers(count, 4),
        "vectors_per_class": per_class,
        **more,
    }


def linear_machine(classes: int, **more: Any) -> dict[str, Any]:
    return {
        "classlabels_ints": list(range(10, 10 + classes)),
        "coefficients": numbers(classes, 4),
        "kernel_params": [0.5, 0.0, 3.0],
        "rho": [0.2],
        **more,
    }


TWO, THREE = {"classlabels_ints": [7, 3]}, {"classlabels_ints": [7, 3, 5]}
POSITIVE_WEIGHTS = np.abs(normal(2, 4)).reshape(-1).tolist()
MISSING = np.where(_random.random((6, 4)) < 0.3, np.nan, X).astype(np.float32)
ZEROS = np.where(_random.random((6, 4)) < 0.3, 0, X).astype(np.float32)
ONES = np.where(_random.random((6, 4)) < 0.3, 1, INTEGERS)
Case = tuple[str, list[Array], dict[str, Any], tuple[int, ...]]
CASES: list[Case] = [
    ("LinearRegressor", [X], linear(1), (FLOAT,)),
    ("LinearRegressor", [X], linear(3, targets=3), (FLOAT,)),
    ("LinearRegressor", [X], {"coefficients": numbers(2, 4), "targets": 2}, (FLOAT,)),
    ("LinearRegressor", [X], {"coefficients": numbers(2, 4), "targets": 2, "intercepts": [1.0]}, (FLOAT,)),
    ("LinearRegressor", [X[0]], linear(2, targets=2), (FLOAT,)),
    *(
        ("LinearRegressor", [X], linear(width, targets=width, post_transform=transform), (FLOAT,))
        for width in (1, 3)
        for transform in ("LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    ),
    ("LinearRegressor", [POSITIVE], probabilities(1), (FLOAT,)),
    ("LinearRegressor", [POSITIVE], probabilities(3, targets=3), (FLOAT,)),
    *(
        ("LinearClassifier", [X], linear(width, post_transform=transform, **labels), LABELS)
        for width, labels in ((1, TWO), (2, TWO), (3, THREE))
        for transform in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")
    ),
    ("LinearClassifier", [POSITIVE], probabilities(3, **THREE), LABELS),
    ("LinearClassifier", [X], linear(3, classlabels_strings=["a", "b", "c"], multi_class=1), NAMES),
    ("LinearClassifier", [X], linear(1, classlabels_strings=["a", "b"]), NAMES),
    ("LinearClassifier", [X[0]], linear(3, **THREE), LABELS),
    ("LinearClassifier", [INTEGERS], linear(3, **THREE), LABELS),
    ("LinearClassifier", [INTEGERS.astype(np.int32)], linear(1, **TWO), LABELS),
    ("LinearClassifier", [X.astype(np.float64)], linear(3, post_transform="SOFTMAX", **THREE), LABELS),
    ("SVMRegressor", [X], vectors("LINEAR", [0.5, 0.0, 3.0]), (FLOAT,)),
    ("SVMRegressor", [X], vectors("RBF", [0.5, 0.0, 3.0]), (FLOAT,)),
    ("SVMRegressor", [X[0]], vectors("RBF", [0.5, 0.0, 3.0]), (FLOAT,)),
    ("SVMRegressor", [X], vectors("SIGMOID", [0.2, 0.1, 3.0]), (FLOAT,)),
    ("SVMRegressor", [X], vectors("POLY", [0.2, 0.1, 3.0]), (FLOAT,)),
    ("SVMRegressor", [X], vectors("POLY", [0.2, 0.0, 2.0], post_transform="LOGISTIC"), (FLOAT,)),
    ("SVMRegressor", [X], vectors("RBF", [0.5, 0.0, 3.0], one_class=1), (FLOAT,)),
    ("SVMRegressor", [X], {"coefficients": numbers(4), "kernel_params": [0.5, 0.0, 3.0], "rho": [0.2]}, (FLOAT,)),
    ("SVMClassifier", [X], machine("RBF", [0.5, 0.0, 3.0], [3, 2]), LABELS),
    ("SVMClassifier", [X], machine("RBF", [0.5, 0.0, 3.0], [3, 2], post_transform="LOGISTIC"), LABELS),
    ("SVMClassifier", [X], machine("LINEAR", [0.5, 0.0, 3.0], [3, 2, 4]), LABELS),
    ("SVMClassifier", [X], machine("POLY", [0.2, 0.4, 3.0], [3, 1, 2, 4], post_transform="SOFTMAX"), LABELS),
    ("SVMClassifier", [X], machine("SIGMOID", [0.2, 0.4, 3.0], [1, 2, 1], post_transform="LOGISTIC"), LABELS),
    ("SVMClassifier", [INTEGERS], machine("LINEAR", [0.5, 0.0, 3.0], [3, 2, 4]), LABELS),
    ("SVMClassifier", [X.astype(np.float64)], machine("RBF", [0.5, 0.0, 3.0], [3, 2]), LABELS),
    (
        "SVMClassifier",
        [X],
        {**machine("RBF", [0.5, 0.0, 3.0], [3, 2]), "classlabels_ints": [], "classlabels_strings": ["no", "yes"]},
        NAMES,
    ),
    ("SVMClassifier", [X], linear_machine(3), LABELS),
    ("SVMClassifier", [X], linear_machine(3, post_transform="SOFTMAX"), LABELS),
    ("SVMClassifier", [X], linear_machine(2), LABELS),
    ("SVMClassifier", [X], linear_machine(2, coefficients=POSITIVE_WEIGHTS, rho=[-0.3]), LABELS),
    ("SVMClassifier", [X], linear_machine(2, prob_a=[1.0], prob_b=[0.5], post_transform="LOGISTIC"), LABELS),
    ("Scaler", [X], {"offset": numbers(4), "scale": numbers(4)}, (FLOAT,)),
    ("Scaler", [X], {"offset": [0.5], "scale": [2.0]}, (FLOAT,)),
    ("Scaler", [normal(2, 3, 4)], {"offset": [0.5], "scale": [2.0]}, (FLOAT,)),
    ("Scaler", [X[0]], {"offset": numbers(4), "scale": numbers(4)}, (FLOAT,)),
    ("Scaler", [X.astype(np.float64) + 1e3], {"offset": [1e3], "scale": [2.0]}, (FLOAT,)),
    ("Scaler", [INTEGERS], {"offset": numbers(4), "scale": numbers(4)}, (FLOAT,)),
    *(("Normalizer", [x], {"norm": norm}, (FLOAT,)) for norm in ("MAX", "L1", "L2") for x in (X, X[0], INTEGERS)),
    ("Normalizer", [X.astype(np.float64)], {"norm": "L2"}, (FLOAT,)),
    ("Normalizer", [X], {}, (FLOAT,)),
    ("Imputer", [MISSING], {"imputed_value_floats": numbers(4), "replaced_value_float": np.nan}, (FLOAT,)),
    ("Imputer", [MISSING], {"imputed_value_floats": [0.5], "replaced_value_float": np.nan}, (FLOAT,)),
    ("Imputer", [ONES], {"imputed_value_int64s": [5, 6, 7, 8], "replaced_value_int64": 1}, (INT64,)),
    ("ArrayFeatureExtractor", [X, np.array([2, 0, 2])], {}, (FLOAT,)),
    ("ArrayFeatureExtractor", [X[0], np.array([[2], [0]])], {}, (FLOAT,)),
    ("ArrayFeatureExtractor", [normal(2, 3, 4), np.array([[2, 0]])], {}, (FLOAT,)),
    ("ArrayFeatureExtractor", [INTEGERS, np.array([3])], {}, (INT64,)),
    ("FeatureVectorizer", [X, normal(6)[:, None]], {"inputdimensions": [4, 1]}, (FLOAT,)),
    ("FeatureVectorizer", [X, normal(6, 2, 2)], {"inputdimensions": [3, 6]}, (FLOAT,)),
    ("FeatureVectorizer", [X[0], X[1]], {"inputdimensions": [4, 4]}, (FLOAT,)),
    ("FeatureVectorizer", [INTEGERS, INTEGERS[:, :2]], {"inputdimensions": [4, 3]}, (FLOAT,)),
    ("Binarizer", [X], {"threshold": 0.3}, (FLOAT,)),
    ("Binarizer", [X], {}, (FLOAT,)),
]


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "outputs"), CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)]
)
def test_rewritten(op_type: str, inputs: list[Array], attributes: dict[str, Any], outputs: tuple[int, ...]) -> None:
    other = ("symbolic", 13) if len(attributes) % 2 else ("unknown", 11)
    for dims, opset in (("static", 18), other):
        model, feeds = _model(op_type, inputs, attributes, outputs, dims, opset)
        rewritten = check_same_results(model, feeds)
        assert not [node.op_type for node in rewritten.graph.node if node.domain]
        assert [imported.domain for imported in rewritten.opset_import] == [""]
    ends = [value.name for value in model.graph.output if value.type.tensor_type.elem_type == FLOAT]
    targets = [name for name, x in feeds.items() if x.dtype == np.float32 and not np.isnan(x).any()]
    targets += [
        tensor.name
        for tensor in rewritten.graph.initializer
        if tensor.name.startswith("fused.") and tensor.data_type == FLOAT
    ]
    if ends and targets:
        check_gradient(model, rewritten, ends[0], targets, feeds)


def _model(
    op_type: str,
    inputs: list[Array],
    attributes: dict[str, Any],
    outputs: tuple[int, ...],
    dims: str = "symbolic",
    opset: int = 18,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    model, feeds = model_of(
        op_type,
        list(inputs),
        {name: value for name, value in attributes.items() if value != []},
        outputs=outputs,
        dims=dims,
        opset=opset,
        domain=ML.name,
    )
    for name, x in feeds.items():  # model_of makes all floats narrow
        (given,) = [value for value in model.graph.input if value.name == name]
        wide = next(
            array for array in inputs if array.shape == x.shape and np.array_equal(array.astype(x.dtype), x, True)
        )
        if wide.dtype == np.float64:
            feeds[name], given.type.tensor_type.elem_type = wide, TensorProto.DOUBLE
    return model, feeds


def test_rows_of_zeros_stay_as_they_are() -> None:
    """Their norm is 0, and so the derivative of what is not divided is 1."""
    for norm in ("MAX", "L1", "L2"):
        model, feeds = _model("Normalizer", [np.zeros((2, 3), np.float32)], {"norm": norm}, (FLOAT,))
        check_same_results(model, feeds)
        gradient = onward.gradient(model, wrt=["x0"])
        results = run_on_runtime(gradient, {**feeds, "y0_grad": np.ones((2, 3), np.float32)})
        assert np.isfinite(results["x0_grad"]).all(), norm


@pytest.mark.parametrize("count", [1, 3, 4])
def test_imputer(count: int) -> None:
    """The derivative is 1 where nothing is missing; values of another number than features do not count but for one."""
    attributes = {"imputed_value_floats": [5.0, 6.0, 7.0, 8.0][:count], "replaced_value_float": 0.0}
    model, feeds = _model("Imputer", [ZEROS], attributes, (FLOAT,), "static")
    check_same_results(model, feeds)
    seed = normal(6, 4)
    results = run_on_runtime(onward.gradient(model, wrt=["x0", "fused.imputed_values"]), {**feeds, "y0_grad": seed})
    np.testing.assert_array_equal(results["x0_grad"], np.where(ZEROS == 0, 0, seed))
    summed = np.where(ZEROS == 0, seed, 0).sum(0)
    wanted = summed if count == 4 else summed.sum(keepdims=True)
    np.testing.assert_allclose(results["fused.imputed_values_grad"], wanted, rtol=1e-5, atol=1e-6)


def test_what_is_trained_by_default() -> None:
    for op_type, attributes, trainable, others in (
        ("LinearRegressor", linear(1), ["intercepts", "coefficients"], []),
        ("SVMRegressor", vectors("RBF", [0.5, 0.0, 3.0]), ["rho", "support_vectors", "coefficients"], []),
        ("Scaler", {"offset": numbers(4), "scale": numbers(4)}, [], ["offset", "scale"]),
        ("Imputer", {"imputed_value_floats": [0.5], "replaced_value_float": np.nan}, [], ["imputed_values"]),
    ):
        model, _ = _model(op_type, [X], attributes, (FLOAT,))
        found = {p.name: p.trainable for p in parameters(prepare(model)) if not p.name.startswith("const/")}
        assert found == {
            **{f"fused.{name}": True for name in trainable},
            **{f"fused.{name}": False for name in others},
        }


REFUSED: list[tuple[str, list[Array], dict[str, Any], tuple[int, ...], str]] = [
    ("LinearRegressor", [normal(2, 3, 4)], linear(1), (FLOAT,), "its input has rank 3"),
    ("LinearRegressor", [normal(2, 3)], linear(1), (FLOAT,), "has 3 features, but it was made for 4"),
    ("LinearRegressor", [X], linear(1, post_transform="TWIST"), (FLOAT,), "post_transform 'TWIST' is not known"),
    ("LinearRegressor", [X], {"coefficients": numbers(3), "targets": 2}, (FLOAT,), "3 numbers, which do not make 2"),
    ("LinearClassifier", [X], {"coefficients": numbers(4), **TWO}, LABELS, "has no intercepts"),
    ("LinearClassifier", [X], probabilities(1, **TWO), LABELS, "leaves one of its two scores undefined"),
    ("SVMClassifier", [X], machine("RBF", [0.5, 0.0, 3.0], [3, 2], post_transform="PROBIT"), LABELS, "undefined"),
    (
        "SVMClassifier",
        [X],
        machine("RBF", [0.5, 0.0, 3.0], [3, 2], prob_a=[-1.0], prob_b=[0.1]),
        LABELS,
        "found by an iteration that stops as soon as it is near enough",
    ),
    ("SVMRegressor", [X], vectors("WAVELET", [0.5, 0.0, 3.0]), (FLOAT,), "kernel_type 'WAVELET' is not known"),
    ("Scaler", [normal(2, 3, 4)], {"offset": numbers(3), "scale": numbers(3)}, (FLOAT,), "its input has rank 3"),
    ("Normalizer", [X], {"norm": "L7"}, (FLOAT,), "norm 'L7' is not known"),
    ("FeatureVectorizer", [X], {"inputdimensions": [4, 4]}, (FLOAT,), "1 inputs and 2 inputdimensions"),
    ("TreeEnsembleRegressor", [X], {"n_targets": 1}, (FLOAT,), "A tree is constant between its thresholds"),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "outputs", "message"), REFUSED)
def test_what_is_refused(
    op_type: str, inputs: list[Array], attributes: dict[str, Any], outputs: tuple[int, ...], message: str
) -> None:
    model, _ = _model(op_type, inputs, attributes, outputs, "static")
    with pytest.raises(MissingRuleError, match=message) as refused:
        onward.gradient(model, wrt=["x0"], of=f"y{len(outputs) - 1}")
    assert f"ai.onnx.ml.{op_type} node 'fused'" in str(refused.value)
    assert not [p.name for p in parameters(prepare(model)) if p.trainable], "nothing is left of what was not rewritten"


def test_every_operator_of_the_domain_is_known() -> None:
    """Each is rewritten, refused or declared to have no derivative; and each attribute is honoured or refused."""
    specs = {spec.name: spec for spec in onnx.defs.get_all_schemas() if spec.domain == ML.name}
    constant = {name for domain, name in onward.autodiff.registry.nondifferentiable_operators() if domain == ML.name}
    assert set(specs) == {*ML.rewriters, *ML.refused, *constant}
    assert not set(ML.rewriters) & set(ML.refused) | (set(ML.rewriters) | set(ML.refused)) & constant
    for name, rewriter in ML.rewriters.items():
        assert rewriter.reads == set(specs[name].attributes), name


def test_a_tree_may_stay_in_front_of_what_is_trained() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]>
        stacked (float[N, 2] x) => (float[N, 1] y) {
            leaf = ai.onnx.ml.TreeEnsembleRegressor <
                n_targets = 1, nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],
                nodes_values = [0.5, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0],
                target_treeids = [0, 0], target_nodeids = [1, 2], target_ids = [0, 0], target_weights = [-1.0, 2.0]
            >(x)
            y = ai.onnx.ml.LinearRegressor<coefficients = [0.5], intercepts = [0.1]>(leaf)
        }""")
    feeds = {"x": np.array([[0.0, 0.0], [1.0, 0.0]], np.float32)}
    check_same_results(model, feeds)
    gradient = onward.gradient(model, wrt=["y.coefficients"])
    results = run_on_runtime(gradient, {**feeds, "y_grad": np.ones((2, 1), np.float32)})
    np.testing.assert_allclose(results["y.coefficients_grad"], [[1.0]])
    with pytest.raises(MissingRuleError, match="TreeEnsembleRegressor node 'leaf': A tree is constant"):
        onward.gradient(model, wrt=["x"])


def test_nodes_in_branches_and_functions() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1, "local": 1]>
        choice (float[N, 2] x, bool c) => (float[N, 1] y) {
            scaled = local.Scaled(x)
            y = If (c) <
                then_branch = then () => (float[N, 1] a) {
                    a = ai.onnx.ml.LinearRegressor<coefficients = [1.0, 2.0], intercepts = [0.5]>(scaled)
                },
                else_branch = otherwise () => (float[N, 1] b) {
                    b = ai.onnx.ml.LinearRegressor<coefficients = [3.0, -1.0], intercepts = [0.25]>(scaled)
                }
            >
        }
        <domain: "local", opset_import: ["": 16, "ai.onnx.ml": 1]>
        Scaled (a) => (b) { b = ai.onnx.ml.Scaler<offset = [1.0, 2.0], scale = [0.5, 4.0]>(a) }""")
    for choice in (True, False):
        feeds = {"x": normal(3, 2), "c": np.array(choice)}
        rewritten = check_same_results(model, feeds)
        assert not [node.op_type for node in rewritten.graph.node if node.domain]
        names = [p.name for p in parameters(prepare(model)) if p.trainable]
        assert sorted(names) == ["a.coefficients", "a.intercepts", "b.coefficients", "b.intercepts"]
        check_gradient(model, rewritten, "y", ["x", *names], feeds)


# Labels, strings and maps -----------------------------------------------------------------------------------------

ENCODED = """
    <ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 2]>
    encoded (string[N] word, int64[N] place, float[N, 2] x) => (float[N, 2] y, string[N] back) {
        number = ai.onnx.ml.LabelEncoder<keys_strings = ["a", "b"], values_floats = [0.25, 4.0]>(word)
        one = ai.onnx.ml.OneHotEncoder<cats_int64s = [1, 2]>(place)
        back = ai.onnx.ml.CategoryMapper<cats_strings = ["one", "two"], cats_int64s = [1, 2]>(place)
        axis = Constant<value_ints = [1]>()
        column = Unsqueeze(number, axis)
        joined = ai.onnx.ml.FeatureVectorizer<inputdimensions = [1, 2, 2]>(column, one, x)
        y = ai.onnx.ml.LinearRegressor<
            targets = 2, coefficients = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], intercepts = [1.0, 2.0]
        >(joined)
    }"""


def test_strings_and_categories_pass_unharmed() -> None:
    model = onnx.parser.parse_model(ENCODED)
    x = normal(3, 2)
    feeds = {"word": np.array(["b", "a", "?"]), "place": np.array([1, 2, 1]), "x": x}
    check_same_results(model, feeds)
    gradient = onward.gradient(model, wrt=["x", "y.coefficients"])
    seed = normal(3, 2)
    results = run_on_runtime(gradient, {**feeds, "y_grad": seed})
    w = np.arange(1, 11, dtype=np.float32).reshape(2, 5)
    np.testing.assert_allclose(results["x_grad"], seed @ w[:, 3:], rtol=1e-5)
    rows = np.column_stack([[4.0, 0.25, -0.0], [[1, 0], [0, 1], [1, 0]], x])
    np.testing.assert_allclose(results["y.coefficients_grad"], seed.T @ rows, rtol=1e-4, atol=1e-5)


def classifier() -> onnx.ModelProto:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]>
        classifier (float[N, 2] x) => (int64[N] label, float[N, 2] chances) {
            label, scores = ai.onnx.ml.LinearClassifier<
                classlabels_ints = [4, 2], coefficients = [1.0, -1.0, 0.5, 2.0], intercepts = [0.1, -0.1],
                post_transform = "SOFTMAX"
            >(x)
            chances = ai.onnx.ml.ZipMap<classlabels_int64s = [4, 2]>(scores)
        }""")
    number = helper.make_tensor_type_proto(FLOAT, None)
    # onnx's parser does not know maps either.
    model.graph.output[1].type.CopyFrom(helper.make_sequence_type_proto(helper.make_map_type_proto(INT64, number)))
    return model


def test_maps_pass_unharmed() -> None:
    model, feeds = classifier(), {"x": normal(3, 2)}
    before = model.SerializeToString(deterministic=True)
    rewritten = check_same_results(model, feeds)
    assert rewritten.graph.output[1].type == model.graph.output[1].type
    gradient = onward.gradient(model, of="scores")
    gradients = ["label.intercepts_grad", "label.coefficients_grad"]
    assert [value.name for value in gradient.graph.output] == ["label", "chances", "scores", *gradients]
    assert gradient.graph.output[1].type == model.graph.output[1].type
    results = run_on_runtime(gradient, {**feeds, "scores_grad": np.ones((3, 2), np.float32)})
    assert [sorted(row) for row in results["chances"]] == [[2, 4]] * 3
    assert model.SerializeToString(deterministic=True) == before, "the caller's model is as it was"


def test_a_file_with_maps_is_read(tmp_path: Path) -> None:
    path = tmp_path / "classifier.onnx"
    onnx.save(classifier(), path)
    report = onward.check(path, of="scores")
    assert report.ok, report
    assert "chances  seq(map(int64,tensor(float)))\n" in str(report)
    assert "scores  (differentiated)" in str(report)
    assert [parameter.name for parameter in report.trainable] == ["label.intercepts", "label.coefficients"]


def test_maps_have_no_gradient() -> None:
    with pytest.raises(NotDifferentiableError, match=r"type seq\(map\(int64,tensor\(float\)\)\).* in `of`: 'scores'"):
        onward.gradient(classifier(), of="chances")


def test_maps_as_inputs() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 1]>
        words (float x) => (float[1, 1] y) {
            counts = ai.onnx.ml.DictVectorizer<string_vocabulary = ["a", "b"]>(x)
            y = ai.onnx.ml.LinearRegressor<coefficients = [2.0, 3.0], intercepts = [0.5]>(counts)
        }""")
    number = helper.make_tensor_type_proto(FLOAT, None)
    model.graph.input[0].type.CopyFrom(helper.make_map_type_proto(STRING, number))
    results = run_on_runtime(onward.gradient(model), {"x": {"b": 4.0}})  # type: ignore[dict-item]
    np.testing.assert_allclose(results["y"], [[12.5]])
    np.testing.assert_allclose(results["y.coefficients_grad"], [[0.0, 4.0]])
