"""Check that training graphs compute the gradients of `onward.gradient`: public, for authors of rules and forms.

A training graph is more than its rules: nodes get other forms before they are differentiated, and others afterwards
(`onward.training`). ``check_training(model, feeds, wrt=["x", "w"])`` puts a loss on top of any model, makes parameters
of what is named, and compares all ways to train (separate graphs, the single step, two phases) with the plain gradient.
Graphs are built while all parameters are zero and run with other values: a form that believes in the first ones fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onward import optim
from onward.autodiff.gradient import gradient
from onward.autodiff.registry import custom_operators
from onward.autodiff.sweep import differentiable_path
from onward.graph.prepare import prepare
from onward.graph.width import narrow_numbers, whole
from onward.signature import METADATA_KEY, Role, Signature
from onward.testing.running import Feeds, floating_outputs, run_on_runtime
from onward.training.phases import phases
from onward.training.split import split
from onward.training.step import step_model

# What is known of a model. Forms ask for sizes and for constants, so each shows them other ones.
#   static: parameters are initializers, as are settings; all sizes are known;
#   batch: the first parameter, the data, is computed, and the size of its first axis has a name only;
#   symbolic: all are computed, no size is known, settings are inputs, and all results stay outputs of the model.
LAYOUTS = ("static", "batch", "symbolic")

_LOSS = "the_loss"
# Relative to the largest element: float32 in another order of summation; types of half the size have 8 to 11 bits.
_TOLERANCES = {2: 3e-2, 4: 1e-3, 8: 1e-8}
# Gradients that are zero but for rounding are compared on the scale of the model's largest one, times this. Types of
# half the size are computed in single precision inside of one graph, and rounded to theirs between two.
_FLOORS = {2: 0.1, 4: 1e-3, 8: 1e-3}


@dataclass(frozen=True)
class Subject:
    """A model whose first output is a loss, what to feed it, and its parameters by the name they were asked for."""

    model: onnx.ModelProto
    feeds: Feeds
    parameters: dict[str, str]
    layout: str
    weights: Feeds = field(default_factory=dict)  # the values of all initializers


def check_training(
    model: onnx.ModelProto,
    feeds: Feeds,
    *,
    wrt: Sequence[str],
    of: Sequence[str] | None = None,
    constants: Collection[str] = (),
    layouts: Sequence[str] = LAYOUTS,
    tolerance: float | None = None,
) -> None:
    """Compare the gradients of training graphs with those of `onward.gradient`, in several layouts, on onnxruntime.

    Args:
        model: any model that draws no random numbers; its loss is the sum of its results times fixed random weights.
        feeds: an array for each of its inputs.
        wrt: inputs or initializers that become trainable parameters.
        of: the outputs that the loss takes; all floating ones by default.
        constants: inputs that are settings (axes, sizes ...): stored in the model, except in the layout "symbolic".
        layouts: what is known of the model, see `LAYOUTS`.
        tolerance: relative to the largest element; by default what the type allows.
    """
    for layout in layouts:
        subject = subject_of(model, feeds, wrt, of, constants, layout)
        wanted = by_gradient(subject)
        for path in PATHS:
            assert_equal(path(subject), wanted, f"{path.__name__}, {layout}", tolerance)


# Paths ----------------------------------------------------------------------------------------------------------------


def by_gradient(subject: Subject) -> Feeds:
    """Loss, results and gradients by `onward.gradient`."""
    parameters = list(subject.parameters.values())
    results = run_on_runtime(gradient(subject.model, wrt=parameters, of=_LOSS), subject.feeds)
    updated = {f"{old}.updated": new for old, new in _statistics(subject.model).items()}
    return results | {name: results[new] for name, new in updated.items() if new in results}


def by_split(subject: Subject) -> Feeds:
    """The same by the training graph of `onward.artifacts`: gradients replace what is in their buffers."""
    reached = _reached(subject)
    made = split(_untrained(subject, reached), trainable=reached).training
    signature = _signature(made)
    results = run_on_runtime(made, _first_feeds(made, subject))
    for name in signature.output_names(Role.GRADIENT):
        results[f"{signature.links[name]}_grad"] = results.pop(name)
    return results


def by_step(subject: Subject) -> Feeds:
    """The same by the single step: after the first one, momentum is the gradient."""
    reached = _reached(subject)
    if not reached:
        return {}  # a step trains something
    recipe = optim.sgd(1.0, momentum=0.5)
    (slot,) = recipe.slots
    forward = prepare(_untrained(subject, reached), keep=custom_operators())
    made = step_model(forward, None, recipe, trainable=reached)
    results = run_on_runtime(made, _first_feeds(made, subject))
    for parameter in reached:
        results[f"{parameter}_grad"] = results.pop(f"{parameter}.{slot}.updated")
    return results


def by_phases(subject: Subject) -> Feeds:
    """The same by a forward graph, and a backward graph that takes what that one keeps."""
    parameters = list(subject.parameters.values())
    made = phases(_untrained(subject, parameters), trainable=parameters, outputs=[_LOSS])
    results = run_on_runtime(made.forward, _first_feeds(made.forward, subject))
    given = {seed: np.ones_like(results[output]) for output, seed in made.info.output_gradients.items()}
    kept = {name: results.pop(name) if name not in made.info.outputs else results[name] for name in made.info.kept}
    return results | run_on_runtime(made.backward, {**subject.feeds, **subject.weights, **kept, **given})


def by_step_for_webgpu(subject: Subject) -> Feeds:
    """The same by the single step for devices without numbers of 64 bits."""
    with narrow_numbers():
        return by_step(subject)


PATHS = (by_split, by_step, by_phases)


def _untrained(subject: Subject, parameters: Collection[str]) -> onnx.ModelProto:
    """The model before its parameters got their values: zeros, which nothing may be concluded from."""
    copy = onnx.ModelProto()
    copy.CopyFrom(subject.model)
    sizes = {name for node in copy.graph.node if node.op_type in ("Resize", "Upsample") for name in node.input[1:]}
    for tensor in copy.graph.initializer:
        if tensor.name in parameters and tensor.name not in sizes:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros_like(numpy_helper.to_array(tensor)), tensor.name))
    return copy


def _first_feeds(made: onnx.ModelProto, subject: Subject) -> Feeds:
    """What the first run of a training graph takes."""
    signature, feeds, weights = _signature(made), dict(subject.feeds), subject.weights
    values: dict[Role, Callable[[str], np.ndarray]] = {
        Role.PARAMETER: lambda name: weights[name],
        Role.BUFFER: lambda name: weights[name],
        Role.GRADIENT: lambda name: np.full_like(weights[signature.links[name]], np.nan),  # nobody reads it
        Role.SLOT: lambda name: np.zeros_like(weights[signature.links[name]]),
        Role.RESET: lambda _: np.array([True]),
        Role.LEARNING_RATE: lambda _: np.array(1, np.float32),
        Role.STEP: lambda _: np.array(1, whole().numpy()),
        Role.SEED: lambda _: np.array(0),
        Role.PASS: lambda _: np.array(0),
    }
    return feeds | {name: values[role](name) for name, role in signature.inputs.items() if role in values}


def _signature(model: onnx.ModelProto) -> Signature:
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    return Signature.from_json(metadata[METADATA_KEY])


def _reached(subject: Subject) -> list[str]:
    """The parameters that the loss depends on; training graphs refuse the others, whose gradient is zero."""
    graph = prepare(subject.model, keep=custom_operators()).graph
    wanted = set(subject.parameters.values())
    values = [value for name, value in graph.initializers.items() if name in wanted]
    _, carrying = differentiable_path(graph, values, graph.outputs[:1])
    return [value.name or "" for value in values if value in carrying]


def _statistics(model: onnx.ModelProto) -> dict[str, str]:
    """The running statistics that a model changes, and what it calls the new ones: state, which is not trained."""
    return {
        old: new
        for node in model.graph.node
        if node.op_type == "BatchNormalization" and len(node.output) > 1
        for old, new in zip(node.input[3:], node.output[1:3], strict=False)
    }


def assert_equal(got: Mapping[str, np.ndarray], wanted: Feeds, what: str, tolerance: float | None = None) -> None:
    """Compare what a path computes with what `by_gradient` does; a gradient that is left out must be zero."""
    gradients = [array for name, array in wanted.items() if name.endswith("_grad")]
    largest = max((_largest(array) for array in gradients), default=0.0)
    for name, expected in wanted.items():
        if name not in got:
            assert name.endswith("_grad") or not got, f"{what}: {name} is left out"
            assert not (name.endswith("_grad") and np.any(expected)), f"{what}: {name} is left out, but it is not zero"
            continue
        array = got[name]
        assert array.dtype == expected.dtype, f"{what}: {name} is {array.dtype}, not {expected.dtype}"
        assert array.shape == expected.shape, f"{what}: {name} has shape {array.shape}, not {expected.shape}"
        if not _is_floating(expected):
            np.testing.assert_array_equal(array, expected, err_msg=f"{what}: {name}")
            continue
        floor = _FLOORS[expected.dtype.itemsize] * largest if name.endswith("_grad") else 0.0
        scale = max(_largest(expected), floor)
        bound = scale * (_TOLERANCES[expected.dtype.itemsize] if tolerance is None else tolerance)
        # Forms preserve what is finite.
        finite = np.isfinite(expected)
        error = np.abs(array[finite].astype(np.float64) - expected[finite].astype(np.float64))
        assert (error <= bound).all(), (
            f"{what}: {name} is off by {error.max():.3g} where the largest is {scale:.3g}\ngot {array}\nnot {expected}"
        )


def _largest(array: np.ndarray) -> float:
    finite = np.isfinite(array)
    return float(np.abs(array[finite].astype(np.float64)).max(initial=0))


def _is_floating(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


# Models with a loss and parameters ------------------------------------------------------------------------------------


def subject_of(
    model: onnx.ModelProto,
    feeds: Feeds,
    wrt: Sequence[str],
    of: Sequence[str] | None,
    constants: Collection[str],
    layout: str,
) -> Subject:
    """A model with a loss, what is named as parameters, and sizes known as a layout says."""
    outputs = floating_outputs(model) if of is None else list(of)
    results = run_on_runtime(model, feeds)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, 4)  # before, initializers had to be inputs too
    graph = copy.graph
    if layout != "static":
        del graph.value_info[:]  # they say what the sizes are
    statistics = set(_statistics(model))
    wrt = [name for name in wrt if name not in statistics]
    data = next((value.name for value in graph.input if value.name in wrt), None)
    stored = {tensor.name for tensor in graph.initializer}
    parameters = {name: name for name in wrt}
    given: Feeds = {}
    # Before opset 14, Reshape does not make empty tensors of any shape.
    reshapes_empty = any(entry.domain in ("", "ai.onnx") and entry.version >= 14 for entry in copy.opset_import)
    for value in list(graph.input):
        name, array = value.name, feeds.get(value.name)
        if array is None or name in stored:
            continue
        computed = layout == "symbolic" or (layout == "batch" and name == data)
        if name in wrt and computed and (array.size or reshapes_empty):
            parameters[name] = _compute(graph, value, array, layout)
            given[value.name] = array
        elif name in wrt or name in statistics or (name in constants and layout != "symbolic"):
            graph.input.remove(value)
            graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        else:
            given[name] = array
            if name not in constants and isinstance(array, np.ndarray):
                _forget_sizes(value, layout)
    given |= _add_loss(copy, {name: np.asarray(results[name]) for name in outputs}, layout)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    return Subject(copy, given, parameters, layout, weights)


def _compute(graph: onnx.GraphProto, value: onnx.ValueInfoProto, array: np.ndarray, layout: str) -> str:
    """Compute an input from a parameter of its elements, so that its shape is only known from that of an input."""
    name = value.name
    parameter, value.name, shape = f"{name}.parameter", f"{name}.like", f"{name}.shape"
    _forget_sizes(value, layout)
    graph.initializer.append(numpy_helper.from_array(array.reshape(-1), parameter))
    literal: dict[str, Any] = {} if array.size else {"allowzero": 1}
    nodes = [
        helper.make_node("Shape", [value.name], [shape]),
        helper.make_node("Reshape", [parameter, shape], [name], **literal),
    ]
    for node in reversed(nodes):
        graph.node.insert(0, node)
    return parameter


def _forget_sizes(value: onnx.ValueInfoProto, layout: str) -> None:
    sizes = value.type.tensor_type.shape.dim
    for axis, size in enumerate(sizes):
        if layout == "symbolic" or (layout == "batch" and axis == 0):
            size.dim_param = size.dim_param or f"{value.name}_{axis}"


def _add_loss(model: onnx.ModelProto, results: Feeds, layout: str) -> Feeds:
    """Put the sum of all results times random weights before the outputs of a model, or in their place."""
    graph = model.graph
    kinds = {helper.np_dtype_to_tensor_dtype(array.dtype) for array in results.values()}
    kind = kinds.pop() if len(kinds) == 1 else TensorProto.FLOAT
    inferred = onnx.shape_inference.infer_shapes(model)
    found = {value.name: value.type.tensor_type.shape for value in (*inferred.graph.value_info, *inferred.graph.output)}
    random, weights, terms = np.random.default_rng(0), {}, []
    for name, array in results.items():
        weight, product, term, cast = (f"{name}.{part}" for part in ("weight", "product", "term", "cast"))
        # Infinities, and the huge numbers that stand for them in masks, have no derivative.
        with np.errstate(all="ignore"):
            ordinary = np.abs(array.astype(np.float64)) < 1e15
        drawn = np.where(ordinary, random.normal(size=array.shape), 0).astype(array.dtype)
        if layout == "static":
            graph.initializer.append(numpy_helper.from_array(drawn, weight))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            sizes = _believable(found.get(name), array.shape)
            graph.input.append(helper.make_tensor_value_info(weight, dtype, sizes))
            weights[weight] = drawn
        graph.node.append(helper.make_node("Mul", [name, weight], [product]))
        graph.node.append(helper.make_node("ReduceSum", [product], [term], keepdims=0))
        graph.node.append(helper.make_node("Cast", [term], [cast], to=kind))
        terms.append(cast)
    graph.node.append(helper.make_node("Sum", terms, [_LOSS]))
    kept = [onnx.ValueInfoProto.FromString(output.SerializeToString()) for output in graph.output]
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(_LOSS, kind, []))
    described = {value.name for value in graph.value_info}
    for output in kept:
        if output.type.WhichOneof("value") == "tensor_type":
            _forget_declared_sizes(output.type.tensor_type, results.get(output.name))
        if layout == "symbolic":
            graph.output.append(output)
        elif output.name not in described:
            graph.value_info.append(output)
    return weights


def _forget_declared_sizes(declared: onnx.TypeProto.Tensor, actual: np.ndarray | None) -> None:
    """Leave no more than the rank, which inference may have from nowhere else, of what a model says of an output."""
    known = declared.HasField("shape") and (actual is None or len(declared.shape.dim) == actual.ndim)
    rank = len(declared.shape.dim) if known else None
    declared.ClearField("shape")
    if rank is not None:
        declared.shape.SetInParent()
        for _ in range(rank):
            declared.shape.dim.add()


def _believable(shape: onnx.TensorShapeProto | None, actual: Sequence[int]) -> list[int | str | None]:
    """The sizes that inference found, where it can be right."""
    if shape is None or len(shape.dim) != len(actual):
        return [None] * len(actual)
    return [
        (dim.dim_param or None) if not dim.HasField("dim_value") or dim.dim_value != size else size
        for dim, size in zip(shape.dim, actual, strict=True)
    ]
