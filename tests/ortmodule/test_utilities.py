"""What `onnxruntime.training.utils` has: schemas of nested data, types, tables, samplers, subscribers."""

from __future__ import annotations

import copy
import logging
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onward.errors import OnwardError, OnwardWarning
from onward.torch import ORTModule
from onward.torch.ortmodule import FallbackWarning
from onward.torch.utils import (
    PTable,
    extract_data_and_schema,
    log_memory_usage,
    nvtx_function_decorator,
    onnx_dtype_to_pytorch_dtype,
    pytorch_scalar_type_to_pytorch_dtype,
    pytorch_type_to_onnx_dtype,
    unflatten_data_using_schema,
)
from onward.torch.utils.data import LoadBalancingDistributedBatchSampler, LoadBalancingDistributedSampler
from onward.torch.utils.hooks import (
    GlobalSubscriberManager,
    StatisticsSubscriber,
    SubscriberBase,
    SubscriberManager,
    ZeROOffloadSubscriber,
    inspect_activation,
    no_increase_global_step,
)
from onward.torch.utils.torch_io_helper import _TensorStub
from tests.ortmodule.models import Function

Pair = namedtuple("Pair", "first second")
ONE, TWO = torch.tensor([1, 2, 3]), torch.tensor([[1.5]])


def _stub(index: int, name: str, tensor: Tensor) -> _TensorStub:
    return _TensorStub(index, name, str(tensor.dtype), shape_dims=tensor.ndim)


@pytest.mark.parametrize(
    ("data", "tensors", "schema", "constants"),
    [
        (True, [], True, [torch.tensor(True)]),
        ("abc", [], "abc", []),
        (None, [], None, []),
        (ONE, [ONE], _stub(0, "", ONE), [ONE]),
        ([1, 2.0, "a", None, ONE], [ONE], [1, 2.0, "a", None, _stub(0, "4", ONE)], [torch.tensor(1), ONE]),
        (
            {"b": ONE, "a": {"c": [TWO]}},
            [TWO, ONE],
            {"b": _stub(1, "b", ONE), "a": {"c": [_stub(0, "a_c_0", TWO)]}},
            [],
        ),
        (Pair(ONE, (TWO,)), [ONE, TWO], Pair(_stub(0, "0", ONE), (_stub(1, "1_0", TWO),)), []),
    ],
)
def test_schemas(data: Any, tensors: list[Tensor], schema: Any, constants: list[Tensor]) -> None:
    before = copy.deepcopy(data)
    found, own = extract_data_and_schema(data)
    assert [id(tensor) for tensor in found] == [id(tensor) for tensor in tensors]
    assert own == schema
    assert type(own) is type(schema)
    again = unflatten_data_using_schema(found, own)
    assert str(again) == str(before) == str(data)
    every, _ = extract_data_and_schema(data, constant_as_tensor=True, device=torch.device("cpu"))
    assert all(any(torch.equal(tensor, constant) for tensor in every) for constant in constants)


def test_schemas_of_other_things() -> None:
    with pytest.raises(TypeError, match=r"Unsupported flatten data type: <class 'object'>"):
        extract_data_and_schema([object()])
    assert str(_TensorStub(0, name="x", dtype=torch.int64, shape_dims=1)) == (
        "_TensorStub(tensor_idx=0,name=x,dtype=torch.int64,shape_dims=1)"
    )


def test_types() -> None:
    kinds = {"Float": torch.float32, "Long": torch.int64, "Bool": torch.bool, "BFloat16": torch.bfloat16}
    for name, dtype in kinds.items():
        assert pytorch_scalar_type_to_pytorch_dtype(name) is dtype
        assert onnx_dtype_to_pytorch_dtype(pytorch_type_to_onnx_dtype(name)) is dtype
        assert pytorch_type_to_onnx_dtype(dtype) == pytorch_type_to_onnx_dtype(name)
    for unknown in ("Quaternion", torch.qint8):
        with pytest.raises(OnwardError, match="Unsupported dtype"):
            pytorch_type_to_onnx_dtype(unknown)  # type: ignore[arg-type]


def test_tables_and_ranges(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    table, inner = PTable(sortable=True), PTable()
    inner.add_row(["x", 1, 2])
    table.add_row(["b", "long", 1]).append_annotation_table(inner)
    table.add_row(["a", "s", 22])
    assert table.get_string() == "a  s     22  \nb  long  1   \nx  1  2   \n"
    with pytest.raises(OnwardError, match="row of 1"):
        table.add_row(["one"])
    assert nvtx_function_decorator(lambda x: x + 1)(1) == 2
    log_memory_usage("now")
    assert "MiB" in capsys.readouterr().out
    with caplog.at_level(logging.INFO):
        log_memory_usage("later", step_info="step 3", logger=logging.getLogger("memory"))
    assert "later (step 3)" in caplog.text


COSTS = torch.randint(0, 100, (99,), generator=torch.Generator().manual_seed(5)).tolist()


def _sampler(rank: int = 0, world_size: int = 2, **options: Any) -> LoadBalancingDistributedSampler:
    return LoadBalancingDistributedSampler(COSTS, lambda cost: cost, world_size, rank, **options)


def test_each_process_has_samples_of_like_cost() -> None:
    first, second = (list(_sampler(rank, shuffle=False)) for rank in range(2))
    assert [COSTS[i] for i in first] == sorted(COSTS[i] for i in first)
    assert len(first) == len(second) == len(_sampler()) == 50
    assert {*first, *second} == set(range(99))
    ordered = sorted(COSTS)
    pairs = [sorted((COSTS[a], COSTS[b])) for a, b in zip(first, second, strict=True)][:-1]
    assert pairs == [ordered[i : i + 2] for i in range(0, 98, 2)]
    assert len(list(_sampler(drop_last=True))) == 49


def test_shuffling() -> None:
    sampler, other = _sampler(), _sampler(1)
    first = list(sampler)
    assert first == list(sampler) != sorted(first, key=lambda i: COSTS[i])
    assert set(first) | set(other) == set(range(99))
    sampler.set_epoch(1)
    assert list(sampler) != first
    groups = list(_sampler(world_size=1, group_size=8))
    order = torch.randperm(13, generator=torch.Generator().manual_seed(0)).tolist()
    expected = [sorted(range(8 * g, min(8 * g + 8, 99)), key=lambda i: COSTS[i]) for g in order]
    assert groups == [i for group in expected for i in group]
    assert list(_sampler(random_level=1.0, shuffle=False)) != list(_sampler(shuffle=False))


def test_batches_by_cost() -> None:
    def batches(indices: list[int]) -> list[list[int]]:
        """Until they cost 300 together."""
        found: list[list[int]] = [[]]
        for index in indices:
            if found[-1] and sum(COSTS[i] for i in (*found[-1], index)) > 300:
                found.append([])
            found[-1].append(index)
        return found

    each = [LoadBalancingDistributedBatchSampler(_sampler(rank, shuffle=False), batches) for rank in range(2)]
    assert len(list(each[0])) == len(list(each[1])) == len(each[0])
    fewest = LoadBalancingDistributedBatchSampler(_sampler(shuffle=False), batches, drop_last=True)
    assert len(fewest) <= len(each[0])
    fewest.set_epoch(3)
    for wrong in ([1, 2], _sampler(drop_last=True)):
        with pytest.raises(ValueError, match="sampler"):
            LoadBalancingDistributedBatchSampler(wrong, batches)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank 2"):
        _sampler(2)
    with pytest.raises(ValueError, match="random level"):
        _sampler(random_level=2)


def _layers(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    fc: Any = module.fc
    return inspect_activation("marked", fc(x)).relu(), x


@pytest.mark.parametrize("wrapped", [False, True])
def test_statistics_in_files(wrapped: bool, tmp_path: Path) -> None:
    module: nn.Module = Function(_layers, fc=nn.Linear(4, 3))
    GlobalSubscriberManager.subscribe(module, [StatisticsSubscriber(tmp_path / "out", end_step=2)])
    x = torch.tensor([[1.0, float("inf"), 3.0, 4.0]], requires_grad=True)
    run = ORTModule(module) if wrapped else module
    for step in range(3):
        if wrapped and step == 0:
            with pytest.warns(FallbackWarning, match="hooks"):
                found = run(x)
        else:
            found = run(x)
        (found[0].sum() + found[1].sum()).backward()
    with no_increase_global_step():
        run(x)
    layers = ["Linear_1_0th_output", "marked", "Function_0_0th_output", "Function_0_1th_output"]
    files = {f"{name}_{way}" for name in layers for way in ("forward", "backward")} | {"order.txt"}
    assert {folder.name for folder in (tmp_path / "out").iterdir()} == {"step_0", "step_1"}
    assert {file.name for file in (tmp_path / "out" / "step_1").iterdir()} == files
    text = (tmp_path / "out" / "step_0" / "Function_0_1th_output_forward").read_text()
    assert "shape: (1, 4) dtype: torch.float32" in text
    assert "nan: 0, inf: 1" in text
    order = (tmp_path / "out" / "step_0" / "order.txt").read_text().split()
    assert order[:2] == ["Linear_1_0th_output_forward", "marked_forward"]
    # Of the class, as up to 1.15; the hooks of the other module are gone.
    SubscriberManager.subscribe(nn.ReLU(), [SubscriberBase()])
    module(x)
    assert not (tmp_path / "out" / "step_2").exists()


def test_a_subscriber_of_ones_own() -> None:
    class Doubling(SubscriberBase):
        def pre_forward_tensor_apply_impl(self, run_ctx: Any, module: Any, tensor_index: int, tensor: Tensor) -> Tensor:
            return tensor * 2

        def post_forward_outmost_module_apply_impl(self, run_ctx: Any, module: Any, args: Any, outputs: Any) -> Any:
            return args, outputs + 1

    manager, module = SubscriberManager(), nn.Sequential(nn.ReLU())
    manager.subscribe(module, [Doubling()])
    assert module(torch.ones(1)).item() == 5
    assert isinstance(manager.get_subscriber(Doubling), Doubling)
    assert manager.get_run_context().global_states.execution_step == 1
    with pytest.raises(OnwardError, match="not registered"):
        manager.get_subscriber(StatisticsSubscriber)


def test_subscribers_that_cannot_be(tmp_path: Path) -> None:
    manager = SubscriberManager()
    with pytest.raises(ValueError, match=r"torch\.nn\.Module"):
        manager.subscribe(1, [SubscriberBase()])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="SubscriberBase"):
        manager.subscribe(nn.ReLU(), [1])  # type: ignore[list-item]
    with pytest.raises(OnwardError, match="No subscribers"):
        manager.subscribe(nn.ReLU(), [])
    with pytest.raises(OnwardError, match="GPUs"):
        ZeROOffloadSubscriber()
    with pytest.raises(FileExistsError, match="override_output_dir"):
        StatisticsSubscriber(tmp_path)
    with pytest.warns(OnwardWarning, match="replaced"):
        StatisticsSubscriber(tmp_path, override_output_dir=True)
    assert not tmp_path.exists()
