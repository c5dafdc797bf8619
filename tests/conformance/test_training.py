"""The node cases of onnx also train: forms and lowerings give the gradients that the rules give."""

from __future__ import annotations

import zlib

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


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_sample_trains(operator: str) -> None:
    cases = proved(operator)
    start = zlib.crc32(operator.encode())
    count = 4 if operator in REWRITTEN else 1
    for number in range(min(count, len(cases))):
        case = cases[(start + 7 * number) % len(cases)]
        layouts = [LAYOUTS[(start + number + k) % len(LAYOUTS)] for k in range(len(LAYOUTS))]
        next((layout for layout in layouts if not compare(case, layout)), None)  # the first that can be compared


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_every_case_trains(operator: str) -> None:
    for case in proved(operator):
        reasons = [compare(case, layout) for layout in LAYOUTS]
        # Where onnxruntime runs a case, its gradient runs in some layout.
        assert not all(reasons) or all(reason.startswith("does not run") for reason in reasons), reasons
