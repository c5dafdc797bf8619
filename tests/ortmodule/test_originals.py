"""Names and attributes that programs written for the original use, beyond ORTModule itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from onward.autodiff import registry
from onward.errors import OnwardError, OnwardWarning
from onward.torch import DebugOptions, LogLevel, ORTModule
from onward.torch.ortmodule import ORTModuleDeviceException, _io, _utils
from onward.torch.ortmodule._custom_gradient_registry import register_gradient
from onward.torch.ortmodule._fallback import _FallbackPolicy
from onward.torch.ortmodule._onnx_models import _get_onnx_file_name
from onward.torch.ortmodule.experimental.hierarchical_ortmodule import HierarchicalORTModule
from onward.torch.ortmodule.experimental.json_config import load_from_json
from onward.torch.ortmodule.options import _SkipCheck
from onward.torch.orttrainer.optim import AdamWMode, FP16_Optimizer, FusedAdam
from tests.ortmodule.models import Function
from tests.ortmodule.test_models import CLOSE


@pytest.fixture(scope="module")
def trained() -> ORTModule:
    module = ORTModule(nn.Sequential(nn.Linear(4, 3), nn.ReLU()))
    module(torch.ones(2, 4, requires_grad=True))
    return module


def test_what_is_inside(trained: ORTModule) -> None:
    manager = trained._torch_module._execution_manager(trained._is_training())
    assert trained._is_training()
    assert trained._torch_module.is_training()
    models = manager._onnx_models
    assert {value.name for value in models.exported_model.graph.input} >= {"0.weight", "0.bias"}
    assert not {"0.weight", "0.bias"} & {value.name for value in models.exported_model.graph.initializer}
    onnx.checker.check_model(models.exported_model)
    assert "Relu" in [node.op_type for node in models.optimized_model.graph.node]
    assert manager._input_info.require_grad_names == manager._input_info.names == ["input"]
    assert manager._device == torch.device("cpu")
    assert manager._debug_options.logging.log_level is LogLevel.WARNING
    assert manager._fallback_manager._exception is None
    assert trained._torch_module._execution_manager(False)._onnx_models is None


def test_another_kind_of_call_has_other_graphs(trained: ORTModule) -> None:
    manager = trained._torch_module._execution_manager(True)
    before, schema = manager._graph_builder, repr(manager._input_info.schema)
    trained(torch.ones(2, 4))
    assert manager._graph_builder is not before
    assert repr(manager._input_info.schema) != schema
    assert manager._input_info.require_grad_names == []
    trained(torch.ones(2, 4, requires_grad=True))
    assert manager._graph_builder is before


def test_why_torch_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_UNSUPPORTED_DATA")
    module = ORTModule(Function(lambda m, p: p))
    with pytest.warns(OnwardWarning, match="Fallback to PyTorch due to exception"):
        module(object())
    manager = module._torch_module._execution_manager(True)._fallback_manager
    assert manager.policy is _FallbackPolicy.FALLBACK_UNSUPPORTED_DATA
    assert manager._exception is not None


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_files_of_all_graphs(mode: str, tmp_path: Path) -> None:
    module = ORTModule(nn.Linear(2, 2), DebugOptions(save_onnx=True, onnx_prefix="net", save_path=str(tmp_path)))
    module.train(mode == "training")
    with torch.set_grad_enabled(mode == "training"):
        module(torch.ones(3, 2))
    kinds = {"torch_exported", "optimized", "execution_model"} | (
        {"optimized_pre_grad"} if mode == "training" else set()
    )
    assert {path.name for path in tmp_path.iterdir()} == {f"net_{kind}_{mode}.onnx" for kind in kinds}
    manager = module._torch_module._execution_manager(mode == "training")
    for kind in kinds:
        assert (tmp_path / _get_onnx_file_name("net", kind, manager._export_mode)).exists()
    for path in tmp_path.iterdir():
        model = onnx.load(path)
        onnx.checker.check_model(model)
        assert "weight" not in {value.name for value in model.graph.initializer}


def test_a_gradient_as_the_original_declares_it() -> None:
    before = registry._rules["", "Cos"]
    try:

        @register_gradient("", "Cos")
        def cos_gradient() -> list[Any]:
            return [
                ("Constant", [], ["minus"], {"value": {"value": -1, "dtype": "IElemType(0)", "is_tensor": True}}),
                ("Sin", ["I(0)"], ["sin"]),
                ("Mul", ["sin", "GO(0)"], ["product"]),
                ("Mul", ["product", "minus"], ["GI(0)"]),
            ]

        assert registry._rules["", "Cos"] is not before
        module = ORTModule(Function(lambda m, x: torch.cos(x)))
        x = torch.randn(2, 3, requires_grad=True)
        module(x).sum().backward()
        torch.testing.assert_close(x.grad, -torch.sin(x.detach()), **CLOSE)
        assert "Sin" in [node.op_type for node in _backward(module).graph.node]
    finally:
        registry._rules["", "Cos"] = before
    with pytest.raises(OnwardError, match="operator of PyTorch"):
        register_gradient("org.pytorch.aten", "ATen", "aten::embedding", "")
    with pytest.raises(OnwardError, match="operators of the standard"):
        register_gradient("acme", "Foo")(lambda: [(("ATen", "org.pytorch.aten"), ["GO(0)"], ["GI(0)"])])


def _backward(module: ORTModule) -> onnx.ModelProto:
    found: onnx.ModelProto = module._torch_module._execution_manager(True)._onnx_models.backward_model
    return found


def _huggingface_adamw(p: torch.Tensor, g: torch.Tensor, state: dict[str, Any], lr: float, decay: float) -> None:
    state["t"] += 1
    state["m"] = 0.9 * state["m"] + 0.1 * g
    state["v"] = 0.999 * state["v"] + 0.001 * g * g
    size = lr * (1 - 0.999 ** state["t"]) ** 0.5 / (1 - 0.9 ** state["t"])
    p -= size * state["m"] / (state["v"].sqrt() + 1e-6)
    p -= lr * decay * p


@pytest.mark.parametrize("mode", AdamWMode)
def test_fused_adam(mode: AdamWMode) -> None:
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)]
    ours = [nn.Parameter(p.clone()) for p in start]
    theirs = [nn.Parameter(p.clone()) for p in start]
    eps = 1e-6
    optimizer = FusedAdam(ours, lr=0.1, weight_decay=0.01, adam_w_mode=mode, eps=eps)
    kind = torch.optim.Adam if mode is AdamWMode.ADAM_L2_REGULARIZATION else torch.optim.AdamW
    reference = kind(theirs, lr=0.1, weight_decay=0.01, eps=eps)
    states: list[dict[str, Any]] = [{"t": 0, "m": torch.zeros_like(p), "v": torch.zeros_like(p)} for p in start]
    for _ in range(5):
        for first, second, state in zip(ours, theirs, states, strict=True):
            first.grad = torch.randn(first.shape, generator=generator)
            second.grad = first.grad.clone()
            if mode is AdamWMode.ADAMW_TRANSFORMERS:
                _huggingface_adamw(second.data, second.grad, state, 0.1, 0.01)
        optimizer.step()
        if mode is not AdamWMode.ADAMW_TRANSFORMERS:
            reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    resumed = FusedAdam([nn.Parameter(p.detach().clone()) for p in ours], lr=0.1, weight_decay=0.01, adam_w_mode=mode)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for first, second in zip(ours, resumed.param_groups[0]["params"], strict=True):
        first.grad = torch.ones_like(first)
        second.grad = torch.ones_like(first)
    optimizer.step(), resumed.step()
    torch.testing.assert_close(resumed.param_groups[0]["params"], ours, rtol=0, atol=0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in ours)


def test_fused_adam_counts_the_steps_of_each_parameter() -> None:
    """One that has no gradient at first begins later, as in torch; states of the original count those of groups."""
    ours, theirs = ([nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))] for _ in range(2))
    optimizer = FusedAdam(ours, lr=0.1, adam_w_mode=AdamWMode.ADAMW_TORCH)
    reference = torch.optim.AdamW(theirs, lr=0.1, weight_decay=0.0, eps=1e-6)
    for step in range(4):
        for first, second in zip(ours, theirs, strict=True):
            given = step > 1 or len(first) == 2
            first.grad, second.grad = (torch.full_like(first, 0.5 - step) if given else None for _ in range(2))
        optimizer.step()
        reference.step()
        torch.testing.assert_close(ours, theirs)
    assert [state["step"] for state in optimizer.state.values()] == [4, 2]
    old = copy.deepcopy(optimizer.state_dict())
    old["param_groups"][0]["step"] = 4
    for state in old["state"].values():
        del state["step"]
    optimizer.load_state_dict(old)
    optimizer.step()
    assert [state["step"] for state in optimizer.state.values()] == [5, 5]


def test_fp16_optimizer_changes_nothing() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.warns(OnwardWarning, match="as it is"):
        assert FP16_Optimizer(optimizer) is optimizer


def test_options_of_a_file(tmp_path: Path) -> None:
    module, file = ORTModule(nn.Linear(2, 2)), tmp_path / "options.json"
    content = {
        "UseStaticShape": True,
        "PropagateCastOps": {"Strategy": "FLOOD_FILL"},
        "SkipCheck": ["SKIP_CHECK_DEVICE", "SKIP_CHECK_EXECUTION_AGENT"],
        "FallbackPolicy": ["FALLBACK_DISABLE"],
        "DebugOptions": {"LogLevel": "INFO", "SaveONNX": True, "ONNXPrefix": "net", "SaveONNXPath": str(tmp_path)},
    }
    file.write_text(json.dumps(content))
    load_from_json(module, file)
    for is_training in (True, False):
        manager = module._torch_module._execution_manager(is_training)
        assert manager._runtime_options.skip_check == _SkipCheck(10)
        assert manager._fallback_manager.policy == _FallbackPolicy.FALLBACK_DISABLE
        assert manager._debug_options.logging.log_level is LogLevel.INFO
        assert manager._debug_options.save_onnx_models.name_prefix == "net"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"UseStaticShapes": True}, "UseStaticShape"),
        ({"UseStaticShape": 1}, "bool"),
        ({"FallbackPolicy": ["FALLBACK"]}, "FALLBACK_DISABLE"),
        ({"DebugOptions": {"Level": 1}}, "LogLevel"),
        ([], "object"),
    ],
)
def test_files_with_other_options(content: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(json.dumps(content))
    with pytest.raises(OnwardError, match=message):
        load_from_json(ORTModule(nn.Linear(2, 2)), file)
    with pytest.raises(OnwardError, match="cannot be read"):
        load_from_json(ORTModule(nn.Linear(2, 2)), tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match="ORTMODULE_JSON_CONFIG_PATH"):
        load_from_json(ORTModule(nn.Linear(2, 2)))


def test_policies_of_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_CHECK_DEVICE|SKIP_CHECK_BUILD_GRADIENT")
    manager = ORTModule(nn.Linear(2, 2))._torch_module._execution_manager(False)
    assert manager._runtime_options.skip_check == _SkipCheck(6)
    monkeypatch.setenv("ORTMODULE_SKIPCHECK_POLICY", "SKIP_NOTHING")
    with pytest.raises(OnwardError, match="SKIP_CHECK_DEVICE"):
        ORTModule(nn.Linear(2, 2))


class WithMethod(nn.Linear):
    def method(self) -> int:
        return 1


def test_a_method_that_is_replaced_on_the_wrapper() -> None:
    module = ORTModule(WithMethod(2, 2))
    module.method = lambda: 2
    assert module.method() == 2
    assert module.module.method() == 1


def test_several_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    with pytest.raises(ORTModuleDeviceException) as error:
        ORTModule(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta")))
    assert str(error.value) == "ORTModule supports a single device per model"
    assert "meta" in error.value.__notes__[0]


def test_devices_and_random_states() -> None:
    assert _utils.get_device_str("cpu") == _utils.get_device_str(torch.device("cpu")) == "cpu"
    assert _utils.get_device_str("cuda") == "cuda:0"
    assert _utils.get_device_index("cuda:3") == 3
    states = _utils.get_random_states()
    drawn = torch.rand(3)
    _utils.set_random_states(states)
    assert torch.equal(torch.rand(3), drawn)


def _opset(model: onnx.ModelProto) -> int:
    return next(one.version for one in model.opset_import if not one.domain)


@pytest.mark.parametrize("opset", [13, 19])
def test_an_opset(opset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", str(opset))
    module = ORTModule(nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()))
    monkeypatch.delenv("ORTMODULE_ONNX_OPSET_VERSION")
    x = torch.randn(2, 4, requires_grad=True)
    module(x).sum().backward()
    manager = module._torch_module._execution_manager._training_manager
    assert manager._runtime_options.onnx_opset_version == opset
    models = manager._onnx_models
    assert _opset(models.exported_model) == _opset(models.optimized_model) == _opset(models.backward_model) == opset


def test_the_opset_of_all_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    from onward.torch import ortmodule

    assert ORTModule(nn.Linear(2, 2))._runner.runtime.opset is None
    monkeypatch.setattr(ortmodule, "ONNX_OPSET_VERSION", 15)
    assert ORTModule(nn.Linear(2, 2))._runner.runtime.opset == 15
    monkeypatch.setenv("ORTMODULE_ONNX_OPSET_VERSION", "new")
    with pytest.raises(OnwardError, match="number of an opset"):
        ORTModule(nn.Linear(2, 2))


def test_arguments_of_the_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTMODULE_FALLBACK_POLICY", "FALLBACK_DISABLE")
    module = ORTModule(nn.Linear(2, 2))
    manager = module._torch_module._execution_manager(True)
    manager._export_extra_kwargs = {"verbose": False}
    with pytest.raises(OnwardError, match=r"arguments cannot be specified: '\{'verbose'\}'"):
        module(torch.ones(1, 2))
    module = ORTModule(nn.Linear(2, 2))
    module._torch_module._execution_manager(True)._export_extra_kwargs = {"custom_opsets": {"acme": 1}}
    module(torch.ones(3, 2)).sum().backward()
    assert next(iter(module._runner.latest.values())).exporter == "tracing"


def test_attributes_that_change() -> None:
    module = ORTModule(WithMethod(2, 2))
    manager = module._torch_module._execution_manager(True)
    assert not manager._original_model_has_changed
    module(torch.ones(3, 2))
    assert not manager._original_model_has_changed
    module.flag = True
    assert manager._original_model_has_changed


def test_names_that_collide(caplog: pytest.LogCaptureFixture) -> None:
    class Colliding(nn.Linear):
        def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
            return super().load_state_dict(*args, **kwargs)

    inner = Colliding(2, 2)
    inner._torch_module = True  # type: ignore[assignment]
    ORTModule(inner)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 2
    assert "_torch_module collides with ORTModule's attribute name." in said[0]
    assert "load_state_dict collides with ORTModule's attribute name." in said[1]


def test_levels_of_logging(caplog: pytest.LogCaptureFixture) -> None:
    module = ORTModule(Function(lambda m, x, kind: x * 2), DebugOptions(log_level=LogLevel.VERBOSE))
    with pytest.warns(OnwardWarning, match="Received input of type <class 'str'> which may be treated as a constant"):
        module(torch.ones(2, requires_grad=True), "sum")
    assert "exporting Function" in caplog.text
    assert "written by torch.export" in caplog.text


def test_inputs_that_need_other_graphs(trained: ORTModule) -> None:
    manager = trained._torch_module._execution_manager(True)
    trained(torch.ones(2, 4, requires_grad=True))
    models = manager._onnx_models

    def needs(x: torch.Tensor) -> bool:
        given = manager._module_parameters, models.exported_model, None, (x,), {}
        found: bool = manager._reinitialize_graph_builder(_io.parse_inputs_for_onnx_export(*given))
        return found

    assert not needs(torch.ones(2, 4, requires_grad=True))
    assert needs(torch.ones(2, 4))
    exported = manager._graph_transition_manager._exported_model_info
    assert exported.exported_model == models.exported_model
    assert exported.onnx_graph_input_names_require_grad == ["input"]


def test_a_part_that_is_called_in_several_ways() -> None:
    def run(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        part: Any = module.part
        y: torch.Tensor = part(part(x).double()).float()
        return y if y.sum() > -1e9 else -y  # a decision by data, so that it is divided

    def widening(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    divided = HierarchicalORTModule(Function(run, part=Function(widening)))
    assert divided(torch.ones(2)).tolist() == [4.0, 4.0]
    assert type(divided.module.get_submodule("part")).__name__ == "_IteratedORTModule"
