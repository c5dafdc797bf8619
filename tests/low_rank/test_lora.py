"""`onward.lora`: which layers, with what, and where the result goes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward import artifacts
from onward.api import CheckpointState, Module, Optimizer
from onward.errors import OpsetError, UnknownNameError
from tests.low_rank.cases import CASES, Case
from tests.low_rank.test_forms import run, trained, with_values

NET = Case(
    """net (float[N, 4] x) => (float[N, 3] y) {
        [first] h = MatMul(x, "encoder.fc1.weight") a = Add(h, "encoder.fc1.bias") r = Relu(a)
        [second] g = MatMul(r, "encoder.fc2.weight") t = Tanh(g)
        [last] y = Gemm <transB = 1> (t, "head.weight", "head.bias")
    }""",
    {
        "encoder.fc1.weight": (4, 8),
        "encoder.fc1.bias": (8,),
        "encoder.fc2.weight": (8, 8),
        "head.weight": (3, 8),
        "head.bias": (3,),
    },
)


WIDE = dataclasses.replace(
    NET,
    weights={name: tuple(300 if size == 8 else size for size in shape) for name, shape in NET.weights.items()},
)


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(32, 4)).astype(np.float32), random.normal(size=(32, 3)).astype(np.float32)


def weights(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


class TestSelection:
    @pytest.mark.parametrize(
        ("patterns", "chosen"),
        [
            ("*", ["encoder.fc1", "encoder.fc2", "head"]),
            ("encoder.*", ["encoder.fc1", "encoder.fc2"]),
            (["head.weight", "encoder.fc2.*"], ["encoder.fc2", "head"]),
            ("second", ["encoder.fc2"]),
            (["first", "last"], ["encoder.fc1", "head"]),
            ("y", ["head"]),
        ],
    )
    def test_names_and_patterns(self, patterns, chosen) -> None:
        adapted = onward.lora(NET.model(), patterns)
        assert [pair.weight for pair in adapted.pairs] == [f"{name}.weight" for name in chosen]
        assert adapted.parameters == [f"{name}.lora_{letter}" for name in chosen for letter in "AB"]

    def test_near_misses(self) -> None:
        with pytest.raises(
            UnknownNameError, match=r"'encoder.fc3.weight' \(is 'encoder.fc[12].weight' or .* meant\?\)"
        ):
            onward.lora(NET.model(), ["head.weight", "encoder.fc3.weight"])
        with pytest.raises(UnknownNameError, match=re.escape("'encodr.*' (is 'encoder.*' or ")):
            onward.lora(NET.model(), "encodr.*")

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("r", "low-rank pairs are for MatMul, Gemm and Conv, not for LSTM"),
            ("q", "it computes with quantised numbers; use the model as it was before quantisation"),
            ("v", "its weight has the shape [4]: a vector has no low rank"),
            ("f", "FusedMatMul is an operator of onnxruntime; use the model as it was before"),
        ],
    )
    def test_what_gets_no_pair_is_refused_by_name(self, name: str, reason: str) -> None:
        model = onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
            net (float[N, 4] x, uint8[N, 4] i, float[T, N, 4] s) => (float[N, 4] y) {
                y = MatMul(x, w)
                a, b, r = LSTM <hidden_size = 1> (s, k, u)
                q = MatMulInteger(i, j)
                v = MatMul(x, c)
                f = com.microsoft.FusedMatMul(x, w)
            }
        """)
        random = np.random.default_rng(0)
        shapes = {"w": (4, 4), "k": (1, 4, 4), "u": (1, 4, 1), "c": (4,)}
        for each, shape in shapes.items():
            model.graph.initializer.append(numpy_helper.from_array(random.normal(size=shape).astype("f4"), each))
        model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 4), np.uint8), "j"))
        assert [pair.weight for pair in onward.lora(model, "*").pairs] == ["w"]
        node = next(node for node in model.graph.node if name in node.output)
        with pytest.raises(onward.OnwardError, match=re.escape(reason)):
            onward.lora(model, [node.name or node.output[0]])

    def test_a_model_without_layers(self) -> None:
        model = onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["": 17]> net (float[N] x) => (float[N] y) { y = Tanh(x) }'
        )
        with pytest.raises(onward.OnwardError, match="no MatMul, Gemm or Conv with a constant weight"):
            onward.lora(model, "*")

    def test_names_that_are_taken(self) -> None:
        case = Case(
            'net (float[N, 4] x) => (float[N, 4] y) { h = MatMul(x, w) y = Add(h, "w.lora_A") }',
            {"w": (4, 4), "w.lora_A": (4,)},
        )
        adapted = onward.lora(case.model(), "*", rank=1)
        assert adapted.parameters == ["w.lora_A_1", "w.lora_B"]
        np.testing.assert_array_equal(run(adapted.model, case.feeds())[0], run(case.model(), case.feeds())[0])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rank": 0}, "`rank` is a number of columns, at least 1, not 0"),
            ({"rank": 2.5}, "`rank`"),
            ({"alpha": float("nan")}, "`alpha` is a number other than 0, not nan"),
            ({"alpha": 0}, "`alpha`"),
            ({"dropout": 1}, "`dropout` is a part, from 0 to below 1, not 1"),
            ({"seed": -1}, "`seed` is an integer that is not negative, not -1"),
            ({"patterns": []}, "`patterns` is empty"),
            ({"patterns": 3}, "`patterns` is a list of names or one name, not 3"),
        ],
    )
    def test_settings_that_mean_nothing(self, options, message) -> None:
        with pytest.raises(onward.OnwardError, match=re.escape(message)):
            onward.lora(NET.model(), **{"patterns": "*", **options})

    def test_opsets_without_broadcasting(self) -> None:
        case = Case("net (float[3, 4] x) => (float[3, 5] y) { y = MatMul(x, w) }", {"w": (4, 5)}, opset=6)
        with pytest.raises(OpsetError, match="low-rank pairs need opset 7"):
            onward.lora(case.model(), "*")


class TestFirstValues:
    def test_they_follow_from_the_seed(self) -> None:
        first, same, other = (onward.lora(NET.model(), "*", seed=seed).weights() for seed in (1, 1, 2))
        for name, array in first.items():
            np.testing.assert_array_equal(array, same[name])
            assert np.array_equal(array, other[name]) == name.endswith("_B")
            assert bool(array.any()) == name.endswith("_A")

    def test_same_input_same_bytes(self) -> None:
        one, two = (onward.lora(NET.model(), "*", dropout=0.1).model.SerializeToString() for _ in range(2))
        assert one == two

    def test_scaling(self) -> None:
        assert onward.lora(NET.model(), "*", rank=4).settings.scaling == 1
        assert onward.lora(NET.model(), "*", rank=4, alpha=2).settings.scaling == 0.5
        assert onward.lora(NET.model(), "*", rank=4, alpha=2, rank_stabilised=True).settings.scaling == 1


class TestTraining:
    def test_only_the_pairs_change(self, data) -> None:
        model = NET.model()
        adapted = onward.lora(model, "encoder.*", rank=2, alpha=8)
        trainer = onward.Trainer(adapted.model, "mse", learning_rate=0.02)
        losses = trainer.fit(*data, epochs=30)["loss"]
        assert losses[-1] < 0.8 * losses[0]
        assert list(trainer.snapshot()) == adapted.parameters
        merged = weights(adapted.merge(trainer))
        for name, before in weights(model).items():
            assert np.array_equal(merged[name], before) == (not name.startswith("encoder.fc") or "bias" in name)
        np.testing.assert_allclose(
            run(adapted.merge(trainer), {"x": data[0]})[0], trainer.predict(data[0]), rtol=1e-4, atol=1e-5
        )

    def test_more_can_be_trained_by_name(self, data) -> None:
        adapted = onward.lora(NET.model(), "encoder.*")
        trainer = onward.Trainer(adapted.model, "mse", trainable=[*adapted.parameters, "head.bias"])
        assert set(trainer.snapshot()) == {*adapted.parameters, "head.bias"}
        assert "head.weight" not in trainer.snapshot()

    def test_one_file(self, data) -> None:
        adapted = onward.lora(NET.model(), "*", rank=2)
        step = onward.training_step(adapted.model, "mse", "sgd")
        state = onward.initial_state(step, adapted.model)
        assert set(state) == set(adapted.parameters)

    def test_artifacts(self, data, tmp_path: Path) -> None:
        """The original's own interface, from the checkpoint to the adapter."""
        adapted = onward.lora(NET.model(), "*", rank=2)
        artifacts.generate_artifacts(
            adapted.model,
            requires_grad=adapted.parameters,
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=tmp_path,
        )
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(0.05)
        module.train()
        losses = []
        for _ in range(5):
            losses.append(float(module(*data)))
            optimizer.step()
            module.lazy_reset_grad()
        assert losses[-1] < losses[0]
        CheckpointState.save_checkpoint(state, tmp_path / "trained")
        module.eval()
        expected = float(module(*data))
        y = run(adapted.merge(tmp_path / "trained"), {"x": data[0]})[0]
        assert np.mean((y - data[1]) ** 2) == pytest.approx(expected, rel=1e-5)

    def test_dropout_drops_in_training_only(self, data) -> None:
        model = NET.model()
        adapted = onward.lora(model, "*", rank=2, dropout=0.5)
        assert sum(node.op_type == "Dropout" for node in adapted.model.graph.node) == 3
        start = trained(adapted)
        losses, predictions = {}, {}
        for seed in (0, 1):
            trainer = onward.Trainer(adapted.model, "mse", onward.optim.sgd(0.0), seed=seed)
            trainer.restore(start)
            losses[seed], predictions[seed] = trainer.train_step(data), trainer.predict(data[0])
        assert losses[0] != losses[1]
        np.testing.assert_array_equal(predictions[0], predictions[1])
        np.testing.assert_allclose(run(adapted.merge(start), {"x": data[0]})[0], predictions[0], rtol=1e-4, atol=1e-4)
        assert all(node.op_type != "Dropout" for node in (*adapted.base().graph.node, *adapted.merge(start).graph.node))

    def test_dropout_in_an_old_file(self) -> None:
        case = CASES["an old file"]
        adapted = onward.lora(case.model(), "*", rank=2, dropout=0.3)
        trainer = onward.Trainer(adapted.model, "mse", "sgd")
        x = case.feeds()["x"]
        np.testing.assert_array_equal(trainer.predict(x), run(case.model(), {"x": x})[0])

    def test_half_precision(self) -> None:
        model, feeds = NET.model(np.float16), {"x": NET.feeds()["x"].astype(np.float16)}
        adapted = onward.lora(model, "*", rank=2)
        values = {name: array * np.float16(0.1) for name, array in trained(adapted).items()}
        assert {array.dtype for array in values.values()} == {np.dtype(np.float16)}
        expected = run(with_values(adapted.model, values), feeds)[0]
        np.testing.assert_allclose(run(adapted.merge(values), feeds)[0], expected, rtol=0.02, atol=0.05)  # 11 bits


class TestQuantised:
    def quantised(self) -> onnx.ModelProto:
        model = onnx.parser.parse_model("""
            <ir_version: 8, opset_import: ["": 17]>
            net (float[N, 4] x) => (float[N, 5] y) { v = DequantizeLinear <axis = 1> (w, s, z) y = MatMul(x, v) }
        """)
        random = np.random.default_rng(0)
        stored = {
            "w": random.integers(-100, 100, (4, 5)).astype(np.int8),
            "s": random.uniform(0.01, 0.02, 5).astype(np.float32),
            "z": np.zeros(5, np.int8),
        }
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
        return model

    def packed(self) -> onnx.ModelProto:
        """A weight of four bits, as language models have it."""
        random = np.random.default_rng(0)
        node = helper.make_node(
            "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=32, N=5, bits=4, block_size=32
        )
        graph = helper.make_graph(
            [node],
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
            [
                numpy_helper.from_array(random.integers(0, 256, (5, 1, 16)).astype(np.uint8), "w"),
                numpy_helper.from_array(random.uniform(0.01, 0.02, (5,)).astype(np.float32), "s"),
            ],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    @pytest.mark.parametrize("form", ["quantised", "packed"])
    def test_pairs_beside_weights_of_few_bits(self, form: str, tmp_path: Path) -> None:
        model = getattr(self, form)()
        width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
        random = np.random.default_rng(1)
        x, y = random.normal(size=(16, width)).astype(np.float32), random.normal(size=(16, 5)).astype(np.float32)
        adapted = onward.lora(model, "*", rank=3)
        np.testing.assert_array_equal(run(adapted.model, {"x": x})[0], run(model, {"x": x})[0])
        trainer = onward.Trainer(adapted.model, "mse", learning_rate=0.05)
        losses = trainer.fit(x, y, epochs=30)["loss"]
        assert losses[-1] < 0.9 * losses[0]
        with pytest.raises(
            onward.OnwardError, match="'w' cannot be merged with its pair: the weight is stored as integers"
        ):
            adapted.merge(trainer)
        adapted.save_base(tmp_path / "base.onnx")
        adapted.save_adapter(trainer, tmp_path / "a.onnx_adapter")
        result = run(str(tmp_path / "base.onnx"), {"x": x}, tmp_path / "a.onnx_adapter")[0]
        # The packed product is computed with inputs of eight bits where the machine has such instructions.
        np.testing.assert_allclose(result, trainer.predict(x), rtol=1e-3, atol=1e-3 if form == "quantised" else 0.05)


@pytest.fixture(scope="module")
def fitted(data):
    adapted = onward.lora(NET.model(), "*", rank=2, alpha=3)
    trainer = onward.Trainer(adapted.model, "mse", learning_rate=0.05)
    trainer.fit(*data, epochs=2)
    return adapted, trainer


class TestWhereTrainedPairsComeFrom:
    def test_every_source_gives_the_same(self, fitted, tmp_path: Path) -> None:
        adapted, trainer = fitted
        trainer.save(tmp_path / "checkpoint")
        trainer.export(tmp_path / "trained.onnx")
        adapted.save_adapter(trainer, tmp_path / "a.onnx_adapter")
        expected = trainer.snapshot()
        sources = [
            trainer,
            expected,
            tmp_path / "checkpoint",
            tmp_path / "trained.onnx",
            onnx.load(tmp_path / "trained.onnx"),
        ]
        for source in sources:
            for name, array in adapted.weights(source).items():
                np.testing.assert_array_equal(array, expected[name])
        for name, array in adapted.weights(str(tmp_path / "a.onnx_adapter")).items():
            np.testing.assert_allclose(array, expected[name], rtol=1e-6)  # multiplied by 3/2, and divided again

    def test_training_continues_from_an_adapter(self, fitted, data, tmp_path: Path) -> None:
        adapted, trainer = fitted
        adapted.save_adapter(trainer, tmp_path / "a.onnx_adapter")
        again = onward.Trainer(adapted.model, "mse")
        again.restore(adapted.weights(tmp_path / "a.onnx_adapter"))
        np.testing.assert_allclose(again.predict(data[0]), trainer.predict(data[0]), rtol=1e-5, atol=1e-6)

    def test_what_does_not_belong_to_the_pairs(self, fitted, tmp_path: Path) -> None:
        adapted, trainer = fitted
        with pytest.raises(
            onward.OnwardError, match=r"has no 'encoder.fc1.lora_A', .*does not belong to these low-rank"
        ):
            adapted.merge(NET.model())
        other = onward.lora(NET.model(), "*", rank=3)
        with pytest.raises(onward.OnwardError, match=r"shape \[4, 3\] in the dict that was given, and not \[4, 2\]"):
            adapted.merge(other.weights())
        broken = {**trainer.snapshot(), "head.lora_B": np.full((2, 3), np.nan)}
        with pytest.raises(onward.OnwardError, match=r"'head.lora_B' has elements that are NaN"):
            adapted.save_merged(broken, tmp_path / "m.onnx")
        with pytest.raises(onward.OnwardError, match="there is no file"):
            adapted.merge(tmp_path / "nowhere.onnx")
        with pytest.raises(onward.OnwardError, match=r"trained pairs are taken from a Trainer, .* not from int"):
            adapted.merge(3)
        assert not (tmp_path / "m.onnx").exists()

    def test_a_folder_that_is_not_there(self, fitted, tmp_path: Path) -> None:
        adapted, trainer = fitted
        with pytest.raises(onward.OnwardError, match="there is no directory"):
            adapted.save_adapter(trainer, tmp_path / "no" / "a.onnx_adapter")
        (tmp_path / "bad.onnx_adapter").write_bytes(b"1234TORT" + bytes(20))
        with pytest.raises(onward.OnwardError, match="no adapter that onnxruntime can read"):
            adapted.weights(tmp_path / "bad.onnx_adapter")


class TestAdapters:
    def test_adapters_of_any_rank_fit_one_base(self, tmp_path: Path) -> None:
        """The base does not know rank and alpha."""
        model, feeds = NET.model(), NET.feeds()
        bases = set()
        for rank, alpha in ((1, 1.0), (5, 2.0)):
            adapted = onward.lora(model, "*", rank=rank, alpha=alpha)
            bases.add(adapted.base().SerializeToString())
            values = trained(adapted)
            adapted.save_base(tmp_path / "base.onnx")
            adapted.save_adapter(values, tmp_path / f"{rank}.onnx_adapter")
            expected = run(adapted.merge(values), feeds)[0]
            result = run(str(tmp_path / "base.onnx"), feeds, tmp_path / f"{rank}.onnx_adapter")[0]
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        assert len(bases) == 1

    def test_the_pairs_are_optional_inputs(self) -> None:
        adapted = onward.lora(NET.model(), "*")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(adapted.base().SerializeToString(), options)
        assert [value.name for value in session.get_inputs()] == ["x"]
        assert {value.name for value in session.get_overridable_initializers()} == set(adapted.parameters)


class TestExternalData:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        model = WIDE.model()
        onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
        return tmp_path / "m.onnx"

    def test_weights_are_not_copied_beside_the_model(self, path: Path, data) -> None:
        adapted = onward.lora(path, "*", rank=1)
        adapted.save(path.with_name("lora.onnx"))
        adapted.save_base(path.with_name("base.onnx"))
        for name in ("lora.onnx", "base.onnx"):
            saved = onnx.load(path.with_name(name), load_external_data=False)
            external = {each.name for each in saved.graph.initializer if each.data_location == TensorProto.EXTERNAL}
            assert external == set(WIDE.weights) - {"head.bias"}  # which is small
        expected = run(WIDE.model(), WIDE.feeds())[0]
        np.testing.assert_array_equal(run(str(path.with_name("lora.onnx")), WIDE.feeds())[0], expected)
        np.testing.assert_array_equal(run(str(path.with_name("base.onnx")), WIDE.feeds())[0], expected)
        trainer = onward.Trainer(path.with_name("lora.onnx"), "mse", learning_rate=0.05)
        trainer.fit(*data, epochs=1)
        adapted.save_merged(trainer, path.with_name("merged.onnx"))
        merged = onnx.load(path.with_name("merged.onnx"), load_external_data=False)
        external = {each.name for each in merged.graph.initializer if each.data_location == TensorProto.EXTERNAL}
        assert external == {"encoder.fc1.bias"}
        np.testing.assert_allclose(
            run(str(path.with_name("merged.onnx")), {"x": data[0]})[0], trainer.predict(data[0]), rtol=1e-4, atol=1e-5
        )

    def test_elsewhere_they_are(self, path: Path, monkeypatch) -> None:
        other = path.parent / "other"
        other.mkdir()
        adapted = onward.lora(path, "*", rank=1)
        expected = run(WIDE.model(), WIDE.feeds())[0]
        for limit in (None, 100):  # bytes, above which weights go to a file of their own
            if limit is not None:
                monkeypatch.setattr("onward.low_rank.adapted.LARGEST_PROTO", limit)
            adapted.save(other / "lora.onnx")
            np.testing.assert_array_equal(run(str(other / "lora.onnx"), WIDE.feeds())[0], expected)
        assert (other / "lora.onnx.data").exists()
        values = trained(adapted)
        adapted.save_merged(values, other / "merged.onnx")
        reference = run(with_values(onward.lora(WIDE.model(), "*", rank=1).model, values), WIDE.feeds())[0]
        np.testing.assert_allclose(run(str(other / "merged.onnx"), WIDE.feeds())[0], reference, rtol=1e-4, atol=1e-4)


def test_what_else_was_trained_is_merged_too(data, tmp_path: Path) -> None:
    """A bias, a layer without a pair, and the weight of a pair itself; an adapter has no place for them."""
    x, y = data
    adapted = onward.lora(NET.model(), "encoder.*", rank=2)
    others = ["encoder.fc1.bias", "encoder.fc2.weight", "head.weight"]
    trainer = onward.Trainer(adapted.model, "mse", learning_rate=0.05, trainable=[*adapted.parameters, *others])
    trainer.fit(x, y, epochs=3)
    trainer.save(tmp_path / "checkpoint")
    trainer.export(tmp_path / "pairs.onnx")
    for source in (trainer, trainer.snapshot(), tmp_path / "checkpoint", tmp_path / "pairs.onnx"):
        merged = adapted.merge(source)
        np.testing.assert_allclose(run(merged, {"x": x})[0], trainer.predict(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(onward.OnwardError, match=re.escape("but 'encoder.fc1.bias', 'encoder.fc2.weight'")):
        adapted.save_adapter(trainer, tmp_path / "a.onnx_adapter")


def test_layers_in_functions() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "own": 1]>
        net (float[N, 4] x) => (float[N, 4] y) { h = own.layer(x, w) y = own.layer(h, v) }
        <domain: "own", opset_import: ["": 17]> layer (x, w) => (y) { h = MatMul(x, w) y = Tanh(h) }
    """)
    random = np.random.default_rng(0)
    for name in "wv":
        model.graph.initializer.append(numpy_helper.from_array(random.normal(size=(4, 4)).astype("f4"), name))
    adapted = onward.lora(model, "*", rank=2)
    assert [pair.weight for pair in adapted.pairs] == ["w", "v"]
    x = random.normal(size=(3, 4)).astype(np.float32)
    values = trained(adapted)
    expected = run(with_values(adapted.model, values), {"x": x})[0]
    np.testing.assert_allclose(run(adapted.merge(values), {"x": x})[0], expected, rtol=1e-5, atol=1e-5)


def test_it_says_what_it_is() -> None:
    assert repr(onward.lora(NET.model(), "*", rank=2)) == "Lora(3 pairs of rank 2, alpha=2: 78 numbers beside 131)"
