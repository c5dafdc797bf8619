"""Draw the graphs of docs/explanation as SVG: forward to the right, backward to the left, an arrow for each value.

python scripts/draw_graphs.py            write the pictures
python scripts/draw_graphs.py --check    fail if they are not what would be written
"""

from __future__ import annotations

import html
import sys
from dataclasses import dataclass
from pathlib import Path

import onnx

import onward

TARGET = Path(__file__).parents[1] / "docs" / "explanation"
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 96, 34, 46, 22, 12
STYLE = """
  text { font: 13px system-ui, sans-serif; text-anchor: middle; dominant-baseline: central; fill: #1f2937 }
  .node { fill: #dbeafe; stroke: #2563eb }
  .backward { fill: #ffedd5; stroke: #c2410c }
  .end { fill: #f3f4f6; stroke: #6b7280 }
  path { fill: none; stroke: #6b7280; stroke-width: 1.3; marker-end: url(#arrow) }
  #arrow path { fill: #6b7280; stroke: none }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb } .node { fill: #1e3a8a } .backward { fill: #7c2d12 }
    .end { fill: #374151 } path { stroke: #9ca3af }
  }
"""


@dataclass(frozen=True)
class Box:
    name: str
    label: str
    kind: str
    sources: tuple[str, ...]


def boxes_of(model: onnx.ModelProto) -> list[Box]:
    """Inputs, nodes and outputs; constants, and nodes that only find out shapes, are left out."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    made = {output: node.name or output for node in graph.node for output in node.output}
    shown = {value.name for value in graph.input} | {name for name in weights if not name.startswith("const/")}
    boxes = [Box(name, name, "end", ()) for name in [*(v.name for v in graph.input), *sorted(weights & shown)]]
    for node in graph.node:
        sources = tuple(made.get(name, name) for name in node.input if name in made or name in shown)
        kind = "backward" if node.name.startswith("grad/") else "node"
        boxes.append(Box(node.name or node.output[0], node.op_type, kind, sources))
    boxes += [Box(f"{v.name} ", v.name, "end", (made[v.name],)) for v in graph.output if v.name in made]
    return boxes


def depths_of(boxes: list[Box]) -> dict[str, int]:
    """How many of these boxes lie before each."""
    depths: dict[str, int] = {}
    for box in boxes:  # in the order of the graph, so that sources come first
        depths[box.name] = 1 + max((depths[source] for source in box.sources if source in depths), default=-1)
    return depths


def grid_of(boxes: list[Box]) -> dict[str, tuple[int, int]]:
    """The column and row of each box: the forward pass to the right, and below it the backward pass to the left."""
    returning = {box.name for box in boxes if box.kind == "backward"}
    returning |= {box.name for box in boxes if returning.intersection(box.sources)}
    users = {source: box for box in reversed(boxes) for source in box.sources}
    # What only the backward pass takes comes in from below it.
    below = {box.name for box in boxes if not box.sources and users[box.name].name in returning}
    going = [box for box in boxes if box.name not in returning | below]
    columns = depths_of(going)
    back = depths_of([box for box in boxes if box.name in returning])
    last = max([*columns.values(), *back.values()])
    columns.update({name: last - depth for name, depth in back.items()})
    columns.update({name: columns[users[name].name] + 1 for name in below})
    rows: dict[tuple[int, int], int] = {}
    places = {}
    lane = max(sum(columns[box.name] == column for box in going) for column in columns.values())
    for box in boxes:
        first = lane + 1 if box.name in below else lane if box.name in returning else 0
        key = (columns[box.name], first)
        rows[key] = rows.get(key, first - 1) + 1
        places[box.name] = (columns[box.name], rows[key])
    return places


def arrow(source: tuple[int, int], target: tuple[int, int], down: bool) -> str:
    """From one box to another; `down` into its top, from the pass above."""
    (from_x, from_y), (x, y) = source, target
    if down:
        start, end = (from_x + WIDTH, from_y + HEIGHT / 2), (x + WIDTH / 3, y)
        bend = ((start[0] + GAP_X / 2, start[1]), (start[0] + GAP_X / 2, end[1] - GAP_Y * 2))
        if x > start[0] + GAP_X:
            bend = ((start[0] + GAP_X, start[1] + GAP_Y * 2), (end[0], start[1] + GAP_Y))
    else:
        left = x < from_x
        start, end = (from_x + WIDTH * (not left), from_y + HEIGHT / 2), (x + WIDTH * left, y + HEIGHT / 2)
        middle = (start[0] + end[0]) / 2
        bend = ((middle, start[1]), (middle, end[1]))
    points = " ".join(f"{place[0]:g} {place[1]:g}" for place in (*bend, end))
    return f'<path d="M{start[0]:g} {start[1]:g}C{points}"/>'


def drawn(boxes: list[Box]) -> str:
    places = {
        name: (MARGIN + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y))
        for name, (column, row) in grid_of(boxes).items()
    }
    kinds = {box.name: box.kind for box in boxes}
    width = max(x for x, _ in places.values()) + WIDTH + MARGIN
    height = max(y for _, y in places.values()) + HEIGHT + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" height="{height}">',
        f"<style>{STYLE}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    for box in boxes:
        for source in dict.fromkeys(box.sources):
            down = box.kind == "backward" and kinds[source] != "backward" and places[source][1] < places[box.name][1]
            parts.append(arrow(places[source], places[box.name], down))
    for box in boxes:
        x, y = places[box.name]
        corner = HEIGHT / 2 if box.kind == "end" else 5
        parts.append(f'<rect class="{box.kind}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="{corner}"/>')
        parts.append(f'<text x="{x + WIDTH / 2}" y="{y + HEIGHT / 2}">{html.escape(box.label)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def step() -> list[Box]:
    """A training step as a whole: not the graph of a model, which would not fit on a page."""
    return [
        Box("batch", "batch", "end", ()),
        Box("parameters", "parameters", "end", ()),
        Box("forward", "forward", "node", ("batch", "parameters")),
        Box("loss", "loss", "node", ("forward",)),
        Box("loss ", "loss", "end", ("loss",)),
        Box("backward", "backward", "backward", ("loss", "forward")),
        Box("slots", "slots", "end", ()),
        Box("update", "update", "backward", ("backward", "slots", "parameters")),
        Box("parameters'", "parameters'", "end", ("update",)),
        Box("slots'", "slots'", "end", ("update",)),
    ]


def pictures() -> dict[str, str]:
    forward = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        layer (float[N, 2] x) => (float[N, 1] y) <float[2, 1] w = {0.5, -0.25}> { z = MatMul(x, w) y = Tanh(z) }
    """)
    gradient = onward.gradient(forward, wrt=["w"])
    return {
        "forward.svg": drawn(boxes_of(forward)),
        "gradient.svg": drawn(boxes_of(gradient)),
        "step.svg": drawn(step()),
    }


def main() -> int:
    check = "--check" in sys.argv[1:]
    for name, picture in pictures().items():
        path = TARGET / name
        if not check:
            path.write_text(picture, "utf-8")
        elif not path.is_file() or path.read_text("utf-8") != picture:
            print(f"{path.name} is out of date: run scripts/draw_graphs.py", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
