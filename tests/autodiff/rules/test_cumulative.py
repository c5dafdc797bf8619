"""Operators that accumulate along an axis."""

import numpy as np
import pytest

from onward.testing import check_vjp


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("constant", [True, False])
def test_cumsum(axis, exclusive, reverse, constant):
    x = np.random.default_rng(0).normal(size=(3, 4))
    inputs = [x, np.array(axis, np.int64)]
    check_vjp("CumSum", inputs, opset=14, constants=[1] if constant else [], exclusive=exclusive, reverse=reverse)


def test_cumsum_of_opset_11():
    check_vjp("CumSum", [np.random.default_rng(0).normal(size=5), np.array(0, np.int32)], opset=11)
