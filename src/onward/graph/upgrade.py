"""Move a model to a newer opset.

onnx.version_converter does the same for models below 2 GB, but knows too few operators. Here a table says at which
opset the meaning or the syntax of an operator changes; all other changes between opsets 7 and 26 only extend types
or add something optional, which the tests compare with the schemas of the installed onnx.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import onnx_ir as ir

from onward.errors import OpsetError
from onward.graph.adapters import ADAPTERS
from onward.graph.blame import blaming_node
from onward.graph.builder import Builder
from onward.graph.inference import infer_shapes
from onward.graph.opsets import NeedsOpsetError, accepted_by_runtime

T = TypeVar("T")

OLDEST = 7  # before it, broadcasting worked differently in every operator


def upgrade(model: ir.Model, version: int) -> ir.Model:
    """A copy of a prepared model in opset `version`, with the same values for the same inputs."""
    current = model.opset_imports[""]
    newest, _ = accepted_by_runtime()
    if version > newest:
        raise OpsetError(
            f"the gradient of this model needs operators of opset {version}, but the installed onnxruntime accepts "
            f"opset {newest} at most. Install a newer onnxruntime, or leave the parameters that need them out of `wrt`."
        )
    if current < OLDEST:
        raise OpsetError(
            f"the gradient of this model needs operators of opset {version}, and a model of opset {current} cannot be "
            f"moved there: opset {OLDEST} is the oldest one supported. Export the model again with a newer opset."
        )
    copy = model.clone()
    # One opset after the other, so that what an adapter emits is itself adapted by the steps that follow.
    for step in _steps(current, version):
        _step(copy.graph, step)
    copy.opset_imports[""] = version
    for function in copy.functions.values():
        _upgrade_function(function, version)
    copy.graph.sort()
    infer_shapes(copy)
    return copy


def in_lowest_opset(model: ir.Model, build: Callable[[ir.Model], T]) -> T:
    """What `build` makes of a copy of `model`, in the lowest opset, from the model's own up, that has all it needs."""
    while True:
        try:
            return build(model.clone())
        except NeedsOpsetError as need:
            model = upgrade(model, need.version)


def replace_deprecated(model: ir.Model) -> None:
    """Replace, in place, what onnx's checker refuses although onnxruntime runs it; nodes are not in order then.

    GroupNormalization had a scale for each group in opsets 18 to 20, which was declared a mistake afterwards.
    """
    if 18 <= model.opset_imports.get("", 1) < 21:
        _step(model.graph, 21, only="GroupNormalization")


def align_functions(model: ir.Model) -> None:
    """Move, in place, the functions of a model to its own opset, in which they can be inlined."""
    version = model.opset_imports[""]
    for function in model.functions.values():
        if OLDEST <= function.opset_imports.get("", version) < version:
            _upgrade_function(function, version)


def _upgrade_function(function: ir.Function, version: int) -> None:
    """onnxruntime reads the body of a function in the opset of the model that calls it."""
    graph = function.graph
    for step in _steps(function.opset_imports.get("", OLDEST), version):
        _step(graph, step)
    function.opset_imports[""] = version
    # A function has no initializers.
    for constant in list(graph.initializers.values()):
        assert constant.const_value is not None
        node = ir.node("Constant", [], attributes={"value": constant.const_value}, name=constant.name)
        graph.initializers.pop(constant.name or "")
        constant.replace_all_uses_with(node.outputs[0])
        node.outputs[0].name = constant.name
        graph.insert_before(graph[0], node)
    graph.sort()


def _steps(current: int, version: int) -> list[int]:
    """The opsets above `current`, up to `version`, in which something changes; a damaged file may ask for any."""
    return sorted({since for _, since in ADAPTERS if current < since <= version})


def _step(graph: ir.Graph, version: int, only: str | None = None) -> None:
    affected = [
        node
        for node in graph.all_nodes()
        if node.domain == "" and (node.op_type, version) in ADAPTERS and only in (None, node.op_type)
    ]
    if not affected:
        return
    root = Builder(graph, version)
    for node in affected:
        assert isinstance(node.graph, ir.Graph)
        op = root if node.graph is graph else root.subgraph(node.graph)
        title = f"{node.name or node.outputs[0].name}/opset{version}"
        with op, op.scope(title), blaming_node(f"moving to opset {version}", node):
            ADAPTERS[node.op_type, version](op, node)
