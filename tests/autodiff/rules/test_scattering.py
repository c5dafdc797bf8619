"""Operators that write by index."""

import numpy as np
import pytest

from onward.testing import check_vjp, run_on_runtime


def array(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


REDUCTIONS = [("none", 13), ("add", 16), ("mul", 16), ("max", 18), ("min", 18)]

ELEMENTS = {
    "distinct": (np.array([[0, 2, 1, -1], [1, 0, -2, 0]]), 0),
    "repeated": (np.array([[0, 2, 1, -1], [0, 2, 1, 0]]), 0),
    "along the last axis": (np.array([[3, 0], [1, 1], [-1, -1]]), -1),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", ELEMENTS)
@pytest.mark.parametrize(("reduction", "opset"), REDUCTIONS)
def test_scatter_elements(case, reduction, opset, constant):
    indices, axis = ELEMENTS[case]
    inputs = [array(3, 4), indices, array(*indices.shape, seed=1)]
    attributes = {} if reduction == "none" else {"reduction": reduction}
    # The reference evaluator's GatherElements takes no negative axes.
    run, known = run_on_runtime if axis < 0 else None, [1] if constant else []
    check_vjp("ScatterElements", inputs, opset=opset, constants=known, run=run, axis=axis, **attributes)


TUPLES = {
    "rows": np.array([[0], [2]]),
    "repeated rows": np.array([[0], [-1], [2]]),
    "elements": np.array([[0, 1], [-1, 2]]),
    "repeated elements": np.array([[[0, 1], [-1, 2]], [[2, 2], [0, 0]]]),
    "one": np.array([1]),
}


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "computed"])
@pytest.mark.parametrize("case", TUPLES)
@pytest.mark.parametrize(("reduction", "opset"), REDUCTIONS)
def test_scatter_nd(case, reduction, opset, constant):
    indices, data = TUPLES[case], array(3, 4)
    updates = array(*indices.shape[:-1], *data.shape[indices.shape[-1] :], seed=1)
    attributes = {} if reduction == "none" else {"reduction": reduction}
    check_vjp("ScatterND", [data, indices, updates], opset=opset, constants=[1] if constant else [], **attributes)


@pytest.mark.parametrize("opset", [9, 10])
def test_scatter_of_old_opsets(opset):
    # The reference evaluator has no Scatter.
    inputs = [array(3, 4), np.array([[0, 2], [1, 0]]), array(2, 2, seed=1)]
    check_vjp("Scatter", inputs, opset=opset, run=run_on_runtime, axis=0)


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
def test_products_with_zeros(op_type):
    """A zero that is alone among the factors of an element has a slope; of two zeros none has."""
    data = np.array([1.5, 0.0, 2.0, 0.0, 3.0])
    indices, updates = np.array([0, 0, 1, 2, 2, 3]), np.array([0.0, 2.0, 3.0, 0.0, 0.0, 0.0])
    if op_type == "ScatterND":
        indices = indices[:, None]
    # The second derivative through a zero is not followed: like ReduceProd's it is that of the other factors.
    check_vjp(op_type, [data, indices, updates], opset=16, second_order=False, reduction="mul")


@pytest.mark.parametrize("op_type", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_ties_share_evenly(op_type, reduction):
    """At a tie central differences see half of the slope to each side, so of three equal elements they say 1/2 each."""
    data, updates = np.array([1.0, 5.0, 2.0]), np.array([1.0, 7.0, -7.0])
    indices = np.array([0, 1, 2])
    if op_type == "ScatterND":
        indices = indices[:, None]
    check_vjp(op_type, [data, indices, updates], opset=18, second_order=False, reduction=reduction)
