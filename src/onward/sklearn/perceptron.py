"""The model that is made where none is given: layers of the sizes that scikit-learn's MLP takes, as ONNX."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onward.sklearn.error import EstimatorError

ACTIVATIONS = {"identity": None, "logistic": "Sigmoid", "tanh": "Tanh", "relu": "Relu"}

_OPSET, _IR_VERSION = 18, 8  # old enough for every onnxruntime that the package runs on


class Layer(NamedTuple):
    """y = x weight + bias, with weight `[inputs, outputs]`."""

    weight: np.ndarray
    bias: np.ndarray


def hidden_sizes(given: Any) -> list[int]:
    """The sizes of hidden layers; one number is one layer."""
    listed = [int(size) for size in given] if hasattr(given, "__iter__") else [int(given)]
    if any(size <= 0 for size in listed):
        raise EstimatorError(f"hidden_layer_sizes must be > 0, got {listed}.")
    return listed


def initial_layers(sizes: Sequence[int], activation: str, random: np.random.RandomState, dtype: Any) -> list[Layer]:
    """Weights and biases uniform within sqrt(6 / (inputs + outputs)), of logistic ones sqrt(2 / ...) (Glorot).

    They are drawn in the order of scikit-learn's MLP, so that the same `random` gives the same ones.
    """
    layers = []
    for inputs, outputs in itertools.pairwise(sizes):
        bound = np.sqrt((2.0 if activation == "logistic" else 6.0) / (inputs + outputs))
        weight = random.uniform(-bound, bound, (inputs, outputs))
        layers.append(Layer(weight.astype(dtype), random.uniform(-bound, bound, outputs).astype(dtype)))
    return layers


def features(layers: Sequence[Layer], activation: str) -> onnx.ModelProto:
    """A model whose output `features` `[N, outputs]` is what the last layer makes, its activation included."""
    draft = _Draft(layers, activation)
    draft.node(ACTIVATIONS[activation] or "Identity", [draft.last], "features")
    return draft.model({"features": (draft.element, ["N", draft.width])})


def regressor(layers: Sequence[Layer], activation: str) -> onnx.ModelProto:
    """A model with one output `variable` `[N, outputs]`."""
    draft = _Draft(layers, activation)
    draft.node("Identity", [draft.last], "variable")
    return draft.model({"variable": (draft.element, ["N", draft.width])})


def classifier(layers: Sequence[Layer], activation: str, labels: np.ndarray | None) -> onnx.ModelProto:
    """A model with the outputs `label` and `probabilities`, as those of skl2onnx without ZipMap.

    Args:
        labels: the classes in the order of the scores; one score stands for the second of two. None means a yes or no
            for each score: several labels at once.
    """
    draft = _Draft(layers, activation)
    scores = draft.last
    if labels is not None and draft.width > 1:
        draft.node("Softmax", [scores], "probabilities", axis=1)
        chosen = draft.node("ArgMax", [scores], "index", axis=1, keepdims=0)
    else:
        zero = draft.constant("zero", np.zeros((), layers[-1].weight.dtype))
        chosen = draft.node("Cast", [draft.node("Greater", [scores, zero], "positive")], "chosen", to=TensorProto.INT64)
    probability = {"probabilities": (draft.element, ["N", len(labels) if labels is not None else draft.width])}
    if labels is None:
        draft.node("Identity", [chosen], "label")
        draft.node("Sigmoid", [scores], "probabilities")
        return draft.model({"label": (TensorProto.INT64, ["N", draft.width]), **probability})
    if draft.width == 1:
        axis = draft.constant("axis", np.array([1]))
        chosen = draft.node("Squeeze", [chosen, axis], "index")
        second = draft.node("Sigmoid", [scores], "second")
        one = draft.constant("one", np.ones((), layers[-1].weight.dtype))
        draft.node("Concat", [draft.node("Sub", [one, second], "first"), second], "probabilities", axis=1)
    names = draft.constant("classes", _as_tensor(labels))
    draft.node("Gather", [names, chosen], "label", axis=0)
    return draft.model({"label": (draft.types["classes"], ["N"]), **probability})


def _as_tensor(labels: np.ndarray) -> np.ndarray:
    """Labels as ONNX can hold them; those of other kinds are numbered."""
    if labels.dtype.kind == "b":
        return labels
    if labels.dtype.kind in "iuf":  # scikit-learn takes no fractions for classes
        return labels.astype(np.int64)
    if all(isinstance(label, str) for label in labels.tolist()):
        return labels.astype(object)
    return np.arange(len(labels))


class _Draft:
    """The graph up to the scores, and what is added behind them."""

    def __init__(self, layers: Sequence[Layer], activation: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.types: dict[str, int] = {}
        self.width = layers[-1].weight.shape[1]
        self.last = "X"
        for index, layer in enumerate(layers):
            weight = self.constant(f"layer{index}.weight", layer.weight)
            bias = self.constant(f"layer{index}.bias", layer.bias)
            final = index == len(layers) - 1
            name = "scores" if final else f"layer{index}"
            self.last = self.node("Gemm", [self.last, weight, bias], name)
            operator = ACTIVATIONS[activation]
            if operator is not None and not final:
                self.last = self.node(operator, [self.last], f"{name}.{activation}")
        self.element = self.types["layer0.weight"]
        self.input = helper.make_tensor_value_info("X", self.element, ["N", layers[0].weight.shape[0]])

    def node(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, array: np.ndarray) -> str:
        tensor = numpy_helper.from_array(array, name)
        self.initializers.append(tensor)
        self.types[name] = tensor.data_type
        return name

    def model(self, outputs: dict[str, tuple[int, Sequence[Any]]]) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, element, shape) for name, (element, shape) in outputs.items()]
        graph = helper.make_graph(self.nodes, "perceptron", [self.input], values, self.initializers)
        opset = helper.make_opsetid("", _OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name="onward")
