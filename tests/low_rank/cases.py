"""Models with a layer in every form that a low-rank pair is added to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper


@dataclass(frozen=True)
class Case:
    """A model in the text form of onnx, the shapes of its float weights, and what comes of it.

    Attributes:
        pairs: the weights that get a pair by the pattern.
        merged: the nodes' weights after merging that were not there before.
    """

    text: str
    weights: Mapping[str, tuple[int, ...]]
    pairs: tuple[str, ...] = ("w",)
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: {"x": (3, 4)})
    pattern: str = "*"
    merged: tuple[str, ...] = ()
    others: Mapping[str, np.ndarray] = field(default_factory=dict)
    opset: int = 17
    ir_version: int = 8

    def model(self, dtype: type[np.floating] = np.float32) -> onnx.ModelProto:
        kind = {np.float32: "float", np.float64: "double", np.float16: "float16"}[dtype]
        head = f'<ir_version: {self.ir_version}, opset_import: ["": {self.opset}]>\n'
        model = onnx.parser.parse_model(head + self.text.replace("float[", f"{kind}["))
        random = np.random.default_rng(0)
        for name, shape in self.weights.items():
            array = random.normal(size=shape).astype(dtype)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        for name, array in self.others.items():
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        return model

    def feeds(self, dtype: type[np.floating] = np.float32) -> dict[str, np.ndarray]:
        random = np.random.default_rng(1)
        return {name: random.normal(size=shape).astype(dtype) for name, shape in self.inputs.items()}


_IMAGE = {"x": (2, 4, 7, 6)}
_ABOVE_ZERO = "z = ReduceMax <keepdims = 0> (x)  b = Greater(z, zero)"

CASES = {
    "matmul": Case("net (float[N, 4] x) => (float[N, 5] y) { y = MatMul(x, w) }", {"w": (4, 5)}),
    "matmul with a bias": Case(
        "net (float[N, 4] x) => (float[N, 5] y) { h = MatMul(x, w) y = Add(c, h) }", {"w": (4, 5), "c": (5,)}
    ),
    "matmul with a residual": Case(
        "net (float[N, 4] x) => (float[N, 4] y) { h = MatMul(x, w) y = Add(h, x) }", {"w": (4, 4)}
    ),
    "matmul whose bias has more axes": Case(
        "net (float[N, 4] x) => (float[2, N, 5] y) { h = MatMul(x, w) y = Add(h, c) }", {"w": (4, 5), "c": (2, 1, 5)}
    ),
    "matmul of sequences": Case(
        "net (float[N, T, 4] x) => (float[N, T, 5] y) { y = MatMul(x, w) }", {"w": (4, 5)}, inputs={"x": (2, 3, 4)}
    ),
    "matmul of a vector": Case(
        "net (float[4] x) => (float[5] y) { y = MatMul(x, w) }", {"w": (4, 5)}, inputs={"x": (4,)}
    ),
    "matmul by a stack": Case(
        "net (float[N, 3, T, 4] x) => (float[N, 3, T, 5] y) { y = MatMul(x, w) }",
        {"w": (3, 4, 5)},
        inputs={"x": (2, 3, 2, 4)},
    ),
    "matmul from the left": Case(
        "net (float[N, 4, T] x) => (float[N, 5, T] y) { y = MatMul(w, x) }", {"w": (5, 4)}, inputs={"x": (2, 4, 3)}
    ),
    "gemm": Case("net (float[N, 4] x) => (float[N, 5] y) { y = Gemm(x, w, c) }", {"w": (4, 5), "c": (5,)}),
    "gemm transposed and scaled": Case(
        "net (float[N, 4] x) => (float[N, 5] y) { y = Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, w, c) }",
        {"w": (5, 4), "c": (5,)},
    ),
    "gemm of a transposed input": Case(
        "net (float[4, N] x) => (float[N, 5] y) { y = Gemm <transA = 1> (x, w) }", {"w": (4, 5)}, inputs={"x": (4, 3)}
    ),
    "gemm from the left": Case(
        "net (float[N, 4] x) => (float[5, N] y) { y = Gemm <transA = 1, transB = 1> (w, x) }", {"w": (4, 5)}
    ),
    "conv 1-D": Case(
        "net (float[N, 4, T] x) => (float[N, 5, S] y) { y = Conv <pads = [1, 2], strides = [2]> (x, w, c) }",
        {"w": (5, 4, 3), "c": (5,)},
        inputs={"x": (2, 4, 9)},
    ),
    "conv 2-D": Case(
        """net (float[N, 4, H, W] x) => (float[N, 5, I, J] y) {
            y = Conv <kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1], dilations = [1, 2]> (x, w)
        }""",
        {"w": (5, 4, 3, 2)},
        inputs=_IMAGE,
    ),
    "conv of 1x1": Case(
        "net (float[N, 4, H, W] x) => (float[N, 5, H, W] y) { y = Conv(x, w) }", {"w": (5, 4, 1, 1)}, inputs=_IMAGE
    ),
    "conv in groups": Case(
        "net (float[N, 4, H, W] x) => (float[N, 6, I, J] y) { y = Conv <group = 2, auto_pad = \"SAME_UPPER\"> (x, w) }",
        {"w": (6, 2, 3, 3)},
        inputs=_IMAGE,
    ),
    "conv by channel": Case(
        "net (float[N, 4, H, W] x) => (float[N, 8, I, J] y) { y = Conv <group = 4> (x, w) }",
        {"w": (8, 1, 3, 3)},
        inputs=_IMAGE,
    ),
    "conv 3-D": Case(
        "net (float[N, 2, D, H, W] x) => (float[N, 3, E, I, J] y) { y = Conv <pads = [1, 1, 1, 1, 1, 1]> (x, w) }",
        {"w": (3, 2, 3, 2, 2)},
        inputs={"x": (1, 2, 3, 4, 3)},
    ),
    "behind a transposition": Case(
        "net (float[N, 4] x) => (float[N, 5] y) { v = Transpose <perm = [1, 0]> (w) y = MatMul(x, v) }", {"w": (5, 4)}
    ),
    "behind a transposition that reverses": Case(
        "net (float[N, 4] x) => (float[N, 5] y) { v = Transpose(w) u = Identity(v) y = Gemm(x, u) }", {"w": (5, 4)}
    ),
    "behind a reshape": Case(
        "net (float[N, 4] x) => (float[N, 5] y) { v = Reshape(w, shape) y = MatMul(x, v) }",
        {"w": (2, 2, 5)},
        others={"shape": np.array([4, -1])},
    ),
    "in a Constant node": Case(
        """net (float[N, 2] x) => (float[N, 2] y) {
            w = Constant <value = float[2, 2] {1.0, 2.0, -3.0, 0.5}> () y = MatMul(x, w)
        }""",
        {},
        inputs={"x": (3, 2)},
    ),
    "shared by two layers": Case(
        "net (float[N, 4] x) => (float[N, 4] y) { h = MatMul(x, w) r = Tanh(h) y = MatMul(r, w) }", {"w": (4, 4)}
    ),
    "shared, of which one is named": Case(
        "net (float[N, 4] x) => (float[N, 4] y) { h = MatMul(x, w) r = Tanh(h) y = MatMul(r, w) }",
        {"w": (4, 4)},
        pattern="y",
        merged=("w.merged",),
    ),
    "shared in two forms": Case(
        """net (float[N, 4] x) => (float[N, 4] y) {
            h = MatMul(x, w) r = Tanh(h) v = Transpose <perm = [1, 0]> (w) y = MatMul(r, v)
        }""",
        {"w": (4, 5)},
        pairs=("w", "w"),
        merged=("w.merged",),
    ),
    "tied to an embedding": Case(
        """net (float[N, 4] x) => (float[N, 5] y) {
            e = Gather <axis = 0> (w, ids) s = Add(x, e) y = Gemm <transB = 1> (s, w)
        }""",
        {"w": (5, 4)},
        others={"ids": np.array([1, 0, 3])},
        merged=("w.merged",),
    ),
    "asked for its size": Case(
        """net (float[N, 4] x) => (float[N, 5] y) {
            s = Shape(w) h = MatMul(x, w) n = CastLike(s, x) m = ReduceMax <keepdims = 0> (n) y = Mul(h, m)
        }""",
        {"w": (4, 5)},
    ),
    "also an output": Case(
        "net (float[N, 4] x) => (float[N, 5] y, float[4, 5] w) { y = MatMul(x, w) }",
        {"w": (4, 5)},
        merged=("w.merged",),
    ),
    "in a branch": Case(
        f"""net (float[N, 4] x) => (float[N, 4] y) {{
            {_ABOVE_ZERO}
            y = If (b) <
                then_branch = yes () => (float[N, 4] t) {{ h = MatMul(x, w) t = Add(h, c) }},
                else_branch = no () => (float[N, 4] e) {{ e = MatMul(x, v) }}
            >
        }}""",
        {"w": (4, 4), "v": (4, 4), "c": (4,), "zero": ()},
        pairs=("w", "v"),
    ),
    "in a loop": Case(
        """net (float[N, 4] x) => (float[N, 4] y) {
            n = Constant <value_int = 3> ()
            t = Constant <value = bool {1}> ()
            y = Loop (n, t, x) <body = step (int64 i, bool p, float[N, 4] s) => (bool q, float[N, 4] r) {
                q = Identity(p) h = MatMul(s, w) r = Tanh(h)
            }>
        }""",
        {"w": (4, 4)},
    ),
    "result used twice": Case(
        "net (float[N, 4] x) => (float[N, 5] y) { h = MatMul(x, w) a = Tanh(h) y = Mul(a, h) }", {"w": (4, 5)}
    ),
    "an old file": Case(
        "net (float[N, 4] x, float[4, 5] w, float[5] c) => (float[N, 5] y) { y = Gemm(x, w, c) }",
        {"w": (4, 5), "c": (5,)},
        opset=7,
        ir_version=3,
    ),
}  # fmt: skip
