"""Operators of onnxruntime: rewritten ones are no obstacle, refused ones have their own words."""

from __future__ import annotations

import numpy as np

import onward
from onward.graph import contrib
from tests.inspection.models import WEIGHT, model

MICROSOFT = ', "com.microsoft" : 1'


def test_rewritten_operators() -> None:
    forward = model(
        """fused (float[N, 2] x) => (float[N, 2] y) {
            a = com.microsoft.FusedMatMul<transB = 1>(x, w)
            b = com.microsoft.FastGelu(a, bias)
            y = SimplifiedLayerNormalization<axis = -1, epsilon = 1e-5, stash_type = 1>(b, scale)
        }""",
        domains=MICROSOFT,
        w=WEIGHT,
        bias=np.array([0.5, 2], np.float32),
        scale=np.array([0.25, 2], np.float32),
    )
    report = onward.check(forward, dims={"N": 4})
    assert report.ok, report
    assert {operator.name: operator.how for operator in report.operators} == {
        "SimplifiedLayerNormalization": "rewritten",
        "com.microsoft.FastGelu": "rewritten",
        "com.microsoft.FusedMatMul": "rewritten",
    }
    assert [parameter.name for parameter in report.trainable] == ["w", "bias", "scale"]
    assert "rewritten to standard operators" in str(report)
    assert report.flops is not None
    assert report.flops.forward > 2 * 4 * 2 * 2, "counted in what they are rewritten to"


def test_operators_that_no_rewriter_is_for() -> None:
    forward = model(
        """refused (float[4, 2] x) => (float[4, 2] y) {
            a = MatMul(x, w)
            y = com.microsoft.SparseAttention(a, a, a)
        }""",
        domains=MICROSOFT,
        w=WEIGHT,
    )
    (blocker,) = onward.check(forward).blockers
    assert (blocker.operator, blocker.nodes) == ("com.microsoft.SparseAttention", ["y"])
    assert blocker.reason == "cannot be rewritten to standard operators"
    assert (
        blocker.remedy
        == f"{contrib.MICROSOFT.refused['SparseAttention']} Or leave the parameters before these nodes out of `wrt`."
    )


def test_a_form_that_the_rewriter_does_not_know() -> None:
    forward = model(
        """left (float[4, 2] x) => (float[4, 2] y) {
            a = MatMul(x, w)
            y = com.microsoft.FusedMatMul<novelty = 1>(a, w)
        }""",
        domains=MICROSOFT,
        w=WEIGHT,
    )
    report = onward.check(forward)
    (blocker,) = report.blockers
    assert (blocker.operator, blocker.nodes, blocker.parameters) == ("com.microsoft.FusedMatMul", ["y"], ["w"])
    assert blocker.reason == "its attribute novelty is not known"
    assert "before it was optimized" in blocker.remedy
    assert "rewritten to standard operators: a blocker" in str(report)


def test_an_unknown_operator_of_onnxruntime() -> None:
    forward = model(
        "unknown (float[4, 2] x) => (float[4, 2] y) { a = MatMul(x, w) y = com.microsoft.Hologram(a) }",
        domains=MICROSOFT,
        w=WEIGHT,
    )
    (blocker,) = onward.check(forward).blockers
    assert blocker.remedy.startswith("A fused operator of onnxruntime: use the model as it was before")
