"""`onward inspect` and `onward export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward.cli import console, options

_SHOWN = 25


def inspect(
    path: Annotated[Path, typer.Argument(metavar="MODEL|CHECKPOINT", help="A file, or the folder of a training.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="Another one: what differs?", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Leave nothing out of long lists.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show what is in a model or a checkpoint, or what changed from one to another."""
    from onward.cli import inspecting

    first = inspecting.content_of(path)
    if other is None:
        if as_json:
            console.emit(first.to_dict())
        else:
            _show(first, everything)
        return
    second = inspecting.content_of(other)
    found = inspecting.changes(first, second)
    if as_json:
        same = len([name for name in first.tensors if name in second.tensors]) - len(_moved(found))
        console.emit({"first": str(first.path), "second": str(second.path), "same": same, "changes": found})
        return
    _show_changes(first, second, found, everything)


def _moved(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [change for change in found if not change["change"].startswith("only")]


def _show(content: Any, everything: bool) -> None:
    facts = [
        (name.replace("_", " "), _told(value)) for name, value in content.facts.items() if value not in ({}, "", [])
    ]
    console.table(f"{content.path}: {content.kind}", ["", ""], facts)
    if content.operators:
        nodes = ", ".join(f"{name} {count}" for name, count in content.operators.items())
        console.say(f"{sum(content.operators.values())} nodes: {nodes}\n")
    tensors = list(content.tensors.items())
    limit = len(tensors) if everything else _SHOWN
    rows = [(name, x.dtype, "x".join(map(str, x.shape)) or "scalar", _range(x)) for name, x in tensors[:limit]]
    total = sum(x.size for x in content.tensors.values())
    console.table(f"{len(tensors)} tensors with {total:,} numbers", ["tensor", "type", "shape", "values"], rows)
    if len(tensors) > limit:
        console.say(f"... and {len(tensors) - limit} more (--all)")


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cut(told)}" for name, told in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _cut(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _range(array: Any) -> str:
    if array.dtype.kind not in "iuf" or not array.size:
        return ""
    if array.size == 1:
        return f"{array.reshape(-1)[0]:.4g}"
    return f"{array.min():.4g} to {array.max():.4g}"


def _show_changes(first: Any, second: Any, found: list[dict[str, Any]], everything: bool) -> None:
    both = [name for name in first.tensors if name in second.tensors]
    console.say(f"{first.path} -> {second.path}: {len(both) - len(_moved(found))} of {len(both)} tensors are the same")
    ordered = sorted(found, key=lambda change: -change.get("relative", float("inf")))
    rows = [
        (
            change["name"],
            "x".join(map(str, change["shape"])) or "scalar",
            change["change"] if "relative" not in change else f"{change['relative']:.2%}",
            f"{change['largest']:.3g}" if "largest" in change else "",
        )
        for change in (ordered if everything else ordered[:_SHOWN])
    ]
    if rows:
        console.table("", ["tensor", "shape", "moved", "largest change"], rows, right=["moved", "largest change"])
    if len(rows) < len(found):
        console.say(f"... and {len(found) - len(rows)} more (--all)")
    if first.operators and second.operators and first.operators != second.operators:
        differ = {
            name: second.operators.get(name, 0) - first.operators.get(name, 0)
            for name in sorted({*first.operators, *second.operators})
        }
        console.say("nodes: " + ", ".join(f"{name} {count:+d}" for name, count in differ.items() if count))


def export(
    source: Annotated[Path, typer.Argument(metavar="DIR", help="What `onward train` or `onward artifacts` wrote.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="The .onnx file to write; after --lora, also an .onnx_adapter.",
        ),
    ],
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Another checkpoint than the newest of the folder.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write the model of a training for inference: the inputs and outputs of the original file, other weights."""
    from onward.cli import exporting

    said = exporting.export(source, out, checkpoint)
    if as_json:
        console.emit({"file": str(out), "checkpoint": said})
    else:
        console.say(f"wrote {out} ({console.size(out.stat().st_size)}) from {said}")
