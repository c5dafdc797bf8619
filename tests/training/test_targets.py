"""A target that has not the sizes of its prediction is refused by the graph itself, whatever runs it; so is no target.

Nobody checks sizes that have no name, or another one than the input's: onnxruntime broadcasts, or reads beyond the end.
"""

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import onward
from onward import artifacts, losses, onnxblock
from onward.api import CheckpointState, Module
from onward.errors import OnwardError
from onward.losses.registry import _LOSSES
from onward.onnxblock import blocks

ROWS, CLASSES, STEPS = 6, 3, 4
SIGNS = np.where(np.arange(ROWS * CLASSES) % 2, 1.0, -1.0).reshape(ROWS, CLASSES).astype(np.float32)
LABELS = np.arange(ROWS) % CLASSES
CTC = {
    "labels": np.ones((ROWS, 2), np.int64),
    "input_lengths": np.full(ROWS, STEPS),
    "target_lengths": np.full(ROWS, 2),
}
CLASSIFICATION = {"cross_entropy", "nll", "focal", "multi_margin"}
PREDICTIONS = {"gaussian_nll": 2, "cosine_embedding": 2, "triplet": 3}


def targets_of(name: str) -> dict[str, np.ndarray]:
    if name in CLASSIFICATION:
        return {"labels": LABELS}
    if name == "ctc":
        return CTC
    if name == "cosine_embedding":
        return {"target": SIGNS[:, 0]}
    return {} if name == "triplet" else {"target": np.maximum(SIGNS, 0)}


def predictions_of(name: str) -> list[np.ndarray]:
    """Positive and below 1: a probability or a variance where the loss wants one."""
    shape = (STEPS, ROWS, CLASSES) if name == "ctc" else (ROWS, CLASSES)
    random = np.random.default_rng(0)
    return [random.uniform(0.1, 0.9, shape).astype(np.float32) for _ in range(PREDICTIONS.get(name, 1))]


def forward(arrays: list[np.ndarray], dims: str = "unnamed") -> onnx.ModelProto:
    """y_i = x_i w, with dimensions that say nothing: no names, or other names behind than in front."""
    nodes, inputs, outputs = [], [], []
    for index, array in enumerate(arrays):
        front, behind = ([None] * array.ndim,) * 2
        if dims == "renamed":
            front, behind = ([f"{side}{axis}" for axis in range(array.ndim - 1)] + [CLASSES] for side in "AB")
        nodes.append(helper.make_node("MatMul", [f"x{index}", "w"], [f"y{index}"]))
        inputs.append(helper.make_tensor_value_info(f"x{index}", onnx.TensorProto.FLOAT, front))
        outputs.append(helper.make_tensor_value_info(f"y{index}", onnx.TensorProto.FLOAT, behind))
    weights = [onnx.numpy_helper.from_array(np.eye(CLASSES, dtype=np.float32), "w")]
    graph = helper.make_graph(nodes, "toy", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def graphs(model: onnx.ModelProto, loss, folder) -> dict[str, onnx.ModelProto]:
    names = [output.name for output in model.graph.output]
    made = artifacts.generate_artifacts(
        model, requires_grad=["w"], loss=loss, artifact_directory=folder, loss_input_names=names
    )
    step = onward.training_step(model, loss, "sgd", trainable=["w"], loss_inputs=names)
    return {"training": made.training_model, "evaluation": made.eval_model, "step": step}


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> float:
    """The loss, as any program with onnxruntime gets it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    others = {}
    for value in session.get_inputs():
        if value.name not in feeds:
            kind = {"tensor(bool)": bool, "tensor(int64)": np.int64}.get(value.type, np.float32)
            others[value.name] = np.eye(CLASSES, dtype=kind) if value.shape == [3, 3] else np.ones(value.shape, kind)
    needed = {value.name for value in session.get_inputs()}
    return float(
        session.run([session.get_outputs()[0].name], {**others, **{k: feeds[k] for k in feeds if k in needed}})[0]
    )


def with_rows(targets: dict[str, np.ndarray], name: str, rows: int) -> dict[str, np.ndarray]:
    return {**targets, name: np.resize(targets[name], (rows, *targets[name].shape[1:]))}


def check(made: dict[str, onnx.ModelProto], feeds: dict[str, np.ndarray], targets: dict[str, np.ndarray]) -> None:
    for kind, model in made.items():
        assert np.isfinite(run(model, {**feeds, **targets})), kind
        for name in targets:
            for rows in (1, ROWS - 1, ROWS + 1, 0):
                with pytest.raises(Exception, match=f"target '{name}' must have"):
                    run(model, {**feeds, **with_rows(targets, name, rows)})


@pytest.mark.parametrize("name", sorted(_LOSSES))
def test_number_of_targets(name, tmp_path):
    arrays, targets = predictions_of(name), targets_of(name)
    feeds = {f"x{index}": array for index, array in enumerate(arrays)}
    made = graphs(forward(arrays), _LOSSES[name], tmp_path)
    check(made, feeds, targets)
    axis = 1 if name == "ctc" else 0
    empty = {key: np.take(array, [], axis) for key, array in feeds.items()}
    none = {key: array[:0] for key, array in targets.items()}
    for model in made.values():
        # onnxruntime's own kernels may be first to complain.
        with pytest.raises(Exception, match=r"must not be empty|cannot be reshaped"):
            run(model, {**empty, **none})


@pytest.mark.parametrize("name", ["mse", "cross_entropy", "cosine_embedding", "ctc"])
def test_number_of_targets_behind_other_names(name, tmp_path):
    arrays, targets = predictions_of(name), targets_of(name)
    feeds = {f"x{index}": array for index, array in enumerate(arrays)}
    check(graphs(forward(arrays, "renamed"), _LOSSES[name], tmp_path), feeds, targets)


def plain(op, prediction, target):
    """A loss that declares nothing."""
    return op.ReduceMean(op.Abs(prediction - target), keepdims=0)


@losses.targets(labels=losses.class_indices, weights=losses.one_per_row)
def declared(op, prediction, labels, weights):
    rows = op.SoftmaxCrossEntropyLoss(prediction, labels, reduction="none")
    return op.ReduceMean(rows * weights, keepdims=0)


def of_a_model(prediction: list, target: list):
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    own (float{prediction} y, float{target} t) => (float loss) {{
        d = Sub(y, t)
        loss = ReduceMean<keepdims = 0>(d)
    }}"""
    return losses.from_model(onnx.parser.parse_model(text.replace("'", "").replace("None", "?")))


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (plain, {"target": SIGNS}),
        (declared, {"labels": LABELS, "weights": SIGNS[:, 0]}),
        (of_a_model(["N", "C"], ["N", "C"]), {"t": SIGNS}),
        (of_a_model([None, None], [None, None]), {"t": SIGNS}),
        (functools.partial(losses.mse, reduction="sum"), {"target": SIGNS}),
    ],
)
def test_losses_of_users(loss, targets, tmp_path):
    arrays = predictions_of("mse")
    check(graphs(forward(arrays), loss, tmp_path), {"x0": arrays[0]}, targets)


@pytest.mark.parametrize("axis", [None, 1])
def test_scores_of_a_sequence(axis, tmp_path):
    """The classes may be on the last axis; each label counts."""
    scores = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    made = artifacts.generate_artifacts(
        forward([scores]), loss=onnxblock.loss.CrossEntropyLoss(class_axis=axis), artifact_directory=tmp_path
    )
    labels = np.arange(6).reshape(2, 3) % 3
    for model in (made.training_model, made.eval_model):
        assert np.isfinite(run(model, {"x0": scores, "labels": labels}))
        for wrong in (labels[:1], labels[:, :1].copy(), labels.reshape(3, 2), labels[:0]):
            with pytest.raises(
                Exception, match=r"target 'labels' must have shape|invalid dimensions for input: labels"
            ):
                run(model, {"x0": scores, "labels": wrong})


def test_turned_targets(tmp_path):
    """As many elements in another order are not the targets either."""
    model = forward(predictions_of("mse"))
    model.graph.node[0].op_type = "Mul"
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((1, 1), np.float32), "w"))
    for made in graphs(model, losses.mse, tmp_path).values():
        assert np.isfinite(run(made, {"x0": SIGNS, "target": SIGNS}))
        for turned in (SIGNS.T, SIGNS.reshape(-1, 1), SIGNS.reshape(9, 2)):
            with pytest.raises(Exception, match="target 'target' must have the shape of 'y0'"):
                run(made, {"x0": SIGNS, "target": turned.copy()})


def test_the_sum_over_no_rows(tmp_path):
    """is 0: that is defined, and detectors have pictures without objects."""
    nothing = {"x0": np.zeros((0, CLASSES), np.float32), "target": np.zeros((0, CLASSES), np.float32)}
    for model in graphs(
        forward(predictions_of("mse")), functools.partial(losses.mse, reduction="sum"), tmp_path
    ).values():
        assert run(model, nothing) == 0


def test_known_sizes_need_no_check(tmp_path):
    """onnxruntime compares them itself."""
    model = forward(predictions_of("mse"))
    for value in model.graph.input:
        value.type.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [ROWS, CLASSES]))
    for made in graphs(model, losses.mse, tmp_path).values():
        assert not {"Shape", "Reshape"} & {node.op_type for node in made.graph.node}
        with pytest.raises(Exception, match="Got invalid dimensions for input: target"):
            run(made, {"x0": SIGNS, "target": SIGNS[:1]})


# In the training loop ------------------------------------------------------------------------------------------------


def modules(model: onnx.ModelProto, folder, **options) -> Module:
    made = artifacts.generate_artifacts(model, artifact_directory=folder, optimizer="SGD", **options)
    state = CheckpointState.load_checkpoint(made.paths["checkpoint"])
    return Module(made.paths["training_model"], state, made.paths["eval_model"])


@pytest.mark.parametrize("evaluate", [False, True])
def test_our_words_come_first(evaluate, tmp_path):
    """The graph refuses, the training loop says why, and what onnxruntime said follows."""
    module = modules(forward(predictions_of("nll")), tmp_path, loss="cross_entropy").train(not evaluate)
    x = predictions_of("nll")[0]
    for labels, message in {
        (1,): r"^target 'labels' must have shape \[y0.shape\[0\]\] .*'labels' of shape \[1\].* onnxruntime says:",
        (0, 1, 2, 3, 0, 1): r"^labels 'labels' must be from 0 to 2. .*'labels' of shape \[6\] with values from 0 to 3",
        (0, 1, 2, -1, 0, 1): r"^labels 'labels' must be from 0 to 2. .* with values from -1 to 2",
    }.items():
        with pytest.raises(OnwardError, match=f"(?s){message}"):
            module(x, np.array(labels))
    with pytest.raises(OnwardError, match=r"^there is nothing in 'x0' of shape \[0, 3\], 'labels' of shape \[0\]"):
        module(x[:0], np.zeros(0, np.int64))
    assert np.isfinite(module(x, LABELS))


def test_labels_of_unknown_rank(tmp_path):
    """Neither the file nor onnx's inference knows a rank; a Gemm says what it is."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"]),
    ]
    weights = {"first": np.array([0]), "rest": np.array([-1]), "w": np.ones((8, CLASSES), np.float32)}
    graph = helper.make_graph(
        nodes,
        "paddle",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    module = modules(model, tmp_path, loss="cross_entropy", loss_input_names=["logits"])
    assert np.isfinite(module(np.ones((32, 2, 4), np.float32), np.zeros(32, np.int64)))
    with pytest.raises(OnwardError, match="target 'labels' must have"):
        module(np.ones((32, 2, 4), np.float32), np.zeros(1, np.int64))
    step = onward.training_step(model, "cross_entropy", loss_inputs=["logits"])
    kinds = [
        {value.name: value.type for value in made.graph.input}["labels"] for made in (step, module_graph(tmp_path))
    ]
    assert kinds[0] == kinds[1]
    assert len(kinds[0].tensor_type.shape.dim) == 1


def module_graph(folder) -> onnx.ModelProto:
    return onnx.load(folder / "training_model.onnx")


@pytest.mark.parametrize("sizes", [("n", 1, "s", "s"), ("n", 1, "h", "w"), ("n", 1, "t", "t")])
def test_one_name_for_two_sizes(sizes, tmp_path):
    """What people tell the older exporter of torch: the output is called as the input, and is twice as large."""
    graph = helper.make_graph(
        [
            helper.make_node("Resize", ["x", "", "scales"], ["large"], mode="nearest"),
            helper.make_node("Conv", ["large", "w"], ["y"]),
        ],
        "upsampling",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 1, "h", "w"])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, sizes)],
        [
            onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
            onnx.numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "w"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    module = modules(model, tmp_path, loss="mse")
    x = np.arange(12, dtype=np.float32).reshape(2, 1, 2, 3)
    assert module(x, x.repeat(2, 2).repeat(2, 3)) == 0
    with pytest.raises(OnwardError, match="target 'target' must have"):
        module(x, x)


class Weighted(onnxblock.Block):
    """A loss made of constants, and of means that keep their axes."""

    def build(self, name: str) -> str:
        scaled = blocks.Mul()(blocks.Constant(2.0)(), onnxblock.loss.MSELoss()(name))
        return blocks.Add()(scaled, blocks.ReduceMean(keepdims=True)(blocks.Abs()(name)))


def test_a_loss_of_blocks_is_a_number(tmp_path):
    module = modules(forward(predictions_of("mse")), tmp_path, loss=Weighted())
    for step in (module.train(), module.eval()):
        loss = step(SIGNS, SIGNS)
        assert loss.shape == ()
        assert float(loss) == 1.0
