"""onnxruntime normalises by the batch with statistics of its own, whatever else has the same values."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onward
from onward.runtime.session import open_session
from onward.testing import run_on_reference


def model_of(channels: int, dtype: type, uses_statistics: bool) -> onnx.ModelProto:
    """A new layer: scale and variance are ones, bias and mean are zeros."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["n", "m", "v"], training_mode=1),
        helper.make_node("Tanh", ["n"], ["t"]),
        helper.make_node("Transpose", ["t"], ["last"], perm=[0, 2, 1]),
        helper.make_node("Exp", ["v"], ["e"]),
        helper.make_node("Mul", ["last", "e"] if uses_statistics else ["last", "last"], ["y"]),
    ]
    stored = {"scale": np.ones, "bias": np.zeros, "mean": np.zeros, "var": np.ones}
    graph = helper.make_graph(
        nodes,
        "normalized",
        [helper.make_tensor_value_info("x", kind, ["N", channels, 5])],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(make(channels, dtype), name) for name, make in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("uses_statistics", [True, False])
@pytest.mark.parametrize("channels", [1, 3, 12])
def test_every_run_of_a_gradient_is_that_of_the_standard(channels: int, uses_statistics: bool, dtype: type) -> None:
    made = onward.gradient(model_of(channels, dtype, uses_statistics), wrt=["x", "scale", "bias"])
    random = np.random.default_rng(0)
    session = open_session(made.SerializeToString())
    for rows in (4, 6, 4):
        x = random.normal(1, 3, (rows, channels, 5)).astype(dtype)
        feeds = {"x": x, "y_grad": random.normal(size=(rows, 5, channels)).astype(dtype)}
        expected = run_on_reference(made, feeds)
        for output, got in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            np.testing.assert_allclose(got, expected[output.name], rtol=1e-4, atol=1e-5, err_msg=output.name)


def test_what_is_not_finite_stays_in_its_channel() -> None:
    made = onward.gradient(model_of(2, np.float32, False), wrt=["scale"])
    x = np.random.default_rng(0).normal(size=(4, 2, 5)).astype(np.float32)
    x[0, 0, 0] = np.inf
    results = open_session(made.SerializeToString()).run(None, {"x": x, "y_grad": np.ones((4, 5, 2), np.float32)})
    assert np.isfinite(results[0][..., 1]).all()


def test_check_says_that_the_file_itself_is_not_run_right() -> None:
    notes = onward.check(model_of(3, np.float32, False)).notes
    assert any("writes new running statistics over those of the file" in note for note in notes)
    evaluated = model_of(3, np.float32, False)
    evaluated.graph.node[0].attribute[0].i = 0
    del evaluated.graph.node[0].output[1:]
    del evaluated.graph.node[3]
    assert not any("running statistics over" in note for note in onward.check(evaluated).notes)
