"""`onward.check`: what a model needs to be trained, found out without running it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from onward.autodiff.expansion import Missing, expand_missing_rules
from onward.autodiff.gradient import output_names, target_names
from onward.errors import OnwardError, UnknownNameError
from onward.graph import provenance
from onward.graph.naming import listed
from onward.graph.nodes import describe, outer_values
from onward.graph.opsets import accepted_by_runtime
from onward.graph.prepare import ModelLike
from onward.graph.shapes import dims, is_floating
from onward.graph.statistics import overwritten_statistics
from onward.graph.vectors import misread_products
from onward.inspection.content import Blocker, Flops, Input, Parameter, Report, Versions
from onward.inspection.cost import flops_of, growing, sizes_of, state_of, with_sizes
from onward.inspection.kernels import missing_kernels
from onward.inspection.modes import modes_of
from onward.inspection.operators import operators_of, refusals, rule_failures
from onward.inspection.parameters import dtype_name, parameters_of
from onward.inspection.preparation import blocker_of, prepare_as_far_as_possible, read
from onward.inspection.rehearsal import Rehearsal, rehearse
from onward.losses.activation import advice_on
from onward.optim import Optimizer
from onward.optim import get as get_optimizer


def check(
    model: ModelLike,
    wrt: Sequence[str] | None = None,
    of: str | Sequence[str] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    optimizer: str | Optimizer = "adamw",
) -> Report:
    """Whether a model can be trained and what that takes, as a report to print or to read.

    The gradient is built as `onward.gradient` does with the same `wrt` and `of`, but everything that stands in the way
    is listed instead of raised; nothing runs. Only what is no model, and names that the model does not have, raise.

    Args:
        model: a ModelProto, an onnx_ir.Model, or the path of an .onnx file. External data need not be there.
        wrt: the parameters to train; None means those that are trainable by default.
        of: the output to differentiate, or a list of them; None means the first. Any other value outside of subgraphs
            will do, too.
        dims: sizes of dynamic dimensions for the estimates, by symbol (``{"batch": 8}``) or place (``{"x[0]": 8}``).
            Those that are not given count as 1 (where the model does not work so, as the first of 16, 256 and 4096
            with which it does), height and width of pictures (rank 4) as 224.
        optimizer: a name or a value of `onward.optim`.
    """
    recipe = get_optimizer(optimizer)
    loaded = read(model)
    operators = operators_of(loaded)
    declared = [_described(value) for value in loaded.graph.outputs]
    prepared, blockers, whole = prepare_as_far_as_possible(loaded)
    inspection = _Inspection(prepared, whole, blockers)
    ends = inspection.outputs(of)
    parameters = parameters_of(prepared, loaded, _names(wrt), ends)
    names = inspection.targets(wrt, parameters)
    rehearsal = inspection.rehearse(names, [end.name or "" for end in ends]) if ends and names else None
    sizes, assumed = sizes_of(prepared, dims or {})
    flops, sized = inspection.estimate(rehearsal, names, ends, recipe, parameters, sizes, assumed)
    blockers.extend(missing_kernels(prepared if rehearsal is None else rehearsal.model))
    blocking = {blocker.operator for blocker in blockers}
    return Report(
        name=_name_of(model, loaded),
        versions=_versions(loaded, rehearsal),
        inputs=[_described(value) for value in prepared.graph.inputs],
        outputs=declared,
        differentiated=[end.name or "" for end in ends],
        operators=[replace(operator, blocks=operator.name in blocking) for operator in operators],
        blockers=blockers,
        parameters=parameters,
        modes=list(modes_of(prepared)),
        changes=inspection.changes(loaded, _names(wrt)),
        flops=flops,
        state=state_of(parameters, recipe, sized),
        notes=inspection.notes,
    )


class _Inspection:
    """The steps of `check` that find blockers."""

    def __init__(self, prepared: ir.Model, whole: bool, blockers: list[Blocker]) -> None:
        self.prepared = prepared
        self.whole = whole  # whether the model could be prepared
        self.blockers = blockers
        self.notes = [
            f"{advice[0].upper()}{advice[1:]}"
            for node in prepared.graph.all_nodes()
            if node.domain == "" and node.inputs and node.inputs[0] is not None
            for advice in [advice_on(node.op_type, node.inputs[0])]
            if advice is not None
        ]
        self.notes += [
            f"onnxruntime computes {describe(node)} wrongly: it fuses a transposed matrix with the product behind it, "
            "and takes the vector there for a row. What onward writes is right. The file itself, when onnxruntime runs "
            "it, is not: write v A for A^T v"
            for node in misread_products(prepared)
        ]
        written = overwritten_statistics(prepared)
        if written:
            more = f" and {len(written) - 1} more" if len(written) > 1 else ""
            self.notes.append(
                "onnxruntime writes new running statistics over those of the file while it runs it "
                f"({describe(written[0])}{more}), and may take those of a new layer for its scale and bias. What "
                "onward writes is right. The file itself, when onnxruntime runs it, is not: take the evaluation model, "
                "or the one that is exported after training"
            )

    def changes(self, loaded: ir.Model, wrt: Sequence[str] | None) -> list[str]:
        """What the exporter changed, and what to do about it."""
        changes = provenance.changes_of(loaded)
        if changes.renamed:
            names = ", ".join(changes.renamed[:3]) + (" ..." if len(changes.renamed) > 3 else "")
            self.notes.append(f"The exporter transposed or reshaped weights, and gave them other names: {names}")
        relevant = changes if wrt is None else changes.among(wrt)
        return [*relevant.sentences(), relevant.advice()] if relevant else []

    def outputs(self, of: str | Sequence[str] | None) -> list[ir.Value]:
        """The outputs to differentiate that can be."""
        try:
            names = output_names(self.prepared, of)
        except UnknownNameError:
            raise
        except OnwardError as error:
            if self.whole:  # otherwise types may be unknown because inference failed
                self.blockers.append(blocker_of(error, "output"))
            names = [] if of is None else listed("of", of, one=True)
            names = names or [value.name or "" for value in self.prepared.graph.outputs[:1]]
        values = outer_values(self.prepared.graph)
        named = [values[name] for name in names if name in values]
        return [value for value in named if is_floating(value) or (value.dtype is None and not self.whole)]

    def targets(self, wrt: Sequence[str] | None, parameters: Sequence[Parameter]) -> list[str]:
        """The names to differentiate with respect to, as `onward.gradient` takes them."""
        try:
            return target_names(self.prepared, wrt)
        except UnknownNameError:
            raise
        except OnwardError as error:
            reason, _, remedy = str(error).partition("; ")
            remedy = f"{remedy[:1].upper()}{remedy[1:]}." if wrt is None else "Leave it out of `wrt`."
            self.blockers.append(Blocker("parameters", reason, remedy))
            return [parameter.name for parameter in parameters if parameter.trainable]

    def rehearse(self, names: Sequence[str], outputs: Sequence[str]) -> Rehearsal | None:
        """Build the gradient, noting what cannot be differentiated; None where there is none."""
        trainable = list(names)
        if not self.whole:
            refused: list[Missing] = []
            try:
                model = expand_missing_rules(self.prepared, trainable, outputs, refused)
            except Exception:
                return None  # why the model could not be prepared is reported already
            self.blockers.extend(refusals(model, refused, trainable))
            return None
        try:
            rehearsal = rehearse(self.prepared, trainable, outputs)
        except Exception as error:
            self.blockers.append(blocker_of(error))
            return None
        self.blockers.extend(refusals(rehearsal.model, rehearsal.refused, trainable))
        self.blockers.extend(rule_failures(rehearsal.model, rehearsal.failures, trainable))
        return rehearsal

    def estimate(
        self,
        rehearsal: Rehearsal | None,
        names: Sequence[str],
        ends: Sequence[ir.Value],
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        sizes: dict[str, int],
        assumed: list[str],
    ) -> tuple[Flops | None, Rehearsal | None]:
        """The operations of a step, and the backward pass for these sizes."""
        model = self.prepared
        trainable = [parameter for parameter in parameters if parameter.trainable]
        sized = rehearsal if rehearsal is not None and not self.blockers else None
        errors = []
        for tried in growing(self.prepared, sizes, assumed) if sizes and self.whole else ():
            try:
                model = with_sizes(self.prepared, tried)
                if sized is not None:
                    sized = rehearse(model, names, [end.name or "" for end in ends])
                sizes = tried
                break
            except Exception as error:
                model = self.prepared
                errors.append(error)
        else:
            if errors:
                shown = ", ".join(f"{name!r}: {size}" for name, size in sizes.items())
                self.notes.append(
                    f"The model does not take dims={{{shown}}}, so the estimate is rough; give sizes that it takes "
                    f"({blocker_of(errors[0]).reason[:200]})"
                )
        try:
            flops = flops_of(model, sized, optimizer, trainable, sizes, assumed)
        except Exception as error:  # an invalid model
            self.notes.append(f"The operations of a step could not be counted ({blocker_of(error).reason[:200]})")
            return None, None
        if flops.uncertain:
            operators = ", ".join(flops.uncertain[:8]) + (" ..." if len(flops.uncertain) > 8 else "")
            self.notes.append(f"Dimensions that only data decides count as 1 in the estimate ({operators})")
        return flops, sized


def _names(wrt: Sequence[str] | None) -> list[str] | None:
    return None if wrt is None else listed("wrt", wrt, one=True)


def _name_of(model: ModelLike, loaded: ir.Model) -> str:
    if isinstance(model, (str, os.PathLike)):
        return Path(model).name
    if isinstance(model, onnx.ModelProto):
        return model.graph.name or "model"
    return loaded.graph.name or "model"


def _versions(loaded: ir.Model, rehearsal: Rehearsal | None) -> Versions:
    newest, newest_ir = accepted_by_runtime()
    domains = {"" if name == "ai.onnx" else name: version for name, version in loaded.opset_imports.items()}
    return Versions(
        opset=domains.get("", newest),
        ir_version=loaded.ir_version,
        domains=domains,
        newest_opset=newest,
        newest_ir_version=newest_ir,
        training_opset=None if rehearsal is None else rehearsal.opset,
    )


def _described(value: ir.Value) -> Input:
    shape = dims(value)
    return Input(value.name or "?", dtype_name(value), None if shape is None else list(shape), value.is_initializer())
