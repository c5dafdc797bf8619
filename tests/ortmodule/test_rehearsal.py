"""What counts as rounding when a graph is compared with torch."""

from __future__ import annotations

import pytest
import torch

from onward.torch.ortmodule._fallback import ORTModuleONNXModelException
from onward.torch.ortmodule.rehearsal import require_equal

EXACT = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def off(by: float) -> torch.Tensor:
    return (EXACT + torch.tensor([0.0, by, 0.0], dtype=torch.float64)).float()


@pytest.mark.parametrize(
    ("ours", "theirs", "is_rounding"),
    [
        (0.0009, 0.0, True),  # within the tolerance: nobody asks for double precision
        (0.005, 0.0, False),  # half a percent
        (0.02, 0.0, False),  # torch is exact, the graph is not
        (0.03, -0.01, True),  # neither is
        (0.05, -0.01, False),  # the graph is much worse
        (0.0, 0.04, True),  # torch alone is inexact
        (0.0, 0.1, False),  # so far off that it may have computed something else
    ],
)
def test_as_inexact_as_torch(ours, theirs, is_rounding):
    def compare():
        require_equal("gradient", [off(ours)], [off(theirs)], lambda: [EXACT])

    if is_rounding:
        compare()
    else:
        with pytest.raises(ORTModuleONNXModelException, match="gradient 0 of the graph differs"):
            compare()


@pytest.mark.parametrize("double", [None, [None], [EXACT[:2]], [EXACT.float()]])
def test_without_double_precision_the_tolerance_holds(double):
    with pytest.raises(ORTModuleONNXModelException, match="differs from that of torch by"):
        require_equal("result", [off(0.03)], [off(-0.01)], lambda: double)


def test_what_is_not_a_number_is_no_rounding():
    wrong = off(0.0)
    wrong[0] = torch.nan
    with pytest.raises(ORTModuleONNXModelException):
        require_equal("result", [wrong], [off(0.0)], lambda: [EXACT])
