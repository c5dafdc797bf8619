"""Matrix products."""

import numpy as np
import pytest
from onnx import TensorProto, helper

import onward
from onward.testing import check_vjp, run_on_runtime

RANDOM = np.random.default_rng(0)


def normal(shape):
    return np.asarray(RANDOM.normal(size=shape))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3,), (3,)),
        ((3,), (3, 2)),
        ((2, 3), (3,)),
        ((3,), (2, 3, 2)),
        ((2, 2, 3), (3,)),
        ((3,), (2, 2, 3, 2)),
        ((2, 1, 2, 3), (3,)),
        ((2, 3), (3, 4)),
        ((2, 2, 3), (3, 2)),
        ((2, 1, 2, 3), (3, 2)),
        ((2, 3), (2, 3, 2)),
        ((2, 2, 3), (2, 3, 2)),
        ((1, 2, 3), (2, 3, 2)),
        ((2, 2, 3), (1, 3, 2)),
        ((2, 1, 2, 3), (3, 3, 2)),
        ((2, 1, 1, 3), (1, 2, 3, 2)),
        ((1, 1), (1, 1)),
        ((2, 1, 3), (2, 3, 1)),
    ],
)
def test_matmul(a, b):
    check_vjp("MatMul", [normal(a), normal(b)], opset=13)


@pytest.mark.parametrize("opset", [9, 12, 18, 22])
@pytest.mark.parametrize(("a", "b"), [((2, 3), (3, 4)), ((2, 2, 3), (3, 2)), ((1, 2, 3), (2, 3, 2)), ((2, 3), (3,))])
def test_opsets(opset, a, b):
    check_vjp("MatMul", [normal(a), normal(b)], opset=opset)


@pytest.mark.parametrize("stored", [0, 1])
def test_matmul_of_weight(stored):
    """A weight has a known shape whatever is known of the other operand."""
    check_vjp("MatMul", [normal((2, 3, 3)), normal((3, 3))], opset=13, constants=[stored])


@pytest.mark.parametrize(("a", "b"), [((2, 0, 3), (3, 2)), ((0, 3), (3, 2)), ((2, 3, 0), (0, 2))])
@pytest.mark.parametrize("dims", ["static", "symbolic"])
def test_matmul_of_nothing(a, b, dims):
    """An empty batch or sequence has gradients of zeros, not an error."""
    shapes = {"a": a, "b": b}
    infos = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, shape if dims == "static" else [f"{name}{i}" for i in range(len(shape))]
        )
        for name, shape in shapes.items()
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(a))
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "g", infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    feeds["y_grad"] = np.ones((*a[:-1], b[-1]), np.float32)
    got = run_on_runtime(onward.gradient(model, wrt=["a", "b"]), feeds)
    for name, shape in shapes.items():
        assert got[f"{name}_grad"].shape == shape
        assert not np.any(got[f"{name}_grad"]) or 0 not in feeds["y_grad"].shape


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("settings", [{}, {"alpha": 0.5, "beta": 2.0}, {"beta": 0.0}])
def test_gemm(trans_a, trans_b, settings):
    a, b = normal((4, 2) if trans_a else (2, 4)), normal((3, 4) if trans_b else (4, 3))
    check_vjp("Gemm", [a, b, normal((3,))], opset=13, transA=trans_a, transB=trans_b, **settings)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 3), (2, 1), (1, 1), (2, 3), None])
@pytest.mark.parametrize("beta", [1.0, 0.5])
def test_bias_of_gemm(shape, beta):
    bias = [] if shape is None else [normal(shape)]
    check_vjp("Gemm", [normal((2, 4)), normal((4, 3)), *bias], opset=13, beta=beta)


@pytest.mark.parametrize("opset", [9, 11, 12, 18, 22])
def test_opsets_of_gemm(opset):
    check_vjp("Gemm", [normal((2, 4)), normal((3, 4)), normal((3,))], opset=opset, transB=1, alpha=0.5)
