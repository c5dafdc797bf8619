"""Small whole models, with a bit of everything that a model may have, to be damaged."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.api import toys
from tests.conformance import cases
from tests.inspection.models import model

_random = np.random.default_rng(0)
WEIGHTS = {name: _random.normal(size=shape).astype(np.float32) for name, shape in toys.MLP_SHAPES.items()}


def _weight(*shape: int) -> np.ndarray:
    return _random.normal(size=shape).astype(np.float32)


TRANSFORMER = """block (int64[N, T] tokens) => (float[N, T, 4] y) {
    e = Gather(table, tokens)
    n = LayerNormalization<axis = -1>(e, scale, bias)
    q = MatMul(n, wq)
    k = MatMul(n, wk)
    t = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(q, t)
    p = Softmax<axis = -1>(s)
    a = MatMul(p, n)
    shape = Shape(a)
    flat = Constant<value = int64[2] {-1, 4}>()
    r = Reshape(a, flat)
    g = Gemm<transB = 1>(r, wo, bo)
    b = Reshape(g, shape)
    y = Add(b, e)
}"""
LOOP = """loop (float[3] x) => (float[3] y, float[5, 3] all) {
    five = Constant<value = int64 {5}>()
    yes = Constant<value = bool {1}>()
    y, all = Loop(five, yes, x) <body = step (int64 i, bool on, float[3] s) => (bool go, float[3] n, float[3] o) {
        go = Identity(on)
        m = Mul(s, w)
        n = Tanh(m)
        o = Identity(n)
    }>
}"""
BRANCH = """branch (float[N, 3] x, bool flag) => (float[N, 3] y) {
    y = If (flag) <
        then_branch = yes () => (float[N, 3] t) { t = Mul(x, w) },
        else_branch = no () => (float[N, 3] u) { u = Neg(x) }
    >
}"""
PICTURE = """picture (float[1, 2, 8, 8] x) => (float[1, 3, 8, 8] y) {
    c = Conv<pads = [1, 1, 1, 1], strides = [2, 2], group = 1>(x, w)
    m = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
    empty = Constant<value = float[0] {}>()
    scales = Constant<value_floats = [1.0, 1.0, 2.0, 2.0]>()
    r = Resize<mode = "linear">(m, empty, scales)
    t = ConvTranspose<strides = [2, 2], kernel_shape = [2, 2]>(r, v)
    pads = Constant<value = int64[8] {0, 0, 1, 1, 0, 0, 1, 1}>()
    p = Pad(t, pads)
    starts = Constant<value = int64[2] {1, 1}>()
    ends = Constant<value = int64[2] {9, 9}>()
    axes = Constant<value = int64[2] {2, 3}>()
    y = Slice(p, starts, ends, axes)
}"""
RECURRENT = """recurrent (float[4, N, 3] x) => (float[4, 1, N, 2] y, float[1, N, 2] h) {
    y, h = LSTM<hidden_size = 2>(x, w, r, b)
}"""
PIECES = """pieces (float[N, 6] x) => (float[N, 3] y) {
    sizes = Constant<value = int64[2] {3, 3}>()
    a, b = Split<axis = 1>(x, sizes)
    s = SequenceConstruct(a, b)
    one = Constant<value = int64 {1}>()
    c = SequenceAt(s, one)
    d = Concat<axis = 1>(c, a)
    m = MatMul(d, w)
    q = Einsum<equation = "ij,jk->ik">(m, v)
    z = Constant<value = int64[1] {0}>()
    u = Unsqueeze(q, z)
    k = Squeeze(u, z)
    reps = Constant<value = int64[2] {1, 1}>()
    y = Tile(k, reps)
}"""
FUNCTIONS = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
functions (float[N, 3] x) => (float[N, 3] y) {
    h = local.layer<slope = 0.25>(x, w)
    y = local.layer<slope = 0.5>(h, w)
}
<domain: "local", opset_import: ["" : 17]>
layer <slope> (x, w) => (y) {
    m = MatMul(x, w)
    y = LeakyRelu<alpha: float = @slope>(m)
}"""
FUSED = """fused (float[N, 3] x) => (float[N, 3] y) {
    m = com.microsoft.FusedMatMul<alpha = 0.5, transB = 1>(x, w)
    g = com.microsoft.BiasGelu(m, b)
    y = com.microsoft.QuickGelu<alpha = 1.7>(g)
}"""
LOSS = """loss (float[N, 3] p, float[N, 3] t) => (float l) {
    d = Sub(p, t)
    s = Mul(d, d)
    l = ReduceMean<keepdims = 0>(s)
}"""


@functools.cache
def serialized() -> list[bytes]:
    """The models, as files have them."""
    weights = {"w": _weight(3, 3), "b": _weight(3)}
    made = [
        toys.mlp(),
        toys.cnn(),
        toys.with_dropout(toys.mlp(), "active"),
        model(
            TRANSFORMER, table=_weight(9, 4), scale=_weight(4), bias=_weight(4), wq=_weight(4, 4), wk=_weight(4, 4),
            wo=_weight(4, 4), bo=_weight(4),
        ),
        model(LOOP, w=_weight(3)),
        model(BRANCH, w=_weight(3)),
        model(PICTURE, w=_weight(4, 2, 3, 3), v=_weight(4, 3, 2, 2)),
        model(RECURRENT, w=_weight(1, 8, 3), r=_weight(1, 8, 2), b=_weight(1, 16)),
        model(PIECES, w=_weight(6, 3), v=_weight(3, 3)),
        model(FUNCTIONS, w=weights["w"]),
        model(FUSED, domains=', "com.microsoft" : 1', **weights),
    ]  # fmt: skip
    return [proto.SerializeToString() for proto in made]


@functools.cache
def losses() -> list[bytes]:
    return [model(LOSS).SerializeToString()]


@functools.cache
def node_cases() -> list[bytes]:
    """A case of each operator that the standard has."""
    return [found[0].model.SerializeToString() for found in cases.by_operator().values()]


@functools.cache
def scratch() -> Path:
    """A folder for this process."""
    folder = tempfile.mkdtemp(prefix="onward-hostile-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@functools.cache
def trained() -> Path:
    """Artifacts of the MLP with an optimizer that clips."""
    base = toys.mlp()
    del base.graph.initializer[:]
    base.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in WEIGHTS.items())
    assert isinstance(base, onnx.ModelProto)
    return toys.generate(scratch() / "trained", base, frozen_params=["fc1.bias"], nominal_checkpoint=True)
