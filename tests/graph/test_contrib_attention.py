"""onnxruntime's attention operators: the rewritten form computes the same and has the right gradient.

Letters of shapes: B batch, S queries, L new keys, P past keys, T = P + L all keys, N heads, H elements of a head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.graph.parameters import parameters
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime
from tests.graph.contrib import FLOAT, Array, check_rewriting, model_of

_random = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return _random.normal(size=shape)


def ints(*values: Any) -> Array:
    return np.array(values, np.int32)


Cases = list[tuple[str, list[Array | None], dict[str, Any]]]


def ids(cases: Cases) -> list[str]:
    return [name for name, _, _ in cases]


# Attention ------------------------------------------------------------------------------------------------------

B, S, N, H = 2, 3, 2, 4
X, WEIGHT, BIAS = normal(B, S, 5), normal(5, 3 * N * H) * 0.5, normal(3 * N * H) * 0.5
PROJECTION: list[Array | None] = [X, WEIGHT, BIAS]
PAST = normal(2, B, N, 2, H)
RAW = ints([1, 1, 0], [1, 1, 1])
RAW_3D = ints([[1, 0, 1], [1, 1, 0], [0, 1, 1]], [[1, 1, 1], [1, 0, 0], [0, 1, 1]])
WITH_PRESENT = {"outputs": (FLOAT, FLOAT), "of": (0, 1)}

ATTENTION: Cases = [
    ("plain", PROJECTION, {"scale": 0.3}),
    ("old opset", PROJECTION, {"opset": 11}),
    ("frozen projection", PROJECTION, {"constants": [1, 2], "wrt": [0]}),
    ("unidirectional", PROJECTION, {"unidirectional": 1}),
    ("raw mask", [*PROJECTION, RAW], {}),
    ("raw mask, unidirectional", [*PROJECTION, RAW], {"unidirectional": 1}),
    ("raw mask with a value", [*PROJECTION, RAW], {"mask_filter_value": -2.0}),
    ("all masked", [*PROJECTION, ints([0, 0, 0], [1, 1, 0])], {}),
    ("raw mask 3D", [*PROJECTION, RAW_3D], {}),
    ("raw mask 3D, unidirectional", [*PROJECTION, RAW_3D], {"unidirectional": 1}),
    ("lengths", [*PROJECTION, ints(2, 3)], {"scale": 0.5}),
    ("lengths of unknown number", [*PROJECTION, ints(2, 3)], {}),
    ("lengths, unidirectional", [*PROJECTION, ints(0, 3)], {"unidirectional": 1}),
    ("ends and starts", [*PROJECTION, ints(3, 3, 1, 0)], {"scale": 0.5}),
    ("ends and starts of unknown number", [*PROJECTION, ints(3, 3, 1, 0)], {}),
    ("present", PROJECTION, WITH_PRESENT),
    ("past", [*PROJECTION, None, PAST], WITH_PRESENT),
    ("past, unidirectional", [*PROJECTION, None, PAST], {"unidirectional": 1, **WITH_PRESENT}),
    (
        "past and mask, unidirectional",
        [*PROJECTION, ints([0, 1, 1, 1, 1], [1, 1, 1, 1, 0]), PAST],
        {"unidirectional": 1, **WITH_PRESENT},
    ),
    ("bias of heads", [*PROJECTION, None, None, normal(1, N, S, S)], {}),
    ("bias of the batch and mask", [*PROJECTION, RAW, None, normal(B, 1, S, S)], {}),
    ("values of another size", [X, normal(5, 22), normal(22)], {"qkv_hidden_sizes": [8, 8, 6]}),
]


@pytest.mark.parametrize(("name", "inputs", "settings"), ATTENTION, ids=ids(ATTENTION))
def test_attention(name: str, inputs: list[Array | None], settings: dict[str, Any]) -> None:
    check_rewriting("Attention", inputs, num_heads=N, **settings)


def run(op_type: str, inputs: list[Array | None], **attributes: Any) -> list[Array]:
    """What onnxruntime's kernel computes."""
    return list(run_on_runtime(*model_of(op_type, inputs, attributes)).values())


def test_attention_without_bias() -> None:
    # onnxruntime's kernel crashes without one.
    zero = np.zeros_like(BIAS)
    check_rewriting(
        "Attention", [X, WEIGHT], num_heads=N, oracle=lambda: run("Attention", [X, WEIGHT, zero], num_heads=N)
    )


def test_attention_with_a_mask_for_all_positions() -> None:
    """The kernel on the CPU does not know it; it is a mask [B, S, T] cut out of one for the longest sequence."""
    largest = _random.integers(0, 2, (B, 1, 6, 6)).astype(np.int32)
    inputs: list[Array | None] = [*PROJECTION, largest, PAST]
    cut: list[Array | None] = [*PROJECTION, np.ascontiguousarray(largest[:, 0, 2:5, :5]), PAST]
    outputs = (FLOAT, FLOAT)
    wanted = run_on_runtime(*model_of("Attention", cut, {"num_heads": N}, outputs=outputs))
    check_rewriting("Attention", inputs, num_heads=N, outputs=outputs, oracle=lambda: list(wanted.values()))


def test_attention_with_positions_in_a_packed_tensor() -> None:
    """Lengths and 2 B + 2 positions, which the kernel on the CPU takes for starts."""
    mask = ints(2, 3, 0, 3, 6, 0, 3, 6)
    for settings in ({}, {"scale": 0.5}):
        check_rewriting(
            "Attention",
            [*PROJECTION, mask],
            num_heads=N,
            oracle=lambda settings=settings: run("Attention", [*PROJECTION, mask[:2]], num_heads=N, **settings),  # type: ignore[misc]
            **settings,  # type: ignore[arg-type]
        )


# MultiHeadAttention ---------------------------------------------------------------------------------------------

L = 4
Q, K, V = normal(B, S, N * H), normal(B, L, N * H), normal(B, L, 6)
QKV: list[Array | None] = [Q, K, V]
SAME: list[Array | None] = [Q, normal(B, S, N * H), normal(B, S, N * H)]
CACHE: list[Array | None] = [normal(B, N, 2, H), normal(B, N, 2, H)]
BIAS_QKV = normal(N * H * 2 + 6)
MASK_3D = _random.integers(0, 2, (B, S, L)).astype(np.int32)
WITH_CACHE = {"outputs": (FLOAT, FLOAT, FLOAT), "of": (0, 1, 2)}

MULTI_HEAD: Cases = [
    ("plain", QKV, {}),
    ("bias", [*QKV, BIAS_QKV], {"scale": 0.4}),
    ("unidirectional", SAME, {"unidirectional": 1}),
    ("lengths", [*QKV, None, ints(2, 4)], {}),
    ("mask", [*QKV, None, ints([1, 1, 0, 1], [1, 1, 1, 1])], {"mask_filter_value": -3.0}),
    ("mask 3D", [*QKV, BIAS_QKV, MASK_3D], {}),
    ("bias of scores", [*QKV, BIAS_QKV, None, normal(1, N, S, L)], {}),
    ("bias of scores and mask", [*QKV, None, ints([1, 1, 0, 1], [1, 1, 1, 1]), normal(B, 1, S, L)], {}),
    ("past", [*SAME, BIAS, None, None, *CACHE], WITH_CACHE),
    ("past, unidirectional", [*SAME, None, None, None, *CACHE], {"unidirectional": 1, **WITH_CACHE}),
    (
        "past and mask, unidirectional",
        [*SAME, BIAS, ints([0, 1, 1, 1, 1], [1, 1, 1, 1, 1]), normal(1, 1, S, 5), *CACHE],
        {"unidirectional": 1, **WITH_CACHE},
    ),
    ("present", SAME, WITH_CACHE),
    ("keys as heads", [Q, normal(B, N, L, H), normal(B, N, L, H)], {}),
    ("keys as heads, bias of queries", [Q, normal(B, N, L, H), normal(B, N, L, H), BIAS], {}),
    (
        "scores",
        [*SAME, None, None, normal(1, 1, S, S)],
        {"outputs": (FLOAT, FLOAT, FLOAT, FLOAT), "of": (0, 3)},
    ),
]


@pytest.mark.parametrize(("name", "inputs", "settings"), MULTI_HEAD, ids=ids(MULTI_HEAD))
def test_multi_head_attention(name: str, inputs: list[Array | None], settings: dict[str, Any]) -> None:
    check_rewriting("MultiHeadAttention", inputs, num_heads=N, **settings)


def flat(x: Array) -> Array:
    """[B, S, N, H] as [B, S, N H]."""
    return x.reshape(*x.shape[:2], -1)


@pytest.mark.parametrize("bias", [False, True])
def test_packed_queries_keys_and_values(bias: bool) -> None:
    """The kernel on the CPU does not know them."""
    last = [BIAS] if bias else []
    packed = normal(B, S, N, 3, H)
    apart = [flat(packed[:, :, :, index]) for index in range(3)]
    settings: dict[str, Any] = {"num_heads": N, "unidirectional": 1}
    check_rewriting(
        "MultiHeadAttention",
        [packed, None, None, *last],
        oracle=lambda: run("MultiHeadAttention", [*apart, *last], **settings),
        **settings,
    )
    packed = normal(B, L, N, 2, H)
    apart = [Q, *(flat(packed[:, :, :, index]) for index in range(2))]
    check_rewriting(
        "MultiHeadAttention",
        [Q, packed, None, *last],
        oracle=lambda: run("MultiHeadAttention", [*apart, *last], num_heads=N),
        num_heads=N,
    )


# RotaryEmbedding ------------------------------------------------------------------------------------------------

ANGLES = [normal(6, 2), normal(6, 2)]
EACH, FIRST = np.array([[0, 1, 2], [3, 5, 4]]), np.array([2])
PARTIAL = {"num_heads": 2, "rotary_embedding_dim": 4}

ROTARY: Cases = [
    ("positions", [normal(B, S, 8), EACH, *ANGLES], {}),
    ("first position", [normal(B, S, 8), FIRST, *ANGLES], {"scale": 2.0}),
    ("heads", [normal(B, S, 8), EACH, *ANGLES], {"num_heads": 2}),
    ("heads apart", [normal(B, N, S, 4), EACH, *ANGLES], {}),
    ("heads apart, first position", [normal(B, N, S, 4), FIRST, *ANGLES], {}),
    ("part of a head", [normal(B, S, 12), EACH, *ANGLES], PARTIAL),
    ("part of a head apart", [normal(B, N, S, 6), EACH, *ANGLES], PARTIAL),
]


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("name", "inputs", "settings"), ROTARY, ids=ids(ROTARY))
def test_rotary_embedding(name: str, inputs: list[Array | None], settings: dict[str, Any], interleaved: int) -> None:
    check_rewriting("RotaryEmbedding", inputs, interleaved=interleaved, **settings)


def test_angles_are_not_parameters() -> None:
    model, _ = model_of("RotaryEmbedding", [normal(B, S, 8), EACH, *ANGLES], {}, constants=[0, 2, 3])
    reasons = {parameter.name: parameter.reason for parameter in parameters(prepare(model)) if parameter.name[0] == "x"}
    assert reasons["x2"] == reasons["x3"] == "angles of a rotary embedding"
    assert reasons["x0"] == "floating-point weight"


# GroupQueryAttention --------------------------------------------------------------------------------------------

HEADS, GROUPS, SIZE = 2, 1, 16  # onnxruntime rotates heads of 16, 32 ... elements only
ROTATION: list[Array | None] = [normal(8, SIZE // 2), normal(8, SIZE // 2)]


def new(batch: int, length: int) -> list[Array | None]:
    return [normal(batch, length, heads * SIZE) for heads in (HEADS, GROUPS, GROUPS)]


def cache(batch: int, length: int) -> list[Array | None]:
    return [normal(batch, GROUPS, length, SIZE) for _ in range(2)]


def held(y: Array) -> Array:
    """What both sequences have in their caches; behind it, anything may be."""
    return y if y.ndim == 3 else y[:, :, :3]


PROMPT: list[Array | None] = [*new(B, S), None, None, ints(S - 1, S - 1), np.array(S, np.int32)]
NONE: list[Array | None] = [None]
STEP: list[Array | None] = [*new(B, 1), *cache(B, 4), ints(2, 4), np.array(5, np.int32)]
CHUNK: list[Array | None] = [*new(1, 2), *cache(1, 4), ints(5), np.array(6, np.int32)]
RAGGED = {"outputs": (FLOAT, FLOAT, FLOAT), "valid": held}

GROUP_QUERY: Cases = [
    ("prompt", PROMPT, WITH_CACHE),
    ("prompt, packed", [normal(B, S, 4 * SIZE), None, None, *PROMPT[3:]], {"scale": 0.2, **WITH_CACHE}),
    ("prompt, rotated", [*PROMPT, *ROTATION], {"do_rotary": 1}),
    ("prompt, rotated in pairs", [*PROMPT, *ROTATION], {"do_rotary": 1, "rotary_interleaved": 1}),
    ("prompt, positions", [*PROMPT, *ROTATION, np.array([[1, 5, 3], [2, 2, 3]])], {"do_rotary": 1}),
    ("prompt, softcap", PROMPT, {"softcap": 1.5}),
    ("prompt, window", PROMPT, {"local_window_size": 2}),
    ("prompt, smooth softmax", PROMPT, {"smooth_softmax": 1}),
    ("prompt, sinks", [*PROMPT, *NONE * 4, normal(HEADS)], {}),
    ("prompt, bias and softcap", [*PROMPT, *NONE * 3, normal(1, HEADS, S, S)], {"softcap": 1.2}),
    ("prompt, both directions", [*PROMPT[:5], ints(1, 2), PROMPT[6]], {"causal": 0}),
    ("prompt, empty cache", [*PROMPT[:3], *cache(B, 0), *PROMPT[5:], *ROTATION], {"do_rotary": 1, **WITH_CACHE}),
    ("prompt, long cache", [*PROMPT[:3], *cache(B, 6), *PROMPT[5:], *ROTATION], {"do_rotary": 1, **RAGGED}),
    ("step", [*STEP[:5], ints(4, 4), *STEP[6:]], WITH_CACHE),
    ("step of sequences of different lengths", [*STEP, *ROTATION], {"do_rotary": 1, **RAGGED}),
    ("step, window", [*STEP, *ROTATION], {"do_rotary": 1, "local_window_size": 2, **RAGGED}),
    ("step, long cache", [*STEP[:3], *cache(B, 6), ints(3, 3), np.array(4, np.int32)], RAGGED),
    ("chunk", [*CHUNK, *ROTATION], {"do_rotary": 1, **WITH_CACHE}),
    ("chunk, bias", [*CHUNK, *NONE * 3, normal(1, 1, 2, 6)], WITH_CACHE),
    ("chunk, positions", [*CHUNK, *ROTATION, np.array([[7, 3]])], {"do_rotary": 1, **WITH_CACHE}),
]


@pytest.mark.parametrize(("name", "inputs", "settings"), GROUP_QUERY, ids=ids(GROUP_QUERY))
def test_group_query_attention(name: str, inputs: list[Array | None], settings: dict[str, Any]) -> None:
    check_rewriting("GroupQueryAttention", inputs, num_heads=HEADS, kv_num_heads=GROUPS, **settings)


def test_as_many_groups_as_heads() -> None:
    inputs: list[Array | None] = [normal(B, S, 8), normal(B, S, 8), normal(B, S, 8), *PROMPT[3:]]
    check_rewriting("GroupQueryAttention", inputs, num_heads=1, kv_num_heads=1)


def test_normalized_queries_and_keys() -> None:
    """The kernel on the CPU does not know the weights; each head is divided by the root of its mean square before."""
    weights = [normal(SIZE), normal(SIZE)]

    def normalized(x: Array | None, weight: Array) -> Array:
        assert x is not None
        heads = x.reshape(B, S, -1, SIZE)
        return flat(heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + 1e-3) * weight)

    before = [normalized(x, weight) for x, weight in zip(PROMPT[:2], weights, strict=True)]
    settings: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": GROUPS}
    check_rewriting(
        "GroupQueryAttention",
        [*PROMPT, *NONE * 7, *weights],
        oracle=lambda: run("GroupQueryAttention", [*before, *PROMPT[2:]], **settings),
        qk_norm_epsilon=1e-3,
        **settings,
    )


def test_part_of_each_head_is_rotated() -> None:
    inputs: list[Array | None] = [normal(1, 2, 64), normal(1, 2, 32), normal(1, 2, 32), None, None]
    inputs += [ints(1), np.array(2, np.int32), normal(4, 8), normal(4, 8)]
    check_rewriting("GroupQueryAttention", inputs, num_heads=2, kv_num_heads=1, do_rotary=1)
