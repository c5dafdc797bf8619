"""Random models of operators that have rules: their gradient equals directional differences, in every form.

`make test` runs some hundred models, always the same, and `make test-all` thousands. To look for other ones:
ONWARD_RANDOM_GRAPHS=100000 python -m pytest tests/autodiff/test_random_graphs.py -m slow
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_graphs.checking import (
    NO_KERNEL,
    check_differences,
    check_form,
    check_second_order,
    describe,
    write,
)
from tests.random_graphs.operators import STEPS
from tests.random_graphs.program import Form, Program, RejectedError, Tensor, build, converted
from tests.random_graphs.trained import TRAINED

import onward
from onward.errors import OpsetError
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.graph.upgrade import upgrade
from onward.testing import run_on_runtime, temporary_rules
from onward.testing.training import LAYOUTS, PATHS, assert_equal, by_gradient, subject_of

OPSETS = (11, 12, 13, 15, 16, 17, 18, 20, 21, 22)
WANTED = os.environ.get("ONWARD_RANDOM_GRAPHS")


def examples(few: int, many: int) -> Callable[[Any], Any]:
    """Run a property as two tests: on few models always, on many where there is time."""

    def decorate(check: Callable[[Any], None]) -> Any:
        def run(many_of_them: bool) -> None:
            count = few if not many_of_them else many if WANTED is None else int(WANTED)
            profile = settings(
                max_examples=count,
                deadline=None,
                database=None,
                derandomize=WANTED is None,
                # Programs that make no sense are thrown away.
                suppress_health_check=list(HealthCheck),
            )
            profile(given(st.data())(check))()

        run.__doc__ = check.__doc__
        return pytest.mark.parametrize(
            "many_of_them", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"]
        )(run)

    return decorate


def written(data: Any, **options: Any) -> tuple[Program, list[Tensor]]:
    try:
        return write(lambda low, high: data.draw(st.integers(low, high)), **options)
    except RejectedError:
        hypothesis.reject()


def form_of(data: Any, program: Program, dtype: Any = np.float32, fed: bool = False) -> Form:
    """Any type of dimension for any axis, any opset, some of the leaves as parameters."""
    known = st.sampled_from(["static", "unknown", "shared", "own"])
    return Form(
        dtype,
        opset=data.draw(st.sampled_from(OPSETS)),
        dims=tuple(data.draw(st.lists(known, min_size=1, max_size=5))),
        parameters=data.draw(st.integers(0, len(program.leaves))),
        fed=fed,
    )


@examples(few=60, many=1000)
def test_gradients_equal_differences_in_every_form(data) -> None:
    """In float64 on the reference evaluator; the same in float32 on onnxruntime, with other dimensions and opsets."""
    program, outputs = written(data)
    hypothesis.note(describe(program, outputs))
    try:
        gradients = check_differences(program, outputs)
    except RejectedError:
        hypothesis.reject()
    form = form_of(data, program, fed=data.draw(st.integers(0, 3)) == 0)
    hypothesis.note(repr(form))
    check_form(program, outputs, gradients, form)


@examples(few=25, many=1000)
def test_training_graphs_compute_the_same(data) -> None:
    """With layers as forms and lowerings look for them, in any layout."""
    program, outputs = written(data, steps=[*sorted(TRAINED) * 4, *sorted(STEPS)])
    form = Form(opset=data.draw(st.sampled_from([17, 18, 20, 22])), dtype=np.float32)
    hypothesis.note(describe(program, outputs, form))
    model = build(program, outputs, form)
    feeds = {leaf.name: converted(leaf.array, np.float32) for leaf in program.leaves}
    layout = data.draw(st.sampled_from(LAYOUTS))
    try:
        subject = subject_of(model, feeds, list(feeds), None, (), layout)
        wanted = by_gradient(subject)
    except NO_KERNEL:
        hypothesis.reject()
    for path in PATHS:
        assert_equal(path(subject), wanted, f"{path.__name__}, {layout}")


@examples(few=15, many=300)
def test_second_derivatives_equal_differences_of_the_first(data) -> None:
    program, outputs = written(data, longest=3)
    hypothesis.note(describe(program, outputs))
    try:
        check_second_order(program, outputs)
    except RejectedError:
        hypothesis.reject()


@examples(few=15, many=300)
def test_gradients_have_the_type_of_what_they_are_of(data) -> None:
    """Of models for which onnxruntime has few kernels; the result is verified by inference."""
    program, outputs = written(data)
    form = form_of(data, program, np.float16)
    hypothesis.note(describe(program, outputs, form))
    try:
        model = build(program, outputs, form)
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        hypothesis.reject()  # operators that do not take this type
    first = onward.gradient(model, wrt=[leaf.name for leaf in program.leaves], of=[outputs[0].name])
    onnx.checker.check_model(first, full_check=True)
    kinds = {output.name: output.type.tensor_type.elem_type for output in first.graph.output}
    assert all(kinds[f"{leaf.name}_grad"] == onnx.TensorProto.FLOAT16 for leaf in program.leaves)


@examples(few=25, many=500)
def test_models_of_newer_opsets_compute_the_same(data) -> None:
    program, outputs = written(data)
    form = form_of(data, program)
    hypothesis.note(describe(program, outputs, form))
    old = build(program, outputs, form)
    feeds = {leaf.name: converted(leaf.array, np.float32) for leaf in program.leaves}
    try:
        before = run_on_runtime(old, feeds)
    except NO_KERNEL:
        hypothesis.reject()
    version = old.opset_import[0].version
    try:
        new = finish(upgrade(prepare(old), data.draw(st.integers(version, 23))))
    except OpsetError:
        hypothesis.reject()
    try:
        after = run_on_runtime(new, feeds)
    except NO_KERNEL[0]:
        hypothesis.reject()  # onnxruntime has fewer kernels of new opsets
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("op_type", "wrong"),
    [
        ("Mul", lambda op, node, dy: (dy * node.inputs[1], dy * node.inputs[0] * 0.999)),
        ("Sub", lambda op, node, dy: (dy, dy)),
        ("Max", lambda op, node, dy: [dy for _ in node.inputs]),
    ],
)
def test_wrong_rules_are_found(op_type: str, wrong: Any) -> None:
    """By differences, in one of forty programs of functions of two values."""
    found = 0
    with temporary_rules():
        onward.vjp(op_type, broadcast=True, override=True)(wrong)
        for seed in range(40):
            try:
                check_differences(*write(random.Random(seed).randint, ["binary_function"]))
            except AssertionError as error:
                found += "differences" in str(error)
            except RejectedError:
                continue
    assert found
