"""What prepare computes before any data: shape arithmetic, decided branches, sequences of known length."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onward.graph.prepare import prepare
from onward.graph.shapes import dims
from onward.testing import run_on_runtime


def model_from(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]>\n{text}')


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in prepare(model).graph]


def test_arithmetic_that_inference_cannot_follow_gives_the_rank():
    # Mod is what the older torch exporter writes for unflatten; onnx's own inference loses the rank there.
    model = model_from("""
        g (float[2, 12] x) => (float y)
        <int64[1] minus_one = {-1}, int64[1] two = {2}, int64[2] sizes = {3, 4}, int64[1] zero = {0}>
        {
            sum = Add(minus_one, two)
            axis = Mod(sum, two)
            shape = Shape(x)
            head = Slice(shape, zero, axis)
            target = Concat<axis = 0>(head, sizes)
            z = Reshape(x, target)
            y = ReduceSum<keepdims = 0>(z)
        }""")
    prepared = prepare(model)
    assert [node.op_type for node in prepared.graph] == ["Reshape", "ReduceSum"]
    assert dims(prepared.graph[0].outputs[0]) == (2, 3, 4)


def test_a_symbolic_dimension_stays_symbolic():
    model = model_from("""
        g (float[N, 4] x) => (float[M, 2, 2] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] sizes = {2, 2}>
        {
            shape = Shape(x)
            batch = Gather<axis = 0>(shape, zero)
            target = Concat<axis = 0>(batch, sizes)
            y = Reshape(x, target)
        }""")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert "Shape" in operators(model)
    assert run_on_runtime(model, {"x": x})["y"].shape == (3, 2, 2)


def test_weights_are_never_folded_away():
    model = model_from("""
        g (float[3] x) => (float[3] y)
        <float[3] w = {1.0, -1.0, 2.0}, float[1] s = {0.5}, float zero = {0.0}>
        {
            positive = Greater(w, zero)
            gate = Greater(s, zero)
            kept = And(positive, gate)
            y = Where(kept, x, w)
        }""")
    assert operators(model) == ["Greater", "Greater", "And", "Where"]


@pytest.mark.parametrize(("rank_is", "expected"), [(2, [2.0, 4.0]), (3, [-1.0, -2.0])])
def test_a_decided_branch_takes_the_place_of_its_if(rank_is, expected):
    model = model_from(f"""
        g (float[1, 2] x) => (float[1, 2] y)
        <int64 wanted = {{{rank_is}}}>
        {{
            shape = Shape(x)
            rank = Size(shape)
            condition = Equal(rank, wanted)
            y = If(condition) <
                then_branch = t () => (float[1, 2] out) {{ out = Add(x, x) }},
                else_branch = e () => (float[1, 2] out) {{ out = Neg(x) }}
            >
        }}""")
    prepared = prepare(model)
    assert "If" not in [node.op_type for node in prepared.graph]
    assert [output.name for output in prepared.graph.outputs] == ["y"]
    results = run_on_runtime(ir.serde.serialize_model(prepared), {"x": np.array([[1, 2]], np.float32)})
    np.testing.assert_array_equal(results["y"], [expected])


SEQUENCES = {
    "scalar split": ("s = SplitToSequence<axis = 1>(x, three)\n a = SequenceAt(s, one)\n y = Neg(a)", "Split Neg"),
    "sizes": ("s = SplitToSequence<axis = 1>(x, sizes)\n a = SequenceAt(s, minus)\n y = Neg(a)", "Split Neg"),
    "computed sizes": (
        "t = Shape<start = 1>(x)\n n = Sub(t, length)\n p = Concat<axis = 0>(length, n)\n q = Mul(p, ones)\n"
        "s = SplitToSequence<axis = 1>(x, q)\n a = SequenceAt(s, one)\n y = Neg(a)",
        "Split Neg",
    ),
    "returned": ("s = SplitToSequence<axis = 1>(x, sizes)\n y = SequenceAt(s, minus)", "Split Identity"),
    "squeezed": (
        "s = SplitToSequence<axis = 0, keepdims = 0>(x)\n a = SequenceAt(s, one)\n y = Neg(a)",
        "Split Squeeze Neg",
    ),
    "stack": (
        "a = Neg(x)\n s = SequenceConstruct(x, a)\n c = ConcatFromSequence<axis = 1, new_axis = 1>(s)\n y = Neg(c)",
        "Neg Unsqueeze Unsqueeze Concat Neg",
    ),
    "insert and erase": (
        "e = SequenceEmpty()\n a = Neg(x)\n s = SequenceInsert(e, a)\n t = SequenceInsert(s, x, zero)\n"
        "u = SequenceErase(t, one)\n v = SequenceInsert(u, a)\n c = ConcatFromSequence<axis = 0>(v)\n y = Neg(c)",
        "Neg Concat Neg",
    ),
}


@pytest.mark.parametrize("case", SEQUENCES)
def test_a_sequence_of_known_length_becomes_its_tensors(case):
    body, expected = SEQUENCES[case]
    model = model_from(f"""
        g (float[2, 5] x) => (float y)
        <int64[1] length = {{2}}, int64[2] ones = {{1, 1}},
         int64 three = {{3}}, int64[2] sizes = {{1, 4}}, int64 zero = {{0}}, int64 one = {{1}}, int64 minus = {{-1}}>
        {{ {body} }}""")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    prepared = prepare(model)
    assert [node.op_type for node in prepared.graph] == expected.split()
    feeds = {"x": np.arange(10, dtype=np.float32).reshape(2, 5)}
    simplified = run_on_runtime(ir.serde.serialize_model(prepared), feeds)
    np.testing.assert_array_equal(simplified["y"], run_on_runtime(model, feeds)["y"])


def test_a_sequence_of_unknown_length_stays():
    model = model_from("""
        g (float[2, N] x) => (float[2, M] y)
        <int64 three = {3}, int64 zero = {0}>
        {
            s = SplitToSequence<axis = 1>(x, three)
            y = SequenceAt(s, zero)
        }""")
    assert operators(model) == ["SplitToSequence", "SequenceAt"]


def test_known_sizes_of_a_symbolic_shape_are_numbers():
    model = model_from("""
        g (float[N, 12] x) => (float y)
        <int64 zero = {0}, int64 one = {1}, int64 four = {4}, int64[1] axis = {0},
         int64[1] first = {1}, int64[1] last = {2}>
        {
            shape = Shape(x)
            batch = Gather<axis = 0>(shape, zero)
            width = Gather<axis = 0>(shape, one)
            head = Div(width, four)
            tail = Slice(shape, first, last)
            a = Unsqueeze(batch, axis)
            b = Unsqueeze(head, axis)
            c = Div(tail, b)
            target = Concat<axis = 0>(a, b, c)
            y = Reshape(x, target)
        }""")
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    prepared = prepare(model)
    assert [node.op_type for node in prepared.graph] == ["Shape", "Gather", "Unsqueeze", "Concat", "Reshape"]
    assert dims(prepared.graph[-1].outputs[0]) == ("N", 3, 4)


def test_a_part_of_a_symbolic_shape_that_is_known_is_a_number():
    model = model_from("""
        g (float[N, 12] x, float[24, 3] w) => (float[12, 3] y)
        <int64[1] zero = {0}>
        {
            width = Shape<start = 1, end = 2>(x)
            y = Slice(w, zero, width)
        }""")
    prepared = prepare(model)
    assert [node.op_type for node in prepared.graph] == ["Slice"]
    assert dims(prepared.graph[0].outputs[0]) == (12, 3)
