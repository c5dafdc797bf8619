"""The node cases of onnx also train: forms and lowerings give the gradients that the rules give."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

from onward.autodiff.coverage import coverage
from onward.errors import OnwardError
from onward.testing.training import LAYOUTS, PATHS, assert_equal, by_gradient, subject_of
from tests.conformance.cases import Case, sweep
from tests.conformance.exceptions import pattern_for
from tests.conformance.table import EXPANDED_ONLY

OPERATORS = sorted({*coverage(), *EXPANDED_ONLY})
# A day takes one case of each operator, in one layout, and more of those that forms and lowerings rewrite.
REWRITTEN = {"BatchNormalization", "Clip", "Conv", "Gather", "MaxPool", "Relu", "SoftmaxCrossEntropyLoss"}
# They draw other numbers in a training graph; `tests/training/test_randomness.py` is about those.
DRAWING = ("test_training_dropout",)


def compare(case: Case, layout: str) -> str:
    """Compare the gradients of a case in one layout; says why that is not possible where it is not."""
    feeds = {name: value for name, value in case.inputs.items() if value is not None}
    settings = [name for name in feeds if name not in case.wrt]
    try:
        subject = subject_of(case.model, feeds, case.wrt, case.of, settings, layout)
        wanted = by_gradient(subject)
    except OnwardError as error:
        return f"no gradient: {error}"
    except Exception as error:  # onnxruntime's have no common base
        return f"does not run: {error}"
    for path in PATHS:
        assert_equal(path(subject), wanted, f"{case.name}, {path.__name__}, {layout}")
    return ""


def proved(operator: str) -> list[Case]:
    cases = sweep().get(operator, [])
    return [case for case in cases if pattern_for(case) is None and not case.name.startswith(DRAWING)]


def check(case: Case, layouts: Sequence[str], at_least: int) -> None:
    """Compare in so many layouts; where onnxruntime does not run a model, others need not do."""
    reasons: list[str] = []
    for layout in layouts:
        reasons.append(compare(case, layout))
        if reasons.count("") == at_least:
            return
    assert all(reason == "" or reason.startswith("does not run") for reason in reasons), f"{case.name}: {reasons}"


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_sample_trains(operator: str) -> None:
    cases, start = proved(operator), zlib.crc32(operator.encode())
    for number in range(min(4 if operator in REWRITTEN else 1, len(cases))):
        first = (start + number) % len(LAYOUTS)
        check(cases[(start + 7 * number) % len(cases)], LAYOUTS[first:] + LAYOUTS[:first], at_least=1)


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_case_trains(operator: str) -> None:
    for case in proved(operator):
        check(case, LAYOUTS, at_least=len(LAYOUTS))
