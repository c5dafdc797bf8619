"""What counts as rounding when a graph is compared with torch."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from torch import nn

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from onward.torch.ortmodule._fallback import ORTModuleONNXModelException
from onward.torch.ortmodule.comparison import require_equal

EXACT = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)


def off(by: float) -> torch.Tensor:
    return (EXACT + torch.tensor([0.0, by, 0.0], dtype=torch.float64)).float()


@pytest.mark.parametrize(
    ("ours", "theirs", "is_rounding"),
    [
        (0.0009, 0.0, True),  # within the tolerance: nobody asks for double precision
        (0.005, 0.0, False),  # half a percent
        (0.02, 0.0, False),  # torch is exact, the graph is not
        (0.025, -0.01, True),  # neither is
        (0.05, -0.01, False),  # the graph is much worse
        (0.0, 0.03, True),  # torch alone is inexact
        (0.0, 0.1, False),  # so far off that it may have computed something else
    ],
)
def test_as_inexact_as_torch(ours, theirs, is_rounding):
    def compare():
        require_equal("gradient", [off(ours)], [off(theirs)], lambda: [[EXACT]])

    if is_rounding:
        compare()
    else:
        with pytest.raises(ORTModuleONNXModelException, match="gradient 0 of the graph differs"):
            compare()


@pytest.mark.parametrize("double", [[], [[None]], [[EXACT[:2]]], [[EXACT.float()]], [[EXACT], [None]]])
def test_without_double_precision_the_tolerance_holds(double):
    with pytest.raises(ORTModuleONNXModelException, match="differs from that of torch by"):
        require_equal("result", [off(0.03)], [off(-0.01)], lambda: double)


def test_as_inexact_as_other_roundings():
    """torch may be lucky."""
    rounded = [off(0.018).double()], [off(-0.004).double()]
    require_equal("gradient", [off(0.02)], [off(0.001)], lambda: [[EXACT], *rounded])
    with pytest.raises(ORTModuleONNXModelException):  # as far as three times that, but too far
        require_equal("gradient", [off(0.05)], [off(0.001)], lambda: [[EXACT], *rounded])
    with pytest.raises(ORTModuleONNXModelException):
        require_equal("gradient", [off(0.02)], [off(0.001)], lambda: [[EXACT], rounded[1]])


def test_one_of_many_other_roundings():
    """An element nearly at a kink falls on its other side in few runs; but those are only asked for if need be."""
    rounded = [[EXACT], *([off(1e-6).double()] for _ in range(9)), [off(0.0201).double()]]
    require_equal("gradient", [off(0.02)], [off(0.0)], lambda: rounded)
    with pytest.raises(ORTModuleONNXModelException):  # another deviation, as large
        require_equal("gradient", [off(-0.02)], [off(0.0)], lambda: rounded)
    require_equal("gradient", [off(0.02)], [off(0.018)], lambda: itertools.chain(rounded[:4], _not_asked_for()))
    with pytest.raises(ORTModuleONNXModelException):  # so far off that it is no kink
        require_equal("gradient", [off(0.2)], [off(0.0)], lambda: itertools.chain(rounded[:4], _not_asked_for()))


def _not_asked_for():
    raise AssertionError
    yield


def test_the_kinks_of_a_net_are_no_mistakes():
    """One of its 50,000 elements is on the other side of its kink in onnxruntime, on some processors at least."""
    torch.manual_seed(43)
    widths = 784, 256, 256, 256
    layers = [[nn.Linear(*pair), nn.ReLU()] for pair in itertools.pairwise(widths)]
    module = ORTModule(nn.Sequential(*itertools.chain.from_iterable(layers), nn.Linear(256, 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        module(torch.randn(64, 784)).sum().backward()


def test_many_small_mistakes_are_not_excused_by_a_large_one():
    """A kink turns single elements over, a mistake concerns all of them."""
    exact = torch.linspace(1, 2, 1000, dtype=torch.float64)
    theirs = exact.float()
    theirs[7] += 0.05
    with pytest.raises(ORTModuleONNXModelException):
        require_equal("gradient", [(exact * 1.01).float()], [theirs], lambda: [[exact]])


@pytest.mark.parametrize(("ours", "is_rounding"), [(2e-5, True), (5e-5, False)])
def test_what_cancels_out_is_no_noisier_than_in_torch(ours, is_rounding):
    nothing = torch.full((3,), 1e-14, dtype=torch.float64)
    expected = [torch.full((2,), 1.0), torch.tensor([0.0, -1e-5, 0.0])]

    def compare(noise):
        found = [expected[0], torch.tensor([0.0, ours, 0.0])]
        require_equal("gradient", found, expected, lambda: [[expected[0].double(), nothing]], noise)

    if is_rounding:
        compare(1e-3)
        with pytest.raises(ORTModuleONNXModelException):
            compare(0.0)  # results are no gradients: nothing else is a measure of them
    else:
        with pytest.raises(ORTModuleONNXModelException, match="gradient 1 of the graph differs"):
            compare(1e-3)


def test_what_is_not_a_number_is_no_rounding():
    wrong = off(0.0)
    wrong[0] = torch.nan
    with pytest.raises(ORTModuleONNXModelException):
        require_equal("result", [wrong], [off(0.0)], lambda: [[EXACT]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_so_in_the_same_places(odd, dtype):
    expected = torch.tensor([1.0, odd, 2.0], dtype=dtype)
    require_equal("result", [expected.clone()], [expected], list)
    for found in (
        [1.0, 5.0, 2.0],
        [1.0, odd, odd],
        [odd, 1.0, 2.0],
        [1.0, odd, 2.5],
        [1.0, -odd if odd == odd else 0.0, 2.0],
    ):
        with pytest.raises(ORTModuleONNXModelException):
            require_equal("result", [torch.tensor(found, dtype=dtype)], [expected], list)
        with pytest.raises(ORTModuleONNXModelException):
            require_equal("result", [expected], [torch.tensor(found, dtype=dtype)], list)
