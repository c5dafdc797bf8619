"""Training graphs are as accurate as `onward.gradient`, also where channels nearly depend on each other."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onward import gradient
from onward.testing import run_on_reference
from onward.testing.training import PATHS, by_gradient, subject_of

PARAMETERS = ("w", "scale", "bias")


def grey() -> tuple[np.ndarray, np.ndarray]:
    """A picture of 0 to 255 that is grey but for a little noise, and filters orthogonal to grey."""
    random = np.random.default_rng(0)
    x = random.uniform(0, 255, (4, 1, 8, 8)) + random.normal(size=(4, 3, 8, 8)) * 1e-2
    w = random.normal(size=(6, 3))
    return x, w - w.mean(axis=1, keepdims=True)


def rank_two() -> tuple[np.ndarray, np.ndarray]:
    """16 channels that are combinations of 2, and filters that hardly see those."""
    random = np.random.default_rng(1)
    basis = random.normal(size=(16, 2))
    x = np.einsum("cr,nrhw->nchw", basis, random.normal(size=(4, 2, 8, 8)) * 50)
    w = random.normal(size=(32, 16))
    inside, _ = np.linalg.qr(basis)
    return x + random.normal(size=x.shape) * 1e-3, w - w @ inside @ inside.T


def constant() -> tuple[np.ndarray, np.ndarray]:
    """Channels that are the same everywhere, far from 0."""
    random = np.random.default_rng(2)
    return 1000 + random.normal(size=(4, 3, 8, 8)) * 1e-2, random.normal(size=(6, 3))


def model_of(x: np.ndarray, w: np.ndarray, dtype: type) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    channels = len(w)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n", "m", "v"], training_mode=1, momentum=0.9
        ),
        helper.make_node("Tanh", ["n"], ["y"]),
    ]
    random = np.random.default_rng(3)
    stored = {"w": w[:, :, None, None], "scale": random.uniform(0.5, 2, channels), "bias": random.normal(size=channels)}
    stored |= {"mean": np.zeros(channels), "var": np.ones(channels)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes,
        "normalized",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array.astype(np.float32).astype(dtype), name) for name, array in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert kind in (TensorProto.FLOAT, TensorProto.DOUBLE)
    return model, {"x": x.astype(np.float32).astype(dtype)}


def error(got: dict[str, np.ndarray], exact: dict[str, np.ndarray]) -> dict[str, float]:
    """By which part of its largest element each gradient is off."""
    names = [f"{name}_grad" for name in PARAMETERS]
    return {name: float(np.abs(got[name] - exact[name]).max() / np.abs(exact[name]).max()) for name in names}


@pytest.mark.parametrize("inputs", [grey, rank_two, constant])
def test_normalisation_of_dependent_channels(inputs):
    model, feeds = model_of(*inputs(), np.float32)
    subject = subject_of(model, feeds, PARAMETERS, None, (), "static")
    wide, wide_feeds = model_of(*inputs(), np.float64)
    cotangent = subject.weights["y.weight"].astype(np.float64)
    exact = run_on_reference(gradient(wide, wrt=PARAMETERS), {**wide_feeds, "y_grad": cotangent})
    plain = error(by_gradient(subject), exact)
    for path in PATHS:
        got = error(path(subject), exact)
        worse = {name: (got[name], plain[name]) for name in got if not got[name] < 4 * plain[name] + 1e-5}
        assert not worse, f"{path.__name__}: off by so much, and the plain form by: {worse}"
