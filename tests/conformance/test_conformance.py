"""The gradient of every node case of onnx against differences; exceptions are listed, strictly both ways."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onward.autodiff import registry
from onward.autodiff.coverage import coverage
from onward.graph.builder import Builder
from tests.conformance import table
from tests.conformance.cases import Case, sweep
from tests.conformance.differences import FailureError, check
from tests.conformance.exceptions import FILE, exceptions, pattern_for

OPERATORS = sorted({*coverage(), *table.EXPANDED_ONLY})
# Left out of `make test`: two cases whose reference implementation takes half a minute each, and most of the cases of
# Attention, which are many and much alike.
SLOW = {"test_averagepool_3d_default", "test_lppool_3d_default"}
SAMPLED = {"Attention": 6}


def _split(operator: str) -> tuple[list[Case], list[Case]]:
    """The cases of an operator for every day, and the rest."""
    cases, every = sweep().get(operator, []), SAMPLED.get(operator, 1)
    daily = [case for case in cases[::every] if case.name not in SLOW]
    return daily, [case for case in cases if case not in daily]


def _judge(cases: list[Case]) -> list[str]:
    """What is wrong with the cases of an operator."""
    wrong = []
    for case in cases:
        pattern = pattern_for(case)
        try:
            check(case)
        except FailureError as failure:
            if pattern is None:
                wrong.append(f"{case.name}: {failure}")
        else:
            if pattern is not None:
                wrong.append(f"{case.name}: passes, but {FILE.name} lists it as {pattern!r}")
    return wrong


@pytest.mark.parametrize("operator", OPERATORS)
def test_gradient_of_cases(operator: str) -> None:
    cases, _ = _split(operator)
    wrong = _judge(cases)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("operator", ["Attention", "AveragePool", "LpPool"])
def test_gradient_of_the_other_cases(operator: str) -> None:
    _, cases = _split(operator)
    assert cases
    wrong = _judge(cases)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("operator", ["Tanh", "MaxPool", "Relu"])  # smooth; judged on onnxruntime; with a kink
def test_a_rule_that_is_off_by_a_thousandth_is_found(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry._rules["", operator]

    def wrong(op: Builder, node: ir.Node, *dy: ir.Value | None) -> list[ir.Value | None]:
        found = right(op, node, *dy)
        cotangents = [found] if isinstance(found, ir.Value) else list(found or ())
        return [None if dx is None else dx * 1.001 for dx in cotangents]

    monkeypatch.setitem(registry._rules, ("", operator), wrong)
    with pytest.raises(FailureError, match="differences"):
        check(sweep()[operator][0])


def test_every_exception_names_a_case() -> None:
    used = {pattern_for(case) for cases in sweep().values() for case in cases}
    assert not set(exceptions()) - used


def test_no_case_is_of_an_unknown_operator() -> None:
    assert set(sweep()) <= set(OPERATORS)


def test_coverage_table_is_up_to_date() -> None:
    """Whoever adds a rule writes the table anew: `make coverage-table`."""
    committed = Path(table.FILE).read_text()
    if f"onnx {onnx.__version__}" not in committed:
        pytest.skip(f"the table was written with another version of onnx than {onnx.__version__}")
    assert committed == table.text()
