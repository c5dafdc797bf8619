"""A report as text and as HTML, both from the same sections."""

from __future__ import annotations

import html as escaping
import re
import textwrap
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onward.inspection.content import Blocker, Input, Parameter, Report

_HOW = {
    "rule": "rule",
    "custom rule": "rule registered by you",
    "straight-through": "straight-through estimator",
    "function": "expanded by the standard's definition",
    "model function": "expanded: a function of the model",
    "rewritten": "rewritten to standard operators",
    "constant": "no derivative",
    "integer": "refused: integer arithmetic",
    "missing": "no rule",
}


_WIDTH = 110


@dataclass
class Section:
    """A title, what to say in a line, and a table."""

    title: str
    summary: str = ""
    rows: list[list[str]] = field(default_factory=list)


def text(report: Report, limit: int | None) -> str:
    """Aligned plain text."""
    lines = [_headline(report)]
    for section in _sections(report, limit):
        lines += ["", f"{section.title}: {section.summary}" if section.summary else section.title]
        lines += _aligned(section.rows)
    return "\n".join(lines)


def html(report: Report) -> str:
    """Tables, for notebooks."""
    parts = [f"<p><b>{escaping.escape(_headline(report))}</b></p>"]
    for section in _sections(report, limit=None):
        parts.append(f"<details><summary><b>{section.title}</b> {escaping.escape(section.summary)}</summary><table>")
        for row in section.rows:
            cells = "".join(f"<td style='text-align:left'>{escaping.escape(cell)}</td>" for cell in row)
            parts.append(f"<tr>{cells}</tr>")
        parts.append("</table></details>")
    return "\n".join(parts)


def _headline(report: Report) -> str:
    if report.ok and report.changes:
        return f"{report.name}: can be trained, but it is another model than torch had, whose exporter changed it"
    if report.ok:
        return f"{report.name}: can be trained"
    count = len(report.blockers)
    return f"{report.name}: cannot be trained as it is, {count} {_plural('blocker', count)}"


def _sections(report: Report, limit: int | None) -> Iterable[Section]:
    if report.blockers:
        yield Section("Blockers", rows=[row for blocker in report.blockers for row in _blocker(blocker, limit)])
    if report.changes:
        yield Section("Changed by the exporter", rows=[[change] for change in report.changes])
    yield _model(report)
    yield _operators(report)
    yield from _parameters(report, limit)
    if report.modes:
        yield _modes(report)
    yield _cost(report)
    if report.notes:
        yield Section("Notes", rows=[[note] for note in report.notes])


def _blocker(blocker: Blocker, limit: int | None) -> Iterable[list[str]]:
    yield [f"{blocker.operator}: {blocker.reason}" if blocker.operator else blocker.reason]
    if blocker.nodes:
        yield [f"  where:  {_listed(blocker.nodes, limit)}"]
    if blocker.parameters:
        yield [f"  before: {_listed(blocker.parameters, limit)}"]
    yield [f"  remedy: {blocker.remedy}"]


def _model(report: Report) -> Section:
    versions = report.versions
    opset = f"{versions.opset} (the installed onnxruntime accepts up to {versions.newest_opset})"
    if versions.training_opset is not None and versions.training_opset != versions.opset:
        opset += f"; training graphs are moved to opset {versions.training_opset}"
    ir_version = f"{versions.ir_version} (up to {versions.newest_ir_version})"
    if versions.ir_version > versions.newest_ir_version:
        ir_version += f"; training graphs get {versions.newest_ir_version}"
    rows = [["opset", opset], ["IR version", ir_version]]
    others = {domain: version for domain, version in versions.domains.items() if domain}
    if others:
        rows.append(["other domains", ", ".join(f"{domain} {version}" for domain, version in others.items())])
    rows += [["input", _typed(value)] for value in report.inputs]
    rows += [["output", _typed(value) + _started(value, report)] for value in report.outputs]
    outputs = {value.name for value in report.outputs}
    rows += [["inner value", f"{name}  (differentiated)"] for name in report.differentiated if name not in outputs]
    dynamic = report.dynamic_dims
    places = "; ".join(name if [name] == where else f"{name} in {', '.join(where)}" for name, where in dynamic.items())
    rows.append(["dynamic dimensions", places or "none"])
    return Section("Model", rows=rows)


def _typed(value: Input) -> str:
    shape = " of unknown rank" if value.shape is None else f" {shown_shape(value.shape)}"
    if value.dtype.startswith(("map(", "seq(")):
        shape = ""  # it has none
    return f"{value.name}  {value.dtype}{shape}" + (" with a default" if value.has_default else "")


def _started(value: Input, report: Report) -> str:
    return "  (differentiated)" if value.name in report.differentiated and len(report.outputs) > 1 else ""


def shown_shape(shape: Iterable[int | str | None]) -> str:
    """A shape as in `[N, 3, ?]`."""
    return f"[{', '.join('?' if dim is None else str(dim) for dim in shape)}]"


def _operators(report: Report) -> Section:
    nodes = sum(operator.count for operator in report.operators)
    kinds = len(report.operators)
    rows = []
    for operator in report.operators:
        how = _HOW[operator.how]
        if operator.blocks:
            how += ": a blocker"
        elif operator.how in ("missing", "integer"):
            how += " (no gradient has to pass it)"
        rows.append([operator.name, f"{operator.count:>5}", how])
    return Section("Operators", f"{nodes} {_plural('node', nodes)} of {kinds} {_plural('kind', kinds)}", rows)


def _parameters(report: Report, limit: int | None) -> Iterable[Section]:
    trainable = report.trainable
    frozen = [parameter for parameter in report.parameters if not parameter.trainable]
    yield Section("Trainable parameters", _total(trainable), _cut([_row(p) for p in trainable], limit))
    # Shapes and axes are many, and nobody takes them for weights.
    settings = [p for p in frozen if p.reason.startswith("not floating point")]
    shown = [p for p in frozen if p not in settings]
    rows = _cut([_row(p, p.reason) for p in shown], limit)
    if settings and limit is not None:
        rows.append([f"and {len(settings)} that {'are' if len(settings) > 1 else 'is'} not floating point"])
    elif settings:
        rows += [_row(p, p.reason) for p in settings]
    if frozen:
        yield Section("Other constants", _total(frozen), rows)


def _row(parameter: Parameter, *more: str) -> list[str]:
    source = [] if parameter.source == "initializer" else [parameter.source]
    return [parameter.name, parameter.dtype, shown_shape(parameter.shape), ", ".join([*more, *source])]


def _total(parameters: list[Parameter]) -> str:
    size = sum(parameter.size for parameter in parameters)
    count = len(parameters)
    elements = _plural("element", size)
    return f"{count} {_plural('tensor', count)}, {size:,} {elements}, {shown_bytes(sum(p.nbytes for p in parameters))}"


def _modes(report: Report) -> Section:
    counts = Counter((mode.operator, mode.mode, mode.effect) for mode in report.modes)
    rows = [[operator, f"{count:>5}", mode, effect] for (operator, mode, effect), count in counts.items()]
    return Section("Dropout and BatchNormalization", rows=rows)


def _cost(report: Report) -> Section:
    rows = []
    flops, state = report.flops, report.state
    if flops is not None:
        rows += [["forward", shown_flops(flops.forward)]]
        rows += [["backward", "no gradient" if flops.backward is None else shown_flops(flops.backward)]]
        rows += [["optimizer", f"{shown_flops(flops.optimizer)} ({state.optimizer_name})"]]
    rows += [
        ["parameters", shown_bytes(state.parameters)],
        ["gradients", shown_bytes(state.gradients)],
        ["optimizer state", f"{shown_bytes(state.optimizer)} ({state.optimizer_name})"],
        ["frozen constants", shown_bytes(state.frozen)],
    ]
    if state.activations is not None:
        rows += [["kept activations", shown_bytes(state.activations)]]
    return Section("Estimate of a step", _sizes(report), rows)


def _sizes(report: Report) -> str:
    flops = report.flops
    if flops is None:
        return "operations are not counted, see the notes"
    sizes = ", ".join(
        f"{name} = {size}{' (assumed)' if name in flops.assumed else ''}" for name, size in flops.dims.items()
    )
    return f"for {sizes}" if sizes else ""


def shown_flops(count: float) -> str:
    """1234567 -> 1.23 MFLOP."""
    for unit in ("FLOP", "kFLOP", "MFLOP", "GFLOP"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} TFLOP"


def shown_bytes(count: float) -> str:
    """1234567 -> 1.18 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:,.4g} TiB"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def _listed(names: list[str], limit: int | None) -> str:
    if limit is None or len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def _cut(rows: list[list[str]], limit: int | None) -> list[list[str]]:
    if limit is None or len(rows) <= limit:
        return rows
    return [*rows[:limit], [f"and {len(rows) - limit} more"]]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns as wide as their longest cell; what has one cell is a line of its own."""
    columns = max((len(row) for row in rows if len(row) > 1), default=0)
    widths = [max(len(row[index]) for row in rows if 1 < len(row) > index) for index in range(columns)]
    lines = []
    for row in rows:
        if len(row) > 1:
            lines.append("  " + "  ".join(cell.ljust(widths[index]) for index, cell in enumerate(row)).rstrip())
        else:
            lines += _wrapped(row[0])
    return lines


def _wrapped(line: str) -> list[str]:
    """A long sentence in lines, indented as its beginning."""
    label = re.match(r"\s*(\w+: +)?", line)
    indent = " " * (2 + len(label[0] if label else ""))
    return textwrap.wrap(
        line, _WIDTH, initial_indent="  ", subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
