"""Reports of every node case of onnx: none raises, and each says what `onward.gradient` does."""

from __future__ import annotations

import pytest

import onward
from onward.errors import OnwardError
from tests.conformance.cases import Case, by_operator


def agree(case: Case) -> bool:
    wrt = case.wrt or None
    report = onward.check(case.model, wrt=wrt)
    assert str(report)
    assert not any("unexpected" in blocker.reason for blocker in report.blockers), report
    try:
        onward.gradient(case.model, wrt=wrt)
    except OnwardError:
        return not report.ok
    # What onnxruntime has no kernels for can be differentiated nevertheless.
    return report.ok or all("compute with bfloat16" in blocker.reason for blocker in report.blockers)


@pytest.mark.slow
def test_all_node_cases() -> None:
    assert [case.name for cases in by_operator().values() for case in cases if not agree(case)] == []
