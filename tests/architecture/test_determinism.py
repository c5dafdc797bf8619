"""Same input, same bytes: in one process, in another with other hashes, and in many threads at once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onward

# Shared values, broadcasting of unknown dimensions, several outputs, a branch that captures a weight, an operator that
# is expanded by its standard body, and an opset that has to rise.
TEXTS = {
    "branch": """<ir_version: 8, opset_import: ["" : 17]>
    branch (float[N, 3] x, bool flag) => (float[N, 3] y, float loss) {
        a = MatMul(x, w)
        b = Add(a, bias)
        c = Mul(b, b)
        y = If (flag) <
            then_branch = yes () => (float[N, 3] t) { p = Sigmoid(c) t = Mul(p, bias) },
            else_branch = no () => (float[N, 3] u) { q = MatMul(c, w) u = Tanh(q) }
        >
        d = Sub(y, b)
        e = Abs(d)
        loss = ReduceMean<keepdims = 0>(e)
    }""",
    "expanded": """<ir_version: 8, opset_import: ["" : 18]>
    expanded (float[N, 3] x) => (float[N, 3] y, float loss) {
        a = Mul(x, bias)
        y = MeanVarianceNormalization<axes = [0, 1]>(a)
        b = MatMul(y, w)
        loss = ReduceSum<keepdims = 0>(b)
    }""",
    "rising": """<ir_version: 7, opset_import: ["" : 11]>
    rising (float[N, M] x, float[K, L] s) => (float[N, 3] y, float loss) {
        a = Mul(x, s)
        b = MatMul(a, w)
        y = Add(b, bias)
        loss = ReduceSum<keepdims = 0>(y)
    }""",
}


def build(name: str) -> bytes:
    model = onnx.parser.parse_model(TEXTS[name])
    random = np.random.default_rng(0)
    for weight, shape in (("w", (3, 3)), ("bias", (3,))):
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float32), weight))
    first = onward.gradient(model, of=["y", "loss"])
    second = onward.gradient(first, wrt=["x", "w"], of=["w_grad"])
    return first.SerializeToString() + second.SerializeToString()


def digest(name: str) -> str:
    return hashlib.sha256(build(name)).hexdigest()


@pytest.mark.parametrize("name", TEXTS)
def test_twice_in_one_process(name: str) -> None:
    assert build(name) == build(name)


def test_in_processes_with_other_hashes() -> None:
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, check=True)
        assert run.stdout.split() == [digest(name) for name in TEXTS]


def test_in_many_threads_at_once() -> None:
    """Builders are private to a thread: graphs built at the same time do not see each other's nodes or names."""
    alone = {name: build(name) for name in TEXTS}
    jobs = list(TEXTS) * 8
    with ThreadPoolExecutor(max_workers=6) as pool:
        for name, together in zip(jobs, pool.map(build, jobs), strict=True):
            assert together == alone[name]


def test_one_model_shared_by_many_threads() -> None:
    """The caller's model is only read, so threads may share it."""
    model = onnx.parser.parse_model(TEXTS["branch"])
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 3), np.float32) / 3, "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32) / 3, "bias"))
    with ThreadPoolExecutor(max_workers=6) as pool:
        results = list(pool.map(lambda _: onward.gradient(model).SerializeToString(), range(24)))
    assert len(set(results)) == 1


if __name__ == "__main__":
    print(*map(digest, TEXTS))
