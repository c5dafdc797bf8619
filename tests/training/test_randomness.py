"""What training graphs draw: as random as needed, and the same for the same seed and pass."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onward
from onward.graph.builder import Builder
from onward.graph.finish import finish
from onward.graph.prepare import prepare
from onward.signature import METADATA_KEY
from onward.testing import run_on_runtime
from onward.training.randomness import draw_explicitly
from onward.training.split import split

FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL
PRIME, GRAIN = 2**31 - 1, 2**18
FIRST = {"random_pass": np.array(0), "random_seed": np.array(0)}


def model(nodes, shape, outputs, constants=(), *, inputs=None, opset=17, dtype=FLOAT) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "drawing",
        [helper.make_tensor_value_info("x", dtype, shape), *(inputs or [])],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in dict(constants).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def dropout(shape, ratio=0.3, *, layers=1, dtype=FLOAT, numpy_type=np.float32) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Dropout", ["x", "ratio", "on"], [f"y{i}", f"kept{i}"], f"drop{i}") for i in range(layers)
    ]
    outputs = {f"{name}{i}": kind for i in range(layers) for name, kind in (("y", dtype), ("kept", BOOL))}
    return model(nodes, shape, outputs, {"ratio": numpy_type(ratio), "on": True}, dtype=dtype)


def explicit(proto: onnx.ModelProto) -> onnx.ModelProto:
    graph = prepare(proto)
    draw_explicitly(Builder(graph.graph, graph.opset_imports[""]))
    result = finish(graph)
    onnx.checker.check_model(result, full_check=True)
    return result


def open_session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])


def draw(proto: onnx.ModelProto, x: np.ndarray, number: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    names = [output.name for output in proto.graph.output]
    feeds = {"x": x, "random_pass": np.array(number), "random_seed": np.array(seed)}
    return dict(zip(names, open_session(proto).run(names, feeds), strict=True))


def expected_uniform(rows: int, columns: int, start: int, number: int, seed: int) -> np.ndarray:
    """The numbers by integers of any size, from the description of the module."""
    keys = []
    for prime, first, last in ((PRIME, 314159265, 141421356), (2**31 - 19, 271828182, 173205080)):
        h = (seed % prime + first) ** 2 % PRIME
        h = (h + number % prime) ** 2 % PRIME
        keys.append(((h + last) ** 2 % PRIME) ** 2 % PRIME % 2**29)
    a = [((((start + i + keys[0]) ** 2 % PRIME + keys[1]) ** 2 % PRIME) ** 2 % PRIME) % 1024 for i in range(rows * 8)]

    def split_mix(z: int) -> int:
        mask = 2**64 - 1
        z = z * 0x9E3779B97F4A7C15 & mask
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        return z ^ (z >> 31)

    b = [split_mix(i) % 2048 * 2 - 2047 for i in range(1, columns * 8 + 1)]
    product = np.array(a).reshape(rows, 8) @ np.array(b).reshape(columns, 8).T
    return (product % GRAIN) / GRAIN


@pytest.mark.parametrize(("number", "seed"), [(0, 0), (1, 0), (2**40, -(2**63)), (7, 2**63 - 1)])
def test_numbers_are_those_of_the_description(number, seed):
    """Exactly, so that every machine draws the same."""
    proto = explicit(dropout(["N", 96], 0.3, layers=2))
    got = draw(proto, np.ones((5, 96), np.float32), number, seed)
    share = (2**31 - 1) // 6
    for layer in range(2):
        uniform = expected_uniform(5, 96, layer * share, number, seed)
        np.testing.assert_array_equal(got[f"kept{layer}"], uniform >= round(0.3 * GRAIN) / GRAIN)


SHAPES = [
    ([6, 96], (6, 96)),
    ([7], (7,)),
    ([], ()),
    (["N", 96], (11, 96)),
    (["N", 5], (9, 5)),
    (["N", "T", 3], (4, 5, 3)),
    (["N", 7, 13, 11], (3, 7, 13, 11)),
    (["N", "M"], (37, 41)),
    ([0, 4], (0, 4)),
    (["N", 128], (0, 128)),
    ([3, 1031], (3, 1031)),  # a prime, longer than a row
]


@pytest.mark.parametrize(("declared", "shape"), SHAPES, ids=str)
def test_shapes(declared, shape):
    x = np.asarray(np.random.default_rng(0).normal(size=shape) + 3, np.float32)
    got = draw(explicit(dropout(declared, 0.25)), x)
    assert got["y0"].shape == got["kept0"].shape == shape
    np.testing.assert_allclose(got["y0"], np.where(got["kept0"], x / 0.75, 0), rtol=1e-6)


def test_unknown_rank():
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Dropout", ["r", "ratio", "on"], ["y"]),
        helper.make_node("Shape", ["y"], ["y_shape"]),
        helper.make_node("Reshape", ["y", "flat"], ["elements"]),
    ]
    inputs = [helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"])]
    constants = {"ratio": np.float32(0.5), "on": True, "flat": [-1]}
    outputs = {"y_shape": TensorProto.INT64, "elements": FLOAT}
    proto = explicit(model(nodes, ["N"], outputs, constants, inputs=inputs))
    feeds = {"x": np.ones(30, np.float32), "shape": np.array([3, 5, 2]), **FIRST}
    got = run_on_runtime(proto, feeds)
    assert got["y_shape"].tolist() == [3, 5, 2]
    assert set(got["elements"]) == {0, 2}


@pytest.mark.parametrize(("dtype", "numpy_type"), [(TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64)])
def test_types(dtype, numpy_type):
    x = np.random.default_rng(0).normal(size=(20, 64)).astype(numpy_type) + 3
    got = draw(explicit(dropout(["N", 64], 0.5, dtype=dtype, numpy_type=numpy_type)), x)
    assert got["y0"].dtype == numpy_type
    np.testing.assert_array_equal(got["y0"], np.where(got["kept0"], x * 2, 0))


@pytest.mark.parametrize(("ratio", "on", "rate"), [(0.25, True, 0.25), (0.9, False, 0.0), (0.0, True, 0.0)])
def test_ratio_and_mode_may_be_inputs(ratio, on, rate):
    nodes = [helper.make_node("Dropout", ["x", "ratio", "on"], ["y", "kept"])]
    inputs = [helper.make_tensor_value_info("ratio", FLOAT, []), helper.make_tensor_value_info("on", BOOL, [])]
    proto = explicit(model(nodes, ["N", 512], {"y": FLOAT, "kept": BOOL}, inputs=inputs))
    x = np.full((64, 512), 3, np.float32)
    feeds = {"x": x, "ratio": np.array(ratio, np.float32), "on": np.array(on), **FIRST}
    got = run_on_runtime(proto, feeds)
    assert abs(got["kept"].mean() - (1 - rate)) < 0.01
    np.testing.assert_allclose(got["y"], np.where(got["kept"], x / (1 - rate), 0), rtol=1e-6)


def test_a_ratio_of_zero_keeps_all():
    x = np.ones((3, 70), np.float32)
    got = draw(explicit(dropout(["N", 70], 0.0)), x)
    assert got["kept0"].all()
    np.testing.assert_array_equal(got["y0"], x)


# Statistics ----------------------------------------------------------------------------------------------------------
# Deterministic: the seeds are fixed. Bounds are six standard deviations of what truly random numbers show.


def test_a_ratio_of_zero_draws_nothing():
    nodes = [helper.make_node("Dropout", ["x", "ratio", "on"], ["y", "kept"])]
    proto = explicit(model(nodes, ["N", 4], {"y": FLOAT}, {"ratio": np.float32(0), "on": True}))
    assert [value.name for value in proto.graph.input] == ["x"]
    assert [node.op_type for node in proto.graph.node] == ["Identity"]


def kept_masks(ratio: float, numbers: range, layers: int = 1, size: tuple[int, int] = (128, 512)) -> np.ndarray:
    """`[pass, layer, rows, columns]`."""
    session = open_session(explicit(dropout(["N", size[1]], ratio, layers=layers)))
    names = [f"kept{i}" for i in range(layers)]
    x = np.ones(size, np.float32)
    return np.array([session.run(names, {"x": x, **FIRST, "random_pass": np.array(number)}) for number in numbers])


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5, 0.9])
def test_rate(ratio):
    masks = kept_masks(ratio, range(40))
    deviation = (masks.mean() - (1 - ratio)) / np.sqrt(ratio * (1 - ratio) / masks.size)
    assert abs(deviation) < 6
    # Every pass, row and column for itself, as a chi-square statistic of 40, 128 and 512 degrees of freedom.
    for axes in ((1, 2, 3), (0, 1, 3), (0, 1, 2)):
        means = masks.mean(axes)
        count = masks.size / means.size
        chi_square = ((means - (1 - ratio)) ** 2).sum() * count / (ratio * (1 - ratio))
        assert abs(chi_square - means.size) < 6 * np.sqrt(2 * means.size)


def assert_uncorrelated(a: np.ndarray, b: np.ndarray, rate: float) -> None:
    a, b = a.astype(float).ravel() - rate, b.astype(float).ravel() - rate
    assert abs((a * b).sum()) < 6 * np.sqrt(a.size) * rate * (1 - rate)


@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_elements_layers_and_passes_are_independent(ratio):
    masks, rate = kept_masks(ratio, range(24), layers=3), 1 - ratio
    for shift in (1, 2, 3, 8, 64):
        assert_uncorrelated(masks[: -min(shift, 23)], masks[min(shift, 23) :], rate)
        assert_uncorrelated(masks[:, :, :-shift], masks[:, :, shift:], rate)
        assert_uncorrelated(masks[:, :, :, :-shift], masks[:, :, :, shift:], rate)
    assert_uncorrelated(masks[:, 0], masks[:, 1], rate)
    assert_uncorrelated(masks[:, 0], masks[:, 2], rate)
    # Corners of rectangles: what a product of rows and columns would show.
    centred = masks - rate
    corners = centred[:, :, :-1, :-1] * centred[:, :, 1:, :-1] * centred[:, :, :-1, 1:] * centred[:, :, 1:, 1:]
    assert abs(corners.sum()) < 6 * np.sqrt(corners.size) * (rate * ratio) ** 2
    # All pairs of columns, and of rows, of one pass: correlations vary as much as they should.
    for matrix in (masks[0, 0], masks[0, 0].T):
        pairs = np.corrcoef(matrix)[np.triu_indices(len(matrix), 1)] * np.sqrt(matrix.shape[1])
        assert abs(pairs.std() - 1) < 0.05
        assert abs(pairs).max() < 8


def test_other_seeds_draw_others():
    proto, x = explicit(dropout(["N", 512], 0.5)), np.ones((128, 512), np.float32)
    masks = [draw(proto, x, 3, seed)["kept0"] for seed in (0, 1, 2, 2**62)]
    for index, mask in enumerate(masks[1:]):
        assert_uncorrelated(mask, masks[index], 0.5)
    np.testing.assert_array_equal(draw(proto, x, 3, 1)["kept0"], masks[1])


def drawing(op_type: str, **attributes: object) -> np.ndarray:
    inputs = ["x"] if op_type == "Bernoulli" or op_type.endswith("Like") else []
    nodes = [helper.make_node(op_type, inputs, ["y"], **attributes), helper.make_node("Identity", ["x"], ["z"])]
    x = np.full((300, 400), 0.2, np.float32)
    proto = explicit(model(nodes, ["N", 400], {"y": attributes.get("dtype", FLOAT), "z": FLOAT}))
    assert op_type not in {node.op_type for node in proto.graph.node}
    first, second = draw(proto, x, 1)["y"], draw(proto, x, 2)["y"]
    assert first.shape == (300, 400)
    assert (first != second).any()
    np.testing.assert_array_equal(draw(proto, x, 1)["y"], first)
    return first


@pytest.mark.parametrize("op_type", ["RandomUniform", "RandomUniformLike"])
def test_uniform(op_type):
    shape = {} if op_type.endswith("Like") else {"shape": [300, 400]}
    u = (drawing(op_type, low=-1.0, high=3.0, **shape) + 1) / 4
    assert u.min() >= 0
    assert u.max() <= 1
    counts, _ = np.histogram(u, 100, (0, 1))
    assert abs(((counts - 1200) ** 2 / 1200).sum() - 99) < 6 * np.sqrt(2 * 99)


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomNormalLike"])
def test_normal(op_type):
    shape = {} if op_type.endswith("Like") else {"shape": [300, 400]}
    z = ((drawing(op_type, mean=5.0, scale=2.0, **shape) - 5) / 2).astype(float)
    # Moments of the normal distribution, within six standard errors.
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - moment) < 6 * np.sqrt(variance / z.size)


@pytest.mark.parametrize("dtype", [FLOAT, BOOL, TensorProto.DOUBLE])
def test_bernoulli(dtype):
    y = drawing("Bernoulli", dtype=dtype)
    assert set(np.unique(y)) <= {0, 1}
    assert abs(y.mean() - 0.2) < 6 * np.sqrt(0.16 / y.size)


# In training graphs --------------------------------------------------------------------------------------------------


def network() -> onnx.ModelProto:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        net (float[N, 4] x) => (float[N, 3] y) {
            h = MatMul(x, w1)  d = Dropout(h, ratio, on)  y = MatMul(d, w2)
        }
    """)
    random = np.random.default_rng(0)
    weights = {"w1": random.normal(size=(4, 64)), "w2": random.normal(size=(64, 3)), "ratio": np.array(0.4)}
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "on"))
    return proto


def test_one_file_draws_by_its_step():
    """Steps 3 and 4 are the same whether or not the session has run steps 1 and 2."""
    step = onward.training_step(network(), "mse", "adamw", seed=11)
    signature = json.loads({entry.key: entry.value for entry in step.metadata_props}[METADATA_KEY])
    assert signature["inputs"]["random_seed"] == "seed"
    random = np.random.default_rng(1)
    x, target = random.normal(size=(8, 4)).astype(np.float32), random.normal(size=(8, 3)).astype(np.float32)

    def run(state, numbers, **options):
        session = open_session(step)
        names, losses = [output.name for output in session.get_outputs()], []
        for number in numbers:
            scalars = {"learning_rate": np.array(0.01, np.float32), "step": np.array(number)}
            feeds = {"x": x, "target": target, **scalars, **state, **options}
            results = dict(zip(names, session.run(None, feeds), strict=True))
            updated = {name: value for name, value in results.items() if name in signature["links"]}
            state = {**state, **{signature["links"][name]: value for name, value in updated.items()}}
            losses.append(float(results["loss"]))
        return state, losses

    start = onward.initial_state(step, network())
    whole, losses = run(start, range(1, 5))
    half, _ = run(start, range(1, 3))
    resumed, later = run(half, range(3, 5))
    assert later == losses[2:]
    for name, array in whole.items():
        np.testing.assert_array_equal(resumed[name], array)
    assert run(start, [1])[1] != run(start, [2])[1]
    assert start["random_seed"] == 11
    assert run(start, [1], random_seed=np.array(12))[1] != losses[:1]


def test_gradient_is_that_of_the_mask():
    """With y = dropout(x w1) w2 and the sum as loss, dw2 is the sum over rows of what was kept."""
    proto = network()
    proto.graph.node.append(helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0))
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info("sum", FLOAT, []))
    proto.graph.output.append(helper.make_tensor_value_info("d", FLOAT, ["N", 64]))
    models = split(proto, trainable=["w1", "w2"])
    weights = {name: models.trainable[name].numpy() for name in ("w1", "w2")}
    x = np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32)
    zeros = {f"{name}_grad.accumulation.buffer": np.zeros_like(array) for name, array in weights.items()}
    feeds = {"x": x, **weights, **zeros, "lazy_reset_grad": np.array([True]), **FIRST}
    got = run_on_runtime(models.training, feeds)
    mask = got["d"] != 0
    assert 0 < mask.mean() < 1
    dh = np.where(mask, np.tile(weights["w2"].sum(1), (6, 1)) / 0.6, 0)
    np.testing.assert_allclose(got["w2_grad.accumulation.out"], np.tile(got["d"].sum(0)[:, None], 3), rtol=1e-5)
    np.testing.assert_allclose(got["w1_grad.accumulation.out"], x.T @ dh, rtol=1e-4, atol=1e-5)
    assert "random_pass" not in [value.name for value in models.evaluation.graph.input]
    assert "Dropout" in {node.op_type for node in models.evaluation.graph.node}


def test_dropout_that_does_not_train_stays():
    nodes = [helper.make_node("Dropout", ["x", "ratio", *mode], [name]) for name, mode in (("y", []), ("z", ["off"]))]
    proto = explicit(model(nodes, ["N", 4], {"y": FLOAT, "z": FLOAT}, {"ratio": np.float32(0.5), "off": False}))
    assert [value.name for value in proto.graph.input] == ["x"]
