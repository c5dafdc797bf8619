"""Training graphs compute the gradients of `onward.gradient`, for models that every form and lowering is made for."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from onward.errors import InvalidModelError, NotDifferentiableError
from onward.graph.builder import Builder
from onward.testing import check_training
from onward.testing.training import subject_of
from onward.training import lowering
from onward.training import split as splitting
from tests.training.cases import CASES, Case
from tests.training.firing import fired, functions

# Runs when the module is loaded.
ELSEWHERE = {"lowering/__init__._first_of"}
RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


def check(name: str) -> None:
    case = CASES[name]
    check_training(case.model(), case.feeds(), wrt=case.wrt, layouts=case.layouts)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_rules(name: str) -> None:
    if CASES[name].since <= RUNTIME:
        check(name)
    else:
        with pytest.raises((InvalidModelError, NotDifferentiableError)):
            check(name)


def test_a_rank_that_only_the_declaration_of_an_output_says() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 13]> g (float[N, 1, 4] x, float[4] w) => (float[M] y) {
            products = Mul (x, w)
            row = Squeeze (products)
            y = Concat <axis = 0> (row, row)
        }"""
    )
    feeds = {name: np.arange(1, 5, dtype=np.float32).reshape(shape) for name, shape in (("x", (1, 1, 4)), ("w", 4))}
    check_training(model, feeds, wrt=["w"])


def test_every_form_and_lowering_is_used() -> None:
    """None is proved by never running: each of their functions returns something for one of the models above."""
    others = {name for name in functions() if name.startswith("lowering/webgpu.")}  # see test_webgpu.py
    missing = functions() - others - ELSEWHERE
    for case in _different_ones_first():
        for layout in case.layouts:
            subject = subject_of(case.model(), case.feeds(), case.wrt, None, (), layout)
            with fired() as here:
                splitting.split(subject.model, trainable=list(subject.parameters.values()))
            missing -= here
        if not missing:
            return
    assert not missing


def _different_ones_first() -> Iterator[Case]:
    """One case of each kind, then the next of each: most of the functions are used by the first."""
    kinds: dict[str, list[Case]] = {}
    for name, case in CASES.items():
        if case.since <= RUNTIME:
            kinds.setdefault(name.partition(",")[0], []).append(case)
    for rank in itertools.zip_longest(*kinds.values()):
        yield from (case for case in rank if case is not None)


def test_a_lowering_that_is_off_by_a_hundredth_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = lowering.masks.mask

    def wrong(op: Builder, node: ir.Node, steep: Collection[ir.Node]) -> list[ir.Value] | None:
        found = right(op, node, steep)
        return None if found is None else [value * 1.01 for value in found]

    monkeypatch.setattr(lowering.masks, "mask", wrong)
    with pytest.raises(AssertionError, match=r"by_split, static: [vwx]_grad is off by"):
        check("rectified, float32")
