"""Prepare a model for its report: what cannot be prepared is a blocker, and the rest is looked at all the same."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import common as passes

from onward.autodiff.registry import custom_operators
from onward.errors import InvalidModelError, OnwardError, OpsetError
from onward.graph import contrib
from onward.graph.external import WHERE_DATA_IS, lost_weights, read_small_weights
from onward.graph.functions import write_defaults
from onward.graph.inference import infer_shapes
from onward.graph.opsets import require_accepted
from onward.graph.parameters import mark_constant_nodes
from onward.graph.prepare import (
    ModelLike,
    check,
    import_default_domain,
    load,
    prepare,
    simplify,
)
from onward.graph.upgrade import align_functions, replace_deprecated
from onward.inspection.content import Blocker, Kind

_REPAIR = (
    "Export the model again, or repair it: onnx.checker.check_model(model, full_check=True) shows what is wrong, and "
    "onnxruntime refuses most of such models too."
)


def read(model: ModelLike) -> ir.Model:
    """The model as it is in the file; an error for what is none."""
    loaded = load(model)
    graph = loaded.graph
    if not (len(graph) or graph.inputs or graph.outputs or graph.initializers):
        raise InvalidModelError("the model is empty: no inputs, no nodes, no outputs. Is it an ONNX file?")
    return loaded


def prepare_as_far_as_possible(loaded: ir.Model) -> tuple[ir.Model, list[Blocker], bool]:
    """A prepared copy, what is wrong with the model, and whether it could be prepared in the end."""
    blockers: list[Blocker] = []
    current = _copy(loaded)
    lost = lost_weights(current)
    if lost:
        files = sorted({str(tensor.path) for _, tensor in lost})
        reason = f"external data is not there: {', '.join(files)}"
        blockers.append(Blocker("model", reason, WHERE_DATA_IS, nodes=[value.name or "?" for value, _ in lost]))
        for value, tensor in lost:
            value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
            value.const_value = None
    try:
        return prepare(current, keep=custom_operators()), blockers, True
    except Exception as error:
        prepared, found = _step_by_step(current)
        return prepared, [*blockers, *(found or [blocker_of(error)])], False


def _copy(model: ir.Model) -> ir.Model:
    try:
        return model.clone()
    except Exception:
        return model  # onnx_ir does not copy what has circles, or values from nowhere; the model is ours anyway


def _step_by_step(model: ir.Model) -> tuple[ir.Model, list[Blocker]]:
    """What `prepare` does, without the steps that fail."""
    blockers: list[Blocker] = []
    copy = _copy(model)
    kept = custom_operators()
    lift_constants = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)
    steps: list[Callable[[ir.Model], object]] = [
        read_small_weights,
        import_default_domain,
        lambda current: require_accepted(current.opset_imports[""]),
        replace_deprecated,
        contrib.adopt,
        check,
        align_functions,
        passes.InlinePass(lambda function: (function.domain, function.name) not in kept),
        mark_constant_nodes,
        lift_constants,
        passes.LiftSubgraphInitializersToMainGraphPass(),
        lambda current: current.graph.sort(),
        write_defaults,
        infer_shapes,
        simplify,
    ]
    for step in steps:
        try:
            step(copy)
        except OnwardError as error:
            blockers.append(blocker_of(error))
        except Exception:
            # A step that fails for another reason does so because of something that is reported already.
            continue
    return copy, blockers[:1] + [blocker for blocker in blockers[1:] if blocker.kind != "model"]


def blocker_of(error: Exception, kind: Kind | None = None) -> Blocker:
    """An error as a blocker: messages say what is wrong first, and then what to do."""
    message = str(error)
    if isinstance(error, OpsetError):
        reason, _, remedy = message.partition(". ")
        return Blocker("opset", reason, remedy or "Export the model again with another opset.")
    if isinstance(error, InvalidModelError):
        return Blocker(kind or "model", _in_one_line(message), _REPAIR)
    if isinstance(error, OnwardError):
        reason, _, remedy = message.partition(". ")
        return Blocker(kind or "rule", reason, remedy or "Leave the parameters before it out of `wrt`.")
    said = _in_one_line(f"{type(error).__name__}: {message}")
    return Blocker(kind or "model", f"something unexpected happened: {said}", "Please report it, with the model.")


def _in_one_line(message: str, longest: int = 400) -> str:
    joined = " ".join(message.split())
    return joined if len(joined) <= longest else f"{joined[:longest]} ..."
