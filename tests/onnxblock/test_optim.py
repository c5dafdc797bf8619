"""Optimizers as blocks. Formulas: tests/optim."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from onward import onnxblock, optim
from onward.errors import OnwardError
from onward.onnxblock import optim as blocks
from onward.plan import METADATA_KEY, UpdatePlan

RNG = np.random.default_rng(3)
PARAMETERS = {"weight": RNG.standard_normal((3, 4)), "bias": RNG.standard_normal(4)}


def protos(dtype: type = np.float32) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    return [numpy_helper.from_array(array.astype(dtype), name) for name, array in PARAMETERS.items()], []


def made(block: onnxblock.ForwardBlock, opset: int = 17, dtype: type = np.float32) -> onnx.ModelProto:
    with onnxblock.empty_base(opset):
        block(protos(dtype))
    return block.to_model_proto()


def test_adamw_has_the_defaults_of_the_original() -> None:
    signature = inspect.signature(blocks.AdamW)
    defaults = {name: parameter.default for name, parameter in signature.parameters.items() if name != "groups"}
    assert defaults == {
        "bias_correction": True,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.0,
        "clip_grad": None,
    }
    assert blocks.AdamW().optimizer.name == "adamw_hf"


def test_the_model_of_adamw() -> None:
    model = made(blocks.AdamW())
    assert [value.name for value in model.graph.input] == [
        "learning_rate",
        "step",
        "params",
        "gradients",
        "first_order_moments",
        "second_order_moments",
    ]
    assert [value.name for value in model.graph.output] == [
        "updated_flag",
        "updated_params",
        "updated_first_order_moments",
        "updated_second_order_moments",
    ]
    assert {node.domain for node in model.graph.node} == {""}
    (plan,) = [entry.value for entry in model.metadata_props if entry.key == METADATA_KEY]
    assert UpdatePlan.from_json(plan).optimizer == "adamw_hf"


@pytest.mark.parametrize("clip", [None, 0.5])
def test_a_step_of_adamw(clip: float | None) -> None:
    clipping = None if clip is None else blocks.ClipGradNorm(clip)
    model = made(blocks.AdamW(weight_decay=0.1, clip_grad=clipping))
    gradients = {name: RNG.standard_normal(array.shape) for name, array in PARAMETERS.items()}
    feeds = {
        "learning_rate": np.array([0.01], np.float32),
        "step": np.array([1]),
        "params": [array.astype(np.float32) for array in PARAMETERS.values()],
        "gradients": [gradient.astype(np.float32) for gradient in gradients.values()],
        "first_order_moments": [np.zeros_like(array, np.float32) for array in PARAMETERS.values()],
        "second_order_moments": [np.zeros_like(array, np.float32) for array in PARAMETERS.values()],
    }
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    flag, updated = session.run(["updated_flag", "updated_params"], feeds)
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    factor = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
    assert flag == [True]
    for (name, p), new in zip(PARAMETERS.items(), updated, strict=True):
        g = gradients[name] * factor
        m, v = 0.1 * g, 0.001 * g * g
        expected = p - 0.01 * np.sqrt(0.001) / 0.1 * m / (np.sqrt(v) + 1e-6)
        np.testing.assert_allclose(new, expected - 0.01 * 0.1 * expected, rtol=1e-5)


RECIPES = {
    "AdamW": "adamw_hf",
    "SGD": "sgd",
    "TorchAdamW": "adamw",
    "Adam": "adam",
    "Adamax": "adamax",
    "LAMB": "lamb",
    "Adagrad": "adagrad",
    "RMSprop": "rmsprop",
    "Adadelta": "adadelta",
    "Lion": "lion",
}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_block(name: str) -> None:
    block = getattr(blocks, name)(clip_grad=blocks.ClipGradNorm(1.0), groups=[optim.no_decay()])
    assert block.optimizer.name == RECIPES[name]
    assert block.optimizer.global_norm == optim.clip_by_global_norm(1.0)
    assert block.optimizer.groups == (optim.no_decay(),)
    onnx.checker.check_model(made(block))


def test_no_recipe_was_forgotten() -> None:
    assert set(RECIPES.values()) == set(optim.names())


def test_optimizers_of_ones_own() -> None:
    chain = optim.chain(optim.trace(0.9), optim.scale_by_learning_rate())
    model = made(blocks.RecipeOptimizer(optim.Optimizer(chain, "mine")))
    assert "first_order_moments" in [value.name for value in model.graph.input]


def test_double_parameters() -> None:
    model = made(blocks.SGD(), dtype=np.float64)
    params = next(value for value in model.graph.input if value.name == "params")
    assert params.type.sequence_type.elem_type.tensor_type.elem_type == TensorProto.DOUBLE


def test_blocks_are_reusable() -> None:
    block = blocks.AdamW(clip_grad=blocks.ClipGradNorm(2.5))
    first, second = (made(block).SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_the_opset_is_that_of_the_base_where_it_has_sequences() -> None:
    assert made(blocks.SGD(), opset=14).opset_import[0].version == 14
    assert made(blocks.SGD(), opset=9).opset_import[0].version == 11


def test_nothing_to_train() -> None:
    with onnxblock.empty_base(), pytest.raises(OnwardError, match="at least one trainable parameter"):
        blocks.AdamW()(([], []))


def test_an_optimizer_is_a_model_of_its_own() -> None:
    with onnxblock.empty_base():
        blocks.SGD()(protos())
        with pytest.raises(OnwardError, match="makes a whole model"):
            blocks.SGD()(protos())


def test_clipping_by_other_blocks() -> None:
    with pytest.raises(OnwardError, match="write it as a transformation"):
        blocks.SGD(clip_grad=onnxblock.blocks.Clip(-1.0, 1.0))
    assert blocks.SGD(clip_grad=optim.clip(1.0)).optimizer.global_norm is None


# Clipping of a sequence of any length ------------------------------------------------------------------------------


class Clipped(onnxblock.ForwardBlock):
    def __init__(self, max_norm: float) -> None:
        super().__init__()
        self._clip = blocks.ClipGradNorm(max_norm)

    def build(self, name: str) -> str:
        return self._clip(name)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("opset", [11, 17])
def test_clipping_a_sequence(max_norm: float, dtype: type, opset: int) -> None:
    block = Clipped(max_norm)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    with onnxblock.empty_base(opset) as accessor:
        accessor.model.graph.input.append(helper.make_tensor_sequence_value_info("gradients", kind, None))
        name = block("gradients")
    model = block.to_model_proto()
    assert [value.name for value in model.graph.output] == [name]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    gradients = [RNG.standard_normal(shape).astype(dtype) for shape in ((3, 4), (5,), ())]
    (clipped,) = session.run(None, {"gradients": gradients})
    expected = [torch.nn.Parameter(torch.zeros(gradient.shape)) for gradient in gradients]
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = torch.from_numpy(np.array(gradient, np.float32))
    torch.nn.utils.clip_grad_norm_(expected, max_norm)
    for value, parameter in zip(clipped, expected, strict=True):
        assert value.dtype == dtype
        np.testing.assert_allclose(value, parameter.grad, rtol=2e-3 if dtype == np.float16 else 1e-5)


def test_clipping_what_is_no_sequence() -> None:
    with onnxblock.empty_base() as accessor:
        accessor.model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]))
        with pytest.raises(OnwardError, match="takes a sequence of tensors"):
            blocks.ClipGradNorm(1.0)("x")
