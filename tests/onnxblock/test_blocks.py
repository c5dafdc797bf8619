"""Blocks of one operator: what they emit, and what it computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onward import onnxblock
from onward.errors import InvalidModelError, OnwardError, UnknownValueError
from onward.onnxblock import blocks
from tests.onnxblock.models import identity, mlp, names, run


class Forward(onnxblock.ForwardBlock):
    """A forward block made of a function; like many users', it does not call __init__."""

    def __init__(self, build: Callable[..., object]) -> None:
        self._build = build

    def build(self, *args: str) -> object:
        return self._build(*args)


def built(base: onnx.ModelProto, build: Callable[..., object], *args: str) -> onnx.ModelProto:
    block = Forward(build)
    with onnxblock.base(base):
        block(*args)
    return block.to_model_proto()


X = np.array([[0.5, 2.0], [1.0, 3.0]], np.float32)

UNARY = {
    "Sigmoid": (blocks.Sigmoid(), 1 / (1 + np.exp(-X))),
    "Log": (blocks.Log(), np.log(X)),
    "Neg": (blocks.Neg(), -X),
    "Abs": (blocks.Abs(), X),
    "Pow": (blocks.Pow(3.0), X**3),
    "ReduceMean": (blocks.ReduceMean(), X.mean(keepdims=True)),
    "ReduceMean, scalar": (blocks.ReduceMean(keepdims=False), X.mean()),
    "ReduceSum": (blocks.ReduceSum(), X.sum(keepdims=True)),
    "ReduceSum, scalar": (blocks.ReduceSum(keepdims=False), X.sum()),
    "Clip": (blocks.Clip(0.75, 2.5), X.clip(0.75, 2.5)),
    "Clip below": (blocks.Clip(clip_min=1.0), X.clip(1.0)),
    "Clip above": (blocks.Clip(clip_max=1.0), X.clip(None, 1.0)),
    "Cast": (blocks.Cast(TensorProto.INT64), X.astype(np.int64)),
    "ReduceAllL2": (blocks.ReduceAllL2(), np.sqrt((X * X).sum()).reshape(1)),
}


@pytest.mark.parametrize("case", UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_of_one_value(case: str, dtype: type) -> None:
    block, expected = UNARY[case]
    base = identity(["N", 2], helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    result = run(built(base, block, "y"), {"x": X.astype(dtype)})
    (value,) = result.values()
    assert value.dtype == (dtype if expected.dtype == np.float32 else expected.dtype)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert value.shape == expected.shape


@pytest.mark.parametrize(
    ("block", "expected"),
    [(blocks.Add(), X + 2), (blocks.Sub(), X - 2), (blocks.Mul(), X * 2), (blocks.Div(), X / 2)],
    ids=["Add", "Sub", "Mul", "Div"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_blocks_of_two_values_and_constants_of_any_type(
    block: onnxblock.Block, expected: np.ndarray, dtype: type
) -> None:
    base = identity(["N", 2], helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    two = blocks.Constant(2.0)
    result = run(built(base, lambda y: block(y, two()), "y"), {"x": X.astype(dtype)})
    (value,) = result.values()
    assert value.dtype == dtype
    np.testing.assert_allclose(value, expected, rtol=1e-3)


def test_names_follow_the_operator_and_count_within_the_model() -> None:
    """Two models built alike are alike: there is no counter of the process."""
    first, second = (built(identity([2]), lambda y: blocks.Abs()(blocks.Add()(y, y)), "y") for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    assert names(first.graph.output) == ["onnx::abs_output::3"]
    assert [node.name for node in first.graph.node] == ["identity", "onnx::Add::2", "onnx::Abs::4"]


def test_names_that_the_model_has_are_not_given_again() -> None:
    once = built(identity([2]), blocks.Neg(), "y")
    twice = built(once, blocks.Neg(), once.graph.output[0].name)
    assert names(once.graph.output) == ["onnx::neg_output::1"]
    assert names(twice.graph.output) != names(once.graph.output)
    np.testing.assert_array_equal(next(iter(run(twice, {"x": X[0]}).values())), X[0])


def test_sequence_construct() -> None:
    result = run(built(identity([2]), lambda y: blocks.SequenceConstruct()(y, y), "y"), {"x": X[0]})
    (value,) = result.values()
    assert len(value) == 2


def test_norm_of_several_tensors() -> None:
    base = identity([2], outputs=2)
    (value,) = run(built(base, blocks.ReduceAllL2(), "y0", "y1"), {"x0": X[0], "x1": X[1]}).values()
    np.testing.assert_allclose(value, [np.sqrt((X * X).sum())], rtol=1e-6)


def test_pass_through_returns_all_names() -> None:
    with onnxblock.base(identity([2], outputs=2)):
        assert blocks.PassThrough()("y0", "y1") == ("y0", "y1")


@pytest.mark.parametrize("like", ["x", "y", "fc1.weight", "hidden"])
def test_input_like_any_value(like: str) -> None:
    """The original finds graph inputs and outputs only."""
    base = mlp() if like in ("fc1.weight", "hidden") else identity(["N", 2])
    with onnxblock.base(base) as accessor:
        assert blocks.InputLike(like)("more") == "more"
        numbered = blocks.InputLike(like)()
        created = {value.name: value for value in accessor.model.graph.input}
        expected = accessor.value_info(like).type
    assert created["more"].type == expected
    assert created[numbered].type == expected
    assert numbered.startswith("onnx::input::")


def test_input_like_nothing() -> None:
    with onnxblock.base(mlp()), pytest.raises(LookupError, match="Could not find input or output with name nowhere"):
        blocks.InputLike("nowhere")()


def test_label_encoder() -> None:
    base = identity([3], TensorProto.INT64)
    base.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    encoder = blocks.LabelEncoder(default_int64=9, keys_int64s=[0, 1], values_int64s=[5, 6])
    (value,) = run(built(base, encoder, "y"), {"x": np.array([0, 1, 2])}).values()
    np.testing.assert_array_equal(value, [5, 6, 9])


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias: bool) -> None:
    np.random.seed(0)
    made = built(identity(["N", 2]), blocks.Linear(2, 5, bias=bias, alpha=0.5), "y")
    parameters = [onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer]
    assert [array.shape for array in parameters] == [(2, 5), (5,)][: 1 + bias]
    assert made.graph.initializer[0].name.startswith("onnx::linear.weight::")
    (value,) = run(made, {"x": X}).values()
    np.testing.assert_allclose(value, 0.5 * X @ parameters[0] + (parameters[1] if bias else 0), rtol=1e-5)


def test_users_blocks_edit_the_model_themselves() -> None:
    class Cube(onnxblock.Block):
        def build(self, name: str) -> str:
            assert self.base is not None
            self.base.graph.node.append(helper.make_node("Mul", [name, name], ["square"]))
            self.base.graph.node.append(helper.make_node("Mul", ["square", name], ["cube"]))
            return "cube"

    (value,) = run(built(identity(["N", 2]), Cube(), "y"), {"x": X}).values()
    np.testing.assert_allclose(value, X**3, rtol=1e-6)


class Broken(onnxblock.Block):
    """Emits a node that is not valid."""

    def __init__(self, node: onnx.NodeProto) -> None:
        self._node = node

    def build(self) -> str:
        assert self.base is not None
        self.base.graph.node.append(self._node)
        return self._node.output[0]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("Relu", ["y", "y"], ["z"]), "Broken made an invalid node.*Relu"),
        (helper.make_node("NoSuchOperator", ["y"], ["z"]), "Broken made an invalid node.*NoSuchOperator"),
        (helper.make_node("Relu", ["nothing"], ["z"]), "input 'nothing', which is no value of the model"),
    ],
    ids=["arity", "operator", "input"],
)
def test_invalid_nodes_are_refused_where_they_are_made(node: onnx.NodeProto, message: str) -> None:
    with onnxblock.base(identity([2])), pytest.raises(InvalidModelError, match=f"(?s){message}"):
        Broken(node)()


def test_each_block_checks_only_what_it_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise building would take time that grows with the square of the size of the model."""
    checked: list[str] = []
    check = onnx.checker.check_node
    monkeypatch.setattr(onnx.checker, "check_node", lambda node, *a: (checked.append(node.name), check(node, *a)))
    with onnxblock.base(identity([2])):
        name = "y"
        for _ in range(10):
            name = blocks.Abs()(name)
    assert len(checked) == 10


@pytest.mark.parametrize("kind", [blocks._BinaryOp, blocks._UnaryOp])
def test_operators_need_a_name(kind: type) -> None:
    with pytest.raises(OnwardError, match="Unknown op name"):
        kind("")


def test_temporary_files_are_neither_written_nor_deleted(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original deletes the user's temp.onnx when a block is dropped."""
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "temp.onnx"
    own.write_text("mine")
    block = Forward(blocks.Abs())
    with onnxblock.base(identity([2]), "model.onnx"):
        block("y")
    del block
    assert own.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [own]


def test_temporary_file_names_are_relative(tmp_path) -> None:
    with pytest.raises(OnwardError, match="relative path for the temp_file_name"):
        blocks.Block.__init__(blocks.Add(), str(tmp_path / "temp.onnx"))


def test_a_forward_block_that_was_not_called() -> None:
    with pytest.raises(OnwardError, match="Please build the forward models first"):
        Forward(blocks.Abs()).to_model_proto()


def test_outputs_that_do_not_exist() -> None:
    with onnxblock.base(identity([2])), pytest.raises(UnknownValueError, match="The provided name zzz is not a graph"):
        Forward(lambda y: "zzz")("y")
