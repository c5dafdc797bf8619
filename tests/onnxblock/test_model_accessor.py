"""The model that blocks work on: contexts, threads, names, and the private functions that users import."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from onward import onnxblock
from onward.errors import OnwardError
from onward.graph.opsets import accepted_by_runtime
from onward.onnxblock import _graph_utils, blocks, model_accessor
from tests.onnxblock.models import identity, mlp, names


def test_the_callers_model_is_not_changed() -> None:
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    with onnxblock.base(model) as accessor:
        onnxblock.loss.MSELoss()("y")
        assert accessor.model is not model
        assert len(accessor.model.graph.node) > 3
    assert model.SerializeToString(deterministic=True) == before


def test_bases_do_not_nest() -> None:
    with onnxblock.base(mlp()):
        for other in (onnxblock.base(mlp()), onnxblock.empty_base()):
            with pytest.raises(OnwardError, match="Base onnx model already exists"), other:
                pass
    with onnxblock.empty_base():
        pass


def test_a_base_needs_a_model() -> None:
    with pytest.raises(OnwardError, match="Base onnx model cannot be None"), onnxblock.base(None):  # type: ignore[arg-type]
        pass


def test_a_base_is_left_when_something_is_raised() -> None:
    with pytest.raises(ValueError, match="mine"), onnxblock.base(mlp()):
        raise ValueError("mine")
    assert model_accessor._GLOBAL_ACCESSOR is None


def test_blocks_need_a_base() -> None:
    with pytest.raises(OnwardError, match="called outside of a model"):
        blocks.Abs()("y")


def test_the_accessor_is_readable_where_the_original_keeps_it() -> None:
    with onnxblock.base(mlp()) as accessor:
        assert model_accessor._GLOBAL_ACCESSOR is accessor
    assert model_accessor._GLOBAL_ACCESSOR is None
    assert model_accessor._GLOBAL_CUSTOM_OP_LIBRARY is None
    with pytest.raises(AttributeError, match="no attribute '_OTHER'"):
        model_accessor._OTHER  # noqa: B018


def test_the_path_of_a_model() -> None:
    with onnxblock.base(mlp(), "some/model.onnx") as accessor:
        assert accessor.has_path
        assert accessor.path == "some/model.onnx"
    with onnxblock.base(mlp()) as accessor:
        assert not accessor.has_path
        with pytest.raises(OnwardError, match="path of the onnx model is not known"):
            accessor.path  # noqa: B018


def test_empty_bases_can_run_in_the_installed_runtime() -> None:
    with onnxblock.empty_base() as accessor:
        model = accessor.model
    newest, ir_version = accepted_by_runtime()
    assert [imported.domain for imported in model.opset_import] == ["com.microsoft", ""]
    assert model.opset_import[1].version <= newest
    assert model.ir_version <= ir_version
    with onnxblock.empty_base(opset_version=15) as accessor:
        assert accessor.opset == 15


def test_custom_op_library(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    with pytest.raises(OnwardError, match="does not exist"), onnxblock.custom_op_library(library):
        pass
    library.touch()
    with onnxblock.custom_op_library(library) as path:
        assert path == library
        assert library == model_accessor._GLOBAL_CUSTOM_OP_LIBRARY
        with pytest.raises(OnwardError, match="already exists"), onnxblock.custom_op_library(library):
            pass


def test_blocks_are_shared_by_threads() -> None:
    """One block, many threads, each with its own model: no names, nodes or models get mixed up."""
    loss = onnxblock.loss.CrossEntropyLoss()
    start = threading.Barrier(8)

    def build(index: int) -> bytes:
        start.wait()
        with onnxblock.base(mlp()) as accessor:
            for _ in range(5):
                name = loss("y", labels_name=f"labels{index % 2}")
            assert name in {output for node in accessor.model.graph.node for output in node.output}
            assert loss.base is accessor.model
            return accessor.model.SerializeToString(deterministic=True)

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(build, range(8)))
    assert len(set(made)) == 2
    assert made[0::2] == made[:1] * 4


def test_each_thread_gets_back_what_it_built() -> None:
    class WithLoss(onnxblock.ForwardBlock):
        def build(self, name: str, target: str) -> str:
            return onnxblock.loss.MSELoss()(name, target)

    block, start, end = WithLoss(), threading.Barrier(4), threading.Barrier(4)

    def build(index: int) -> str:
        start.wait()
        with onnxblock.base(mlp()):
            block("y", f"target{index}")
        end.wait()
        return block.to_model_proto().graph.input[1].name

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(4))) == [f"target{index}" for index in range(4)]
    assert block.to_model_proto().graph.input[1].name.startswith("target")


def test_initializers_of_old_files_are_not_inputs() -> None:
    """IR version 3 lists every initializer as an input; blocks could not add any."""
    model = mlp(opset=8)
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    model.ir_version = 3
    with onnxblock.base(model) as accessor:
        assert names(accessor.model.graph.input) == ["x"]
        assert accessor.model.ir_version >= 4


# _graph_utils --------------------------------------------------------------------------------------------------------


def test_values_are_found_by_name() -> None:
    model = mlp()
    assert _graph_utils.get_output_from_output_name(model, "y").name == "y"
    assert _graph_utils.get_input_from_input_name(model, "x").name == "x"
    assert _graph_utils.get_value_info_for_name(model, "fc1.bias").type.tensor_type.elem_type == TensorProto.FLOAT
    for find in (
        _graph_utils.get_output_from_output_name,
        _graph_utils.get_input_from_input_name,
        _graph_utils.get_value_info_for_name,
    ):
        with pytest.raises(LookupError, match="'z'"):
            find(model, "z")


def test_node_args_are_those_of_nodes() -> None:
    model = mlp()
    model.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.FLOAT, [1]))
    assert _graph_utils.node_arg_exists(model, "hidden")
    assert _graph_utils.node_arg_exists(model, "fc1.bias")
    assert not _graph_utils.node_arg_exists(model, "unused")


def test_names_are_generated_within_and_outside_of_models() -> None:
    outside = [_graph_utils.generate_graph_name("thing") for _ in range(2)]
    assert len(set(outside)) == 2
    assert all(name.startswith("onnx::thing::") for name in outside)
    for _ in range(2):
        with onnxblock.base(identity([2])):
            generated = [_graph_utils.generate_graph_name("thing") for _ in range(2)]
            assert generated == ["onnx::thing::1", "onnx::thing::2"]


def test_outputs_are_registered() -> None:
    model = onnx.shape_inference.infer_shapes(mlp())
    _graph_utils.register_graph_outputs(model, ["hidden", "y", "hidden"])
    assert names(model.graph.output) == ["hidden", "y"]
    _graph_utils.register_graph_outputs(model, "y")
    assert names(model.graph.output) == ["y"]
    with pytest.raises(LookupError, match="The provided name zzz is not a graph value info or a graph output"):
        _graph_utils.register_graph_outputs(model, "zzz")
