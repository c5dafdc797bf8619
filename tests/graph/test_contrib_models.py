"""Transformers that onnxruntime's own optimizers have fused have the gradients of those that they have not."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import artifacts
from onward.graph.parameters import parameters
from onward.graph.prepare import prepare
from onward.testing import run_on_runtime
from tests.graph.contrib import rewritten
from tests.graph.transformers import HEADS, WIDTH, WORDS, Bert, Gpt, exported

Array = np.ndarray
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def bert(opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    words, segments = random.integers(0, WORDS, (2, 5)), random.integers(0, 2, (2, 5))
    feeds = {"input_ids": words, "attention_mask": MASK, "token_type_ids": segments}
    return exported(Bert(), {name: torch.tensor(array) for name, array in feeds.items()}, opset), feeds


def gpt(opset: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    torch.manual_seed(1)
    feeds = {"input_ids": np.random.default_rng(1).integers(0, WORDS, (2, 5))}
    return exported(Gpt(), {name: torch.tensor(array) for name, array in feeds.items()}, opset), feeds


def by_session(model: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    """What onnxruntime itself runs, as it saves it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def by_tool(model: onnx.ModelProto, kind: str, folder: Path, **options: bool) -> onnx.ModelProto:
    """What onnxruntime's tool for transformers makes of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnxruntime.transformers import optimizer
        from onnxruntime.transformers.fusion_options import FusionOptions

        onnx.save(model, folder / "model.onnx")
        settings = FusionOptions(kind)
        for name, value in options.items():
            assert hasattr(settings, name)
            setattr(settings, name, value)
        logging.disable(logging.WARNING)
        try:
            result = optimizer.optimize_model(
                str(folder / "model.onnx"),
                model_type=kind,
                num_heads=HEADS,
                hidden_size=WIDTH,
                opt_level=0,
                optimization_options=settings,
            )
        finally:
            logging.disable(logging.NOTSET)
    return result.model


def as_declared(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """The inputs in the types of a model; the tool makes some of them int32."""
    types = {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in model.graph.input
    }
    return {name: array.astype(types[name]) for name, array in feeds.items()}


def gradients(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[tuple[str, Array, Array]]:
    """The name, the value and the gradient of each trainable parameter."""
    differentiated = onward.gradient(model, of="logits")
    assert {node.domain for node in differentiated.graph.node} == {""}, "all standard"
    typed = as_declared(model, feeds)
    seed = np.random.default_rng(2).normal(size=run_on_runtime(model, typed)["logits"].shape).astype(np.float32)
    results = run_on_runtime(differentiated, {**typed, "logits_grad": seed})
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in differentiated.graph.initializer}
    ends = [name.removesuffix("_grad") for name in results if name.endswith("_grad")]
    return [(name, values[name], results[f"{name}_grad"]) for name in ends]


def assert_same_gradients(fused: onnx.ModelProto, model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Each parameter of the fused model is one of the other, or queries, keys and values of it side by side."""
    apart = gradients(model, feeds)
    found = []
    for name, value, gradient in gradients(fused, feeds):
        whole = [other for other in apart if other[1].shape == value.shape and np.array_equal(other[1], value)]
        values, wanted = [value], [gradient]
        if not whole:
            values, wanted = np.split(value, 3, axis=-1), np.split(gradient, 3, axis=-1)
        for part, expected in zip(values, wanted, strict=True):
            same = [other for other in apart if other[1].shape == part.shape and np.array_equal(other[1], part)]
            assert same, f"{name} is not in the other model"
            # Layers that start alike have equal values.
            distances = [np.abs(other[2] - expected).max() for other in same]
            found.append(same[int(np.argmin(distances))][0])
            assert min(distances) < 2e-4 * max(1, np.abs(expected).max()), name
    assert set(found) == {name for name, _, _ in apart}


def fused_operators(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}


BERT = {"EmbedLayerNormalization", "Attention", "SkipLayerNormalization", "BiasGelu"}


@pytest.mark.parametrize("opset", [13, 17])
def test_bert_by_the_tool(opset: int, tmp_path: Path) -> None:
    model, feeds = bert(opset)
    fused = by_tool(model, "bert", tmp_path)
    assert fused_operators(fused) == BERT
    assert_same_gradients(fused, model, feeds)


def test_bert_by_the_tool_with_more_options(tmp_path: Path) -> None:
    model, feeds = bert(17)
    options = {"use_multi_head_attention": True, "enable_gelu_approximation": True}
    fused = by_tool(model, "bert", tmp_path, **options)
    assert {"MultiHeadAttention", "FastGelu"} <= fused_operators(fused)
    standard = rewritten(fused)
    typed = as_declared(fused, feeds)
    wanted = run_on_runtime(fused, typed)["logits"]
    np.testing.assert_allclose(run_on_runtime(standard, typed)["logits"], wanted, rtol=1e-4, atol=1e-5)
    # The approximation is another function, so its gradients are compared loosely.
    exact, close = gradients(model, feeds), gradients(fused, feeds)
    named = {name: gradient for name, _, gradient in exact}
    shared = [(named[name], gradient) for name, _, gradient in close if name in named]
    assert len(shared) > 10
    for one, other in shared:
        np.testing.assert_allclose(other, one, atol=2e-2 * np.abs(one).max())


def test_gpt_by_the_tool(tmp_path: Path) -> None:
    model, feeds = gpt(13)
    fused = by_tool(model, "gpt2", tmp_path)
    assert fused_operators(fused) == {"SkipLayerNormalization", "FastGelu"}
    # LayerNormalization in an opset that has none
    assert any(node.op_type == "LayerNormalization" and not node.domain for node in fused.graph.node)
    assert_same_gradients(fused, model, feeds)


@pytest.mark.parametrize("level", ["EXTENDED", "ALL"])
@pytest.mark.parametrize("build", [bert, gpt])
def test_what_a_session_saves(build: Any, level: str, tmp_path: Path) -> None:
    model, feeds = build(13)
    fused = by_session(model, level, tmp_path)
    assert "FusedMatMul" in fused_operators(fused)
    assert {"BiasGelu", "FastGelu"} & fused_operators(fused)
    assert_same_gradients(fused, model, feeds)


def test_a_fused_model_trains(tmp_path: Path) -> None:
    model, feeds = bert(17)
    fused = by_tool(model, "bert", tmp_path)
    targets = np.random.default_rng(3).normal(size=(2, 5, 3))
    losses = []
    for form in (model, fused):
        step = onward.training_step(form, "mse", "sgd")
        assert {node.domain for node in step.graph.node} == {""}
        losses.append(_train(step, feeds, targets, onward.initial_state(step, form)))
    assert losses[0][-1] < 0.8 * losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)


def test_artifacts_of_models_with_fused_operators(tmp_path: Path) -> None:
    fused = by_tool(bert(17)[0], "bert", tmp_path)
    # The tool does not always say which version of the domain it writes.
    imports = [imported for imported in fused.opset_import if not imported.domain]
    del fused.opset_import[:]
    fused.opset_import.extend(imports)
    for model, trained in ((fused, ["head.bias"]), (decoder()[0], ["small_a", "small_b"])):
        names = [tensor.name for tensor in model.graph.initializer]
        result = artifacts.generate_artifacts(
            model,
            requires_grad=trained,
            frozen_params=[name for name in names if name not in trained],
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=tmp_path,
            loss_input_names=["logits"],
        )
        assert result is not None
        for file in ("training_model.onnx", "eval_model.onnx"):
            written = onnx.load(tmp_path / file)
            assert {node.domain for node in written.graph.node} == {""}
            onnxruntime.InferenceSession(tmp_path / file, providers=["CPUExecutionProvider"])


def _train(step: onnx.ModelProto, feeds: dict[str, Array], targets: Array, state: dict[str, Array]) -> list[float]:
    session = onnxruntime.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
    kinds = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(float)": np.float32}
    types = {value.name: kinds[value.type] for value in session.get_inputs()}
    (target,) = [name for name in types if name not in (*feeds, *state, "learning_rate", "step")]
    names, losses = [output.name for output in session.get_outputs()], []
    for number in range(1, 16):
        given = {**feeds, target: targets, "learning_rate": 0.03, "step": number}
        typed = {name: np.asarray(array, types[name]) for name, array in given.items()}
        results = dict(zip(names, session.run(None, {**typed, **state}), strict=True))
        state = {name.removesuffix(".updated"): y for name, y in results.items() if name.endswith(".updated")}
        losses.append(float(results[names[0]]))
    return losses


# A decoder as the tools for generation write it -----------------------------------------------------------------


def decoder() -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Quantised projections, rotation and cache inside of attention, norms after sums; a small product beside."""
    random = np.random.default_rng(0)
    width, heads, groups, size, words, batch, length = 32, 2, 1, 16, 7, 2, 3
    weights: dict[str, Array] = {
        "embedding": random.normal(size=(words, width)),
        "cos": np.cos(np.outer(np.arange(8), 1 / 10 ** np.linspace(0, 2, size // 2))),
        "sin": np.sin(np.outer(np.arange(8), 1 / 10 ** np.linspace(0, 2, size // 2))),
        "norm0": 1 + 0.1 * random.normal(size=width),
        "norm1": 1 + 0.1 * random.normal(size=width),
        "norm2": 1 + 0.1 * random.normal(size=width),
        "small_a": 0.3 * random.normal(size=(width, 2)),
        "small_b": 0.3 * random.normal(size=(2, width)),
        "head": 0.3 * random.normal(size=(width, words)),
    }
    initializers = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]

    def linear(x: str, y: str, outputs: int) -> onnx.NodeProto:
        packed = random.integers(0, 256, (outputs, width // 16, 8)).astype(np.uint8)
        scales = random.uniform(0.01, 0.05, (outputs, width // 16)).astype(np.float32)
        initializers.append(numpy_helper.from_array(packed, f"{y}.weight"))
        initializers.append(numpy_helper.from_array(scales, f"{y}.scales"))
        settings = {"K": width, "N": outputs, "bits": 4, "block_size": 16, "accuracy_level": 1}
        return own("MatMulNBits", [x, f"{y}.weight", f"{y}.scales"], [y], **settings)

    def own(op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op_type, inputs, outputs, domain="com.microsoft", **attributes)

    node = helper.make_node
    nodes = [
        node("Gather", ["embedding", "ids"], ["x"]),
        node("SimplifiedLayerNormalization", ["x", "norm0"], ["n0"], axis=-1, epsilon=1e-6, stash_type=1),
        *(linear("n0", name, count * size) for name, count in (("q", heads), ("k", groups), ("v", groups))),
        own(
            "GroupQueryAttention",
            ["q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin"],
            ["a", "present_k", "present_v"],
            num_heads=heads,
            kv_num_heads=groups,
            do_rotary=1,
        ),
        linear("a", "o", width),
        own("SkipSimplifiedLayerNormalization", ["x", "o", "norm1"], ["n1", "", "", "x1"], epsilon=1e-6),
        linear("n1", "gate", width),
        linear("n1", "up", width),
        node("Sigmoid", ["gate"], ["s"]),
        node("Mul", ["gate", "s"], ["silu"]),
        node("Mul", ["silu", "up"], ["mixed"]),
        linear("mixed", "down", width),
        node("MatMul", ["n1", "small_a"], ["low"]),
        node("MatMul", ["low", "small_b"], ["beside"]),
        node("Add", ["down", "beside"], ["both"]),
        own("SkipSimplifiedLayerNormalization", ["x1", "both", "norm2"], ["n2"], epsilon=1e-6),
        node("MatMul", ["n2", "head"], ["logits"]),
    ]
    shapes: dict[str, tuple[int, list[str | int]]] = {
        "ids": (TensorProto.INT64, ["batch", "length"]),
        "past_k": (TensorProto.FLOAT, ["batch", groups, "past", size]),
        "past_v": (TensorProto.FLOAT, ["batch", groups, "past", size]),
        "lengths": (TensorProto.INT32, ["batch"]),
        "total": (TensorProto.INT32, []),
    }
    inputs = [helper.make_tensor_value_info(name, *shape) for name, shape in shapes.items()]
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", words]),
        *(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", groups, "sum", size])
            for name in ("present_k", "present_v")
        ),
    ]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    feeds = {
        "ids": random.integers(0, words, (batch, length)),
        "past_k": np.zeros((batch, groups, 0, size), np.float32),
        "past_v": np.zeros((batch, groups, 0, size), np.float32),
        "lengths": np.full(batch, length - 1, np.int32),
        "total": np.array(length, np.int32),
    }
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def test_decoder() -> None:
    model, feeds = decoder()
    wanted = run_on_runtime(model, feeds)
    got = run_on_runtime(rewritten(model), feeds)
    for name, expected in wanted.items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-4, err_msg=name)
    trainable = {parameter.name for parameter in parameters(prepare(model)) if parameter.trainable}
    assert trainable == {"embedding", "norm0", "norm1", "norm2", "small_a", "small_b", "head"}
    differentiated = onward.gradient(model, of="logits")
    assert Counter(node.domain for node in differentiated.graph.node).keys() == {""}
    seed = np.random.default_rng(1).normal(size=wanted["logits"].shape).astype(np.float32)
    results = run_on_runtime(differentiated, {**feeds, "logits_grad": seed})
    for name in sorted(trainable):
        _assert_directional(model, feeds, name, results[f"{name}_grad"], seed)


def _assert_directional(
    model: onnx.ModelProto, feeds: dict[str, Array], name: str, gradient: Array, seed: Array
) -> None:
    """Against differences of the model as it is, fused operators and all."""
    direction = np.random.default_rng(2).normal(size=gradient.shape)
    step, sides = 5e-3, []
    for sign in (1, -1):
        moved = onnx.ModelProto()
        moved.CopyFrom(model)
        (tensor,) = [tensor for tensor in moved.graph.initializer if tensor.name == name]
        value = numpy_helper.to_array(tensor) + sign * step * direction
        tensor.CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))
        sides.append(np.sum(run_on_runtime(moved, feeds)["logits"] * seed, dtype=np.float64))
    # The differences are those of float32.
    wanted, got = (sides[0] - sides[1]) / (2 * step), np.sum(gradient * direction, dtype=np.float64)
    np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=2e-2 * np.abs(gradient).max(), err_msg=name)
