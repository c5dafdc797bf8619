"""Other forms of rules."""

from __future__ import annotations

import threading

import onnx
import pytest

from onward import gradient
from onward.autodiff.preference import preferred, preferring
from onward.autodiff.registry import temporary_rules, vjp
from onward.autodiff.rules import softmax

TEXT = "g (float[N, 3] x) => (float[N, 3] y) { y = Softmax(x) }"
MODEL = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {TEXT}')


def other(op, node, dy):
    return op.Neg(dy)


def backward():
    return [node.op_type for node in gradient(MODEL, wrt=["x"]).graph.node[1:]]


def test_another_form_is_used_inside_only():
    before = backward()
    with preferring([(softmax.softmax, other)]):
        assert backward() == ["Neg"]
        with preferring([]):
            assert backward() == before
        assert backward() == ["Neg"]
    assert backward() == before


def test_it_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), preferring([(softmax.softmax, other)]):
        raise ZeroDivisionError
    assert preferred(softmax.softmax) is softmax.softmax


def test_it_is_of_one_thread():
    found = []
    with preferring([(softmax.softmax, other)]):
        thread = threading.Thread(target=lambda: found.append(preferred(softmax.softmax)))
        thread.start()
        thread.join()
    assert found == [softmax.softmax]


def test_declared_rules_stay():
    """Other forms are of the rule that they were written for."""
    with temporary_rules(), preferring([(softmax.softmax, other)]):

        @vjp("Softmax", override=True)
        def rule(op, node, dy):
            return op.Abs(dy)

        assert backward() == ["Abs"]
