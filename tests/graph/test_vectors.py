"""Products of transposed matrices and vectors: onnxruntime's numbers are those of numpy."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from onward.graph.finish import finish
from onward.graph.proto import from_proto

# Inputs, result, nodes.
CASES = {
    "matrix": ("float[2,3] a, float[2] v", "float[3] y", "t = Transpose<perm=[1,0]>(a) y = MatMul(t, v)"),
    "matrix, all axes": ("float[2,3] a, float[2] v", "float[3] y", "t = Transpose(a) y = MatMul(t, v)"),
    "square": ("float[2,2] a, float[2] v", "float[2] y", "t = Transpose<perm=[1,0]>(a) y = MatMul(t, v)"),
    "any sizes": ("float[M,N] a, float[M] v", "float[N] y", "t = Transpose<perm=[1,0]>(a) y = MatMul(t, v)"),
    "stack": ("float[4,2,3] a, float[2] v", "float[4,3] y", "t = Transpose<perm=[0,2,1]>(a) y = MatMul(t, v)"),
    "double": ("double[2,3] a, double[2] v", "double[3] y", "t = Transpose<perm=[1,0]>(a) y = MatMul(t, v)"),
    "cast between": (
        "double[2,3] a, float[2] v", "float[3] y", "t = Transpose<perm=[1,0]>(a) c = Cast<to=1>(t) y = MatMul(c, v)"
    ),
    "stack, cast between": (
        "double[4,2,3] a, float[2] v", "float[4,3] y",
        "t = Transpose<perm=[0,2,1]>(a) c = Cast<to=1>(t) y = MatMul(c, v)",
    ),
    "copy between": (
        "float[2,3] a, float[2] v", "float[3] y", "t = Transpose<perm=[1,0]>(a) c = Identity(t) y = MatMul(c, v)"
    ),
    "vector in front": ("float[3,2] a, float[2] v", "float[3] y", "t = Transpose<perm=[1,0]>(a) y = MatMul(v, t)"),
    "column": ("float[2,3] a, float[2,1] v", "float[3,1] y", "t = Transpose<perm=[1,0]>(a) y = MatMul(t, v)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_products_of_transposed_matrices(name: str) -> None:
    inputs, output, nodes = CASES[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> g ({inputs}) => ({output}) {{ {nodes} }}'
    )
    random, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        sizes = [d.dim_value or {"M": 2, "N": 3}[d.dim_param] for d in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        feeds[value.name] = random.normal(size=sizes).astype(dtype)
    transposed = np.swapaxes(feeds["a"], -1, -2)
    expected = feeds["v"] @ transposed if name == "vector in front" else transposed @ feeds["v"]
    proto = finish(from_proto(model)).SerializeToString()
    session = onnxruntime.InferenceSession(proto, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-5, atol=1e-6)
