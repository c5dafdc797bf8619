"""What graphs cannot do is left to torch, with one warning; or raised, if the user wants that."""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from onward.errors import OnwardError
from onward.torch import DebugOptions, LogLevel, ORTModule
from onward.torch.ortmodule import (
    FallbackWarning,
    ORTModuleFallbackException,
    ORTModuleIOError,
    ORTModuleONNXModelException,
    ORTModuleTorchModelException,
    construction,
)
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE


@dataclass
class Point:
    x: Any
    y: Any


class Doubling(torch.autograd.Function):
    """Its gradient is not that of what it computes, and cannot be followed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        return dy * 2 if dy.abs().sum() >= 0 else dy


def _without_gradients(m: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = m.fc(x).sum()
    return m.fc(x) * scale


def _counting(m: nn.Module, x: Tensor) -> Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    return m.fc(x)


def _branching(m: nn.Module, x: Tensor) -> Tensor:
    return m.fc(x) if x.sum() > 0 else -m.fc(x)


# What a module does -> a part of the warning. Nothing of it is in a graph, and most of it exporters drop silently.
UNFIT: dict[str, tuple[Callable[..., Any], str]] = {
    "decides by data": (_branching, "could not export"),
    "decides by data about its gradient": (lambda m, x: Doubling.apply(m.fc(x)), "backward pass of Doubling"),
    "draws random numbers of Python": (lambda m, x: m.fc(x) * random.random(), "random numbers"),
    "draws random numbers of numpy": (lambda m, x: m.fc(x) * np.random.rand(), "random numbers"),
    "draws from other distributions": (lambda m, x: m.fc(x) + torch.poisson(x.abs()), "torch"),
    "decides by a random number": (lambda m, x: m.fc(x) if torch.rand([]) < 0.5 else -m.fc(x), "random number"),
    "returns an object": (lambda m, x: Point(m.fc(x), x), "output type"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_graphs_cannot_do_is_left_to_torch(name: str) -> None:
    function, message = UNFIT[name]
    torch.manual_seed(0)
    reference = Function(function, fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    found = []
    for number in range(2):
        for net in (reference, module):
            random.seed(number), np.random.seed(number), torch.manual_seed(number)
            x = torch.randn(3, 4)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                returned = net(x)
            said = [str(warning.message) for warning in caught if warning.category is FallbackWarning]
            assert len(said) == (1 if net is module and number == 0 else 0)
            assert all(message in text for text in said)
            found.append(returned.x if isinstance(returned, Point) else returned)
            found[-1].sum().backward()
        torch.testing.assert_close(found[-1], found[-2], rtol=0, atol=0)
    torch.testing.assert_close(module.fc.weight.grad, reference.fc.weight.grad, rtol=0, atol=0)
    assert type(found[-1].grad_fn).__name__ != "_ORTModuleFunctionBackward"


def test_empty_arguments_that_only_the_older_exporter_could_follow() -> None:
    """It divides by their sizes, and ends the process."""
    module = ORTModule(Function(lambda m, x: F.group_norm(x, 2) * m.fc.weight.sum(), fc=nn.Linear(4, 4)))
    x = torch.ones(0, 2).requires_grad_()
    with pytest.warns(FallbackWarning, match="no elements"):
        module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 2)


def test_a_mistake_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on, and the warning says whose mistake it is."""

    def fails(*args: Any) -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr(construction, "write", fails)
    module = ORTModule(nn.Linear(4, 4))
    x = torch.ones(3, 4)
    with pytest.warns(FallbackWarning, match=r"mistake of onward's.*IndexError: tuple index"):
        y = module(x)
    torch.testing.assert_close(y, module.module(x), rtol=0, atol=0)


def test_attributes_that_change_at_each_call() -> None:
    """The first calls may settle something; then it is clear that no graph will do."""
    module = ORTModule(Function(_counting, fc=nn.Linear(4, 4)))
    for _ in range(4):
        module(torch.ones(3, 4))
    with pytest.warns(FallbackWarning, match="changes its attributes"):
        module(torch.ones(3, 4))
    module(torch.ones(3, 4))  # no second warning
    assert module.calls == 6


def test_attributes_that_the_first_call_settles() -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        m.kind = "rows" if x.ndim == 2 else "other"
        return m.fc(x)

    module = ORTModule(Function(forward, fc=nn.Linear(4, 4)))
    module(torch.ones(3, 4))
    assert module.kind == "rows"
    assert type(module(torch.ones(3, 4)).grad_fn).__name__ == "_ORTModuleFunctionBackward"


def test_a_table_that_grows_with_the_longest_sequence() -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        if m.table is None or len(m.table) < x.shape[1]:
            m.table = torch.arange(x.shape[1]) / 8.0
        return m.fc(x) + m.table[: x.shape[1], None]

    reference = Function(forward, fc=nn.Linear(4, 4))
    reference.register_buffer("table", None, persistent=False)
    module = ORTModule(copy.deepcopy(reference))
    for length in (3, 5, 4, 6, 2, 8, 8):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(module(x), reference(x), **CLOSE)
    assert module.runs_on_onnxruntime(x)


def test_a_block_without_gradients() -> None:
    """Exporters forget that it has none."""
    torch.manual_seed(0)
    reference = Function(_without_gradients, fc=nn.Linear(4, 4))
    module = ORTModule(copy.deepcopy(reference))
    x = torch.randn(3, 4)
    for net in (reference, module):
        net(x).square().mean().backward()
    torch.testing.assert_close(module.fc.weight.grad, reference.fc.weight.grad, **CLOSE)
    assert module.runs_on_onnxruntime(x)


def test_arguments_of_other_classes() -> None:
    module = ORTModule(Function(lambda m, p: p.x * p.y))
    with pytest.warns(FallbackWarning, match="ORTModule does not support the following model data type"):
        assert module(Point(2, 3)) == 6
    assert module(Point(2, 4)) == 8


@pytest.mark.parametrize("policy", ["FALLBACK_DISABLE", "FALLBACK_UNSUPPORTED_DEVICE", "FALLBACK_BAD_INITIALIZATION"])
def test_policies_that_raise(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
    module = ORTModule(Function(lambda m, p: p.x * p.y))
    for _ in range(2):
        with pytest.raises(ORTModuleIOError, match="model data type <class"):
            module(Point(2, 3))
    with pytest.raises(ORTModuleTorchModelException, match="DataParallel"):
        ORTModule(nn.DataParallel(nn.Linear(2, 2)))
    assert issubclass(ORTModuleIOError, ORTModuleFallbackException)


@pytest.mark.parametrize(
    "policy", ["FALLBACK_FORCE_TORCH_FORWARD", "FALLBACK_BAD_INITIALIZATION|FALLBACK_UNSUPPORTED_DATA"]
)
def test_policies_that_leave_it_to_torch(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", policy)
    module = ORTModule(Function(lambda m, p: p.x * p.y))
    with pytest.warns(FallbackWarning):
        assert module(Point(2, 3)) == 6


def test_a_policy_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_SOMETIMES")
    with pytest.raises(OnwardError, match="FALLBACK_UNSUPPORTED_DATA"):
        ORTModule(nn.Linear(2, 2))


def test_reasons_keep_neither_arguments_nor_copies_of_the_module() -> None:
    module = ORTModule(Function(_branching, fc=nn.Linear(2, 2)))
    for again in range(2):
        x = torch.randn(3, 2)
        alive = weakref.ref(x)
        with pytest.warns(FallbackWarning) if not again else contextlib.nullcontext():
            module(x)
        del x
        gc.collect()
        assert alive() is None
        assert not module.runs_on_onnxruntime(torch.randn(3, 2))
    (error,) = (error for plans in module._runner.plans.values() for error in plans.values())
    assert isinstance(error, ORTModuleFallbackException)
    assert error.__traceback__ is None


def test_data_parallel_is_left_to_torch() -> None:
    module = ORTModule(nn.DataParallel(nn.Linear(2, 2)))
    with pytest.warns(FallbackWarning, match="DataParallel"):
        assert module(torch.ones(3, 2)).shape == (3, 2)
    with pytest.raises(ORTModuleTorchModelException, match="adding modules"):
        module.add_module("more", nn.Linear(2, 2))


def test_what_changes_the_class_of_a_module_is_refused() -> None:
    """fully_shard does, so that hooks of torch's own gather parameters."""
    module = ORTModule(nn.Linear(2, 2))
    with pytest.raises(ORTModuleTorchModelException, match=r"cannot become a Flatten: .*fully_shard.* Give it the mod"):
        module.__class__ = nn.Flatten  # type: ignore[assignment]


def test_retrying(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is not tried again, unless that is asked for."""
    from onward.torch.ortmodule import runner

    tried = []

    def fail(*args: Any, **options: Any) -> Any:
        tried.append(args)
        raise ORTModuleONNXModelException("no")

    monkeypatch.setattr(runner, "build", fail)
    module = ORTModule(nn.Linear(2, 2))
    with pytest.warns(FallbackWarning):
        module(torch.ones(3, 2))
    module(torch.ones(3, 2))
    assert len(tried) == 1
    monkeypatch.setenv("ORTMODULE_FALLBACK_RETRY", "True")
    for times in (2, 3):
        with pytest.warns(FallbackWarning):
            module(torch.ones(3, 2))
        assert len(tried) == times


def test_what_fails_for_two_sizes_is_not_tried_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.torch.ortmodule import runner

    tried, build = [], runner.build

    def attempt(*args: Any, **options: Any) -> Any:
        tried.append(args)
        return build(*args, **options)

    monkeypatch.setattr(runner, "build", attempt)
    module = ORTModule(Function(_branching, fc=nn.Linear(2, 2)))
    with pytest.warns(FallbackWarning):
        module(torch.ones(3, 2))
    for rows in (4, 5, 6):
        assert module(torch.ones(rows, 2)).shape == (rows, 2)
    assert len(tried) == 2


def test_the_operator_that_cannot_be_exported_is_named() -> None:
    module = ORTModule(Function(lambda m, x: torch.linalg.matrix_exp(m.fc(x)), fc=nn.Linear(2, 2)))
    with pytest.warns(FallbackWarning, match="matrix_exp"):
        module(torch.ones(2, 2))


def test_debug_options(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ORTModule(nn.Linear(2, 2), DebugOptions(save_onnx=True, onnx_prefix="net", save_path=str(tmp_path)))
    module(torch.ones(3, 2))
    assert {path.name for path in tmp_path.iterdir()} == {
        "net_torch_exported_training.onnx",
        "net_execution_model_training.onnx",
        "net_optimized_training.onnx",
        "net_optimized_pre_grad_training.onnx",
    }
    with pytest.raises(ValueError, match="onnx_prefix"):
        DebugOptions(save_onnx=True)
    with pytest.raises(TypeError, match="prefix of type str"):
        DebugOptions(save_onnx=True, onnx_prefix=3)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="not writable"):
        DebugOptions(save_onnx=True, onnx_prefix="net", save_path=str(tmp_path / "nowhere"))
    with pytest.raises(TypeError, match="log_level"):
        DebugOptions(log_level="INFO")  # type: ignore[arg-type]
    monkeypatch.setenv("ORTMODULE_LOG_LEVEL", "INFO")
    assert DebugOptions().logging.log_level is LogLevel.INFO


def test_the_parts_that_can_be_exported() -> None:
    from onward.torch.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule

    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 4), Function(_branching, fc=nn.Linear(4, 4)))
    module = HierarchicalORTModule(copy.deepcopy(reference))
    x = torch.randn(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (x, -x):
            for net in (reference, module):
                net(given).square().mean().backward()
    for (key, wanted), got in zip(reference.named_parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad, **CLOSE, msg=key)
    assert isinstance(module.module[0], ORTModule)
    assert isinstance(module.module[1], Function)
    assert isinstance(module.module[1].fc, ORTModule)
    assert module.state_dict().keys() == reference.state_dict().keys()


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoints_of_activations(use_reentrant: bool) -> None:
    def run(module: nn.Module, x: Tensor) -> Any:
        fc: Any = module.fc
        return checkpoint(fc, x, use_reentrant=use_reentrant).relu()

    reference = Function(run, fc=nn.Linear(4, 3))
    module, x = ORTModule(copy.deepcopy(reference)), torch.randn(5, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        y = module(x)
    y.sum().backward()
    reference(x).sum().backward()
    for own, expected in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad, **CLOSE)
    if use_reentrant:
        assert not module.runs_on_onnxruntime(x)


def test_a_long_loop_is_left_to_torch_at_once() -> None:
    """Making graphs of it would seem to hang."""

    def loop(m: nn.Module, x: torch.Tensor) -> torch.Tensor:
        for _ in range(5001):
            x = (x * 0.999).tanh()
        return m.fc(x)

    module = Function(loop, fc=nn.Linear(2, 2))
    net = ORTModule(module)
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    with pytest.warns(FallbackWarning, match=r"it runs 100\d\d operations in one call"):
        found = net(x)
    torch.testing.assert_close(found, module(x))


@pytest.mark.parametrize("decides", [True, False], ids=["decides by data", "operator that ONNX has not"])
def test_a_warning_is_all_that_is_said(decides: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """Where they fail, torch's exporters print what they had until then."""

    def function(m: nn.Module, x: Tensor) -> Tensor:
        print("own words", file=sys.stderr)
        return (m.fc(x) if x.sum() > 0 else -x) if decides else torch.slogdet(m.fc(x))[1]

    with pytest.warns(FallbackWarning):
        ORTModule(Function(function, fc=nn.Linear(3, 3)))(torch.ones(3, 3))
    said = capfd.readouterr()
    assert said.out == ""
    assert set(said.err.splitlines()) == {"own words"}
