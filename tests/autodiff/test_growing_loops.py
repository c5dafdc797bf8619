"""Loops whose states grow, as the keys and values of a decoder do: gradients are those of the unrolled model."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import onward

STEPS = 3

# Each iteration appends a row, and attends to all that there are. CACHE is the declared type of the state.
DECODER = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2] x, float[0, 2] start) => (float y)
<float[2, 2] w = {0.5, -0.3, 0.8, 0.2}, int64 steps = {3}, bool yes = {1}, int64[1] last = {-1}> {
    end, cache = Loop(steps, yes, x, start) <body = b (int64 i, bool go, float[1, 2] h, CACHE before)
        => (bool on, float[1, 2] next, CACHE after) {
            on = Identity(go)
            row = MatMul(h, w)
            after = Concat<axis = 0>(before, row)
            turned = Transpose<perm = [1, 0]>(after)
            scores = MatMul(h, turned)
            share = Softmax<axis = -1>(scores)
            read = MatMul(share, after)
            next = Tanh(read)
        }>
    squares = Mul(cache, cache)
    a = ReduceSum<keepdims = 0>(squares)
    b = ReduceSum<keepdims = 0>(end)
    y = Add(a, b)
}"""

UNROLLED = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2] h0, float[0, 2] c0) => (float y)
<float[2, 2] w = {0.5, -0.3, 0.8, 0.2}> {
    BODY
    squares = Mul(cLAST, cLAST)
    a = ReduceSum<keepdims = 0>(squares)
    b = ReduceSum<keepdims = 0>(hLAST)
    y = Add(a, b)
}"""

DECLARED = ("float[n, 2]", "float[a, b]", "float[]")


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, feeds), strict=True))


def _unrolled() -> onnx.ModelProto:
    steps = "".join(
        f"""row{i} = MatMul(h{i}, w)
            c{i + 1} = Concat<axis = 0>(c{i}, row{i})
            turned{i} = Transpose<perm = [1, 0]>(c{i + 1})
            scores{i} = MatMul(h{i}, turned{i})
            share{i} = Softmax<axis = -1>(scores{i})
            read{i} = MatMul(share{i}, c{i + 1})
            h{i + 1} = Tanh(read{i})
        """
        for i in range(STEPS)
    )
    return onnx.parser.parse_model(UNROLLED.replace("BODY", steps).replace("LAST", str(STEPS)))


@pytest.mark.parametrize("declared", DECLARED)
def test_a_cache(declared: str) -> None:
    x, start = np.array([[0.3, -0.7]], np.float32), np.zeros((0, 2), np.float32)
    model = onnx.parser.parse_model(DECODER.replace("CACHE", declared))
    found = _run(onward.gradient(model, wrt=["w", "x"]), {"x": x, "start": start})
    wanted = _run(onward.gradient(_unrolled(), wrt=["w", "h0"]), {"h0": x, "c0": start})
    np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-6)
    np.testing.assert_allclose(found["w_grad"], wanted["w_grad"], rtol=1e-5)
    np.testing.assert_allclose(found["x_grad"], wanted["h0_grad"], rtol=1e-5)


# A state that doubles, in a loop of a loop; one that a branch appends to every other time; one cut by the number of the
# iteration; a body that says nothing of its states but their type.
GROWING = {
    "doubling in a loop": """(float[1, 2] x) => (float y)
        <float[2] w = {0.5, -0.3}, int64 two = {2}, bool yes = {1}> {
            end = Loop(two, yes, x) <body = b (int64 i, bool go, float[] s) => (bool on, float[] t) {
                on = Identity(go)
                t = Loop(two, yes, s) <body = c (int64 j, bool go_on, float[] p) => (bool still, float[] q) {
                    still = Identity(go_on)
                    scaled = Mul(p, w)
                    q = Concat<axis = 0>(p, scaled)
                }>
            }>
            squares = Mul(end, end)
            y = ReduceSum<keepdims = 0>(squares)
        }""",
    "a branch": """(float[1, 2] x) => (float y)
        <float[2] w = {0.5, -0.3}, int64 two = {2}, int64 three = {3}, int64 zero = {0}, bool yes = {1}> {
            end = Loop(three, yes, x) <body = b (int64 i, bool go, float[n, 2] s) => (bool on, float[m, 2] t) {
                on = Identity(go)
                odd = Mod(i, two)
                even = Equal(odd, zero)
                scaled = Mul(s, w)
                t = If(even) <then_branch = d () => (float[k, 2] u) { u = Concat<axis = 0>(s, scaled) },
                              else_branch = e () => (float[k, 2] v) { v = Identity(scaled) }>
            }>
            squares = Mul(end, end)
            y = ReduceSum<keepdims = 0>(squares)
        }""",
    "cut": """(float[5, 2] x) => (float y)
        <float[2] w = {0.5, -0.3}, int64 four = {4}, int64[1] zero = {0}, int64[1] five = {5}, bool yes = {1}> {
            end = Loop(four, yes, x) <body = b (int64 i, bool go, float[n, 2] s) => (bool on, float[n, 2] t) {
                on = Identity(go)
                length = Sub(five, i)
                part = Slice(s, zero, length, zero)
                t = Mul(part, w)
            }>
            squares = Mul(end, end)
            y = ReduceSum<keepdims = 0>(squares)
        }""",
}


@pytest.mark.parametrize("text", GROWING.values(), ids=GROWING)
def test_other_growth(text: str) -> None:
    """Compared with differences, which are exact enough for so few steps."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {text}')
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).uniform(0.5, 1, size=shape).astype(np.float32)
    found = _run(onward.gradient(model, wrt=["x", "w"]), {"x": x})
    step = np.float32(1e-2)
    for index in np.ndindex(*shape):
        shifted = [x.copy(), x.copy()]
        shifted[0][index] += step
        shifted[1][index] -= step
        high, low = (_run(model, {"x": other})["y"] for other in shifted)
        np.testing.assert_allclose(found["x_grad"][index], (high - low) / (2 * step), rtol=2e-3, atol=1e-3)


def test_growing_states_in_an_older_opset() -> None:
    """Loops carry sequences since opset 13: the model is moved there."""
    model = onnx.parser.parse_model(DECODER.replace("CACHE", "float[n, 2]").replace('"" : 17', '"" : 12'))
    gradient = onward.gradient(model, wrt=["w"])
    assert gradient.opset_import[0].version == 13
    _run(gradient, {"x": np.ones((1, 2), np.float32), "start": np.zeros((0, 2), np.float32)})
