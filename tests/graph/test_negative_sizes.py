"""A window larger than its image: onnx infers a negative size, and to slice that ends the process."""

from __future__ import annotations

import subprocess
import sys

import onnx

import onward

# Slices behind an operator whose result might have a negative size, which follows from that of x only.
MODELS = {
    "Conv": """<ir_version: 8, opset_import: ["" : 18]> g (float[1, 1, LENGTH] x) => (float[a, b, c] y)
        <float[1, 1, 5] w = {1, 2, 3, 4, 5}, int64[1] a = {1}, int64[1] b = {-1}, int64[1] axis = {2}> {
            c = Conv(x, w)
            y = Slice(c, a, b, axis)
        }""",
    "Slices": """<ir_version: 8, opset_import: ["" : 18]> g (float[1, 1, LENGTH] x) => (float[a, b, c] y)
        <float[1, 1, 3] w = {1, 2, 3}, int64[1] a = {1}, int64[1] b = {-1}, int64[1] axis = {-1}> {
            c = Conv(x, w)
            d = Slice(c, a, b, axis)
            e = AveragePool<kernel_shape = [2]>(d)
            f = Slice(e, a, b, axis)
            y = Slice(f, a, b, axis)
        }""",
    "Pad": """<ir_version: 8, opset_import: ["" : 10]> g (float[LENGTH] x, float[4] w) => (float[c] y)
        <int64[1] a = {1}, int64[1] b = {9}> {
            c = Pad<pads = [-2, -2]>(x)
            d = Slice(c, a, b)
            y = Mul(d, d)
        }""",
    "branch": """<ir_version: 8, opset_import: ["" : 18]> g (float[1, 1, LENGTH] x, bool p) => (float[a, b, c] y)
        <float[1, 1, 5] w = {1, 2, 3, 4, 5}, int64[1] a = {1}, int64[1] b = {-1}, int64[1] axis = {2}> {
            c = Conv(x, w)
            y = If(p) <then_branch = t () => (float[1, 1, d] y1) { y1 = Slice(c, a, b, axis) },
                       else_branch = e () => (float[1, 1, d] y2) { y2 = Relu(c) }>
        }""",
}


def _in_a_process(length: str, statement: str) -> list[str]:
    """What is printed for each of the models, in a process of their own: it might end."""
    models = [model.replace("LENGTH", length) for model in MODELS.values()]
    program = f"""
import onnx, onward
for model in map(onnx.parser.parse_model, {models!r}):
    try:
        {statement}
    except onward.OnwardError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_gradient_says_what_does_not_fit() -> None:
    said = _in_a_process("1", "onward.gradient(model, wrt=['x'])")
    assert len(said) == len(MODELS)
    for line in said:
        assert "would have a result of shape" in line
        assert "too small" in line


def test_check_assumes_sizes_that_fit() -> None:
    said = _in_a_process("T", "print(onward.check(model, wrt=['x']).flops.dims['T'])")
    assert said == ["16", "16", "1", "16"]  # the first axis of an input counts as a batch


def test_slices_behind_windows_that_fit_are_followed() -> None:
    gradient = onward.gradient(onnx.parser.parse_model(MODELS["Slices"].replace("LENGTH", "20")), ["x"])
    (y,) = (value for value in gradient.graph.output if value.name == "y")
    assert [size.dim_value for size in y.type.tensor_type.shape.dim] == [1, 1, 11]
