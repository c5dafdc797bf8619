"""Operations and bytes of a step against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

import onward
from tests.inspection.models import WEIGHT, layer, model


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


LSTM = 7 * 3 * 6 * (2 * 4 * (5 + 6) + 3 * 4 + 5)  # steps, batch, hidden; products of four gates, and the rest

# Body, inputs and output, weights, operations of the forward pass.
FORWARD: dict[str, tuple[str, str, dict[str, np.ndarray], int]] = {
    "matrix product": ("y = MatMul(x, w)", "float[3, 4] x", {"w": weight(4, 5)}, 2 * 3 * 4 * 5),
    "batch of products": ("y = MatMul(x, w)", "float[7, 3, 4] x", {"w": weight(4, 5)}, 7 * 2 * 3 * 4 * 5),
    "product of batches": ("y = MatMul(x, w)", "float[7, 3, 4] x", {"w": weight(7, 4, 5)}, 7 * 2 * 3 * 4 * 5),
    "Gemm": (
        "y = Gemm<transB = 1>(x, w, b)",
        "float[3, 4] x",
        {"w": weight(5, 4), "b": weight(5)},
        3 * 5 * (2 * 4 + 1),
    ),
    "Gemm of a transposed": ("y = Gemm<transA = 1>(x, w)", "float[4, 3] x", {"w": weight(4, 5)}, 3 * 5 * 2 * 4),
    "Conv": (
        "y = Conv<pads = [1, 1, 1, 1]>(x, w, b)",
        "float[2, 3, 8, 8] x",
        {"w": weight(16, 3, 3, 3), "b": weight(16)},
        2 * 16 * 8 * 8 * (2 * 3 * 9 + 1),
    ),
    "Conv with strides and groups": (
        "y = Conv<strides = [2, 2], group = 4>(x, w)",
        "float[2, 8, 9, 9] x",
        {"w": weight(8, 2, 3, 3)},
        2 * 8 * 4 * 4 * 2 * 2 * 9,
    ),
    "ConvTranspose": (
        "y = ConvTranspose(x, w)",
        "float[2, 3, 5, 5] x",
        {"w": weight(3, 4, 2, 2)},
        2 * 3 * 25 * 2 * 4 * 4,
    ),
    "LSTM": (
        "y = LSTM<hidden_size = 6>(x, w, r)",
        "float[7, 3, 5] x",
        {"w": weight(1, 24, 5), "r": weight(1, 24, 6)},
        LSTM,
    ),
    "bidirectional LSTM": (
        'y = LSTM<hidden_size = 6, direction = "bidirectional">(x, w, r)',
        "float[7, 3, 5] x",
        {"w": weight(2, 24, 5), "r": weight(2, 24, 6)},
        2 * LSTM,
    ),
    "GRU": (
        "y = GRU<hidden_size = 6>(x, w, r)",
        "float[7, 3, 5] x",
        {"w": weight(1, 18, 5), "r": weight(1, 18, 6)},
        7 * 3 * 6 * (2 * 3 * (5 + 6) + 3 * 3 + 5),
    ),
    "Einsum": (
        'y = Einsum<equation = "bij,jk->bik">(x, w)',
        "float[7, 3, 4] x",
        {"w": weight(4, 5)},
        7 * 2 * 3 * 4 * 5,
    ),
    "Einsum with dots": ('y = Einsum<equation = "...j,jk">(x, w)', "float[7, 3, 4] x", {"w": weight(4, 5)}, 840),
    "MaxPool": (
        "a = Mul(x, w) y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(a)",
        "float[1, 3, 8, 8] x",
        {"w": weight(3, 1, 1)},
        3 * 64 + 3 * 16 * 4,
    ),
    "pointwise and reduction": (
        "a = Mul(x, w) b = Tanh(a) y = ReduceSum<keepdims = 0>(b)",
        "float[3, 4] x",
        {"w": weight(4)},
        3 * 12,
    ),
    "moving": (
        "a = Transpose(w) b = Reshape(a, s) y = Add(x, b)",
        "float[12] x",
        {"w": weight(3, 4), "s": np.array([12])},
        12,
    ),
    "Loop": (
        """y = Loop (trips, , x) <body = once (int64 i, bool go, float[2, 2] s) => (bool on, float[2, 2] t)
        { on = Identity(go) t = MatMul(s, w) }>""",
        "float[2, 2] x",
        {"w": weight(2, 2), "trips": np.array(5)},
        5 * 16,
    ),
    "Scan": (
        """last, y = Scan <num_scan_inputs = 1, body = once (float[2] s, float[2] row) => (float[2] t, float[2] out)
        { t = MatMul(s, w) out = Add(t, row) }> (start, x)""",
        "float[9, 2] x, float[2] start",
        {"w": weight(2, 2)},
        9 * (8 + 2),
    ),
    "the dearer branch": (
        """y = If (flag) <then_branch = yes () => (float[2, 2] t) { t = MatMul(x, w) },
        else_branch = no () => (float[2, 2] e) { e = Mul(x, w) }>""",
        "float[2, 2] x, bool flag",
        {"w": weight(2, 2)},
        16,
    ),
}


@pytest.mark.parametrize("case", FORWARD)
def test_forward(case: str) -> None:
    body, signature, weights, expected = FORWARD[case]
    forward = model(f"counted ({signature}) => (float y) {{ {body} }}", **weights)
    forward.graph.output[0].type.tensor_type.ClearField("shape")
    report = onward.check(forward)
    assert report.flops is not None
    assert report.flops.uncertain == []
    assert report.flops.forward == expected


def test_attention() -> None:
    """Scores and weighted sum are products; scale and softmax take six for each score."""
    batch, heads, queries, keys, size = 2, 4, 6, 10, 8
    forward = model(
        f"""attention (float[{batch}, {heads}, {queries}, {size}] x, float[{batch}, {heads}, {keys}, {size}] k) => (
            float[{batch}, {heads}, {queries}, {size}] y
        ) {{ q = Mul(x, w) y = Attention(q, k, k) }}""",
        opset=23,
        w=weight(size),
    )
    flops = onward.check(forward).flops
    assert flops is not None
    scores = batch * heads * queries * keys
    assert flops.forward == batch * heads * queries * size + 2 * scores * 2 * size + 6 * scores


def test_backward_of_a_product_takes_two_products() -> None:
    """One for the weight, and one for the input of the second layer; the input of the model needs none."""
    batch = 64
    forward = model(
        "deep (float[N, 32] x) => (float[N, 16] y) { a = MatMul(x, v) b = Relu(a) y = MatMul(b, w) }",
        v=weight(32, 24),
        w=weight(24, 16),
    )
    flops = onward.check(forward, dims={"N": batch}).flops
    assert flops is not None
    first, second, middle = 2 * batch * 32 * 24, 2 * batch * 24 * 16, batch * 24
    assert flops.forward == first + second + middle
    assert flops.backward is not None
    rest = flops.backward - (first + 2 * second)
    assert 0 <= rest <= 4 * middle, "the mask of Relu"
    assert flops.total == flops.forward + flops.backward + flops.optimizer


def test_training_less_costs_less() -> None:
    whole, head = onward.check(layer()).flops, onward.check(layer(), wrt=["b"]).flops
    assert whole is not None
    assert head is not None
    assert whole.backward is not None
    assert head.backward is not None
    assert head.forward == whole.forward
    assert head.backward < whole.backward
    assert head.optimizer < whole.optimizer


def test_dynamic_dimensions() -> None:
    """Given by symbol or by place, assumed otherwise: 1, and 224 for height and width of pictures."""
    forward = model(
        "picture (float[N, 3, H, ?] x) => (float[N, 8, P, Q] y) { y = Conv(x, w) }".replace("?", "W"),
        w=weight(8, 3, 1, 1),
    )
    forward.graph.input[0].type.tensor_type.shape.dim[3].ClearField("dim_param")
    each = 8 * 2 * 3
    for given, sizes in (
        (None, {"N": 1, "H": 224, "x[3]": 224}),
        ({"N": 8}, {"N": 8, "H": 224, "x[3]": 224}),
        ({"N": 2, "H": 10, "x[3]": 20}, {"N": 2, "H": 10, "x[3]": 20}),
        ({"x[2]": 10}, {"N": 1, "H": 10, "x[3]": 224}),
    ):
        report = onward.check(forward, dims=given)
        assert report.dynamic_dims == {"N": ["x[0]"], "H": ["x[2]"], "x[3]": ["x[3]"]}
        assert report.flops is not None
        assert report.flops.dims == sizes
        assert report.flops.forward == each * sizes["N"] * sizes["H"] * sizes["x[3]"]
    assert report.flops.assumed == ["N", "x[3]"]


def test_sizes_that_are_assumed_grow_until_the_model_takes_them() -> None:
    forward = model(
        "sound (float[N, 1, T] x) => (float[N, 8, S] y) { y = Conv<kernel_shape = [100], strides = [50]>(x, w) }",
        w=weight(8, 1, 100),
    )
    report = onward.check(forward)
    assert report.flops is not None
    assert report.flops.dims == {"N": 1, "T": 256}
    assert report.flops.forward == 2 * 100 * 8 * 4
    assert report.notes == []
    given = onward.check(forward, dims={"T": 50})
    assert given.notes[0].startswith("The model does not take dims={'N': 1, 'T': 50}, so the estimate is rough")
    assert given.ok


def test_dimensions_that_only_data_decides() -> None:
    forward = model(
        "found (float[6] x) => (float[K] y) { i = NonZero(x) t = Transpose(i) a = GatherND(w, t) y = Tanh(a) }",
        w=weight(6),
    )
    report = onward.check(forward)
    assert report.flops is not None
    assert "Tanh" in report.flops.uncertain
    assert any(note.startswith("Dimensions that only data decides count as 1") for note in report.notes)


def test_state() -> None:
    state = onward.check(layer(), dims={"N": 5}).state
    assert (state.parameters, state.gradients, state.optimizer, state.frozen) == (24, 24, 48, 0)
    assert state.optimizer_name == "adamw"
    assert state.total == 96
    assert state.activations == 5 * 2 * 4, "y, or what it is made from: the mask of Relu"
    frozen = onward.check(layer(), wrt=["b"], optimizer="sgd").state
    assert (frozen.parameters, frozen.gradients, frozen.optimizer, frozen.frozen) == (8, 8, 0, 16)


def test_optimizers_are_counted_from_their_own_graph() -> None:
    counts = {}
    for optimizer in ("sgd", "adamw", onward.optim.sgd(momentum=0.9)):
        report = onward.check(
            model("one (float[2, 2] x) => (float[2, 2] y) { y = MatMul(x, w) }", w=WEIGHT), optimizer=optimizer
        )
        assert report.flops is not None
        counts[str(optimizer)[:5]] = report.flops.optimizer // WEIGHT.size
    assert counts["sgd"] == 2, "p - lr g"
    assert 8 <= counts["adamw"] <= 14
