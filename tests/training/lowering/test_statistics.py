"""The gradient of batch normalisation by statistics that the node returns."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onward import gradient
from onward.testing import run_on_runtime
from onward.training.lowering import faster_rules

# Momentum, how the running statistics come in, and whether those that come out are taken.
CASES = {
    "own statistics": (0.0, "m = Identity(mean) v = Identity(var)", True),
    "some momentum": (0.1, "m = Identity(mean) v = Identity(var)", False),
    # onnxruntime would write the new ones where the given ones are.
    "statistics of somebody else, too": (0.0, "m = Identity(mean) v = Identity(var) other = Add(m, v)", False),
}


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(("momentum", "statistics", "taken"), CASES.values(), ids=CASES)
def test_batch_normalization(momentum, statistics, taken, mode):
    outputs = "y, new_mean, new_var" if mode else "y"
    other = ", float[3] other" if "other" in statistics else ""
    text = f"""net (float[N, 3, 4] x, float[3] scale, float[3] bias, float[3] mean, float[3] var)
    => (float[N, 3, 4] y{other}) {{
        {statistics}
        {outputs} = BatchNormalization<training_mode={mode}, momentum={momentum}, epsilon=0.01>(x, scale, bias, m, v)
    }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    plain = gradient(model, wrt=["x", "scale", "bias"], of="y")
    with faster_rules():
        faster = gradient(model, wrt=["x", "scale", "bias"], of="y")
    assert ("ReduceMean" not in {node.op_type for node in faster.graph.node}) is (taken or not mode)
    random = np.random.default_rng(0)
    feeds = {"x": random.normal(size=(5, 3, 4)), "y_grad": random.normal(size=(5, 3, 4))}
    feeds |= {name: random.uniform(0.5, 2, 3) for name in ("scale", "bias", "mean", "var")}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    expected, got = run_on_runtime(plain, feeds), run_on_runtime(faster, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
