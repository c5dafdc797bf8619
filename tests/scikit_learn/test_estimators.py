"""Files of scikit-learn's estimators: the same results as onnxruntime's, and gradients that agree with differences."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from onward.errors import MissingRuleError, UnknownShapeError
from onward.testing import run_on_runtime
from tests.scikit_learn.agreement import check_gradient, check_same_results, float_values, parameter_names
from tests.scikit_learn.estimators import converted, names

# Below 1, where both branches of PowerTransformer's masks are numbers: 0 NaN is NaN, here as in torch.
X = np.random.default_rng(7).uniform(0.05, 0.95, size=(6, 5)).astype(np.float32)

SAMPLE = """ComplementNB DecisionTreeClassifier LinearRegression LogisticRegression MultiTaskLasso Normalizer
    PowerTransformer RandomForestRegressor SVC SelectKBest SimpleImputer StandardScaler""".split()
SAMPLE += ["MLPClassifier two", "SVR poly"]

FORESTS = """AdaBoostRegressor BaggingClassifier BaggingRegressor DecisionTreeClassifier DecisionTreeRegressor
    ExtraTreeClassifier ExtraTreeRegressor ExtraTreesClassifier ExtraTreesRegressor GradientBoostingClassifier
    GradientBoostingRegressor HistGradientBoostingClassifier HistGradientBoostingRegressor RandomForestClassifier
    RandomForestRegressor""".split()
# They count the votes of trees, or look up the sizes of leaves: no derivative comes as far as the trees.
VOTES = ("AdaBoostClassifier", "IsolationForest")


def check(name: str, zipmap: bool) -> None:
    model = converted(name, zipmap)
    if model is None:
        pytest.skip(f"skl2onnx has no model of {name}")
    (given,) = model.graph.input
    feeds = {given.name: X}
    rewritten = check_same_results(model, feeds)
    ends = float_values(model)
    assert ends or name in ("Binarizer",)
    for of in ends:
        if name in FORESTS:
            with pytest.raises(MissingRuleError, match=r"ai\.onnx\.ml\.TreeEnsemble\w+ node '\w+': A tree is constant"):
                onward.gradient(model, wrt=[given.name], of=of)
        elif name == "KNNImputer":
            with pytest.raises(UnknownShapeError, match=r"the rank of .* is unknown"):  # of a Squeeze without axes
                onward.gradient(model, wrt=[given.name], of=of)
        elif name in VOTES:
            gradient = onward.gradient(model, wrt=[given.name], of=of)
            *_, seed = gradient.graph.input
            sizes = [dim.dim_value or len(X) for dim in seed.type.tensor_type.shape.dim]
            seeds = {seed.name: np.ones(sizes, np.float32)}
            assert not run_on_runtime(gradient, {**feeds, **seeds})[f"{given.name}_grad"].any()
        else:
            check_gradient(model, rewritten, of, [given.name, *parameter_names(rewritten)], feeds)


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str) -> None:
    assert converted(name, True) is not None
    check(name, zipmap=True)


def test_without_zipmap() -> None:
    check("LogisticRegression", zipmap=False)


@pytest.mark.slow
@pytest.mark.parametrize("zipmap", [True, False])
@pytest.mark.parametrize("name", names())
def test_all(name: str, zipmap: bool) -> None:
    check(name, zipmap)


@pytest.mark.slow
def test_how_many_there_are() -> None:
    """Estimators of which skl2onnx makes no model are skipped above; these are not many."""
    assert sum(converted(name, True) is not None for name in names()) >= 135
