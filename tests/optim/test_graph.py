"""The graphs that optimizers emit: how many passes over memory, what is shared, and that they may work in place."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onward import optim
from onward.errors import OnwardError
from onward.graph.builder import Builder
from onward.graph.nodes import used_values
from onward.testing.optimizers import optimizer_model, run_optimizer

SIZE = 7


def full_size_nodes(model):
    """How many nodes read or write a whole tensor of parameters."""
    graph = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model)).graph
    whole = ir.Shape([SIZE])
    return sum(any(value is not None and value.shape == whole for value in (*n.inputs, *n.outputs)) for n in graph)


# The chain is bound by memory, so this is its cost; a number that grows is a slower optimizer.
PASSES = [
    (optim.sgd(), 2),
    (optim.sgd(weight_decay=0.1), 3),
    (optim.sgd(momentum=0.9), 4),
    (optim.sgd(momentum=0.9, weight_decay=0.1), 6),
    (optim.sgd(momentum=0.9, dampening=0.1), 5),
    (optim.sgd(momentum=0.9, nesterov=True), 6),
    (optim.adam(), 10),
    (optim.adam(weight_decay=0.1), 12),
    (optim.adam(amsgrad=True), 11),
    (optim.adamw(), 11),
    (optim.adamw(weight_decay=0.0), 10),
    (optim.adamw_hf(), 10),
    (optim.adamw_hf(weight_decay=0.1), 11),
    (optim.lamb(), 12),
    (optim.lamb(weight_decay=0.1), 15),
    (optim.adamax(), 9),
    (optim.adagrad(), 7),
    (optim.adagrad(lr_decay=0.1), 7),
    (optim.rmsprop(), 8),
    (optim.rmsprop(momentum=0.9), 11),
    (optim.rmsprop(centered=True), 14),
    (optim.adadelta(), 13),
    (optim.lion(), 7),
    (optim.lion(weight_decay=0.1), 8),
    # Clipping: the norm is one pass over the gradient; its coefficient is free where the chain is linear in it.
    (optim.sgd(clip=1.0), 3),
    (optim.adamw(clip=1.0), 13),
    (optim.sgd(clip=optim.clip(1.0)), 3),
    (optim.sgd(clip=optim.clip_by_norm(1.0)), 3),
]


@pytest.mark.parametrize(("optimizer", "passes"), PASSES, ids=[optimizer.name for optimizer, _ in PASSES])
def test_passes_over_memory(optimizer, passes):
    assert full_size_nodes(optimizer_model(optimizer, {"w": (SIZE,)})) == passes


@pytest.mark.parametrize("name", optim.names())
def test_scalars_are_shared_by_all_parameters(name):
    optimizer = optim.get(name, weight_decay=0.1)
    one, two, three = (
        len(optimizer_model(optimizer, {f"w{i}": (SIZE,) for i in range(count)}).graph.node) for count in (1, 2, 3)
    )
    assert three - two == two - one
    if optimizer.elementwise:
        passes = full_size_nodes(optimizer_model(optimizer, {"w": (SIZE,)}))
        assert two - one == passes
        assert one - passes <= 18  # scalars: a microsecond each


@pytest.mark.parametrize("optimizer", [optimizer for optimizer, _ in PASSES], ids=lambda optimizer: optimizer.name)
def test_state_may_be_updated_in_place(optimizer):
    """Every node that reads the old value of a state comes before the node that writes the new one, or is that node.

    Then a runtime may bind the same memory to both, whatever order it runs the nodes in.
    """
    graph = ir.serde.deserialize_model(optimizer_model(optimizer, {"w": (SIZE,)})).graph
    outputs = {value.name: value for value in graph.outputs}
    states = [value for value in graph.inputs if f"{value.name}_new" in outputs]
    assert len(states) == 1 + len(optimizer.slots)
    for state in states:
        writer = outputs[f"{state.name}_new"].producer()
        before = ancestors(writer)
        readers = {node for node in graph if state in used_values(node)}
        assert readers <= before | {writer}, f"{state.name} is read by {readers - before} after it was written"


def ancestors(node):
    found, waiting = set(), [node]
    while waiting:
        for before in waiting.pop().predecessors():
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


def values(*shape, names=("p", "g")):
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="test")
    made = [ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT)) for name in names]
    graph.inputs.extend(made)
    return Builder(graph, 18), made


def test_apply_keeps_type_and_shape():
    op, (p, g, trace) = values("n", 3, names=("p", "g", "trace"))
    new, slots = optim.sgd(momentum=0.9).apply(op, p, g, {"trace": trace}, 1.0, 0.5)
    for value in (new, slots["trace"]):
        assert (value.dtype, value.shape) == (p.dtype, p.shape)


def test_apply_inside_an_active_builder():
    op, (p, g) = values(3)
    with op:
        new, _ = optim.sgd().apply(op, p, g, {}, 1.0, 0.5)
        assert (new * 2).dtype == p.dtype


def test_a_gradient_in_another_precision_is_cast():
    op, (p, g) = values(3)
    g.dtype = ir.DataType.FLOAT16
    new, _ = optim.sgd().apply(op, p, g, {}, 1.0, 0.5)
    assert new.dtype == ir.DataType.FLOAT


def test_wrong_slots_are_refused():
    op, (p, g) = values(3)
    with pytest.raises(OnwardError, match=r"optimizer 'adam' has the slots \['mu', 'nu'\], not \['mu'\]"):
        optim.adam().apply(op, p, g, {"mu": g}, 1.0, 0.5)


def test_names_tell_the_parameter():
    model = optimizer_model(optim.sgd(), {"fc.weight": (SIZE,)})
    assert all(node.name.startswith("update/fc.weight/") for node in model.graph.node)


def test_same_bytes_each_time():
    first, second = (
        optimizer_model(optim.adamw(clip=1.0), {"a": (2,), "b": (3,)}).SerializeToString() for _ in range(2)
    )
    assert first == second


# Transformations of one's own ------------------------------------------------------------------------------------


def average(decay):
    def update(op, g, ctx):
        ctx.mean = ctx.mean * decay + g * (1 - decay)
        return ctx.mean

    return optim.Transformation(update, {"mean": optim.Slot(initial=1.0)})


def test_own_transformation_and_slots_of_the_same_name():
    optimizer = optim.Optimizer(optim.chain(average(0.5), average(0.25), optim.scale_by_learning_rate()))
    assert list(optimizer.slots) == ["mean", "mean_1"]
    assert optimizer.slots["mean_1"].initial == 1.0
    (got,) = run_optimizer(optimizer, {"w": np.zeros(2)}, [{"w": np.full(2, 3.0)}], [1.0])
    # (1 + 3) / 2 = 2, then (1 + 3 * 2) / 4
    np.testing.assert_allclose(got["w"], -1.75)


def test_chains_nest():
    inner = optim.chain(average(0.5), optim.scale(2.0))
    optimizer = optim.Optimizer(optim.chain(inner, optim.chain(inner, optim.scale_by_learning_rate())))
    assert list(optimizer.slots) == ["mean", "mean_1"]
    (got,) = run_optimizer(optimizer, {"w": np.zeros(2)}, [{"w": np.full(2, 3.0)}], [1.0])
    # 2 (1 + 3) / 2 = 4, then 2 (1 + 4) / 2
    np.testing.assert_allclose(got["w"], -5.0)


def test_unknown_slots_are_refused():
    def update(op, g, ctx):
        ctx.meen = g
        return g

    op, (p, g, mean) = values(3, names=("p", "g", "mean"))
    wrong = optim.Optimizer(optim.Transformation(update, {"mean": optim.Slot()}))
    with pytest.raises(OnwardError, match="no slot 'meen'"):
        wrong.apply(op, p, g, {"mean": mean}, 1.0, 0.5)
    with pytest.raises(OnwardError, match="no slot 'nu'"):
        optim.Optimizer(optim.Transformation(lambda op, g, ctx: ctx.nu)).apply(op, p, g, {}, 1.0, 0.5)
    with pytest.raises(OnwardError, match="a slot cannot be called lr"):
        optim.Transformation(update, {"lr": optim.Slot()})


def test_elementwise_is_true_only_when_all_are():
    assert optim.adamw().elementwise
    assert not optim.lamb().elementwise
    assert not optim.sgd(clip=optim.clip_by_norm(1.0)).elementwise
    assert optim.sgd(clip=1.0).elementwise
