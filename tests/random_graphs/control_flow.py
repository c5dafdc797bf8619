"""Steps with bodies: If, Loop and Scan, whose bodies use outer values and may have bodies inside."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.random_graphs.operators import binary, step, unary
from tests.random_graphs.program import Program, RejectedError, Tensor, evaluate


def computation(body: Program, x: Tensor) -> Tensor:
    """A few steps inside of a body that end with something of the shape of x."""
    y = x
    for _ in range(body.integer(1, 3)):
        kind = body.integer(0, 5)
        if kind == 0 and _depth(body) < 3:
            y = conditional_of(body, y)
        elif kind == 1:
            y = body.add("CumSum", y, body.constant(np.array(0))) if y.ndim else unary(body, y)
        else:
            y = unary(body, y) if kind < 4 else binary(body, y)
        if y.shape != x.shape:
            raise RejectedError
    return body.add("Tanh", y)  # so that loops do not explode


def _depth(program: Program) -> int:
    return 0 if program.outer is None else 1 + _depth(program.outer)


def _body(program: Program, *inputs: Tensor) -> Program:
    return Program(program.draw, program.seed, values=list(inputs), outer=program)


def _value(tensor: Tensor, kind: int = TensorProto.DOUBLE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, kind, [None] * tensor.ndim)


def _context(program: Program) -> dict[str, np.ndarray]:
    root = program.root
    return {tensor.name: tensor.array for tensor in (*root.leaves, *root.constants, *program.visible())}


def _add(program: Program, node: onnx.NodeProto) -> list[Tensor]:
    made = program.append(node, evaluate([node], _context(program)))
    return made if isinstance(made, list) else [made]


def conditional_of(program: Program, x: Tensor) -> Tensor:
    graphs = {}
    condition = program.add("Greater", program.add("ReduceMean", x, keepdims=0), program.constant(0.1))
    for name in ("then_branch", "else_branch"):
        body = _body(program)
        result = computation(body, x)
        graphs[name] = helper.make_graph(body.nodes, program.fresh(name), [], [_value(result)])
    node = helper.make_node("If", [condition.name], [program.fresh("y")], name=program.fresh("If_"), **graphs)
    arrays = {**_context(program), condition.name: condition.array}
    made: Tensor = program.append(node, evaluate([node], arrays))
    return made


@step
def conditional(program: Program) -> Tensor:
    return conditional_of(program, program.pick())


@step
def loop(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.array.size <= 24)
    state = Tensor(program.fresh("state"), x.array)
    iteration, condition = program.fresh("i"), program.fresh("condition")
    body = _body(program, state)
    after = computation(body, state)
    kept = program.flag()
    outputs = [after]
    if kept:
        outputs.append(body.add("Mul", body.choice([state, after]), body.pick(lambda t: t.shape == state.shape)))
    going = program.fresh("going")
    body.nodes.append(helper.make_node("Identity", [condition], [going]))
    graph = helper.make_graph(
        body.nodes,
        program.fresh("body"),
        [
            helper.make_tensor_value_info(iteration, TensorProto.INT64, []),
            helper.make_tensor_value_info(condition, TensorProto.BOOL, []),
            _value(state),
        ],
        [helper.make_tensor_value_info(going, TensorProto.BOOL, []), *map(_value, outputs)],
    )
    count, true = program.constant(np.array(program.integer(1, 3))), program.constant(np.array(True))
    names = [program.fresh("y") for _ in outputs]
    node = helper.make_node("Loop", [count.name, true.name, x.name], names, name=program.fresh("Loop_"), body=graph)
    return program.choice(_add(program, node))


@step
def scan(program: Program) -> Tensor:
    x = program.pick(lambda tensor: tensor.ndim > 0 and 0 < tensor.array.size <= 24)
    piece = Tensor(program.fresh("slice"), x.array[0])
    start = program.leaf(piece.shape)
    state = Tensor(program.fresh("state"), start.array)
    body = _body(program, state, piece)
    after = computation(body, state)
    mixed = body.add("Add", after, piece)
    kept = body.add("Mul", mixed, state)
    graph = helper.make_graph(
        body.nodes, program.fresh("body"), [_value(state), _value(piece)], [_value(mixed), _value(kept)]
    )
    node = helper.make_node(
        "Scan",
        [start.name, x.name],
        [program.fresh("y"), program.fresh("y")],
        name=program.fresh("Scan_"),
        body=graph,
        num_scan_inputs=1,
        scan_input_directions=[int(program.flag())],
        scan_output_directions=[int(program.flag())],
    )
    return program.choice(_add(program, node))
