"""onnxruntime's own operators but attention: the rewritten form computes the same and has the right gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime_state
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.errors import MissingRuleError
from onward.graph import contrib
from onward.graph.parameters import parameters
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime
from tests.graph.contrib import FLOAT, INT32, INT64, Array, check_rewriting, model_of, rewritten

_random = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return _random.normal(size=shape)


def ints(*values: Any) -> Array:
    return np.array(values, np.int32)


X, SKIP, ROW = normal(2, 3, 4), normal(2, 3, 4), [normal(4) for _ in range(3)]
IMAGE, KERNEL = normal(1, 2, 5, 5), normal(3, 2, 3, 3)
WORDS, SEGMENTS, MASK = ints([0, 5, 2], [3, 1, 1]), ints([0, 0, 1], [1, 0, 1]), ints([1, 1, 0], [1, 1, 1])
TABLES = [normal(6, 4), normal(5, 4), normal(2, 4)]

CASES: list[tuple[str, list[Array | None], dict[str, Any]]] = [
    ("Gelu", [X], {}),
    ("Gelu", [X], {"opset": 11}),
    ("BiasGelu", [X, ROW[0]], {}),
    ("FastGelu", [X], {}),
    ("FastGelu", [X, ROW[0]], {}),
    ("QuickGelu", [X], {}),
    ("QuickGelu", [X], {"alpha": 1.0}),
    # Products
    ("FusedMatMul", [normal(2, 3, 4), normal(2, 4, 5)], {}),
    ("FusedMatMul", [normal(2, 4, 3), normal(2, 4, 5)], {"transA": 1, "alpha": 0.5}),
    ("FusedMatMul", [normal(2, 4, 3), normal(5, 4)], {"transA": 1, "transB": 1}),
    ("FusedMatMul", [normal(4), normal(4, 5)], {"transA": 1}),
    ("FusedMatMul", [normal(3, 2, 4), normal(2, 4, 5)], {"transBatchA": 1}),
    ("FusedMatMul", [normal(4, 2, 3), normal(2, 4, 5)], {"transBatchA": 1, "transA": 1}),
    ("FusedMatMul", [normal(2, 6, 3, 4), normal(5, 2, 6, 4)], {"transBatchB": 1, "transB": 1}),
    ("TransposeMatMul", [normal(2, 3, 4), normal(5, 4)], {"transB": 1, "alpha": 2.0}),
    ("FusedGemm", [normal(3, 4), normal(4, 5)], {"activation": "Relu"}),
    (
        "FusedGemm",
        [normal(4, 3), normal(5, 4), normal(5)],
        {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Tanh"},
    ),
    *(
        ("FusedGemm", [normal(3, 4), normal(4, 5), normal(3, 5)], {"activation": name, "wrt": [], **settings})
        for name, settings in {
            "Relu": {},
            "Sigmoid": {},
            "Tanh": {},
            "Softplus": {},
            "Softsign": {},
            "LeakyRelu": {"activation_alpha": 0.3},
            "Elu": {"activation_alpha": 0.7},
            "ThresholdedRelu": {"activation_alpha": 0.3},
            "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.6},
            "Selu": {"activation_alpha": 1.5, "activation_gamma": 1.1},
            "ScaledTanh": {"activation_alpha": 1.5, "activation_beta": 0.6},
            "ParametricSoftplus": {"activation_alpha": 1.5, "activation_beta": 0.6},
        }.items()
    ),
    ("CDist", [normal(3, 4), normal(5, 4)], {"metric": "euclidean"}),
    ("CDist", [normal(3, 4), normal(5, 4)], {"metric": "sqeuclidean"}),
    # Convolutions
    ("FusedConv", [IMAGE, KERNEL], {}),
    ("FusedConv", [IMAGE, KERNEL, normal(3)], {"activation": "Relu", "pads": [1, 0, 1, 2], "strides": [2, 1]}),
    ("FusedConv", [IMAGE, KERNEL, normal(3), normal(1, 3, 3, 3)], {"activation": "Relu"}),
    ("FusedConv", [normal(1, 4, 5, 5), normal(4, 2, 3, 3)], {"activation": "Tanh", "group": 2, "dilations": [2, 2]}),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "Sigmoid", "auto_pad": "SAME_UPPER", "kernel_shape": [3, 3]}),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "LeakyRelu", "activation_params": [0.3]}),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "Clip", "activation_params": [-0.5, 1.0]}),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "HardSigmoid", "activation_params": [0.3, 0.6]}),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "HardSwish"}),
    # Normalizations
    ("SkipLayerNormalization", [X, SKIP, *ROW[:2]], {"epsilon": 1e-5}),
    ("SkipLayerNormalization", [X, SKIP, *ROW[:1]], {"opset": 13}),
    ("SkipLayerNormalization", [X, normal(1, 3, 4), *ROW], {"outputs": (FLOAT, 0, 0, FLOAT), "of": (0, 3)}),
    ("SkipLayerNormalization", [X, normal(3, 4), ROW[0], None, ROW[1]], {}),
    ("SkipSimplifiedLayerNormalization", [X, SKIP, ROW[0]], {"epsilon": 1e-5}),
    (
        "SkipSimplifiedLayerNormalization",
        [X[0], SKIP[0], *ROW[:2]],
        {"outputs": (FLOAT, 0, 0, FLOAT), "of": (0, 3)},
    ),
    ("SimplifiedLayerNormalization", [X, ROW[0]], {"domain": "", "opset": 13, "epsilon": 1e-3}),
    (
        "SimplifiedLayerNormalization",
        [X, normal(3, 4)],
        {"domain": "", "axis": 1, "outputs": (FLOAT, FLOAT), "of": (0, 1), "stash_type": 1},
    ),
    ("LayerNormalization", [X, *ROW[:2]], {"domain": "", "opset": 13, "axis": 2, "epsilon": 1e-3}),
    (
        "LayerNormalization",
        [X, ROW[0]],
        # The standard's statistics are float, whatever the type of the input.
        {"domain": "", "opset": 11, "outputs": (FLOAT, FLOAT, FLOAT), "of": (0, 1, 2), "exact": False},
    ),
    ("EmbedLayerNormalization", [WORDS, SEGMENTS, *TABLES, *ROW[:2]], {"outputs": (FLOAT, INT32)}),
    (
        "EmbedLayerNormalization",
        [WORDS, SEGMENTS, *TABLES, *ROW[:2], MASK],
        {"outputs": (FLOAT, INT32, FLOAT), "of": (0, 2), "epsilon": 1e-5},
    ),
    (
        "EmbedLayerNormalization",
        [WORDS, None, *TABLES[:2], None, *ROW[:2], ints([0, 1, 1], [1, 0, 1]), ints([2, 0, 1])],
        {"outputs": (FLOAT, INT32), "mask_index_type": 1},
    ),
    (
        "EmbedLayerNormalization",
        [WORDS, None, *TABLES[:2], None, *ROW[:2], None, ints([2, 0, 1], [0, 1, 2])],
        {"outputs": (FLOAT, INT32), "mask_index_type": 0},
    ),
    # What the standard has in another form
    ("Trilu", [normal(2, 3, 3)], {"upper": 0}),
    ("Trilu", [normal(3, 4), np.array(1)], {}),
    # The reference evaluator samples in float only, and steps that float needs cross kinks of the grid.
    ("GridSample", [IMAGE, _random.uniform(-1, 1, (1, 3, 3, 2))], {"exact": False, "opset": 16, "wrt": [0]}),
    ("GridSample", [IMAGE, _random.uniform(-1, 1, (1, 3, 3, 2))], {"exact": False, "mode": "bicubic", "wrt": [0]}),
    (
        "GridSample",
        [IMAGE, _random.uniform(-1.5, 1.5, (1, 3, 3, 2))],
        {"exact": False, "mode": "nearest", "padding_mode": "border", "align_corners": 1, "wrt": [0]},
    ),
    ("GatherND", [normal(3, 4), ints([0, 1], [2, 3])], {}),
    ("Pad", [normal(2, 3), np.array([1, 0, 0, 2]), np.array([0.5])], {"mode": "constant"}),
    ("Pad", [normal(2, 3), np.array([[1, 0, 0, 2]])], {"mode": "reflect"}),
    ("ExpandDims", [normal(2, 3), np.array(-1, np.int32)], {"constants": [1]}),
    ("Range", [np.array([1.5]), np.array([4.2])], {"wrt": []}),
    ("Range", [np.array(1.5), np.array(4.2), np.array(0.5)], {"wrt": []}),
    ("Unique", [np.array([2.0, 1.0, 1.0, 3.0, 4.0, 3.0])], {"outputs": (FLOAT, INT64, INT64), "wrt": []}),
    ("Inverse", [normal(2, 3, 3)], {"tolerance": 1e-4}),
    (
        "CropAndResize",
        [
            normal(2, 3, 5, 4),
            np.array([[0.1, 0.13, 0.7, 0.8], [-0.1, 0.06, 0.52, 1.2]]),
            ints(1, 0),
            ints(3, 4),
        ],
        {"extrapolation_value": 0.5, "exact": False},
    ),
    (
        "CropAndResize",
        [normal(2, 3, 5, 4), np.array([[0.1, 0.13, 0.7, 0.8]]), ints(1), ints(1, 4)],
        {"mode": "bilinear", "exact": False, "constants": [3]},
    ),
    # On trial in the standard once
    ("Affine", [IMAGE], {"domain": "", "opset": 9, "alpha": 2.0, "beta": 3.0}),
    ("Scale", [IMAGE], {"domain": "", "opset": 9, "scale": 3.0}),
    ("ImageScaler", [IMAGE], {"domain": "", "opset": 8, "scale": 3.0, "bias": [1.0, 2.0]}),
    ("ScaledTanh", [IMAGE], {"domain": "", "opset": 9, "alpha": 2.0, "beta": 0.3}),
    ("ParametricSoftplus", [IMAGE], {"domain": "", "opset": 9, "alpha": 2.0, "beta": 0.3}),
    ("Crop", [IMAGE], {"domain": "", "opset": 9, "border": [1, 0, 2, 1]}),
    ("Crop", [IMAGE], {"domain": "", "opset": 9, "border": [1, 2, 0, 0], "scale": [1, 3]}),
    ("DynamicSlice", [IMAGE, np.array([1]), np.array([3]), np.array([2])], {"domain": "", "opset": 9}),
    # Quantised; the standard dequantises to float and half floats only.
    *(
        ("DequantizeLinear", [np.arange(12).astype(kind).reshape(3, 4), np.array(0.3), np.array(3, kind)], settings)
        for kind, settings in (
            (np.uint8, {"exact": False, "opset": 13}),
            (np.int8, {"exact": False}),
            (np.uint16, {"exact": False, "opset": 13}),
            (np.int16, {"exact": False}),
        )
    ),
    (
        "DequantizeLinear",
        [np.arange(12).astype(np.uint8).reshape(3, 4), np.array([0.3, 0.2, 0.1]), np.array([1, 2, 3], np.uint8)],
        {"axis": 0, "exact": False},
    ),
    ("QuantizeLinear", [X, np.array(0.3), np.array(3, np.uint16)], {"outputs": (TensorProto.UINT16,), "wrt": []}),
]


@pytest.mark.parametrize(("op_type", "inputs", "settings"), CASES, ids=[case[0] for case in CASES])
def test_operators_with_a_kernel(op_type: str, inputs: list[Array | None], settings: dict[str, Any]) -> None:
    check_rewriting(op_type, inputs, **settings)


# Operators without a kernel on the CPU: what they compute, in torch.


def _torch(array: Array) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.float32)


def _group_norm(x: Array, scale: Array, shift: Array, groups: int, last: bool, silu: bool) -> Array:
    y = _torch(x).movedim(-1, 1) if last else _torch(x)
    y = torch.nn.functional.group_norm(y, groups, _torch(scale), _torch(shift), 1e-5)
    y = torch.nn.functional.silu(y) if silu else y
    return (y.movedim(1, -1) if last else y).numpy()


def _conv(x: Array, weight: Array, bias: Array) -> torch.Tensor:
    return torch.nn.functional.conv2d(_torch(x).movedim(-1, 1), _torch(weight), _torch(bias)).movedim(1, -1)


def _gelu(x: Array, approximate: str = "none") -> Array:
    return torch.nn.functional.gelu(_torch(x), approximate=approximate).numpy()


LAST, FIRST, FOUR = normal(2, 3, 3, 4), normal(2, 4, 3, 3), [normal(4) for _ in range(3)]
SUM = normal(1, 3, 3, 3)
CLASSES = ints(0, 3, 1, 1, 2, 0).reshape(2, 3)


def _sparse_cross_entropy(reduction: str, weighted: bool) -> list[Array]:
    log_prob = torch.log_softmax(_torch(X), -1)
    weights = _torch(np.abs(X[:, :, 0]) if weighted else np.ones((2, 3)))
    rows = -log_prob.gather(-1, torch.tensor(CLASSES)[..., None])[..., 0] * weights
    loss = {"mean": rows.sum() / weights.sum(), "sum": rows.sum(), "none": rows}[reduction]
    return [loss.numpy(), log_prob.numpy()]


WITHOUT_KERNEL: list[tuple[str, list[Array | None], dict[str, Any], Any]] = [
    ("BiasAdd", [X, ROW[0], SKIP], {}, lambda: X + ROW[0] + SKIP),
    ("BiasSplitGelu", [X, ROW[0]], {}, lambda: (X + ROW[0])[..., :2] * _gelu((X + ROW[0])[..., 2:])),
    ("BiasDropout", [X, ROW[0], SKIP, np.array(0.5)], {"wrt": [0, 1, 2]}, lambda: X + ROW[0] + SKIP),
    (
        "BiasSoftmax",
        [X, normal(2, 1, 4)],
        {"axis": 2, "is_inner_broadcast": 1},
        lambda: torch.softmax(_torch(X) + _torch(WITHOUT_KERNEL[3][1][1]), -1).numpy(),  # type: ignore[arg-type]
    ),
    (
        "BiasSoftmax",
        [X, normal(3, 4)],
        {"axis": 1, "is_inner_broadcast": 0},
        lambda: torch.softmax((_torch(X) + _torch(WITHOUT_KERNEL[4][1][1])).flatten(1), 1).reshape(X.shape).numpy(),  # type: ignore[arg-type]
    ),
    (
        "GemmFastGelu",
        [X, normal(4, 5), normal(5)],
        {},
        lambda: _gelu(X @ WITHOUT_KERNEL[5][1][1] + WITHOUT_KERNEL[5][1][2], "tanh"),  # type: ignore[operator]
    ),
    (
        "FusedMatMulActivation",
        [X, SKIP],
        {"transB": 1, "alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.2},
        lambda: torch.nn.functional.leaky_relu(_torch(X @ SKIP.swapaxes(1, 2) * 0.5), 0.2).numpy(),
    ),
    (
        "FusedMatMulActivation",
        [X, SKIP],
        {"transB": 1, "activation": "Softmax", "activation_axis": 1},
        lambda: torch.softmax(_torch(X @ SKIP.swapaxes(1, 2)), 1).numpy(),
    ),
    (
        "GroupNorm",
        [LAST, *FOUR[:2]],
        {"groups": 2, "activation": 1, "channels_last": 1},
        lambda: _group_norm(LAST, *FOUR[:2], 2, True, True),
    ),
    (
        "GroupNorm",
        [FIRST, *FOUR[:2]],
        {"groups": 4, "activation": 0, "channels_last": 0, "epsilon": 1e-5},
        lambda: _group_norm(FIRST, *FOUR[:2], 4, False, False),
    ),
    (
        "SkipGroupNorm",
        [LAST, *FOUR[:2], normal(2, 4), FOUR[2]],
        {"groups": 2, "activation": 1},
        lambda: _group_norm(LAST + WITHOUT_KERNEL[10][1][3][:, None, None] + FOUR[2], *FOUR[:2], 2, True, True),  # type: ignore[index]
    ),
    (
        "SkipGroupNorm",
        [FIRST, *FOUR[:2], FIRST, FOUR[2]],
        {"groups": 2, "activation": 0, "channels_last": 0},
        lambda: _group_norm(FIRST * 2 + FOUR[2][:, None, None], *FOUR[:2], 2, False, False),
    ),
    (
        "NhwcConv",
        [IMAGE.swapaxes(1, 3), KERNEL, FOUR[0][:3]],
        {},
        lambda: _conv(IMAGE.swapaxes(1, 3), KERNEL, FOUR[0][:3]).numpy(),
    ),
    (
        "NhwcFusedConv",
        [IMAGE.swapaxes(1, 3), KERNEL, FOUR[0][:3], SUM],
        {"activation": "Relu"},
        lambda: torch.relu(_conv(IMAGE.swapaxes(1, 3), KERNEL, FOUR[0][:3]) + _torch(SUM)).numpy(),
    ),
    ("ComplexMul", [normal(3, 2), normal(3, 2)], {}, lambda: _complex(WITHOUT_KERNEL[14][1], False)),
    ("ComplexMulConj", [normal(3, 2), normal(3, 2)], {}, lambda: _complex(WITHOUT_KERNEL[15][1], True)),
    *(
        (
            "SparseSoftmaxCrossEntropy",
            [X, CLASSES, np.abs(X[:, :, 0]) if weighted else None][: 3 if weighted else 2],
            {"domain": "", "opset": 13, "reduction": reduction, "wrt": [0], "outputs": (FLOAT, FLOAT)},
            partial(_sparse_cross_entropy, reduction, weighted),
        )
        for reduction in ("mean", "sum", "none")
        for weighted in (False, True)
    ),
]


def _complex(inputs: list[Any], conjugate: bool) -> Array:
    a, b = (torch.view_as_complex(torch.tensor(x)) for x in inputs)
    return torch.view_as_real(a * (b.conj() if conjugate else b).resolve_conj()).numpy()


@pytest.mark.parametrize(
    ("op_type", "inputs", "settings", "oracle"), WITHOUT_KERNEL, ids=[case[0] for case in WITHOUT_KERNEL]
)
def test_operators_without_a_kernel(
    op_type: str, inputs: list[Array | None], settings: dict[str, Any], oracle: Any
) -> None:
    def wanted() -> list[Array]:
        found = oracle()
        return [array.astype(np.float32) for array in (found if isinstance(found, list) else [found])]

    check_rewriting(op_type, inputs, oracle=wanted, **settings)


# MatMulNBits ----------------------------------------------------------------------------------------------------


def n_bits(bits: int, k: int, zero_points: str, bias: bool) -> tuple[list[Array | None], dict[str, Any]]:
    random, n, block = np.random.default_rng(bits + k), 3, 16
    blocks = -(-k // block)
    packed = random.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    zeros = {
        "default": None,
        "packed": random.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8),
        "float": random.uniform(0, 2**bits, (n, blocks)),
    }[zero_points]
    inputs = [random.normal(size=(2, 2, k)), packed, random.uniform(0.05, 0.2, (n, blocks)), zeros]
    if bias:
        inputs += [None, random.normal(size=n)]
    settings = {"K": k, "N": n, "bits": bits, "block_size": block, "constants": [1, 2, 3], "wrt": [0, 5]}
    return inputs, {**settings, "exact": False, "tolerance": 2e-4}


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("k", [32, 40])  # full blocks, and a last one that is not
@pytest.mark.parametrize("zero_points", ["default", "packed", "float"])
def test_matmul_n_bits(bits: int, k: int, zero_points: str) -> None:
    if bits == 8 and zero_points == "float":
        pytest.skip("onnxruntime has no such kernel")
    inputs, settings = n_bits(bits, k, zero_points, bias=k == 40)
    check_rewriting("MatMulNBits", inputs, opset=17, accuracy_level=1, **settings)


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("kind", ["uint8", "int4", "uint4"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_gather_block_quantized(kind: str, bits: int, zero_points: bool) -> None:
    if kind != "uint8" and bits != 4:
        pytest.skip("a type of four bits")
    random, rows, block, blocks = np.random.default_rng(0), 5, 16, 2
    tensors = {}
    if kind == "uint8":
        tensors["x0"] = numpy_helper.from_array(_bytes(random, rows, blocks * block * bits // 8), "x0")
        tensors["x3"] = numpy_helper.from_array(_bytes(random, rows, -(-blocks * bits // 8)), "x3")
    else:
        low, element = (-8, TensorProto.INT4) if kind == "int4" else (0, TensorProto.UINT4)
        for name, columns in (("x0", blocks * block), ("x3", blocks)):
            values = random.integers(low, low + 16, (rows, columns))
            tensors[name] = helper.make_tensor(name, element, values.shape, values.flatten())
    indices, scales = np.array([[0, 4, 4], [2, 1, 0]]), random.uniform(0.1, 0.3, (rows, blocks))
    attributes = {"block_size": block, "gather_axis": 0, "quantize_axis": 1, "bits": bits}
    model, feeds = model_of("GatherBlockQuantized", [None, indices, scales], attributes, constants=[2])
    model.graph.node[0].input[:] = ["x0", "x1", "x2", *(["x3"] if zero_points else [])]
    model.graph.initializer.extend(tensors[name] for name in ("x0", *(["x3"] if zero_points else [])))
    wanted = run_on_runtime(model, feeds)["y0"]
    np.testing.assert_allclose(run_on_runtime(rewritten(model), feeds)["y0"], wanted, rtol=1e-5, atol=1e-6)
    assert not any(parameter.trainable for parameter in parameters(prepare(model)))


def _bytes(random: np.random.Generator, rows: int, columns: int) -> Array:
    return random.integers(0, 256, (rows, columns)).astype(np.uint8)


def test_weights_of_few_bits_stay_frozen_and_small() -> None:
    inputs, settings = n_bits(4, 32, "packed", bias=True)
    attributes = {name: settings[name] for name in ("K", "N", "bits", "block_size")}
    model, _ = model_of("MatMulNBits", inputs, attributes, constants=[1, 2, 3, 5])
    prepared = prepare(model)
    assert [parameter.name for parameter in parameters(prepared) if parameter.trainable] == ["x5"]
    held = sum(value.const_value.nbytes for value in prepared.graph.initializers.values())  # type: ignore[union-attr]
    assert held < 32 * 3 * 4, "not unpacked to floats"


def test_scales_of_rank_one() -> None:
    inputs, settings = n_bits(4, 32, "packed", bias=False)
    for index in (2, 3):
        inputs[index] = inputs[index].reshape(-1)  # type: ignore[union-attr]
    check_rewriting("MatMulNBits", inputs, **settings)


# What is refused ------------------------------------------------------------------------------------------------

ATTENTION = [X, normal(4, 12), normal(12)]
REFUSED: list[tuple[str, list[Array | None], dict[str, Any], str]] = [
    ("Attention", ATTENTION, {"num_heads": 2, "do_rotary": 1}, "attribute do_rotary is 1, and only 0"),
    ("Attention", ATTENTION, {"num_heads": 2, "new": 1}, "attribute new is not known"),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "Swirl"}, "activation 'Swirl' is not known"),
    ("FusedConv", [IMAGE, KERNEL], {"activation": "Relu", "activation_params": [1.0]}, "not take 1 parameters"),
    ("FusedGemm", [X[0], X[0].T], {"activation": "Relu", "activation_alpha": 1.0}, "does not take the parameters"),
    ("CDist", [X[0], X[0]], {"metric": "cosine"}, "metric is 'cosine'"),
    ("GroupNorm", [LAST, *FOUR[:2]], {"groups": 2, "activation": 7}, "activation is 7"),
    ("ExpandDims", [X, ints(1)[0]], {}, "axis is not a constant"),
    ("MatMulNBits", n_bits(4, 32, "default", False)[0], {"K": 32, "N": 3, "block_size": 16}, "B is not a constant"),
    (
        "MatMulNBits",
        [*n_bits(4, 32, "default", False)[0], ints(*range(32))],
        {"K": 32, "N": 3, "block_size": 16},
        r"input g_idx \(number 4\) is not supported",
    ),
    ("CropAndResize", [IMAGE, normal(1, 4), ints(0), ints(2, 2)], {"mode": "nearest"}, "mode is 'nearest'"),
    (
        "DynamicQuantizeMatMul",
        [X, np.ones((4, 2), np.int8), np.ones(2)],
        {},
        "computes with integers. Start from the model before it was quantised",
    ),
    ("MatMulBnb4", [X, np.ones(8, np.uint8), np.ones(1)], {"K": 4, "N": 4, "block_size": 16}, "packed in a layout"),
    ("LongformerAttention", [X], {"num_heads": 2, "window": 1}, "Start from the model before it was optimized"),
    ("QLinearSigmoid", [X], {}, "Use the QDQ form"),
    ("NoSuchOperator", [X], {}, r"Add a rule with @\S*vjp"),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "message"), REFUSED, ids=[case[0] for case in REFUSED])
def test_what_is_refused(op_type: str, inputs: list[Array | None], attributes: dict[str, Any], message: str) -> None:
    model, _ = model_of(op_type, inputs, attributes)
    with pytest.raises(MissingRuleError, match=message) as refused:
        onward.gradient(model, wrt=["x0"])
    assert op_type in str(refused.value)
    assert "fused" in str(refused.value), "the name of the node"


def test_layouts_of_one_machine_are_refused() -> None:
    model, _ = model_of("ReorderInput", [IMAGE], {}, domain="com.microsoft.nchwc")
    model.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    with pytest.raises(MissingRuleError, match="ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"):
        onward.gradient(model, wrt=["x0"])


def test_what_is_refused_may_stay_where_no_derivative_passes() -> None:
    """A frozen part in front of the trained one."""
    weight = numpy_helper.from_array(normal(4, 2).astype(np.float32), "w")
    model, _ = model_of("Gelu", [X], {})
    model.graph.node[0].op_type = "SkipLayerNormalization"
    model.graph.node[0].input.extend(["x0", "scale"])
    model.graph.node[0].attribute.append(helper.make_attribute("unheard_of", 1))
    model.graph.node[0].output[0] = "hidden"
    model.graph.node.append(helper.make_node("MatMul", ["hidden", "w"], ["y0"]))
    model.graph.initializer.extend([weight, numpy_helper.from_array(np.ones(4, np.float32), "scale")])
    model.graph.value_info.append(helper.make_tensor_value_info("hidden", FLOAT, [2, 3, 4]))
    gradient = onward.gradient(model, wrt=["w"])
    assert [node.op_type for node in gradient.graph.node if node.domain] == ["SkipLayerNormalization"]
    with pytest.raises(MissingRuleError, match="unheard_of"):
        onward.gradient(model, wrt=["scale"])


def test_every_operator_is_one_of_onnxruntime() -> None:
    all_schemas = onnxruntime_state.get_all_operator_schema()
    standard = {spec.name for spec in onnx.defs.get_all_schemas_with_history() if spec.domain == ""}
    known = {spec.name: spec for spec in all_schemas if spec.domain == "com.microsoft"}
    # onnxruntime has these in the default domain, the second one beside the standard's.
    known |= {spec.name: spec for spec in all_schemas if spec.domain == "" and spec.name not in standard}
    known |= {spec.name: spec for spec in all_schemas if (spec.name, spec.since_version) == ("LayerNormalization", 1)}
    ours = set(contrib.MICROSOFT.rewriters) - {"SparseSoftmaxCrossEntropy"}  # of training builds
    assert ours | set(contrib.MICROSOFT.refused) <= set(known)
    assert not ours & set(contrib.MICROSOFT.refused)
    for name in sorted(ours):
        rewriter = contrib.MICROSOFT.rewriters[name]
        attributes = set(known[name].attributes)
        assert set(rewriter.only) <= attributes, name
        assert attributes <= rewriter.reads | set(rewriter.only), f"{name}: each attribute is honoured or refused"
        for index, label in rewriter.without.items():
            assert known[name].inputs[index].name == label, name


# In larger models -----------------------------------------------------------------------------------------------


def test_nodes_in_branches_are_rewritten() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        choice (float[2,3] x, bool c) => (float[2,3] y) {
            h = com.microsoft.Gelu(x)
            y = If (c) <
                then_branch = then () => (float[2,3] a) { b = com.microsoft.QuickGelu(h) a = com.microsoft.Gelu(b) },
                else_branch = other () => (float[2,3] d) { d = Identity(h) }
            >
        }
    """)
    x = X[0, :2, :3].astype(np.float32)
    for c in (True, False):
        feeds = {"x": x, "c": np.array(c)}
        wanted = run_on_runtime(model, feeds)["y"]
        np.testing.assert_allclose(run_on_runtime(rewritten(model), feeds)["y"], wanted, rtol=1e-5, atol=1e-6)
    gradient = onward.gradient(model, wrt=["x"])
    results = run_on_runtime(gradient, {"x": x, "c": np.array(True), "y_grad": np.ones((2, 3), np.float32)})
    assert np.abs(results["x_grad"]).min() > 0


def test_shapes_are_known_along_a_chain() -> None:
    """Each node waits for the shape of the one before it, through standard operators; no annotation tells it."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        chain (float[B,S,8] x) => (float[B,S,8] y) <float[8] w = {1,1,1,1,1,1,1,1}> {
            a = com.microsoft.SkipLayerNormalization(x, x, w)
            b = Tanh(a)
            c = com.microsoft.MultiHeadAttention<num_heads = 2>(b, b, a)
            d = Sigmoid(c)
            e = com.microsoft.FusedMatMul<transA = 1>(d, d)
            f = MatMul(d, e)
            y = com.microsoft.MultiHeadAttention<num_heads = 4>(f, d, a)
        }
    """)
    feeds = {"x": X[:, :, [0, 1, 2, 3, 0, 1, 2, 3]].astype(np.float32)}
    wanted = run_on_runtime(model, feeds)["y"]
    np.testing.assert_allclose(run_on_runtime(rewritten(model), feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
    prepared = prepare(model)
    assert all(output.shape is not None for node in prepared.graph for output in node.outputs)


def test_same_input_same_bytes_and_the_model_is_left_alone() -> None:
    model, _ = model_of("SkipLayerNormalization", [X, SKIP, *ROW], {})
    before = model.SerializeToString()
    one, other = (onward.gradient(model, wrt=["x0"]).SerializeToString() for _ in range(2))
    assert one == other
    assert model.SerializeToString() == before


def test_half_floats() -> None:
    """Statistics are computed in float, as onnxruntime does."""
    for op_type, inputs, attributes in (
        ("SkipSimplifiedLayerNormalization", [X, SKIP, ROW[0]], {}),
        ("SkipLayerNormalization", [X, SKIP, *ROW], {}),
        ("Gelu", [X], {}),
        ("QuickGelu", [X], {}),
        ("Attention", [*ATTENTION, MASK], {"num_heads": 2, "unidirectional": 1}),
        ("RotaryEmbedding", [X, np.array([1]), normal(5, 2), normal(5, 2)], {}),
    ):
        model, feeds = model_of(op_type, inputs, attributes, dtype=np.float16)
        for value in model.graph.output:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
        wanted = model_of(op_type, inputs, attributes)
        exact = run_on_runtime(*wanted)["y0"]
        got = run_on_runtime(rewritten(model), feeds)["y0"]
        assert got.dtype == np.float16
        np.testing.assert_allclose(got, exact, rtol=2e-2, atol=2e-2, err_msg=op_type)
        gradient = onward.gradient(model, wrt=["x0"])
        seed = {"y0_grad": np.ones_like(got)}
        assert np.isfinite(run_on_runtime(gradient, {**feeds, **seed})["x0_grad"]).all(), op_type
