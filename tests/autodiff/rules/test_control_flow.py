"""If, Loop and Scan, against differences, first and second order, on onnxruntime (which runs them in double)."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from onward import gradient
from onward.testing import check_gradient, run_on_runtime

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
RANDOM = np.random.default_rng(0)

# Both branches capture `w`; only one captures `v`.
IF = """
agraph (double[3] x, bool flag) => (double y)
<double[3] w = {0.5, -1.0, 2.0}, double[3] v = {1.0, 1.5, -2.0}>
{
  z = If (flag) <
    then_branch = g1 () => (z_then) { a = Mul (x, w)  z_then = Tanh (a) },
    else_branch = g2 () => (z_else) { b = Mul (x, v)  c = Sin (b)  z_else = Mul (c, w) }
  >
  y = ReduceSum <keepdims = 0> (z)
}
"""

# Weights in the branches themselves: an initializer and a Constant.
IF_WITH_OWN_WEIGHTS = """
agraph (double[2] x, bool flag) => (double y)
{
  z = If (flag) <
    then_branch = g1 () => (z_then) <double[2] w = {0.5, -1.0}> { z_then = Mul (x, w) },
    else_branch = g2 () => (z_else) { k = Constant <value = double[2] {3.0, 4.0}> ()  z_else = Mul (x, k) }
  >
  y = ReduceSumSquare <keepdims = 0> (z)
}
"""

NESTED = """
agraph (double[2] x, bool a, bool b) => (double y)
<double[2] w = {0.5, -1.0}>
{
  z = If (a) <
    then_branch = g1 () => (z1) {
      z1 = If (b) <
        then_branch = g2 () => (z2) { t = Mul (x, w)  z2 = Exp (t) },
        else_branch = g3 () => (z3) { z3 = Mul (w, w) }
      >
    },
    else_branch = g4 () => (z4) { z4 = Sin (x) }
  >
  y = ReduceSum <keepdims = 0> (z)
}
"""

# A state, an integer counter that the body uses, and a scan output.
LOOP = """
agraph (double[3] x, int64 n) => (double y)
<double[3] w = {0.5, -1.0, 2.0}, bool yes = {1}, double zero = {0.1}>
{
  h, count, hs = Loop (n, yes, x, zero) <
    body = b (int64 i, bool c, double[3] h_in, double k) => (bool c_out, double[3] h_out, double k_out, double[3] s) {
      c_out = Identity (c)
      t = Cast <to = 11> (i)
      a = Mul (h_in, w)
      d = Add (a, t)
      h_out = Tanh (d)
      k_out = Add (k, k)
      s = Mul (h_out, k)
    }
  >
  y1 = ReduceSum <keepdims = 0> (h)
  y2 = ReduceSumSquare <keepdims = 0> (hs)
  y3 = Add (y1, y2)
  y = Add (y3, count)
}
"""

# The body decides itself when to stop.
WHILE = """
agraph (double x) => (double y)
<double w = {1.5}, bool yes = {1}, double limit = {10.0}>
{
  y = Loop (, yes, x) <
    body = b (int64 i, bool c, double h_in) => (bool c_out, double h_out) {
      h_out = Mul (h_in, w)
      c_out = Less (h_out, limit)
    }
  >
}
"""

SCAN = """
agraph (double[2] x, double[2, 4] xs) => (double y)
<double[2] w = {0.5, -1.0}>
{
  h, hs = Scan <
    num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
    scan_output_axes = [1], scan_output_directions = [0],
    body = b (double[2] h_in, double[2] e) => (double[2] h_out, double[2] s) {
      a = Mul (h_in, w)
      d = Add (a, e)
      h_out = Tanh (d)
      s = Sin (h_out)
    }
  > (x, xs)
  y1 = ReduceSum <keepdims = 0> (h)
  y2 = ReduceSumSquare <keepdims = 0> (hs)
  y = Add (y1, y2)
}
"""


def _check(text: str, feeds: dict[str, np.ndarray], wrt: list[str], *, second_order: bool = True) -> None:
    model = onnx.parser.parse_model(HEADER + text)
    check_gradient(model, feeds, wrt=wrt, run=run_on_runtime, second_order=second_order)


@pytest.mark.parametrize("flag", [True, False])
def test_if(flag: bool) -> None:
    _check(IF, {"x": RANDOM.normal(size=3), "flag": np.array(flag)}, ["w", "v", "x"])


@pytest.mark.parametrize("flag", [True, False])
def test_if_with_weights_of_its_own(flag: bool) -> None:
    _check(IF_WITH_OWN_WEIGHTS, {"x": RANDOM.normal(size=2), "flag": np.array(flag)}, ["x"])
    differentiated = gradient(onnx.parser.parse_model(HEADER + IF_WITH_OWN_WEIGHTS), wrt=["w", "k"])
    x = np.array([1.0, 2.0])
    results = run_on_runtime(differentiated, {"x": x, "flag": np.array(flag)})
    # y = sum (x w)^2, so dy/dw = 2 x^2 w in the branch that runs, 0 in the other.
    np.testing.assert_allclose(results["w_grad"], 2 * x * x * [0.5, -1.0] if flag else [0, 0])
    np.testing.assert_allclose(results["k_grad"], [0, 0] if flag else 2 * x * x * [3.0, 4.0])


@pytest.mark.parametrize(("a", "b"), [(True, True), (True, False), (False, True)])
def test_nested_if(a: bool, b: bool) -> None:
    _check(NESTED, {"x": RANDOM.normal(size=2), "a": np.array(a), "b": np.array(b)}, ["w", "x"])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_loop(n: int) -> None:
    _check(LOOP, {"x": RANDOM.normal(size=3), "n": np.array(n)}, ["w", "x", "zero"])


def test_loop_that_stops_by_itself() -> None:
    _check(WHILE, {"x": np.array(1.1)}, ["w", "x"])


def test_scan() -> None:
    _check(SCAN, {"x": RANDOM.normal(size=2), "xs": RANDOM.normal(size=(2, 4))}, ["w", "x", "xs"])
