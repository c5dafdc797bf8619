"""Sequences and optionals, in their own operators and in loops."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import onward
from onward.errors import MissingRuleError
from onward.testing import check_gradient, run_on_runtime

FEEDS = {
    "x": np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32),
    "z": np.random.default_rng(1).normal(size=(2, 2)).astype(np.float32),
    "i": np.array(1),
    "j": np.array(-1),
}


def model_of(body, opset=18, dims="float[N, 2] x, float[M, 2] z"):
    text = f'<ir_version: 9, opset_import: ["" : {opset}]> g ({dims}, int64 i, int64 j) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def check(model):
    """In float32 on onnxruntime: the reference evaluator does not run all of these operators."""
    wrt = [value.name for value in model.graph.input if value.type.tensor_type.elem_type == TensorProto.FLOAT]
    feeds = {value.name: FEEDS[value.name] for value in model.graph.input}
    check_gradient(model, feeds, wrt=wrt, second_order=False, run=run_on_runtime, step=1e-2, tolerance=1e-2)


SQUARES = "m = Mul(c, c)\n y = ReduceSum<keepdims = 0>(m)"

DYNAMIC = {
    "slices": """
        s = SplitToSequence<axis = 0, keepdims = 0>(x)
        a = SequenceAt(s, i)
        b = SequenceAt(s, j)
        y = Mul(a, b)""",
    "slices that keep the axis": """
        s = SplitToSequence<axis = 0>(x)
        a = SequenceAt(s, i)
        y = Mul(a, a)""",
    "parts": """
        t = Constant<value_int = 2>()
        s = SplitToSequence<axis = 0>(x, t)
        a = SequenceAt(s, i)
        y = Mul(a, a)""",
    "stack of slices": f"""
        s = SplitToSequence<axis = 0, keepdims = 0>(x)
        c = ConcatFromSequence<axis = 1, new_axis = 1>(s)
        {SQUARES}""",
    "at": f"""
        s = SequenceConstruct(x, z)
        a = SequenceAt(s, i)
        b = SequenceAt(s, j)
        c = Mul(a, b)
        {SQUARES}""",
    "insert and erase": f"""
        s = SequenceConstruct(x, z)
        t = SequenceInsert(s, x, i)
        u = SequenceErase(t, j)
        c = ConcatFromSequence<axis = 0>(u)
        {SQUARES}""",
    "last ones": f"""
        s = SequenceConstruct(x, z)
        t = SequenceErase(s, i)
        u = SequenceInsert(t, z)
        v = SequenceInsert(u, x)
        w = SequenceErase(v)
        c = ConcatFromSequence<axis = 0>(w)
        {SQUARES}""",
    "two readers": f"""
        e = SequenceConstruct(x, z)
        s = SequenceInsert(e, x, i)
        a = SequenceAt(s, i)
        b = Mul(a, a)
        d = ReduceSum<keepdims = 0>(b)
        f = ConcatFromSequence<axis = 0>(s)
        c = Mul(f, d)
        {SQUARES}""",
    "optional": f"""
        o = Optional(x)
        a = OptionalGetElement(o)
        b = OptionalGetElement(z)
        c = MatMul(a, b)
        {SQUARES}""",
    "map over parts": f"""
        s = SplitToSequence<axis = 0, keepdims = 0>(x)
        t = SequenceMap<body = g (float[2] p) => (float[2] q) {{ q = Mul(p, p) }}>(s)
        c = ConcatFromSequence<axis = 0, new_axis = 1>(t)
        {SQUARES}""",
    "map over a map": f"""
        s = SplitToSequence<axis = 0, keepdims = 0>(x)
        t = SequenceMap<body = g (float[2] p) => (float[2] q) {{ q = Mul(p, p) }}>(s)
        u = SequenceMap<body = g (float[2] p2) => (float[2] q2) {{ q2 = Exp(p2) }}>(t)
        c = ConcatFromSequence<axis = 0, new_axis = 1>(u)
        {SQUARES}""",
    "map over known elements": f"""
        s = SequenceConstruct(x, z)
        t = SequenceMap<body = g (float[K, 2] p, float[M, 2] w) => (float[K, 2] q) {{ q = MatMul(p, w) }}>(s, z)
        c = ConcatFromSequence<axis = 0>(t)
        {SQUARES}""",
}


@pytest.mark.parametrize("case", DYNAMIC)
def test_sequence(case):
    check(model_of(DYNAMIC[case]))


def test_a_sequence_of_an_older_opset():
    """Zeros beside the element that was taken are mapped, which came with opset 17: the model moves there."""
    model = model_of(DYNAMIC["at"], opset=13)
    check(model)
    assert onward.gradient(model, wrt=["x"]).opset_import[0].version == 17


APPENDED = """
    n = Shape<start = 0, end = 1>(x)
    t = Squeeze(n)
    yes = Constant<value = bool {1}>()
    empty = SequenceEmpty()
    zero = Constant<value = float[2] {0, 0}>()
    s = SplitToSequence<axis = 0, keepdims = 0>(x)
    h, all = Loop<body = step (int64 k, bool c0, float[2] h0, seq(float[2]) l0) =>
        (bool c1, float[2] h1, seq(float[2]) l1) {
            c1 = Identity(c0)
            p = SequenceAt(s, k)
            q = MatMul(z, h0)
            r = Add(p, q)
            h1 = Tanh(r)
            l1 = SequenceInsert(l0, h1)
        }>(t, yes, zero, empty)
"""


@pytest.mark.parametrize(
    "after",
    [
        "c = ConcatFromSequence<axis = 0, new_axis = 1>(all)",
        "c = ConcatFromSequence<axis = -1, new_axis = 1>(all)",
        "c = ConcatFromSequence<axis = 0>(all)",
        "a = SequenceAt(all, i)\n b = SequenceAt(all, j)\n c = Mul(a, b)",
        "b = SequenceLength(all)\n d = CastLike(b, x)\n e = SequenceAt(all, j)\n c = Mul(e, d)",
    ],
)
def test_a_loop_over_slices_that_appends_to_a_list(after):
    """A recurrent network as torch writes a `for` over a tensor."""
    model = model_of(f"{APPENDED} {after}\n {SQUARES}", dims="float[N, 2] x, float[2, 2] z")
    check(model)


def test_a_loop_that_appends_as_torch():
    model = model_of(
        f"{APPENDED} c = ConcatFromSequence<axis = 0, new_axis = 1>(all)\n {SQUARES}",
        dims="float[N, 2] x, float[2, 2] z",
    )
    x, z = (torch.tensor(FEEDS[name], requires_grad=True) for name in "xz")
    h, states = torch.zeros(2), []
    for row in x:
        h = torch.tanh(row + z @ h)
        states.append(h)
    torch.stack(states).square().sum().backward()
    differentiated = onward.gradient(model, wrt=["x", "z"])
    got = run_on_runtime(differentiated, {**FEEDS, "y_grad": np.array(1, np.float32)})
    np.testing.assert_allclose(got["x_grad"], x.grad, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["z_grad"], z.grad, rtol=1e-4, atol=1e-5)


def test_a_list_that_a_loop_reads_while_it_grows_is_refused():
    body = APPENDED.replace("l1 = SequenceInsert(l0, h1)", "l2 = SequenceInsert(l0, p)\n l1 = SequenceInsert(l2, h1)")
    model = model_of(
        f"{body} c = ConcatFromSequence<axis = 0, new_axis = 1>(all)\n {SQUARES}", dims="float[N, 2] x, float[2, 2] z"
    )
    with pytest.raises(MissingRuleError, match=r"sequences[\s\S]*Loop: h[\s\S]*one tensor"):
        onward.gradient(model, wrt=["x", "z"])


def test_sequence_outputs_stay():
    """A sequence that leaves the model is no obstacle to what else it computes."""
    model = model_of(
        f"s = SplitToSequence<axis = 0, keepdims = 0>(x)\n a = SequenceAt(s, i)\n c = Mul(a, a)\n {SQUARES}"
    )
    model.graph.output.append(
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2]),
    )
    differentiated = onward.gradient(model, wrt=["x"], of="y")
    got = run_on_runtime(differentiated, {**FEEDS, "y_grad": np.array(1, np.float32)})
    assert len(got["s"]) == 3
    expected = np.zeros((3, 2))
    expected[1] = 4 * FEEDS["x"][1] ** 3
    np.testing.assert_allclose(got["x_grad"], expected, rtol=1e-4)
