"""Small files that ask for much: an answer within seconds, in a process with little memory."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g '
TAIL = "f = Cast<to = 1>(r) s = ReduceSum<keepdims = 0>(f) z = Mul(x, w) q = ReduceSum<keepdims = 0>(z) y = Add(s, q) }"

# Numbers that are never computed, but whose count is known.
TEXTS = {
    "range": f"(float[2] x, float w) => (float y) <int64 a = {{0}}, int64 b = {{{2**40}}}, int64 c = {{1}}> "
    f"{{ r = Range(a, b, c) {TAIL}",
    "tile": f"(float[2] x, float w) => (float y) <int64[1] a = {{{2**32}}}, int64[4] v = {{1, 2, 3, 4}}> "
    f"{{ r = Tile(v, a) {TAIL}",
    "fill": f"(float[2] x, float w) => (float y) <int64[2] a = {{{2**20}, {2**20}}}> {{ r = ConstantOfShape(a) {TAIL}",
    "expand": f"(float[2] x, float w) => (float y) <int64[2] a = {{{2**20}, {2**20}}}, int64 v = {{3}}> "
    f"{{ r = Expand(v, a) {TAIL}",
    "rank": "(float[2] x, int64[100000000] n) => (float y) { r = Reshape(x, n) y = ReduceSum<keepdims = 0>(r) }",
    "parts": "(float[1000000000] x) => (float y) <int64 z = {0}> { s = SplitToSequence<axis = 0>(x) "
    "e = SequenceAt(s, z) y = ReduceSum<keepdims = 0>(e) }",
    "long": "(float[1099511627776] x, float[1] w) => (float y) { z = Mul(x, w) y = ReduceSum<keepdims = 0>(z) }",
    "matrix": "(float[1, 1, 1048576] x) => (float y) <float[3] s = {1, 1, 4.5}> "
    '{ z = Resize<mode = "linear">(x, , s) y = ReduceSum<keepdims = 0>(z) }',
}
DOUBLING = " ".join(f"c{i + 1} = Concat<axis = 0>(c{i}, c{i})" for i in range(40))
for _name, _start in (("numbers", "Identity(v)"), ("sizes", "Shape(x)")):
    TEXTS[f"doubling {_name}"] = (
        f"(float[2, n] x, float w) => (float y) <int64[4] v = {{1, 2, 3, 4}}> {{ c0 = {_start} {DOUBLING} "
        f"{TAIL.replace('Cast<to = 1>(r)', 'Cast<to = 1>(c40)')}"
    )

# Functions that call each other twice, in a chain of 30; functions and bodies in bodies, many times deeper than any.
BUILT = """
import onnx_ir as ir
from onnx import helper

def calling(depth, width):
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    bodies = [[helper.make_node("Relu", ["a"], ["b"])]]
    for i in range(1, depth):
        names = ["a", *(f"t{k}" for k in range(width - 1)), "b"]
        pairs = zip(names, names[1:])
        bodies.append([helper.make_node(f"F{i - 1}", [p], [q], domain="d") for p, q in pairs])
    functions = [helper.make_function("d", f"F{i}", ["a"], ["b"], body, imports) for i, body in enumerate(bodies)]
    x, y = (helper.make_tensor_value_info(name, 1, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node(f"F{depth - 1}", ["x"], ["y"], domain="d")], "g", [x], [y])
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)

def nested(depth):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([2]))
    c = ir.Value(name="c", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    node = ir.node("Relu", [x])
    for _ in range(depth):
        branches = {}
        for name, inner in (("then_branch", node), ("else_branch", ir.node("Neg", [x]))):
            branches[name] = ir.Graph([], inner.outputs, nodes=[inner], name=name)
        node = ir.node("If", [c], branches)
    return ir.Model(ir.Graph([x, c], node.outputs, nodes=[node], name="g", opset_imports={"": 18}), ir_version=8)

MODELS["functions"] = lambda: calling(30, 2)
MODELS["deep functions"] = lambda: calling(3000, 1)
MODELS["deep bodies"] = lambda: nested(3000)
"""
PROGRAM = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import onnx, onward
MODELS = {{name: (lambda text=text: onnx.parser.parse_model(text)) for name, text in {texts!r}.items()}}
{built}
for name, make in MODELS.items():
    model = make()
    for ask in (onward.gradient, onward.check):
        begin = time.process_time()
        try:
            ask(model, wrt=["x"])
            said = "fine"
        except onward.OnwardError as error:
            said = "refused"
        print(f"{{name}}|{{ask.__name__}}|{{said}}|{{time.process_time() - begin:.2f}}", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
def test_every_bomb_gets_an_answer() -> None:
    texts = {name: HEAD + text for name, text in TEXTS.items()}
    program = textwrap.dedent(PROGRAM).format(texts=texts, built=BUILT)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    rows = [line.split("|") for line in done.stdout.splitlines()]
    assert len(rows) == 2 * (len(TEXTS) + 3)
    slow = [row for row in rows if float(row[3]) > 5]
    assert not slow, slow
    refused = {row[0] for row in rows if row[1] == "gradient" and row[2] == "refused"}
    assert refused == {"matrix", "functions", "deep functions", "deep bodies"}
