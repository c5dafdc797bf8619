"""Attention whose sizes have no numbers: onnx takes them for 0, and onnxruntime believes it; gradients are the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest

import onward
from onward.testing.running import run_on_runtime
from onward.testing.training import by_gradient, by_split, by_step, subject_of

HEADER = '<ir_version: 10, opset_import: ["" : 23]>'
PROJECTED = f"""{HEADER}
g (float[2, 3, 6] x, float[6, 8] wq, float[6, K] wk, float[6, V] wv, float[Y, 5] wo PAST) => (OUT) {{
    q = MatMul (x, wq)
    k = MatMul (x, wk)
    v = MatMul (x, wv)
    ys = Attention <ATTRIBUTES> (q, k, v MORE)
    z = MatMul (y, wo)
}}"""
# The widths of keys, values and results, the attributes, and whether there are keys of the past and scores.
CASES = {
    "heads": (8, 6, 6, "q_num_heads = 2, kv_num_heads = 2", False),
    "causal": (8, 6, 6, "q_num_heads = 2, kv_num_heads = 2, is_causal = 1", False),
    "groups": (4, 6, 12, "q_num_heads = 4, kv_num_heads = 2, softcap = 2.0", False),
    "past": (8, 6, 6, "q_num_heads = 2, kv_num_heads = 2", True),
    "groups and past": (4, 6, 12, "q_num_heads = 4, kv_num_heads = 2, is_causal = 1", True),
}


def _model(name: str) -> onnx.ModelProto:
    keys, values, results, attributes, past = CASES[name]
    given = f", float[2, 2, 4, {keys // 2 if 'groups' not in name else 2}] pk, float[2, 2, 4, {values // 2}] pv"
    text = PROJECTED.replace("K]", f"{keys}]").replace("V]", f"{values}]").replace("[Y", f"[{results}")
    text = text.replace("ATTRIBUTES", attributes).replace("PAST", given if past else "")
    text = text.replace("ys", "y, nk, nv, scores" if past else "y").replace("MORE", ", , pk, pv" if past else "")
    outputs = "float[a, b, c] z" + (", float[d, e, f, g] nk, float[h, i, j, l] scores" if past else "")
    return onnx.parser.parse_model(text.replace("OUT", outputs))


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in model.graph.input}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def _assert_same_gradients(got: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        if name.endswith("_grad"):
            other = got[name if name in got else name.replace("_grad", ".parameter_grad")]
            np.testing.assert_allclose(other.reshape(-1), array.reshape(-1), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_known_sizes(name: str) -> None:
    """In the second layout no size is known: weights are computed."""
    model = _model(name)
    feeds = _feeds(model)
    wrt = list(feeds)
    # Stored, with its sizes: the product with it is what cannot be where a size is taken for 0.
    model.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("wo"), "wo"))
    del model.graph.input[wrt.index("wo")]
    static, symbolic = (subject_of(model, feeds, wrt, None, (), layout) for layout in ("static", "symbolic"))
    wanted = by_gradient(static)
    assert sum(key.endswith("_grad") for key in wanted) == len(wrt)
    for path in (by_gradient, by_split, by_step):
        _assert_same_gradients(path(symbolic), wanted)


def test_attention_in_front_of_what_is_trained() -> None:
    """onnxruntime refuses to load the model itself: for it, the product is one of [B, S, 0] and [6, 5]."""
    text = f"""{HEADER} g (float[B, S, D] q, float[B, L, D] k, float[B, L, E] v) => (float[B, S, 5] z) {{
        y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)
        z = MatMul (y, w)
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    w = rng.normal(size=(6, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    feeds = {
        "q": rng.normal(size=(2, 3, 8)).astype(np.float32),
        "k": rng.normal(size=(2, 4, 8)).astype(np.float32),
        "v": rng.normal(size=(2, 4, 6)).astype(np.float32),
        "z_grad": rng.normal(size=(2, 3, 5)).astype(np.float32),
    }
    with pytest.raises(Exception, match="Incompatible dimensions"):
        run_on_runtime(model, feeds)
    got = run_on_runtime(onward.gradient(model, wrt=["w"], of="z"), feeds)
    heads = [_mean(*(feeds[name][..., part] for name, part in zip("qkv", parts, strict=True))) for parts in _HEADS]
    y = np.concatenate(heads, axis=-1)
    np.testing.assert_allclose(got["z"], y @ w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["w_grad"], np.einsum("bsi,bso->io", y, feeds["z_grad"]), rtol=1e-4, atol=1e-5)


# Where the two heads are in queries, keys and values.
_HEADS = [(slice(0, 4), slice(0, 4), slice(0, 3)), (slice(4, 8), slice(4, 8), slice(3, 6))]


def _mean(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    weights = np.exp(q @ k.transpose(0, 2, 1) / 2)
    return weights / weights.sum(-1, keepdims=True) @ v
