"""Softmax and LogSoftmax of both generations."""

import numpy as np
import pytest

from onward.testing import check_vjp, run_on_runtime

X = np.random.default_rng(0).normal(size=(2, 3, 4))


@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("opset", "attributes"),
    [
        (13, {}),
        (13, {"axis": 0}),
        (18, {"axis": 1}),
        (22, {"axis": -2}),
        # Up to opset 12 all axes from `axis` on are one, and `axis` is 1 unless given.
        (12, {}),
        (12, {"axis": 2}),
        (12, {"axis": -2}),
        (12, {"axis": 0}),
        (9, {"axis": 1}),
    ],
)
def test_softmax(op_type, opset, attributes):
    # The reference evaluator takes one axis in every opset, which is wrong up to opset 12.
    check_vjp(op_type, [X], opset=opset, run=run_on_runtime if opset < 13 else None, **attributes)
