"""Gradients of maxima by MaxUnpool: the first of several largest elements, whatever the data."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onward.testing import check_training
from onward.training.split import split

# That leave a rest of the image, or are too many for what is done elsewhere.
WINDOWS = [
    ((2,), (7,)),
    ((4,), (9,)),
    ((2, 2), (4, 70)),
    ((2, 2), (5, 7)),
    ((1, 3), (2, 8)),
    ((4, 1), (11, 2)),
    ((1, 2), (1, 3)),
    ((1, 2, 2), (3, 4, 5)),
    ((2, 1, 2), (5, 2, 4)),
    ((2, 1, 1), (2, 3, 2)),
]


def pooling(kernel: tuple[int, ...], shape: tuple[int | str, ...]) -> onnx.ModelProto:
    sizes = ",".join(map(str, kernel))
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[{",".join(map(str, shape))}] x) => (float[{",".join("?" * len(shape))}] y) {{
            p = MaxPool<kernel_shape=[{sizes}], strides=[{sizes}]>(x)
            y = Tanh(p)
        }}""")


def check(kernel, x):
    check_training(pooling(kernel, x.shape), {"x": x}, wrt=["x"])


@pytest.mark.parametrize(("kernel", "sizes"), WINDOWS, ids=str)
def test_the_first_of_equal_elements(kernel, sizes):
    # Of so few numbers that most windows have several largest ones.
    check(kernel, np.random.default_rng(0).integers(-1, 2, (5, 3, *sizes)).astype(np.float32))


def test_every_order_of_a_window():
    x = np.indices((3, 3, 3, 3), np.float32).reshape(4, -1).T.reshape(-1, 1, 2, 2)
    check((2, 2), np.pad(x, [(0, 0), (0, 0), (0, 1), (0, 1)]))


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e-45, -0.0, np.finfo(np.float32).max])
def test_odd_numbers(value):
    """Windows of nothing but these, too."""
    x = np.random.default_rng(1).normal(size=(2, 2, 6, 7)).astype(np.float32)
    x[0, 0, 0, 1] = x[0, 1, 2:4, 2:4] = x[1, 1, 5, 4:] = value
    check((2, 2), x)


@pytest.mark.parametrize(("kernel", "sizes"), WINDOWS, ids=str)
def test_it_is_used(kernel, sizes):
    extents = ",".join(map(str, kernel))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[N,C,{",".join(map(str, sizes))}] x) => (float loss) <float[1] w = {{1}}> {{
            a = Mul(x, w)
            p = MaxPool<kernel_shape=[{extents}], strides=[{extents}]>(a)
            loss = ReduceSum<keepdims=0>(p)
        }}""")
    operators = {node.op_type for node in split(model, trainable=["w"], frozen=[]).training.graph.node}
    assert "MaxUnpool" in operators
    assert "ScatterElements" not in operators
