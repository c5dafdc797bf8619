"""torch's own list of operators: graphs that were made for a sample compute what torch does for other numbers, too."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from tests.ortmodule.operators import DATA, Sample, operators, samples

PARTS = 60
# Numbers that leave nothing of an operator's gradient but rounding, multiplied by a million or as an exponent.
ROUNDED = {"nn.functional.normalize": {"small"}, "nn.functional.scaled_dot_product_attention": {"large"}}
# The numbers for which an operator is known to be otherwise. Strict both ways.
UNLIKE: dict[str, set[str]] = {
    # Below two tensors of bounds that are equal, torch gives neither a gradient.
    "clamp": {"halves", "rounded"},
    # torch does not say which of several equal elements it takes.
    "topk": {"zeros", "ones", "rounded", "halves"},
    "sort": {"zeros", "ones"},
    "msort": {"zeros", "ones"},
}


def _differs(found: Tensor | None, expected: Tensor | None, scale: float) -> bool:
    """By more than rounding, where torch has a number; no gradient is one of zeros."""
    if found is None or expected is None:
        there = found if expected is None else expected
        return there is not None and bool(there.any())
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return True
    if not expected.is_floating_point():
        return not torch.equal(found, expected)
    has_number = expected.isfinite()
    found, expected = found[has_number], expected[has_number]
    # Single precision keeps seven digits, sums and powers lose up to three of those of their largest element.
    largest = max([1.0, scale, *expected.abs().amax().view(-1).tolist()] if expected.numel() else [1.0])
    return not bool(((found - expected).abs() <= 1e-4 * largest).all())


def _unlike(sample: Sample) -> set[str] | None:
    """The numbers for which a graph computes something else; None where there is no graph, or no one result."""
    try:
        first, second = (sample.step(sample.module) for _ in range(2))
    except RuntimeError:  # without a gradient after all
        return None
    if any(y is not None and (y.is_complex() or y.layout is not torch.strided) for y in first):
        return None
    if any(_differs(y, z, 0.0) for y, z in zip(first, second, strict=True)):
        return None  # it draws random numbers, or leaves memory as it was
    net, found = ORTModule(sample.module), set[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        try:
            sample.step(net)
        except FallbackWarning:
            return None
    for kind, change in {"sample": None, **DATA}.items():
        if kind in ROUNDED.get(sample.operator, ()):
            continue
        try:
            wanted = sample.step(sample.module, change)
        except RuntimeError:  # torch takes no such numbers
            continue
        given = [t if change is None else change(t) for t in sample.tensors if t.is_floating_point()]
        scale = max([0.0, *(float(t.abs().max()) for t in given if t.numel())])
        has_numbers = not any(y is not None and y.is_floating_point() and y.isnan().any() for y in wanted)
        if has_numbers and any(_differs(y, z, scale) for y, z in zip(sample.step(net, change), wanted, strict=True)):
            found.add(kind)
    return found


@pytest.mark.filterwarnings("ignore")  # torch warns of what its samples do
@pytest.mark.parametrize("part", [pytest.param(n, marks=[pytest.mark.slow] if n else []) for n in range(PARTS)])
def test_operators(part: int) -> None:
    found: dict[str, set[str]] = {}
    for operator in operators()[part::PARTS]:
        for sample in samples(operator):
            unlike = _unlike(sample)
            if unlike is not None:
                found[sample.operator] = found.get(sample.operator, set()) | unlike
    assert {name: kinds for name, kinds in found.items() if kinds} == {
        name: kinds for name, kinds in UNLIKE.items() if name in found
    }
    assert len(found) > 1  # there are graphs at all; of matrices, torch has many operators that ONNX has not
