"""What people get wrong at each public entry: an OnwardError that says what, where and what to do, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import onward
from onward import artifacts, losses, onnxblock, optim
from onward.errors import OnwardError
from onward.onnxblock import blocks
from onward.onnxblock import loss as block_losses
from tests.api import toys

MODEL = toys.mlp()
FOREIGN = ir.Value(name="foreign", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([3]))


def raises(op, x, t):
    raise KeyError("missing")


def compares(op, x, t):
    return x if x > 0 else t


# What a loss does, and what is said about it.
LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "no such operator": (lambda op, x, t: op.Foo(x), "no operator Foo in the ONNX standard"),
    "a name mistyped": (lambda op, x, t: op.ReducMean(x), "did you mean ReduceMean"),
    "a method of numpy": (lambda op, x, t: op.mean(x), "could not be traced .*op.mean"),
    "np.mean": (lambda op, x, t: np.mean(x), r"could not be traced \(line \d+ of .*not functions of numpy"),
    "np.abs": (lambda op, x, t: np.abs(x - t), "not functions of numpy"),
    "float": (lambda op, x, t: float(x), "hold no numbers"),
    "if": (compares, "hold no numbers"),
    "an index": (lambda op, x, t: x[0], "could not be traced"),
    "len": (lambda op, x, t: len(x), "could not be traced"),
    "an error of its own": (raises, "the loss raises could not be traced .*KeyError: 'missing'"),
    "None": (lambda op, x, t: None, "returned NoneType; a loss returns one value"),
    "a number": (lambda op, x, t: 3.0, "returned float; a loss returns one value"),
    "an array": (lambda op, x, t: np.zeros(3), "returned ndarray; a loss returns one value"),
    "a tuple": (lambda op, x, t: (x, t), "returned tuple; a loss returns one value"),
    "a value of another graph": (lambda op, x, t: FOREIGN, "'foreign', which is not in the graph"),
    "one inside": (lambda op, x, t: op.ReduceMean(x - FOREIGN, keepdims=0), "'foreign', which is not in the graph"),
    "no parameters": (lambda: None, r"is not a loss: a loss is a function \(op, prediction, \*targets\)"),
    "only op": (lambda op: None, "is not a loss"),
    "only defaults": (lambda op, x=None, t=None: x, "is not a loss"),
    "only keywords": (lambda op, *, x, t: x, "is not a loss"),
    "an attribute mistyped": (lambda op, x, t: op.ReduceMean(x, keepdim=0), r"with attributes \['keepdim'\]; it takes"),
    "too many inputs": (lambda op, x, t: op.Abs(x, t), r"no opset has Abs\(FLOAT, FLOAT\).* it takes \(X\)"),
    "a text": (lambda op, x, t: op.Add(x, "x"), "could not be traced"),
    "no scalar": (lambda op, x, t: x - t, r"has shape \[N,3\]; a loss has one element. Reduce it"),
    "the prediction": (lambda op, x, t: x, "a loss has one element"),
    "booleans": (lambda op, x, t: op.ReduceMax(op.cast(op.Greater(x, t), ir.DataType.INT64)), "not floating point"),
    "a constant": (lambda op, x, t: op.constant(1.0), "there is nothing to train"),
    "kinds that are none": (
        losses.targets(t=lambda predictions: None)(lambda op, x, t: x),
        "returned NoneType; it takes the predictions",
    ),
    "kinds that fail": (losses.targets(t=lambda predictions: 1 / 0)(lambda op, x, t: x), "ZeroDivisionError"),
}  # fmt: skip


def step(loss: Any = "mse", optimizer: Any = "adamw", model: Any = MODEL, **options: Any) -> Any:
    return onward.training_step(model, loss, optimizer, **options)


@pytest.mark.parametrize("case", LOSSES)
def test_losses(case: str, tmp_path) -> None:
    loss, message = LOSSES[case]
    with pytest.raises(OnwardError, match=f"(?s){message}"):
        artifacts.generate_artifacts(MODEL, loss=loss, artifact_directory=tmp_path)
    with pytest.raises(OnwardError, match=f"(?s){message}"):
        step(loss)
    assert not list(tmp_path.iterdir())


STEP = {
    "no loss": (lambda: step(None), "has shape .*It is the first output of the model, because no loss was given"),
    "unknown loss": (lambda: step("foo"), "no loss 'foo'; there are bce,"),
    "a number": (lambda: step(3), "a loss is the name of"),
    "a block": (lambda: step(block_losses.MSELoss), "a loss is the name of"),
    "unknown optimizer": (lambda: step(optimizer="foo"), "no optimizer 'foo'"),
    "an OptimType": (lambda: step(optimizer=artifacts.OptimType.SGD), "no optimizer"),
    "unknown parameter": (lambda: step(trainable=["foo"]), "'foo' should be trained, but .* it has 'fc1.weight'"),
    "one name": (lambda: step(trainable="fc1.weight"), "`trainable` is a list of names"),
    "no names": (lambda: step(trainable=[]), "`trainable` is empty"),
    "numbers": (lambda: step(trainable=[3]), "`trainable` is a list of names"),
    "an input": (lambda: step(trainable=["input"]), "'input', which the caller feeds"),
    "a target": (lambda: step(trainable=["target"]), "'target', which the caller feeds"),
    "an inner value": (lambda: step(trainable=["hidden"]), "'hidden' should be trained"),
    "unknown value": (lambda: step(loss_inputs=["foo"]), "take 'foo', which the model does not have; its outputs are"),
    "no value": (lambda: step(loss_inputs=[]), "`loss_inputs` is empty"),
    "one value": (lambda: step(loss_inputs="output"), "`loss_inputs` is a list"),
    "two values": (lambda: step(loss_inputs=["output", "hidden"]), "takes 1 predictions .*, but 2 were given"),
    "seed": (lambda: step(seed="x"), "`seed` is an integer"),
    "no model": (lambda: step(model=None), "a model is an onnx.ModelProto"),
    "no file": (lambda: step(model="nowhere.onnx"), "no model file at 'nowhere.onnx'"),
}

GRADIENT = {
    "no model": (lambda: onward.gradient(3), "a model is an onnx.ModelProto"),
    "bytes": (lambda: onward.gradient(MODEL.SerializeToString()), "a model is an onnx.ModelProto"),
    "an empty one": (lambda: onward.gradient(onnx.ModelProto()), "has no graph"),
    "unknown parameter": (lambda: onward.gradient(MODEL, wrt=["foo"]), "`wrt` names 'foo', .* it has 'input'"),
    "a number": (lambda: onward.gradient(MODEL, wrt=3), "`wrt` is a list of names or one name, not 3"),
    "numbers": (lambda: onward.gradient(MODEL, wrt=[3]), "`wrt` is a list of names or one name"),
    "unknown output": (lambda: onward.gradient(MODEL, of="foo"), "`of` names 'foo'"),
    "a number as output": (lambda: onward.gradient(MODEL, of=3), "`of` is a list of names or one name"),
    "parameters": (lambda: onward.gradient(MODEL, parameters=[]), r"parameters=\[\] is not known"),
    "check: no model": (lambda: onward.check(3), "a model is"),
    "check: unknown parameter": (lambda: onward.check(MODEL, wrt=["foo"]), "`wrt` names 'foo'"),
    "check: a number": (lambda: onward.check(MODEL, wrt=3), "`wrt` is a list"),
    "check: a number as output": (lambda: onward.check(MODEL, of=3), "`of` is a list"),
    "check: sizes": (lambda: onward.check(MODEL, dims=[3]), "`dims` gives sizes"),
    "check: a negative size": (lambda: onward.check(MODEL, dims={"N": -1}), "`dims` gives sizes"),
    "check: a text as size": (lambda: onward.check(MODEL, dims={"N": "8"}), "`dims` gives sizes"),
    "check: unknown size": (lambda: onward.check(MODEL, dims={"M": 8}), "`dims` names 'M'"),
    "check: unknown optimizer": (lambda: onward.check(MODEL, optimizer=3), "no optimizer 3"),
}


def generate(**options: Any) -> Any:
    return artifacts.generate_artifacts(options.pop("model", MODEL), **{"loss": "mse", **options})


ARTIFACTS = {
    "a number as loss": (lambda: generate(loss=3), "Unknown loss provided"),
    "a class": (lambda: generate(loss=block_losses.MSELoss), "Unknown loss provided"),
    "no loss": (lambda: generate(loss=None), "because no loss was given"),
    "unknown loss": (lambda: generate(loss="foo"), "no loss 'foo'"),
    "no such loss model": (lambda: generate(loss="foo.onnx"), "no model file"),
    "unknown optimizer": (lambda: generate(optimizer="foo"), "no optimizer 'foo'"),
    "a class of optimizer": (lambda: generate(optimizer=onnxblock.optim.AdamW), "Unknown optimizer provided"),
    "unknown parameter": (lambda: generate(requires_grad=["foo"]), "'foo' should be trained"),
    "an inner value": (lambda: generate(requires_grad=["hidden"]), "'hidden' should be trained"),
    "one name": (lambda: generate(requires_grad="foo"), "`requires_grad` is a list of names"),
    "a number": (lambda: generate(requires_grad=3), "`requires_grad` is a list of names"),
    "frozen": (lambda: generate(frozen_params=3), "`frozen_params` is a list of names"),
    "unknown value": (lambda: generate(loss_input_names=["foo"]), "Could not find 'foo'"),
    "a number as value": (lambda: generate(loss_input_names=3), "`loss_input_names` is a list of names"),
    "three values": (lambda: generate(loss_input_names=["output", "hidden", "active"]), ""),
    "unknown output": (lambda: generate(additional_output_names=["foo"]), "foo"),
    "a number as output": (lambda: generate(additional_output_names=3), "additional output names` is a list"),
    "directory": (lambda: generate(artifact_directory=3), "`artifact_directory` is a path"),
    "prefix": (lambda: generate(prefix=3), "`prefix` is what the names"),
    "a folder as prefix": (lambda: generate(prefix="a/b"), "folders go into `artifact_directory`"),
    "library": (lambda: generate(custom_op_library="nowhere.so"), "nowhere.so does not exist"),
    "no model": (lambda: generate(model=None), "either a string or an ONNX ModelProto"),
    "an empty model": (lambda: generate(model=onnx.ModelProto()), "has no graph"),
}


class Training(onnxblock.TrainingBlock):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, *names: str) -> Any:
        return self.function(*names)


class Forward(onnxblock.ForwardBlock):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, *names: str) -> Any:
        return self.function(*names)


def on_model(function: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with onnxblock.base(MODEL):
            return function()

    return call


def requiring(name: Any) -> Any:
    block = Training(lambda x: block_losses.MSELoss()(x))
    block.requires_grad(name)
    return block("output")


BLOCKS = {
    "outside of a model": (lambda: block_losses.MSELoss()("output"), "outside of a model"),
    "a number as name": (on_model(lambda: block_losses.MSELoss()(3)), "Could not find 3"),
    "unknown value": (on_model(lambda: block_losses.MSELoss()("foo")), "Could not find 'foo'"),
    "itself as target": (on_model(lambda: block_losses.MSELoss()("output", "output")), "with itself"),
    "reduction": (lambda: block_losses.MSELoss(reduction="foo"), "Reduction foo not supported"),
    "no function": (lambda: block_losses.FunctionLoss(3), "a loss is the name of"),
    "Add": (on_model(lambda: blocks.Add()("output", "foo")), "'foo', which is no value of the model"),
    "Add of a number": (on_model(lambda: blocks.Add()("output", 3)), "names of values, not 3"),
    "Constant": (on_model(lambda: blocks.Constant("x")()), "needs numbers, not 'x'"),
    "Constant of nothing": (on_model(lambda: blocks.Constant(None)()), "needs numbers, not None"),
    "Pow": (on_model(lambda: blocks.Pow("x")("output")), "needs numbers"),
    "Clip": (on_model(lambda: blocks.Clip("a", "b")("output")), "needs numbers"),
    "InputLike": (on_model(lambda: blocks.InputLike("foo")()), "Could not find .* foo"),
    "Cast": (on_model(lambda: blocks.Cast(999)("output")), "Cast needs a type"),
    "Linear": (on_model(lambda: blocks.Linear("a", "b")("output")), "Linear needs two sizes"),
    "None for the loss": (on_model(lambda: Training(lambda x: None)("output")), "what a block returns"),
    "a number for the loss": (on_model(lambda: Training(lambda x: 3)("output")), "what a block returns"),
    "nothing for the loss": (on_model(lambda: Training(lambda x: ())("output")), "this one returned none"),
    "an unknown loss": (on_model(lambda: Training(lambda x: "foo")("output")), "foo"),
    "no scalar": (on_model(lambda: Training(lambda x: x)("output")), "a loss has one element"),
    "unknown parameter": (on_model(lambda: requiring("foo")), "'foo' should be trained"),
    "None for an output": (on_model(lambda: Forward(lambda x: None)("output")), "what a block returns"),
    "not built": (lambda: Training(lambda x: x).to_model_proto(), "Please build"),
    "no model": (lambda: onnxblock.base(3).__enter__(), "takes an onnx.ModelProto, not int"),
    "opset": (lambda: onnxblock.empty_base("x").__enter__(), "`opset_version` is the number"),
}

LIBRARY = {
    "unknown loss": (lambda: losses.get("foo"), "no loss 'foo'"),
    "no loss": (lambda: losses.get(3), "a loss is the name of"),
    "no loss model": (lambda: losses.from_model(3), "a model is an onnx.ModelProto"),
    "a loss model without a scalar": (lambda: losses.from_model(MODEL), "a loss is a floating-point scalar"),
    "unknown targets": (lambda: losses.from_model(MODEL, targets=["foo"]), "`targets` names"),
    "unknown parameters": (lambda: losses.targets(foo=losses.class_indices)(raises), "@targets names"),
    "no kind": (lambda: losses.targets(t=3)(raises), "must be functions of the predictions"),
    "called without targets": (lambda: losses.mse(None, FOREIGN), "mse.* was called with other arguments"),
    "called with arrays": (lambda: losses.mse(None, np.zeros(3), FOREIGN), "'prediction' of the loss mse is ndarray"),
    "chain": (lambda: optim.chain(3), "chain takes transformations"),
}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(*case, id=f"{entry}: {name}")
        for entry, table in {
            "training_step": STEP,
            "gradient": GRADIENT,
            "artifacts": ARTIFACTS,
            "onnxblock": BLOCKS,
            "losses": LIBRARY,
        }.items()
        for name, case in table.items()
    ],
)
def test_arguments(call: Callable[[], Any], message: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OnwardError, match=f"(?s){message}"):
        call()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", losses.names())
def test_options_of_losses(name: str, tmp_path) -> None:
    loss = losses.get(name)
    inputs = ["output"] * (losses.prediction_count(loss) or 1)
    for options in ({"reduction": "foo"}, {"foo": 3}):
        with pytest.raises(OnwardError, match="foo"):
            step(functools.partial(loss, **options), loss_inputs=inputs)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (lambda op, g, ctx: None, "returned NoneType; it returns a value"),
        (lambda op, g, ctx: np.mean(g), "could not be traced"),
        (lambda op, g, ctx: op.Foo(g), "no operator Foo"),
        (lambda op, g, ctx: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_transformations(update: Callable[..., Any], message: str) -> None:
    with pytest.raises(OnwardError, match=message):
        step(optimizer=optim.Optimizer(optim.Transformation(update), "own"))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda op, node, dy: np.mean(dy), "the rule of .* could not be traced"),
        (lambda op, node, dy: op.Foo(dy), "no operator Foo"),
        (lambda op, node, dy: FOREIGN, "'foreign', which is in no graph"),
        (lambda op, node, dy: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_rules(rule: Callable[..., Any], message: str) -> None:
    graph = helper.make_graph(
        [helper.make_node("Mistaken", ["w"], ["y"], domain="mistakes")],
        "toy",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [])],
        [helper.make_tensor("w", onnx.TensorProto.FLOAT, [], [1.0])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mistakes", 1)]
    onward.vjp("Mistaken", domain="mistakes", override=True)(rule)
    with pytest.raises(OnwardError, match=f"(?s){message}"):
        onward.gradient(helper.make_model(graph, opset_imports=imports, ir_version=8), wrt=["w"])


# Advice ---------------------------------------------------------------------------------------------------------------


def labelled() -> onnx.ModelProto:
    """A classifier whose first output is an integer, as those of scikit-learn are."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        labelled (float[N, 4] x) => (int64[N] label, float[N, 3] scores) <float[4, 3] w = {1,2,3,4,5,6,7,8,9,1,2,3}> {
            scores = MatMul(x, w)
            label = ArgMax<axis = 1, keepdims = 0>(scores)
        }
    """)


def test_suggestions_name_what_has_a_derivative(tmp_path) -> None:
    with pytest.raises(OnwardError, match=r"for instance loss_input_names=\['scores'\]"):
        artifacts.generate_artifacts(labelled(), loss="cross_entropy", artifact_directory=tmp_path)
    with pytest.raises(OnwardError, match=r"for instance \['scores'\]"):
        step("cross_entropy", model=labelled())
    with pytest.raises(OnwardError, match=r"'label' is INT64. Give it a value of floating point"):
        artifacts.generate_artifacts(labelled(), loss="mse", artifact_directory=tmp_path, loss_input_names=["label"])
    with pytest.raises(OnwardError, match="Name another output in `of`: 'scores'"):
        onward.gradient(labelled())


def test_advice_for_inputs_that_are_not_reached(tmp_path) -> None:
    """An input cannot be frozen; a parameter can."""
    model = labelled()
    model.graph.input.append(helper.make_tensor_value_info("unused", onnx.TensorProto.FLOAT, ["N"]))
    model.graph.initializer.append(helper.make_tensor("idle", onnx.TensorProto.FLOAT, [1], [1.0]))
    options = {"loss": "cross_entropy", "loss_input_names": ["scores"], "artifact_directory": tmp_path}
    with pytest.raises(OnwardError, match=r"Leave it out of `requires_grad`.$"):
        artifacts.generate_artifacts(model, requires_grad=["unused"], **options)
    with pytest.raises(OnwardError, match=r"Leave it out of `requires_grad`, or list it in `frozen_params`.$"):
        artifacts.generate_artifacts(model, requires_grad=["idle"], **options)


def test_weights_that_are_attributes(tmp_path) -> None:
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], "tree", domain="ai.onnx.ml", n_targets=1, post_transform="NONE",
        nodes_treeids=[0], nodes_nodeids=[0], nodes_featureids=[0], nodes_modes=["LEAF"], nodes_values=[0.0],
        nodes_truenodeids=[0], nodes_falsenodeids=[0], target_treeids=[0], target_nodeids=[0], target_ids=[0],
        target_weights=[1.0],
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "trees",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["N", 2])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["N", 1])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    message = "weights of ai.onnx.ml.TreeEnsembleRegressor node '?tree'? .*target_weights.* are attributes"
    for call in (
        lambda: step(model=model),
        lambda: artifacts.generate_artifacts(model, loss="mse", artifact_directory=tmp_path),
        lambda: onward.gradient(model),
    ):
        with pytest.raises(OnwardError, match=message):
            call()


def test_artifacts_are_printed_in_a_line(tmp_path) -> None:
    made = artifacts.generate_artifacts(MODEL, loss="mse", artifact_directory=tmp_path)
    assert repr(made).startswith("Artifacts(trainable=['fc1.weight', 'fc1.bias', 'fc2.weight', 'fc2.bias'], frozen=[]")
    assert len(repr(made)) < 1000
