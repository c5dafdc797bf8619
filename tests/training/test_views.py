"""Reshapes to computed shapes: the forms hold for all sizes that one graph serves."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest

import onward
from onward.graph.builder import Builder
from onward.graph.prepare import prepare
from onward.graph.propagation import name_sizes
from onward.graph.shapes import target_in_numbers
from onward.signature import CHECK
from onward.training.forms.views import view
from onward.training.phases import phases

# Attention as torch's exporter writes it: heads and keys by computed shapes.
ATTENTION = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
g (float[batch, length, 8] x) => (float[batch, length, 8] y)
<float[8] b = {0.5, -1, 0.25, 1, 0, 2, -0.5, 1}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] rest = {-1},
int64[1] four = {4}, int64[1] before = {-2}, int64[1] last = {-1}, int64[1] end = {9223372036854775807}> {
    q = Add(x, b)
    n = Shape<start=0, end=1>(x)
    m = Shape<start=1, end=2>(x)
    split = Concat<axis=0>(n, m, rest, four)
    r = Reshape(q, split)
    h = Transpose<perm=[0, 2, 1, 3]>(r)
    s = Shape(h)
    leading = Slice(s, zero, before)
    rows = Slice(s, before, last)
    columns = Slice(s, last, end)
    stack = Concat<axis=0>(rest, rows, columns)
    stacked = Reshape(h, stack)
    turned = Transpose<perm=[0, 2, 1]>(stacked)
    unstack = Concat<axis=0>(leading, columns, rows)
    keys = Reshape(turned, unstack)
    scores = MatMul(h, keys)
    weights = Softmax<axis=-1>(scores)
    c = MatMul(weights, h)
    t = Transpose<perm=[0, 2, 1, 3]>(c)
    join = Concat<axis=0>(n, m, rest)
    y = Reshape(t, join)
}""")


def _run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("size", [(2, 3), (1, 1), (1, 4), (3, 1), (4, 8), (8, 2)])
def test_attention_by_computed_shapes(size: tuple[int, int]) -> None:
    whole = phases(ATTENTION, trainable=["b"], requires_grad_inputs=["x"])
    random = np.random.default_rng(0)
    x, dy = (random.normal(size=(*size, 8)).astype(np.float32) for _ in range(2))
    b = np.array([0.5, -1, 0.25, 1, 0, 2, -0.5, 1], np.float32)
    found = _run(whole.joined(), {"x": x, "b": b, "y_grad": dy})
    plain = onward.gradient(ATTENTION, wrt=["x", "b"], of="y")
    wanted = _run(plain, {"x": x, "y_grad": dy})
    for name in ("x_grad", "b_grad"):
        np.testing.assert_allclose(found[name], wanted[name], rtol=2e-5, atol=2e-6)


def test_shapes_are_not_computed() -> None:
    nodes = [node.op_type for node in phases(ATTENTION, trainable=["b"]).forward.graph.node]
    assert not {"Concat", "Shape", "Slice"} & set(nodes)
    assert nodes.count("Reshape") == 2


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (("a", "b", 8), ("a", "b", 2, 4), [0, 0, 2, 4]),
        (("a", 6), ("a*2", 3), [-1, 3]),
        (("a", "b"), ("b", "a"), None),  # nothing says which is which
        (("a", "b"), ("a", "b", None), None),  # beside a size from x, an unknown one has no answer if x is empty
        (("a", 4), (None, 2), [-1, 2]),
        ((4, "a"), ("a", 4), [-1, 4]),
        (("a", 0), ("a", 0), None),  # 0 would mean another thing
        (None, ("a",), [-1]),
        (None, ("a", "b"), None),
        (("a",), None, None),
    ],
)
def test_targets(x, y, expected) -> None:
    assert target_in_numbers(x, y) == expected


def test_a_guard_is_never_a_view() -> None:
    """A guard is a Reshape that fails for the sizes it does not allow: another target would let them pass."""
    model = prepare(ATTENTION)
    name_sizes(model.graph)
    op = Builder(model.graph, 17)
    node = next(node for node in model.graph if node.op_type == "Reshape")
    assert view(op, node) is not None
    node.name = f"{CHECK}x must be square"
    assert view(op, node) is None
