"""Bring any model the caller has into the one form that the rest of onward works on."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from onward.errors import InvalidModelError
from onward.graph import contrib, ml  # noqa: F401  they register what is rewritten
from onward.graph.attention import is_misjudged
from onward.graph.blame import blaming_model
from onward.graph.budget import check_budget
from onward.graph.external import read_small_weights
from onward.graph.folding import fold_shape_arithmetic
from onward.graph.functions import expand, write_defaults
from onward.graph.inference import infer_shapes
from onward.graph.lengths import avoid_empty_sequences
from onward.graph.loops import forget_growing_sizes, forget_returned_sizes, remove_idle_states
from onward.graph.opsets import accepted_by_runtime, require_accepted
from onward.graph.parameters import mark_constant_nodes
from onward.graph.proto import from_proto
from onward.graph.restating import restate_sizes
from onward.graph.rewriting import rewrite
from onward.graph.rows import add_rows
from onward.graph.sequences import resolve_sequences
from onward.graph.skeleton import skeleton
from onward.graph.soundness import check_soundness
from onward.graph.stacks import resolve_stacks
from onward.graph.tensors import own_tensor
from onward.graph.upgrade import OLDEST, align_functions, replace_deprecated, upgrade
from onward.ort_format import refuse_ort_format

ModelLike = onnx.ModelProto | ir.Model | str | os.PathLike[str]


def prepare(model: ModelLike, keep: Collection[tuple[str, str]] = ()) -> ir.Model:
    """A private, checked copy of `model`: functions inlined, constants as initializers, shapes inferred.

    Constants become initializers of the main graph under the name of the output they had, so that weights which an
    exporter kept in Constant nodes or in the branches of an If can be named like any other. Functions in `keep`,
    (domain, name), stay as they are.
    """
    copy = checked(model)
    with blaming_model("inlining the functions of the model"):
        align_functions(copy)
        passes.InlinePass(lambda function: (function.domain, function.name) not in keep)(copy)
    with blaming_model("finding the constants of the model"):
        mark_constant_nodes(copy)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
        passes.LiftSubgraphInitializersToMainGraphPass()(copy)
    for key in [key for key, function in copy.functions.items() if (function.domain, function.name) not in keep]:
        del copy.functions[key]
    if copy.ir_version < 4:
        # Such files must list every initializer as an input too; they are not meant to be fed.
        passes.RemoveInitializersFromInputsPass()(copy)
    copy.graph.sort()
    write_defaults(copy)
    infer_shapes(copy)
    if forget_growing_sizes(copy) | add_rows(copy):
        infer_shapes(copy)
    simplify(copy)
    copy = rewrite(copy, keep)
    simplify(copy)
    if defined := [name for name, is_unfit in _UNFIT.items() if any(map(is_unfit, copy.graph.all_nodes()))]:
        copy = expand(copy, defined)
        infer_shapes(copy)
        simplify(copy)
    if OLDEST <= copy.opset_imports.get("", 1) < 14 and any(_loses_rank(node) for node in copy.graph):
        copy = upgrade(copy, 14)
        simplify(copy)
    if avoid_empty_sequences(copy):
        infer_shapes(copy)
    restate_sizes(copy)
    return copy


# Operators, and which nodes of them have to be replaced by their definition.
_UNFIT: dict[str, Callable[[ir.Node], bool]] = {
    "Attention": is_misjudged,
    "SequenceMap": lambda node: node.op_type == "SequenceMap" and node.domain == "",  # of unknown length: a Loop
}


def checked(model: ModelLike) -> ir.Model:
    """A private copy of `model` that onnx's checker has accepted: the first half of `prepare`."""
    copy = load(model)
    with blaming_model("reading the model"):  # which nobody has checked so far
        forget_annotations(copy)
        read_small_weights(copy)
        import_default_domain(copy)
        require_accepted(copy.opset_imports[""])
        replace_deprecated(copy)
        contrib.adopt(copy)
        # onnxruntime runs files in any order: tools that make weights float16 append the casts of inputs at the end.
        with contextlib.suppress(ValueError):  # a circle, whose nodes the checker names
            copy.graph.sort()
    check(copy)
    return copy


def simplify(model: ir.Model) -> None:
    """Compute what is known before any data: arithmetic on shapes, decided branches, sequences, idle states."""
    with blaming_model("simplifying the model"):
        while fold_shape_arithmetic(model):
            infer_shapes(model)
        if resolve_sequences(model) | resolve_stacks(model) | remove_idle_states(model):
            infer_shapes(model)
            simplify(model)


def _loses_rank(node: ir.Node) -> bool:
    """onnx follows computed shapes into Reshape only from opset 14 on; older models that have them are moved there."""
    return node.op_type == "Reshape" and node.domain == "" and node.outputs[0].shape is None


def load(model: ModelLike) -> ir.Model:
    """An ir.Model that shares no mutable part with what the caller has; weights are shared, never written."""
    loaded = _read(model)
    check_budget(loaded)
    with blaming_model("reading the model"):
        check_soundness(loaded)
    return loaded if isinstance(model, (str, os.PathLike)) else _with_own_names(loaded)


def _read(model: ModelLike) -> ir.Model:
    if isinstance(model, ir.Model):
        check_budget(model)
        with blaming_model("copying the model"):
            return model.clone()
    if isinstance(model, onnx.ModelProto):
        return _from_proto(model)
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        if not path.is_file():
            raise InvalidModelError(f"there is no model file at {str(path)!r}")
        refuse_ort_format(path)
        try:
            proto = onnx.load(path, load_external_data=False)
            if not proto.HasField("graph"):
                raise ValueError("the model is empty: it has no graph")
            loaded = from_proto(proto)
            ir.external_data.set_base_dir(loaded.graph, path.parent)
            return loaded
        except Exception as error:
            raise InvalidModelError(f"{str(path)!r} is not a readable ONNX model: {error}") from error
    raise InvalidModelError(
        f"a model is an onnx.ModelProto, an onnx_ir.Model or the path of an .onnx file, not {type(model).__name__}"
    )


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    if not proto.HasField("graph"):
        raise InvalidModelError("the ModelProto has no graph; was it loaded from a file?")
    try:
        return from_proto(proto)
    except Exception as error:
        raise InvalidModelError(f"the ModelProto is not valid ONNX: {error}") from error


def _with_own_names(model: ir.Model) -> ir.Model:
    """Give initializers tensors of their own, with the same data, since the rest of onward renames values."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = own_tensor(value.const_value)
    return model


def forget_annotations(model: ir.Model) -> None:
    """Take from a file's shapes what may be wrong; inference finds out most of it again.

    Some exporters write -1 or ? for a dimension that they do not know; equal ones are not equal dimensions. And where
    an input has a dimension without a number, the numbers of results may be those of an example that was traced. (Of
    operators that onnx does not know, they are all there is.) The names of an output's dimensions are what somebody
    told the exporter: a name that an input or another dimension has too is not believed to mean the same size.
    """
    given = [value for value in model.graph.inputs if not value.is_initializer()]
    traced = any(value.shape is None or not value.shape.is_static() for value in given)
    borders = [value.shape for value in dict.fromkeys((*given, *model.graph.outputs)) if value.shape is not None]
    uses = Counter(dim.value for shape in borders for dim in shape if not isinstance(dim, int))
    shared = {name for name, count in uses.items() if count > 1}
    for graph in model.graphs():
        for value in graph.inputs:
            value.shape = _forgetful(value.shape, numbers=False)
        for node in graph:
            for value in node.outputs:
                names = shared if graph is model.graph and value.is_graph_output() and node.domain == "" else ()
                value.shape = _forgetful(value.shape, numbers=traced and node.domain == "", names=names)
    forget_returned_sizes(model)


def _forgetful(shape: ir.Shape | None, *, numbers: bool, names: Collection[str | None] = ()) -> ir.Shape | None:
    if shape is None:
        return None
    kept = [None if _is_doubtful(dim, numbers, names) else dim for dim in shape]
    return shape if None not in kept else ir.Shape(kept)


def _is_doubtful(dim: int | ir.SymbolicDim, numbers: bool, names: Collection[str | None]) -> bool:
    return numbers or dim < 0 if isinstance(dim, int) else dim.value in ("", "?", "*", "-1", *names)


def import_default_domain(model: ir.Model) -> None:
    """`ai.onnx` is another name of the default domain; a model that uses none of its operators need not import it."""
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        version = imports.pop("ai.onnx", None)
        if version is not None:
            imports[""] = version
    model.opset_imports.setdefault("", accepted_by_runtime()[0])


def check(model: ir.Model) -> None:
    """Run onnx's own checker, without the weights and without what it insists on and onnxruntime does not."""
    with blaming_model("writing the model again"):
        proto = skeleton(model)
    proto.graph.name = proto.graph.name or "graph"
    # Files of older versions list every initializer as an input, and have no opset; real ones do as they like.
    proto.ir_version = max(proto.ir_version, 4)
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        raise InvalidModelError(f"the model is not valid ONNX; the checker says: {error}") from error
