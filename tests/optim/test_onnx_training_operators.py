"""The cases that ONNX has for the operators of ai.onnx.preview.training, reproduced by our transformations."""

import warnings

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

from onward import optim
from onward.graph.builder import Builder
from onward.graph.finish import finish, publish
from onward.testing import run_on_runtime


def training_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases of other operators overflow on purpose
        cases = collect_testcases(None)
    return [case for case in cases if case.model.graph.node[0].domain == "ai.onnx.preview.training"]


CASES = training_cases()


def transformation(op_type, attributes, count):
    """What the operator computes; `count` is its input T, the number of updates before this one.

    Adam counts its updates otherwise than the others: T is the exponent itself, and 0 means no correction.
    """
    decay = optim.add_decayed_weights(attributes["norm_coefficient"])
    if op_type == "Adagrad":
        scaled = optim.scale_by_rss(eps=attributes["epsilon"])
        return optim.chain(decay, scaled, optim.scale_by_decayed_learning_rate(attributes["decay_factor"])), count + 1
    if op_type == "Momentum":
        nesterov = attributes["mode"] == b"nesterov"
        moments = optim.trace(attributes["alpha"], dampening=1 - attributes["beta"], nesterov=nesterov)
        return optim.chain(decay, moments, optim.scale_by_learning_rate()), count + 1
    adam = optim.scale_by_adam(
        attributes["alpha"],
        attributes["beta"],
        attributes["epsilon"],
        corrected_eps=False,
        bias_correction=count > 0,
    )
    return optim.chain(decay, adam, optim.scale_by_learning_rate()), max(count, 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case):
    (node,) = case.model.graph.node
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    ((inputs, outputs),) = case.data_sets
    lr, count, *tensors = inputs
    chain, step = transformation(node.op_type, attributes, int(count))
    optimizer = optim.Optimizer(chain)
    slots = list(optimizer.slots)
    # Inputs: all parameters, all gradients, then each slot of all parameters. Outputs: likewise without gradients.
    groups = np.split(np.arange(len(tensors)), 2 + len(slots))
    wanted = np.split(np.arange(len(outputs)), 1 + len(slots))

    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name=case.name)
    op = Builder(graph, 18)
    values = [
        ir.Value(name=f"x{i}", shape=ir.Shape(x.shape), type=ir.TensorType(ir.DataType.FLOAT))
        for i, x in enumerate(tensors)
    ]
    graph.inputs.extend(values)
    feeds = {f"x{i}": x for i, x in enumerate(tensors)}
    for k, (p, g, *own) in enumerate(zip(*groups, strict=True)):
        for slot, i in zip(slots, own, strict=True):
            feeds[f"x{i}"] = tensors[i] / np.float32(optimizer.slots[slot].scale)
        state = {slot: values[i] for slot, i in zip(slots, own, strict=True)}
        updated, new = optimizer.apply(op, values[p], values[g], state, float(step), float(lr))
        publish(updated, f"y{wanted[0][k]}", graph)
        for position, slot in enumerate(slots, start=1):
            publish(new[slot], f"y{wanted[position][k]}", graph)
    results = run_on_runtime(finish(ir.Model(graph, ir_version=10)), feeds)
    for index, expected in enumerate(outputs):
        scales = [1.0, *(optimizer.slots[slot].scale for slot in slots)]
        got = results[f"y{index}"] * scales[index // len(groups[0])]
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"output {node.output[index]}")


def test_all_cases_are_here():
    assert {case.model.graph.node[0].op_type for case in CASES} == {"Adagrad", "Adam", "Momentum"}
    assert len(CASES) >= 7
