"""What random programs found (test_random_graphs.py), each as small as it could be made."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.graph.builder import Builder
from onward.graph.opsets import NeedsOpsetError
from onward.testing import check_gradient, run_on_runtime


def of_one_node(op_type: str, x: list[int | None] | None, y: int | None, *constants: np.ndarray, **attributes):
    """A model of one node with an input x, whose dimensions are as given, and a result of rank y."""
    names = [f"c{index}" for index in range(len(constants))]
    return helper.make_model(
        helper.make_graph(
            [helper.make_node(op_type, ["x", *names], ["y"], name="forward", **attributes)],
            "found",
            [helper.make_tensor_value_info("x", TensorProto.DOUBLE, x)],
            [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None if y is None else [None] * y)],
            [numpy_helper.from_array(array, name) for name, array in zip(names, constants, strict=True)],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=10,
    )


def test_indices_that_count_from_the_end_may_repeat_others() -> None:
    """Of a value of unknown rank, -1 and 0 were taken for two places also where there is only one."""
    model = of_one_node("GatherND", None, None, np.array([[-1], [0]]))
    check_gradient(model, {"x": np.array([0.5])}, wrt=["x"])
    check_gradient(model, {"x": np.array([0.5, 2.0])}, wrt=["x"])


@pytest.mark.parametrize("dims", [[0, 2], [None, 2], [None, None]])
@pytest.mark.parametrize(
    ("op_type", "constants"),
    [
        ("Slice", [np.array([0]), np.array([-9]), np.array([0]), np.array([-2])]),  # lay beyond the axis
        ("Slice", [np.array([1]), np.array([-9]), np.array([0]), np.array([-1])]),
        ("Slice", [np.array([0]), np.array([9]), np.array([1]), np.array([2])]),  # 0 was read as "as in dy"
        ("Tile", [np.array([2, 2])]),
        ("Tile", [np.array([1, 3])]),
    ],
)
def test_axes_without_elements(op_type: str, constants: list[np.ndarray], dims: list[int | None]) -> None:
    """An empty batch, for instance."""
    model = of_one_node(op_type, dims, 2, *constants)
    x = np.zeros((0, 2))
    y = run_on_runtime(model, {"x": x})["y"]
    result = run_on_runtime(onward.gradient(model, wrt=["x"]), {"x": x, "y_grad": np.ones_like(y)})
    assert result["x_grad"].shape == x.shape


def loop(after: str) -> onnx.ModelProto:
    """x multiplied by w and by the constant c, three times."""
    return onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 18]>
        found (double[2, 3] x, double[2, 3] w) => (double[A, B] z)
        <int64 count = {{3}}, bool yes = {{1}}, double c = {{0.5}}, bool[3] some = {{1, 0, 1}}> {{
            y = Loop(count, yes, x) <body = step (int64 i, bool old, double[a, b] s) => (bool same, double[c, d] t) {{
                same = Identity(old)
                r = Mul(s, w)
                q = Mul(r, c)
                t = Sin(q)
            }}>
            {after}
        }}
    """)


FEEDS = {name: np.random.default_rng(seed).uniform(0.5, 1.5, (2, 3)) for seed, name in enumerate("xw")}


def test_the_rank_behind_a_loop_is_known() -> None:
    """onnx forgets the shapes of what a loop carries; Compress along an axis needs a rank."""
    check_gradient(loop("z = Compress<axis = 1>(y, some)"), FEEDS, wrt=["x", "w"])


def test_constants_that_a_body_uses_are_not_differentiated() -> None:
    """Their sums would be computed in each iteration, and nothing can remove them from a loop."""
    model = loop("z = Identity(y)")
    check_gradient(model, FEEDS, wrt=["x", "w"])
    for wrt, wanted in ((["x"], 1), (["x", "w"], 2)):
        backward = onward.gradient(model, wrt=wrt).graph.node[-1]
        assert backward.op_type == "Loop"
        assert len(backward.output) == wanted


@pytest.mark.parametrize(
    ("opset", "needed", "op_type", "operands", "attributes"),
    [
        # In opset 11 the axes are an attribute, and the other attribute does not exist.
        (11, 18, "ReduceMax", [[0]], {"noop_with_empty_axes": 1}),
        (9, 11, "TopK", [[1]], {"largest": 0}),
        # Before opset 11, axes were not counted from the end.
        (9, 11, "Unsqueeze", [[-1]], {}),
        (9, 11, "ReduceSum", [[-1]], {}),
    ],
)
def test_forms_that_an_opset_does_not_have(opset, needed, op_type, operands, attributes) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2, 3]))
    op = Builder(ir.Graph([x], [], nodes=[], opset_imports={"": opset}), opset)
    with pytest.raises(NeedsOpsetError) as raised:
        op.emit(op_type, x, *operands, **attributes)
    assert raised.value.version == needed


def test_sizes_of_parts_say_nothing_of_the_rank_of_the_whole() -> None:
    """The list of sizes that Split takes has one axis, and so had what is split, if nothing else was known of it."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]> g (double x, double[3] w) => (double y)
    <int64[2] sizes = {1, 3}> { a, b = Split(x, sizes) c = Mul(a, w) d = Mul(b, c) y = ReduceSum<keepdims = 0>(d) }""")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    x, w = np.arange(12.0).reshape(4, 3), np.array([1.0, -2.0, 0.5])
    found = run_on_runtime(onward.gradient(model, wrt=["x", "w"], of="y"), {"x": x, "w": w})
    np.testing.assert_allclose(found["w_grad"], x[0] * x[1:].sum(0))
    np.testing.assert_allclose(found["x_grad"], np.concatenate([w * x[1:].sum(0, keepdims=True), [w * x[0]] * 3]))
