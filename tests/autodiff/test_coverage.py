"""How each operator is differentiated."""

from __future__ import annotations

from onward.autodiff.coverage import coverage, rewriting_coverage
from onward.autodiff.registry import nondifferentiable_operators, operators_with_rules


def test_one_operator_of_each_way() -> None:
    ways = coverage()
    assert ways["Conv"] == "rule"
    assert ways["CenterCropPad"] == "function"
    assert ways["Floor"] == "constant", "declared"
    assert ways["NonZero"] == "constant", "its output is an integer"
    assert ways["ConvInteger"] == "integer"


def test_only_operators_of_the_opset_asked_for() -> None:
    assert "Gelu" not in coverage(19)
    assert "Gelu" in coverage(20)
    assert "Upsample" in coverage(20), "deprecated ones stay"


def test_no_operator_is_declared_twice() -> None:
    assert not operators_with_rules() & nondifferentiable_operators()


def test_operators_of_onnxruntime() -> None:
    found = rewriting_coverage("com.microsoft")
    assert found["Gelu"] == ("rewritten", "")
    assert found["Attention"] == (
        "rewritten",
        "`do_rotary` other than 0; `past_present_share_buffer` other than 0; input `past_sequence_length`",
    )
    way, remedy = found["DynamicQuantizeMatMul"]
    assert way == "refused"
    assert "before it was quantised" in remedy
